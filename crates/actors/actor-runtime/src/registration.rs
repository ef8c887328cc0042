use std::fmt;

use actor_objects::Objects;

use crate::actor::Actor;

/// Messages that wait in a mailbox, at most, unless a registration says otherwise.
pub const MAILBOX_LIMIT: usize = 1_024;

/// An actor with its state.
pub(crate) struct Instance {
    pub(crate) actor: Box<dyn Actor>,
    pub(crate) objects: Option<Objects>,
}

impl Instance {
    /// How many objects it has, and their bytes; nothing where it has no region.
    pub(crate) fn objects(&self) -> Option<(u64, u64)> {
        let objects = self.objects.as_ref()?;
        Some((objects.len() as u64, objects.used_bytes()))
    }
}

/// An actor as a runtime takes it.
pub struct Registration {
    pub(crate) name: String,
    /// Boxed, since a core takes one out while it runs.
    #[expect(clippy::vec_box, reason = "see above")]
    pub(crate) instances: Vec<Box<Instance>>,
    pub(crate) mailbox_limit: usize,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("name", &self.name)
            .field("instances", &self.instances.len())
            .field("mailbox_limit", &self.mailbox_limit)
            .finish()
    }
}

impl Registration {
    /// An actor that runs on one core at a time: its messages end in the order in which they came.
    pub fn new(name: &str, actor: Box<dyn Actor>) -> Registration {
        Registration::parallel(name, vec![actor])
    }

    /// An actor that runs on as many cores at a time as it has instances; at least one. Which instance gets a message is
    /// open, and messages may end in another order: for actors without state.
    pub fn parallel(name: &str, instances: Vec<Box<dyn Actor>>) -> Registration {
        Registration {
            name: name.to_owned(),
            instances: (instances.into_iter())
                .map(|actor| Box::new(Instance { actor, objects: None }))
                .collect(),
            mailbox_limit: MAILBOX_LIMIT,
        }
    }

    /// The same with another limit of its mailbox, in messages.
    #[must_use]
    pub fn mailbox_limit(self, mailbox_limit: usize) -> Registration {
        Registration {
            mailbox_limit,
            ..self
        }
    }

    /// The same with the region of its objects. Of an actor with several instances the first one has it.
    #[must_use]
    pub fn objects(mut self, objects: Objects) -> Registration {
        if let Some(instance) = self.instances.first_mut() {
            instance.objects = Some(objects);
        }
        self
    }

    /// Takes the region of its objects, where it has one: to move it.
    pub fn take_objects(&mut self) -> Option<Objects> {
        self.instances
            .iter_mut()
            .find_map(|instance| instance.objects.take())
    }
}
