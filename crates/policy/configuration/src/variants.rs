//! Variants of a service: what its instances at a place have in the place of the service's own image, program or port.

use std::borrow::Cow;

use model::{PortKind, Ready};
use placement::PlaceId;
use toml::de::DeValue;

use crate::keys;
use crate::nearest::write_one_of;
use crate::read::{At, Reader, Section};
use crate::types::{Configuration, Engine, Service};
use crate::units::ValueError;
use crate::values::usual_ready;

/// The kinds of ports that instances of one service can have beside each other: those of containers on this machine.
const KINDS: [PortKind; 3] = [PortKind::Memif, PortKind::Kernel, PortKind::Frames];

/// What the instances of a service at a place have in the place of its own keys; [`None`]: they have those.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AtPlace {
    /// The place.
    pub place: PlaceId,
    /// Its name.
    pub name: String,
    /// The kind of their ports.
    pub port: Option<PortKind>,
    /// Their image.
    pub image: Option<String>,
    /// Program and arguments. Of an image of their own, the image's.
    pub command: Option<Vec<String>>,
    /// Arguments after those.
    pub args: Option<Vec<String>>,
    /// When they are ready. Of another kind of port, what is usual for that.
    pub ready: Option<Ready>,
}

/// What instances of a service are made from: those at one place, or all others.
#[derive(Clone, Debug)]
pub struct Variant<'a> {
    /// The service with the keys of these instances.
    pub service: Cow<'a, Service>,
    /// What their place has of its own; [`None`] for those of the service itself.
    pub at: Option<&'a AtPlace>,
}

impl Variant<'_> {
    /// The full path of one of their keys: that of their place, where it says something of it.
    pub fn key(&self, name: &str) -> String {
        let service = self.service.written_name();
        let own = self.at.filter(|of| match name {
            "port" => of.port.is_some(),
            "image" => of.image.is_some(),
            "command" => of.command.is_some(),
            "args" => of.args.is_some(),
            "ready" => of.ready.is_some(),
            _ => false,
        });
        match own {
            Some(of) => format!("service.{service}.at.{}.{name}", of.name),
            None => format!("service.{service}.{name}"),
        }
    }

    /// Whether the instances at that place are such.
    fn is_at(&self, place: PlaceId) -> bool {
        match self.at {
            Some(of) => of.place == place,
            None => self.service.at(place).is_none(),
        }
    }
}

impl Service {
    /// What its instances at that place have of their own.
    fn at(&self, place: PlaceId) -> Option<&AtPlace> {
        self.at.iter().find(|of| of.place == place)
    }

    /// What its instances are made from: the service's own keys first, then those of each place that has such.
    pub fn variants(&self) -> impl Iterator<Item = Variant<'_>> {
        let own = Variant {
            service: Cow::Borrowed(self),
            at: None,
        };
        let others = self.at.iter().map(move |of| {
            let mut service = self.clone();
            service.port = of.port.unwrap_or(service.port);
            service.image = of.image.clone().or(service.image);
            service.command = of.command.clone().unwrap_or(service.command);
            service.args = of.args.clone().unwrap_or(service.args);
            service.ready = of.ready.clone().unwrap_or(service.ready);
            service.at.clear();
            Variant {
                service: Cow::Owned(service),
                at: Some(of),
            }
        });
        std::iter::once(own).chain(others)
    }

    /// The kind of ports of its instances at that place.
    pub fn port_at(&self, place: PlaceId) -> PortKind {
        self.at(place).and_then(|of| of.port).unwrap_or(self.port)
    }

    /// When its instances at that place are ready.
    pub fn ready_at(&self, place: PlaceId) -> &Ready {
        let own = self.at(place).and_then(|of| of.ready.as_ref());
        own.unwrap_or(&self.ready)
    }

    /// The kinds of ports of its instances, each once: its own kind first.
    pub fn port_kinds(&self) -> Vec<PortKind> {
        let mut kinds = vec![self.port];
        for kind in self.at.iter().filter_map(|of| of.port) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds
    }

    /// Whether instances may have ports of that kind.
    pub fn has_ports(&self, kind: PortKind) -> bool {
        self.port_kinds().contains(&kind)
    }
}

impl Configuration {
    /// The engines of the places where instances of a variant may be, each once. Those of equal endpoints are one.
    pub fn engines_of_variant(&self, variant: &Variant<'_>) -> Vec<Engine> {
        self.engines_where(|place| variant.service.placement.permits(place) && variant.is_at(place))
    }
}

/// Reads what places have of their own, in the order of places.
pub(crate) fn at_tables(at: At<'_>) -> Result<Vec<AtPlace>, ValueError> {
    let Some(table) = at.value.as_table() else {
        return Err(at.wrong_kind(
            "a table of places",
            "[service.NAME.at.PLACE] above the keys of a place",
        ));
    };
    let mut all = Vec::new();
    for (key, value) in table.iter() {
        let name: &str = key.get_ref();
        let path = format!("{}.{name}", at.path);
        at.reader.note(&path, key.span().start);
        let places = &at.reader.places;
        let index = places.iter().position(|of| of == name && !of.is_empty());
        let Some(index) = index.and_then(|index| u8::try_from(index).ok()) else {
            let known: Vec<&str> = places
                .iter()
                .map(String::as_str)
                .filter(|of| !of.is_empty())
                .collect();
            let write = match known.as_slice() {
                [] => "add a [[place]] with that name".to_owned(),
                _ => write_one_of(name, known),
            };
            at.reader.report(
                &path,
                ValueError::new(format!("there is no place {name:?}"), write),
            );
            continue;
        };
        let read = |at: At<'_>| match at.value {
            DeValue::Table(_) => at.table(keys::at_place),
            _ => Err(at.wrong_kind("a table", "port, image, command, args or ready in it")),
        };
        all.extend(at.reader.value(&path, value.get_ref(), read).map(|of| AtPlace {
            place: PlaceId(index),
            name: str::to_owned(name),
            ..of
        }));
    }
    all.sort_by_key(|of| of.place);
    Ok(all)
}

/// Gives the places of a service what follows from their keys and its own, and refuses what no place can have.
pub(crate) fn finish_variants(reader: &mut Reader, section: &Section<'_>, service: &mut Service) {
    let has_vip = service.vip.is_some();
    if !service.at.is_empty() && !KINDS.contains(&service.port) {
        let kind = service.port.name();
        let what = format!("instances with ports of the kind {kind:?} are the same at all places");
        let write = "remove it, or write port = \"memif\", \"kernel\" or \"frames\"";
        reader.report(&section.key("at"), ValueError::new(what, write));
    }
    for of in &mut service.at {
        if let Some(port) = of.port.filter(|port| !KINDS.contains(port)) {
            let what = format!(
                "ports of the kind {:?} are those of all instances of a service, or of none",
                port.name()
            );
            let key = format!("{}.{}.port", section.key("at"), of.name);
            let write = "write \"memif\", \"kernel\" or \"frames\"";
            reader.report(&key, ValueError::new(what, write));
        }
        if of.image.is_some() {
            of.command.get_or_insert_default();
            of.args.get_or_insert_default();
        }
        if let Some(port) = of.port.filter(|port| *port != service.port) {
            of.ready.get_or_insert_with(|| usual_ready(port, has_vip));
        }
    }
}
