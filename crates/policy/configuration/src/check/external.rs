//! Checks of services that translate to external addresses.

use model::PortKind;

use super::line_of;
use crate::read::Reader;
use crate::types::*;
use crate::units::ValueError;

pub(super) fn check(reader: &mut Reader, configuration: &Configuration) {
    let (switch, drivers) = (&configuration.switch, reader.drivers);
    for (index, service) in configuration.services.iter().enumerate() {
        let Some(ports) = &service.external else { continue };
        let kinds = service.port_kinds();
        let mut wrong = |key: &str, what: String, write: &str| {
            let key = format!("service.{}.{key}", service.name);
            reader.report(&key, ValueError::new(what, write));
        };
        if !switch.can.port_blocks {
            let what = format!(
                "the driver {} does not know who owns an external port",
                switch.driver.name()
            );
            let others = SwitchDriver::WORDS.iter();
            let able = others.copied().find(|(_, other)| drivers(*other).port_blocks);
            let write = able.map_or_else(
                || "remove it".to_owned(),
                |(word, _)| format!("remove it, or write driver = \"{word}\" in [switch]"),
            );
            wrong("external", what, &write);
            continue;
        }
        let other = match () {
            () if service.vip.is_some() => Some(("vip", "remove it, and write match")),
            // Flows need their mapping wherever they go.
            () if service.affinity == Affinity::Relaxed && !service.move_state => Some((
                "affinity",
                "write affinity = \"strict\", or move_state = true, too",
            )),
            () if service.affinity_key.reads_content() => {
                Some(("affinity_key", "write \"flow\" or \"source\""))
            }
            () if !kinds
                .iter()
                .all(|of| matches!(of, PortKind::Memif | PortKind::Frames)) =>
            {
                Some(("port", "write port = \"memif\" or \"frames\""))
            }
            () => None,
        };
        if let Some((key, write)) = other {
            wrong(key, "this cannot be together with external".to_owned(), write);
        }
        let (blocks, instances) = (u32::from(ports.external.blocks()), service.instance_limit());
        if blocks <= instances {
            let what = format!(
                "{blocks} blocks for {instances} instances, standby included, and one more for a rollout"
            );
            wrong("external", what, "write more addresses, or a smaller block");
        }
        let mut earlier = configuration.services.iter().take(index);
        let has_same = |other: &&Service| {
            let theirs = other.external.as_ref().map(|of| &of.external);
            theirs.is_some_and(|theirs| theirs.shares_addresses(&ports.external))
        };
        if let Some(other) = earlier.find(has_same) {
            let line = line_of(&reader.positions, &format!("service.{}.external", other.name));
            let what = format!("service {} (line {line}) has one of these addresses", other.name);
            let key = format!("service.{}.external", service.name);
            reader.report(&key, ValueError::new(what, "write other addresses"));
        }
    }
}
