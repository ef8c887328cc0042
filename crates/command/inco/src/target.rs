//! The target of a command: a service or an instance.

use model::InstanceId;

/// A service, an instance, or an instance of a named service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    pub(crate) service: Option<&'a str>,
    pub(crate) instance: Option<InstanceId>,
}

impl Target<'_> {
    /// `firewall`, `firewall/3` or `3`.
    pub(crate) fn of(text: &str) -> Target<'_> {
        let id = |text: &str| text.parse().ok().map(InstanceId);
        match text.split_once('/') {
            Some((service, instance)) => Target {
                service: Some(service),
                instance: Some(id(instance).unwrap_or(InstanceId(u32::MAX))),
            },
            None => match id(text) {
                Some(instance) => Target {
                    service: None,
                    instance: Some(instance),
                },
                None => Target {
                    service: Some(text),
                    instance: None,
                },
            },
        }
    }
}
