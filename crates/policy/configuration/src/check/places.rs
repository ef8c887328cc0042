//! Checks of places, and of where services put their instances.

use model::PortKind;
use placement::{PlaceId, Placement};

use super::line_of;
use crate::read::Reader;
use crate::types::*;
use crate::units::{ValueError, show_rate};

pub(super) fn check(reader: &mut Reader, configuration: &Configuration) {
    let places = &configuration.places;
    check_places(reader, configuration);
    for service in configuration.services.iter().filter(|of| of.has_containers()) {
        if places.is_empty() && service.exclusive {
            let what = "cores of their own are of a place, and no place is configured";
            let wrong = ValueError::new(what, "add a [[place]] with cpus, or write a number");
            reader.report(&format!("service.{}.cpus", service.written_name()), wrong);
        }
        if places.is_empty() {
            if service.placement == Placement::Split {
                let key = format!("service.{}.placement", service.written_name());
                let what = "no place is configured to spread instances over";
                reader.report(&key, ValueError::new(what, "add two [[place]], or remove it"));
            }
            continue;
        }
        check_service(reader, configuration, service);
    }
}

/// Checks the places among themselves.
fn check_places(reader: &mut Reader, configuration: &Configuration) {
    let places = &configuration.places;
    for (id, place) in configuration.places_with_ids() {
        let (index, earlier) = (id.index(), &places[..id.index()]);
        let key = |name: &str| format!("place[{index}].{name}");
        if let Some(other) = earlier
            .iter()
            .position(|other| other.name == place.name && !place.name.is_empty())
        {
            let line = line_of(&reader.positions, &format!("place[{other}].name"));
            let what = format!("line {line} already has a place {:?}", place.name);
            reader.report(&key("name"), ValueError::new(what, "write another name"));
        }
        let own = (configuration.engine_at(id), place.cpu_list());
        for (other_id, other) in configuration.places_with_ids().take(index) {
            let (engine, cpus) = (configuration.engine_at(other_id), other.cpu_list());
            let is_one_machine = engine.is_same(&own.0) || engine.is_local() && own.0.is_local();
            if let Some(cpu) = own.1.iter().find(|cpu| cpus.contains(cpu))
                && is_one_machine
            {
                let line = line_of(&reader.positions, &format!("place[{}].cpus", other_id.0));
                let what = format!("CPU {cpu} is already one of {:?} (line {line})", other.name);
                reader.report(&key("cpus"), ValueError::new(what, "write other CPUs"));
                break;
            }
        }
    }
}

/// Checks a service with containers against the places where its instances may run.
fn check_service(reader: &mut Reader, configuration: &Configuration, service: &Service) {
    let key = |name: &str| format!("service.{}.{name}", service.written_name());
    let permitted = || {
        configuration
            .places_with_ids()
            .filter(|(place, _)| service.placement.permits(*place))
    };
    let rule = match service.placement {
        Placement::Split => "split",
        Placement::Auto | Placement::At(_) => "auto",
    };
    let last = PlaceId(configuration.places.len().saturating_sub(1) as u8);
    for (id, place) in permitted() {
        let misses_limit = match service.placement {
            Placement::Auto => id != last,
            Placement::Split => true,
            Placement::At(_) => false,
        };
        // Cores are a limit to `auto`.
        let has_cores = service.exclusive && service.placement == Placement::Auto;
        if misses_limit && place.is_unlimited() && !has_cores {
            let what = match service.placement {
                Placement::Split => format!(
                    "it has no limit, and placement = \"split\" of {} spreads by limits",
                    service.name
                ),
                _ => format!(
                    "it has no limit, so that placement = \"auto\" of {} never uses the places after it",
                    service.name
                ),
            };
            let wrong = ValueError::new(
                what,
                "write instances = N, capacity = \"N Mpps\" or collapse = \"N Mpps\"",
            );
            reader.report(&format!("place[{}].name", id.0), wrong);
        }
        if service.exclusive {
            check_cores(reader, configuration, service, (id, place));
        } else if place.share < 1.0 && service.cpus.is_none() {
            let what = format!(
                "place {:?} gives an instance a share of its `cpus`, and the service has none",
                place.name
            );
            reader.report(&key("cpus"), ValueError::new(what, "write cpus, for example 1.0"));
        }
        if place.cpus.is_some() && service.cpuset.is_some() {
            let what = format!("place {:?} says on which CPUs its containers run", place.name);
            reader.report(
                &key("cpuset"),
                ValueError::new(what, "remove it, or cpus of the place"),
            );
        }
        let of_service = match service.capacity {
            Capacity::Pps(pps) => pps,
            Capacity::Learn => 0.0,
        };
        let each = place.instance_pps(of_service, service.cpus.unwrap_or(1.0));
        if let Some(limit) = place.limit_pps().filter(|limit| each > *limit) {
            let is_own = place.capacity_pps.is_some_and(|own| own <= limit);
            let (name, it) = match is_own {
                true => ("capacity", "it".to_owned()),
                false => ("collapse", format!("0.9 of it, {},", show_rate(limit))),
            };
            let what = format!(
                "{it} is less than the {} of one instance of {}",
                show_rate(each),
                service.name
            );
            let write = format!("write a larger {name}, or smaller instances of the service");
            let wrong = ValueError::new(what, write);
            reader.report(&format!("place[{}].{name}", id.0), wrong);
        }
        let port = service.port_at(id);
        if !place.has_ports(port) {
            let what = format!(
                "place {:?} has no ports of the kind {:?}, and placement permits it",
                place.name,
                port.name()
            );
            let write = "write placement = NAME of another place, or add the kind to its ports";
            reader.report(&key("placement"), ValueError::new(what, write));
        }
    }
    let at_least = service.instances.min.saturating_add(service.instances.standby);
    let mut limits = permitted().map(|(_, place)| match (service.exclusive, place.instances) {
        (false, limit) => limit,
        (true, limit) => Some(limit.unwrap_or(u32::MAX).min(place.cpu_list().len() as u32)),
    });
    let most = limits.try_fold(0_u32, |sum, limit| Some(sum.saturating_add(limit?)));
    if let Some(most) = most.filter(|most| *most < at_least) {
        let what = format!("min and standby are {at_least} instances, and its places take {most}");
        let write = "write a smaller min or standby, or a larger `instances` of a place";
        reader.report(&key("instances"), ValueError::new(what, write));
    }
    if configuration.places.len() > 1 && !matches!(service.placement, Placement::At(_)) {
        let is_elsewhere = |(id, _): &(PlaceId, &Place)| !configuration.engine_at(*id).is_local();
        let write = "write placement = NAME of a place";
        if service.port == PortKind::Device {
            let what =
                format!("its devices are of one machine each, and placement = {rule:?} uses all places");
            reader.report(&key("placement"), ValueError::new(what, write));
        } else if let Some((_, place)) = permitted().find(is_elsewhere)
            && !service.has_ports(PortKind::Memif)
        {
            let what = format!(
                "place {:?} is another machine, which needs port = \"device\"",
                place.name
            );
            reader.report(&key("placement"), ValueError::new(what, write));
        }
    }
}

/// Checks a place where each instance of the service has a core to itself.
fn check_cores(
    reader: &mut Reader,
    configuration: &Configuration,
    service: &Service,
    (id, place): (PlaceId, &Place),
) {
    let key = |name: &str| format!("place[{}].{name}", id.0);
    let cpus = place.cpu_list();
    if cpus.is_empty() {
        let what = format!(
            "instances of {} are to have cores of their own, and it has no list of them",
            service.name
        );
        let wrong = ValueError::new(what, "write cpus = \"0-3\"");
        reader.report(&key("name"), wrong);
    }
    if place.share < 1.0 {
        let what = format!("an instance of {} has a whole core", service.name);
        reader.report(&key("share"), ValueError::new(what, "remove it"));
    }
    let mut others = configuration.services.iter().filter(|of| of.has_containers());
    if let Some(other) = others.find(|of| !of.exclusive && of.placement.permits(id)) {
        let what = format!(
            "the cores of place {:?} are for one instance of {} each, and these would use them, too",
            place.name, service.name
        );
        let wrong = ValueError::new(what, "write the name of another place, or cpus = \"exclusive\"");
        reader.report(&format!("service.{}.placement", other.written_name()), wrong);
    }
    let workers = &configuration.switch.workers;
    if let Some(cpu) = cpus.iter().find(|cpu| workers.contains(cpu))
        && configuration.engine_at(id).is_local()
    {
        let what = format!("CPU {cpu} is that of a worker, and an instance is to have it to itself");
        reader.report(&key("cpus"), ValueError::new(what, "write other CPUs"));
    }
}
