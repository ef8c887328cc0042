//! What a command is about: a service, or one of its instances.

use model::InstanceId;

/// A service, an instance, or an instance by both.
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
