//! A module's linear memory in an object.

use std::cell::Cell;

use wasmtime::{LinearMemory, MemoryCreator, MemoryType};

/// Bytes of a page.
pub(crate) const PAGE: usize = 64 << 10;

thread_local! {
    /// Where the next memory made by this thread is.
    static NEXT: Cell<Option<Place>> = const { Cell::new(None) };
}

/// An object's bytes as an address: only for comparisons, and to give them to a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    address: usize,
    bytes: usize,
}

impl Place {
    pub(crate) fn of(object: &mut [u8]) -> Place {
        Place {
            address: object.as_mut_ptr().expose_provenance(),
            bytes: object.len(),
        }
    }
}

/// Makes the memory of the instance that `make` makes at `place`.
pub(crate) fn at<T>(place: Place, make: impl FnOnce() -> T) -> T {
    NEXT.set(Some(place));
    let made = make();
    NEXT.set(None);
    made
}

/// Makes memories where [`at`] says.
pub(crate) struct InObject;

/// A memory in an object.
struct ObjectMemory {
    place: Place,
    size: usize,
}

// SAFETY: the memory has no guard pages, and needs none: the engine is configured without, so code checks each access
// against `byte_size`, which is never more than the object's bytes. What is accessible is zero: `grow_to` clears it.
//
// The object must be mapped and nobody else's while the memory is accessed. The memory is accessed only while a module is
// instantiated or called, or through the store. `WasmActor` does both only while it holds `&mut Objects`, and after it has
// compared the object's address and length with those of this place. A store that is dropped does not access it.
unsafe impl LinearMemory for ObjectMemory {
    fn byte_size(&self) -> usize {
        self.size
    }

    fn byte_capacity(&self) -> usize {
        self.place.bytes
    }

    fn grow_to(&mut self, size: usize) -> wasmtime::Result<()> {
        if size > self.place.bytes {
            return Err(wasmtime::Error::msg("the actor's region has no room"));
        }
        if size > self.size {
            // SAFETY: the bytes are in the object, see above.
            unsafe { self.as_ptr().add(self.size).write_bytes(0, size - self.size) };
            self.size = size;
        }
        Ok(())
    }

    fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.place.address)
    }
}

// SAFETY: as above.
unsafe impl MemoryCreator for InObject {
    fn new_memory(
        &self,
        _: MemoryType,
        minimum: usize,
        _: Option<usize>,
        reserved: Option<usize>,
        guard: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        let place = NEXT.take().ok_or("a memory without an object")?;
        if guard > 0 || reserved.is_some_and(|bytes| bytes > place.bytes) {
            return Err("an object has no guard pages".to_owned());
        }
        let mut memory = ObjectMemory { place, size: 0 };
        let grown = memory.grow_to(minimum);
        grown.map_err(|error| error.to_string())?;
        Ok(Box::new(memory))
    }
}
