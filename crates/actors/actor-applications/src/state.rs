//! How an actor finds its state in its objects, and what a step of it sends.
//!
//! The Rust value of an actor holds its settings only. Its state is in objects. The first one, the root, has the ids of
//! the others. So a new value of the same type goes on where the old one was, on either side, at any message.

use actor_objects::{ObjectError, ObjectId, Objects};
use actor_runtime::{Address, Context};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first object that an actor allocates: place 0, generation 1.
const ROOT: ObjectId = ObjectId::from_bits(1 << 32);

/// Why an actor of an application cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// It was registered without a region.
    #[error("it has no objects")]
    NoObjects,
    /// Its region has no room, or an id is wrong.
    #[error("its objects: {0}")]
    Objects(#[from] ObjectError),
    /// The objects are not those of this actor.
    #[error("its objects have another layout")]
    Layout,
    /// A table could not be written or read.
    #[error("its tables: {0}")]
    Storage(#[from] crate::storage::StorageError),
}

/// What a step sends; it leaves when the step has ended without a failure.
#[derive(Debug, Default)]
pub(crate) struct Outbox(Vec<(Address, u32, Vec<u8>)>);

impl Outbox {
    pub(crate) fn send(&mut self, to: Address, kind: u32, body: Vec<u8>) {
        self.0.push((to, kind, body));
    }
}

/// Runs a step of an actor on its objects. An actor that fails is stopped by its runtime.
pub(crate) fn step(
    context: &mut Context<'_>,
    step: impl FnOnce(&mut Objects, &mut Outbox) -> Result<(), Failure>,
) {
    let mut outbox = Outbox::default();
    let result = match context.objects() {
        Some(objects) => step(objects, &mut outbox),
        None => Err(Failure::NoObjects),
    };
    match result {
        Ok(()) => {
            for (to, kind, body) in outbox.0 {
                context.send(to, kind, body);
            }
        }
        Err(failure) => context.fail(failure.to_string()),
    }
}

/// Bytes that are a record.
pub(crate) trait Record: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Copy {}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned + Copy> Record for T {}

/// Makes the root, which must be the first object.
pub(crate) fn create_root<R: Record>(objects: &mut Objects, root: &R) -> Result<(), Failure> {
    if objects.allocate(size_of::<R>())? != ROOT {
        return Err(Failure::Layout);
    }
    set_root(objects, root)
}

pub(crate) fn root<R: Record>(objects: &Objects) -> Result<R, Failure> {
    R::read_from_bytes(objects.get(ROOT)?).map_err(|_| Failure::Layout)
}

pub(crate) fn set_root<R: Record>(objects: &mut Objects, root: &R) -> Result<(), Failure> {
    Ok(objects.write(ROOT, 0, root.as_bytes())?)
}

/// A new object with these bytes; at least one.
pub(crate) fn allocate(objects: &mut Objects, bytes: &[u8]) -> Result<ObjectId, Failure> {
    let id = objects.allocate(bytes.len())?;
    objects.write(id, 0, bytes)?;
    Ok(id)
}

/// The object as an array of records; what is behind the last whole record is left out.
pub(crate) fn rows<R: Record>(objects: &Objects, id: ObjectId) -> Result<&[R], Failure> {
    let bytes = objects.get(id)?;
    let whole = bytes.len() / size_of::<R>() * size_of::<R>();
    <[R]>::ref_from_bytes(&bytes[..whole]).map_err(|_| Failure::Layout)
}

/// The same, to be changed.
pub(crate) fn rows_mut<R: Record>(objects: &mut Objects, id: ObjectId) -> Result<&mut [R], Failure> {
    let bytes = objects.get_mut(id)?;
    let whole = bytes.len() / size_of::<R>() * size_of::<R>();
    <[R]>::mut_from_bytes(&mut bytes[..whole]).map_err(|_| Failure::Layout)
}
