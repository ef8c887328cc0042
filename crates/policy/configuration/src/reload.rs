//! Compares configurations for a reload.

use model::{KeyChange, Setting};

use crate::key::{KeptValue, Reload};
use crate::types::{Affinity, Configuration, Service};

impl Configuration {
    /// Keys whose value differs in `new`. A service's keys are compared by the service's name, wherever it is in the
    /// file.
    fn changed<'a>(&'a self, new: &'a Configuration) -> impl Iterator<Item = (&'a str, &'a KeptValue)> {
        let is_other = |(key, value): &(&'a String, &'a KeptValue)| {
            self.values.get(*key).is_none_or(|old| old.value != value.value)
        };
        let changed = new.values.iter().filter(is_other);
        changed.map(|(key, value)| (key.as_str(), value))
    }

    /// Whether a service's key differs in `new`: the given key, such as `scheduler`, or any key if `key` is empty.
    pub fn changes_service(&self, new: &Configuration, service: &str, key: &str) -> bool {
        let written = self.service(service).map_or(service, |(_, of)| of.written_name());
        let path = format!("service.{written}.");
        let is_it = |changed: &str| {
            changed
                .strip_prefix(&path)
                .is_some_and(|of| key.is_empty() || of == key)
        };
        self.changed(new).any(|(changed, _)| is_it(changed))
    }

    /// Each key whose value differs in `new`, and each added or removed service, ordered by name.
    pub fn changes_to(&self, new: &Configuration) -> Vec<KeyChange> {
        let service_of = |key: &'_ str| {
            let name = key.strip_prefix("service.").and_then(|key| key.split('.').next());
            name.map(str::to_owned)
        };
        let is_new = |key: &str| service_of(key).is_some_and(|name| self.service(&name).is_none());
        let mut changes = Vec::new();
        for (key, value) in self.changed(new) {
            let needs_restart = self.is_fixed(new, key, value.reload, is_new(key));
            // Omit defaults of a new service.
            if is_new(key) && !value.is_written && !needs_restart {
                continue;
            }
            let old = self.values.get(key);
            // A default may depend on another key.
            let text_differs = old.is_none_or(|old| old.text != value.text);
            let text = |of: &KeptValue| if text_differs { &of.text } else { &of.value }.clone();
            changes.push(KeyChange {
                key: key.to_owned(),
                old: old.map(text),
                new: Some(text(value)),
                needs_restart,
            });
        }
        let only = |of: &Configuration, other: &Configuration| -> Vec<String> {
            let only = of
                .services
                .iter()
                .filter(|it| it.is_written() && other.service(&it.name).is_none());
            only.map(|service| format!("service.{}", service.name)).collect()
        };
        let whole = || Some("a service".to_owned());
        changes.extend(only(new, self).into_iter().map(|key| KeyChange {
            key,
            old: None,
            new: whole(),
            // The rules of new flows are laid out at the switch's start.
            needs_restart: !new.switch.can.service_changes,
        }));
        changes.extend(only(self, new).into_iter().map(|key| KeyChange {
            key,
            old: whole(),
            new: None,
            needs_restart: true,
        }));
        changes.sort_by(|a, b| a.key.cmp(&b.key));
        changes
    }

    /// The services of which `new` makes other instances than those that there are: a rollout replaces these.
    pub fn services_to_roll_out<'a>(&self, new: &'a Configuration) -> Vec<&'a str> {
        let is_of_instances = |kept: &&KeptValue| matches!(kept.reload, Reload::Instances | Reload::Ports);
        let changed = self.changed(new).filter(|(_, kept)| is_of_instances(kept));
        let changed: Vec<&str> = changed.map(|(key, _)| key).collect();
        let is_other = |service: &&Service| {
            let path = format!("service.{}.", service.written_name());
            let has_changed = changed.iter().any(|key| key.starts_with(&path))
                || self.changes_ports(new, &format!("service.{}", service.name));
            has_changed && !service.instances.are_others() && self.service(&service.name).is_some()
        };
        let others = new.services.iter().filter(is_other);
        others.map(|service| service.name.as_str()).collect()
    }

    /// All keys of that service, ordered by name.
    pub fn settings_of(&self, service: &Service) -> Vec<Setting> {
        let path = format!("service.{}.", service.written_name());
        let setting = |(key, kept): (&String, &KeptValue)| {
            let key = key.strip_prefix(&path)?;
            if service.part.is_none() && (key == "actors" || key.starts_with("sides.")) {
                return None;
            }
            let value = if key == "env" && kept.is_written {
                // Environment variables may contain secrets.
                let names = service.env.iter().map(|(name, _)| name.as_str());
                format!("{} (values are not shown)", names.collect::<Vec<_>>().join(", "))
            } else {
                kept.text.trim_end_matches(" (default)").to_owned()
            };
            Some(Setting {
                key: key.to_owned(),
                value,
                is_written: kept.is_written,
            })
        };
        self.values.iter().filter_map(setting).collect()
    }

    /// Whether the key cannot change to its value in `new` at run time.
    fn is_fixed(&self, new: &Configuration, key: &str, reload: Reload, is_new: bool) -> bool {
        match reload {
            Reload::Applies | Reload::Instances | Reload::Keys => false,
            Reload::Counts => self.counts_more(new, key),
            Reload::Restart => !is_new,
            Reload::Ports => !is_new && self.changes_ports(new, key),
            Reload::Rules => !new.switch.can.service_changes && !is_new,
        }
    }

    /// Whether instances of the key's service would have another kind of ports at some place.
    fn changes_ports(&self, new: &Configuration, key: &str) -> bool {
        let name = key.split('.').nth(1).unwrap_or_default();
        let of = |of: &Configuration| {
            let (_, service) = of.service(name)?;
            let places = of.places_with_ids().map(|(place, _)| service.port_at(place));
            Some(places.collect::<Vec<_>>())
        };
        of(self) != of(new)
    }

    /// Whether returned packets would be counted per flow and no flow table does so yet. A table that counts them for
    /// one service counts them for all.
    fn counts_more(&self, new: &Configuration, key: &str) -> bool {
        let asks = |of: &Service| match key.ends_with(".affinity") {
            true => of.affinity == Affinity::Relaxed,
            false => of.flow_counters,
        };
        let service = key.split('.').nth(1).and_then(|name| new.service(name));
        let counts_now = self.services.iter().any(Service::counts_flows);
        !counts_now && service.is_some_and(|(_, service)| asks(service))
    }
}
