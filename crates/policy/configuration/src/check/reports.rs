//! Checks of load reports: who sends them, who takes them, and who goes by them.

use std::net::IpAddr;

use edge_steering::{SERVICES_LIMIT, service_number};
use model::PortKind;

use super::line_of;
use crate::limits::BY_REPORTS;
use crate::read::Reader;
use crate::types::*;
use crate::units::ValueError;

pub(super) fn check(reader: &mut Reader, configuration: &Configuration) {
    let Reports { sends, takes } = &configuration.reports;
    if sends.is_some() && takes.is_some() {
        let what = "a machine that reports to edges is no edge itself";
        let write = "remove `listen` and `machines`, or `machine`, `to` and `key`";
        reader.report("reports.listen", ValueError::new(what, write));
    }
    if let Some(sends) = sends {
        check_sender(reader, configuration, sends);
    }
    if let Some(takes) = takes {
        check_machines(reader, configuration, &takes.machines);
    }
    for service in &configuration.services {
        check_service(reader, service, takes.is_some());
    }
}

fn check_sender(reader: &mut Reader, configuration: &Configuration, sends: &SentReports) {
    if sends.to.is_empty() {
        let what = "no edge is listed";
        reader.report("reports.to", ValueError::new(what, "write `listen` of an edge"));
    }
    let mut to = sends.to.iter().enumerate();
    if let Some((index, twice)) = to.find(|(index, of)| sends.to[..*index].contains(of)) {
        let what = format!("{twice} is there twice");
        reader.report(
            &format!("reports.to[{index}]"),
            ValueError::new(what, "remove it"),
        );
    }
    let services = &configuration.services;
    if services.len() > SERVICES_LIMIT {
        let what = format!(
            "{} services, and a report has room for {SERVICES_LIMIT}",
            services.len()
        );
        reader.report("reports.to", ValueError::new(what, "write fewer services"));
    }
    for (index, service) in services.iter().enumerate() {
        let number = service_number(&service.name);
        let mut earlier = services[..index].iter();
        if let Some(other) = earlier.find(|other| service_number(&other.name) == number) {
            let what = format!("in reports, it has the same number as {:?}", other.name);
            let key = format!("service.{}", service.written_name());
            reader.report(&key, ValueError::new(what, "give one of them another name"));
        }
    }
}

fn check_machines(reader: &mut Reader, configuration: &Configuration, machines: &[ReportingMachine]) {
    if machines.is_empty() {
        let what = "no machine is listed whose reports are taken";
        let write = "write [[reports.machines]] for each machine, or remove `listen`";
        reader.report("reports.listen", ValueError::new(what, write));
    }
    for (index, machine) in machines.iter().enumerate() {
        let key = |name: &str| format!("reports.machines[{index}].{name}");
        let earlier = || machines.iter().take(index);
        let mut twice = |name: &str, found: Option<usize>| {
            if let Some(other) = found {
                let line = line_of(&reader.positions, &format!("reports.machines[{other}].{name}"));
                let what = format!("line {line} already has a machine with this {name}");
                reader.report(&key(name), ValueError::new(what, format!("write another {name}")));
            }
        };
        twice("number", earlier().position(|of| of.number == machine.number));
        twice(
            "address",
            earlier().position(|of| of.address == machine.address && of.address.is_some()),
        );
        twice(
            "key",
            earlier().position(|of| of.key == machine.key && !of.key.as_os_str().is_empty()),
        );
        let leads_there = |service: &&Service| {
            let mut all = service.instances.addresses().iter();
            goes_by_reports(service) && all.any(|at| machine.address.map(IpAddr::V4) == Some(at.ip()))
        };
        if machine.address.is_some() && !configuration.services.iter().any(|of| leads_there(&of)) {
            let what = "no service with scheduler = \"machines\" leads to this machine";
            let write = "add its address to `instances.from` of a service, or remove the machine";
            reader.report(&key("address"), ValueError::new(what, write));
        }
    }
}

fn goes_by_reports(service: &Service) -> bool {
    service.scheduler.name() == BY_REPORTS
}

fn check_service(reader: &mut Reader, service: &Service, takes_reports: bool) {
    if !goes_by_reports(service) {
        return;
    }
    let key = |name: &str| format!("service.{}.{name}", service.written_name());
    if service.port != PortKind::Tunnel {
        let what = "`machines` goes by reports of machines behind tunnels, and the instances are no such";
        let write = "write another scheduler, for example \"best-fit\"";
        reader.report(&key("scheduler"), ValueError::new(what, write));
        return;
    }
    if !takes_reports {
        let what = "`machines` goes by load reports, and this edge takes none";
        let write = "write `listen` and [[reports.machines]] in [reports], or another scheduler";
        reader.report(&key("scheduler"), ValueError::new(what, write));
    }
    let own = "with `machines`, each machine reports its own capacity, and what is used of it";
    let drawn = "with `machines`, a flow goes to one of the machines that come from its hash";
    for (name, what) in [
        ("capacity", own),
        ("scheduler.limit", own),
        ("scheduler.metric", own),
        ("scheduler.spill", drawn),
    ] {
        if reader.positions.has(&key(name)) {
            reader.report(&key(name), ValueError::new(what, "remove it"));
        }
    }
}
