//! What a reload may change.

use crate::keys::Reload;
use crate::types::{Affinity, Configuration, Service, SwitchDriver};

impl Configuration {
    /// Keys whose value is another one in `new`, each with what a reload does with it. Keys of a service are those of
    /// the service of that name, wherever it stands.
    fn changes<'a>(&'a self, new: &'a Configuration) -> impl Iterator<Item = (&'a str, Reload)> {
        let changed = |(key, value): (&'a String, &'a (Reload, String))| {
            (self.values.get(key) != Some(value)).then_some((key.as_str(), value.0))
        };
        new.values.iter().filter_map(changed)
    }

    /// Whether a key of that service is another one in `new`: `scheduler`, or any key where `key` is empty.
    pub fn changes_service(&self, new: &Configuration, service: &str, key: &str) -> bool {
        let path = format!("service.{service}.");
        let is_it = |changed: &str| {
            changed
                .strip_prefix(&path)
                .is_some_and(|of| key.is_empty() || of == key)
        };
        self.changes(new).any(|(changed, _)| is_it(changed))
    }

    /// Keys and services of `new` that cannot become those of this configuration while inco runs.
    pub fn fixed_in(&self, new: &Configuration) -> Vec<String> {
        let is_of_rules = new.switch.driver == SwitchDriver::OpenFlow;
        let counts_returns = self.services.iter().any(Service::counts_flows);
        // Where the table counts what comes back for one service, it does for all.
        let counts_more = |key: &str| {
            let asks = |of: &Service| match key.ends_with(".affinity") {
                true => of.affinity == Affinity::Relaxed,
                false => of.flow_counters,
            };
            let service = key.split('.').nth(1).and_then(|name| new.service(name));
            !counts_returns && service.is_some_and(|(_, service)| asks(service))
        };
        let is_new = |key: &str| {
            let service = key.strip_prefix("service.").and_then(|key| key.split('.').next());
            service.is_some_and(|service| self.service(service).is_none())
        };
        let changes = self.changes(new).filter(|(key, reload)| match reload {
            Reload::Applies | Reload::Keys => false,
            Reload::Counts => counts_more(key),
            Reload::Restart => !is_new(key),
            Reload::Rules => is_of_rules && !is_new(key),
        });
        let mut fixed: Vec<String> = changes.map(|(key, _)| key.to_owned()).collect();
        let services = |of: &Configuration, other: &Configuration, why: &str| -> Vec<String> {
            let only = of
                .services
                .iter()
                .filter(|service| other.service(&service.name).is_none());
            only.map(|service| format!("service.{} ({why})", service.name))
                .collect()
        };
        if is_of_rules {
            // The rules of new flows are laid out when the switch starts.
            fixed.extend(services(new, self, "it is new"));
        }
        fixed.extend(services(self, new, "it is not there any more"));
        fixed
    }
}
