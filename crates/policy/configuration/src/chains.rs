//! Checks of chains of services: `next`.

use model::{Capabilities, PortKind};

use crate::read::Reader;
use crate::types::{Affinity, Configuration, Service, SwitchDriver};
use crate::units::ValueError;

/// Services of a chain at most, as the switch has it.
const CHAIN_LIMIT: usize = 7;

impl Configuration {
    /// The service whose next one this is.
    pub fn previous(&self, service: &Service) -> Option<&Service> {
        let is_before = |of: &&Service| of.next.as_ref() == Some(&service.name);
        self.services.iter().find(is_before)
    }

    /// The services behind this one, in order. A chain without an end is followed once.
    fn behind<'a>(&'a self, service: &'a Service) -> impl Iterator<Item = &'a Service> {
        let next = |of: &&Service| Some(self.service(of.next.as_ref()?)?.1);
        std::iter::successors(next(&service), next).take(self.services.len())
    }
}

pub(crate) fn check_chains(reader: &mut Reader, configuration: &Configuration) {
    for service in &configuration.services {
        if let Some(next) = &service.next {
            check_next(reader, configuration, service, next);
        }
        if service.next.is_some() || configuration.previous(service).is_some() {
            check_service(reader, configuration, service);
        }
    }
}

/// Checks the link of a service to its next one.
fn check_next(reader: &mut Reader, configuration: &Configuration, service: &Service, next: &str) {
    let key = format!("service.{}.next", service.name);
    let switch = &configuration.switch;
    if !switch.can.chains {
        let mut others = SwitchDriver::WORDS.iter();
        let other = others.find(|(_, driver)| (reader.drivers)(*driver).chains);
        let other = other.map_or_else(String::new, |(word, _)| {
            format!(", or driver = \"{word}\" in [switch]")
        });
        let what = format!(
            "the driver {} gives what an instance returns to its uplink, and does not see it",
            switch.driver.name()
        );
        return reader.report(&key, ValueError::new(what, format!("remove it{other}")));
    }
    let Some((_, to)) = configuration.service(next) else {
        let others = configuration.services.iter().filter(|of| of.name != service.name);
        let others: Vec<&str> = others.map(|of| of.name.as_str()).collect();
        let write = match others.as_slice() {
            [] => "remove it".to_owned(),
            others => format!("write {}", others.join(" or ")),
        };
        return reader.report(
            &key,
            ValueError::new(format!("there is no service {next:?}"), write),
        );
    };
    let behind: Vec<&Service> = configuration.behind(service).collect();
    if let Some(at) = behind.iter().position(|of| of.name == service.name) {
        let names = std::iter::once(service).chain(behind.iter().take(at + 1).copied());
        let names: Vec<&str> = names.map(|of| of.name.as_str()).collect();
        let what = format!("this chain has no end: {}", names.join(" > "));
        return reader.report(&key, ValueError::new(what, "remove it from the last one"));
    }
    if behind.len() == CHAIN_LIMIT {
        let what = format!("this chain has more than {CHAIN_LIMIT} services");
        reader.report(
            &key,
            ValueError::new(what, "put several functions into one instance"),
        );
    }
    if let Some(other) = configuration.previous(to).filter(|of| of.name != service.name) {
        let line = reader.positions.of(&format!("service.{}.next", other.name)).line;
        let what = format!(
            "{next} is already the next service of {} (line {line})",
            other.name
        );
        let write = "write another service: what comes back to it has one way";
        reader.report(&key, ValueError::new(what, write));
    }
    if service.uplinks != to.uplinks {
        let what =
            format!("{next} has other uplinks, and packets pass both services from one uplink to another");
        reader.report(
            &key,
            ValueError::new(what, "write the same uplinks in both, in the same order"),
        );
    }
    for of in ["match", "vip"] {
        let key = format!("service.{next}.{of}");
        if reader.positions.has(&key) {
            let what = format!(
                "{next} gets what {} returns, and no packets besides",
                service.name
            );
            reader.report(&key, ValueError::new(what, "remove it"));
        }
    }
}

/// Checks what each service of a chain must be like.
fn check_service(reader: &mut Reader, configuration: &Configuration, service: &Service) {
    let mut wrong = |is_wrong: bool, key: &str, what: &str, write: &str| {
        if is_wrong {
            let what = format!("a service of a chain {what}");
            reader.report(
                &format!("service.{}.{key}", service.name),
                ValueError::new(what, write),
            );
        }
    };
    let can: &Capabilities = &configuration.switch.can;
    if !can.chains {
        return;
    }
    wrong(
        service.has_ports(PortKind::Kernel),
        "port",
        "gives packets back, and a program with a kernel port ends connections",
        "write port = \"memif\" or \"frames\"",
    );
    wrong(
        service.vip.is_some() && configuration.previous(service).is_none(),
        "vip",
        "has no address: its packets go on to another one",
        "write match in its place",
    );
    wrong(
        service.external.is_some(),
        "external",
        "has no external addresses: their packets come to the service itself",
        "remove it, or next",
    );
    wrong(
        !service.symmetric,
        "symmetric",
        "has both directions of a flow at one instance",
        "write symmetric = true",
    );
    wrong(
        service.affinity == Affinity::Relaxed,
        "affinity",
        "moves no flow from an instance that works",
        "write affinity = \"strict\"",
    );
    wrong(
        service.flow_counters,
        "flow_counters",
        "does not count returned packets for each flow",
        "write flow_counters = false",
    );
    wrong(
        service.affinity_key.reads_content(),
        "affinity_key",
        "knows its flows by their addresses and ports",
        "write \"flow\", \"addresses\" or \"source\"",
    );
}
