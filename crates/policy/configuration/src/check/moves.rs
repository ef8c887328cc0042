//! Checks of services whose flows move with the state of their function.

use model::PortKind;

use crate::read::Reader;
use crate::types::*;
use crate::units::ValueError;

pub(super) fn check(reader: &mut Reader, configuration: &Configuration) {
    for service in configuration.services.iter().filter(|of| of.move_state) {
        let other = match () {
            () if service.affinity != Affinity::Relaxed => {
                Some(("affinity = \"strict\"", "write affinity = \"relaxed\""))
            }
            () if service.port_kinds() != [PortKind::Memif] => {
                Some(("this kind of port", "write port = \"memif\""))
            }
            () if !service.symmetric => Some(("symmetric = false", "write symmetric = true")),
            () if service.vip.is_some() => Some(("vip", "remove it, and write match")),
            () => None,
        };
        if let Some((with, write)) = other {
            let key = format!("service.{}.move_state", service.name);
            let what = format!("this cannot be together with {with}");
            reader.report(&key, ValueError::new(what, write));
        }
    }
}
