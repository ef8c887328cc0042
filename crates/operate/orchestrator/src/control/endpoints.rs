//! Endpoints of Kubernetes Services: what their followers have found goes to the controller. The API server is asked by
//! a thread of its own.

use std::collections::BTreeMap;

use configuration::{Configuration, EndpointPort, KubernetesService, Service};
use controller::Command;
use kubernetes::{Followers, News, PortChoice, Wanted, joined};
use model::{BackEnd, EventKind, ServiceId};

use super::ControlLoop;
use super::journal::new_event;
use crate::machine::cluster;

/// What fails when the API server is away, in events.
const WHAT: &str = "kubernetes";

/// Which Service is followed: the name of the service whose instances are its endpoints, and its place in the list there.
type Source = (String, usize);

/// The state of this part.
#[derive(Default)]
pub(super) struct Endpoints {
    followers: Followers<Source>,
    /// By the name of the service.
    services: BTreeMap<String, Followed>,
}

/// What is followed for a service.
#[derive(Default)]
struct Followed {
    sources: Vec<Found>,
    /// Whether the controller has another list.
    is_new: bool,
}

/// A Service, and what is known of it.
struct Found {
    wanted: Wanted,
    weight: u32,
    /// Its servers, once it was listed.
    list: Option<Vec<BackEnd>>,
}

impl Followed {
    /// What is followed from now on. A Service that was followed before keeps its list.
    fn with(mut self, wanted: Vec<(Wanted, u32)>) -> Followed {
        let count = self.sources.len();
        self.is_new |= count != wanted.len();
        let mut before = self.sources.into_iter();
        let sources = wanted.into_iter().map(|(wanted, weight)| {
            let kept = before.next().filter(|of| of.wanted == wanted);
            self.is_new |= kept.as_ref().is_none_or(|of| of.weight != weight);
            let list = kept.and_then(|of| of.list);
            Found { wanted, weight, list }
        });
        Followed {
            sources: sources.collect(),
            ..self
        }
    }

    /// All servers, once each Service was listed: until then those of before stay, since one that is not listed yet has not
    /// gone.
    fn list(&self) -> Option<Vec<BackEnd>> {
        let lists = self
            .sources
            .iter()
            .map(|of| Some((of.weight, of.list.as_deref()?)));
        let lists: Vec<(u32, &[BackEnd])> = lists.collect::<Option<_>>()?;
        Some(match lists.as_slice() {
            [(_, only)] => only.to_vec(),
            several => joined(several),
        })
    }

    /// The Service at that place, in the words of an event; empty: there is no other one.
    fn named(&self, place: usize) -> String {
        match self.sources.get(place) {
            Some(of) if self.sources.len() > 1 => {
                format!("{}/{}: ", of.wanted.namespace, of.wanted.service)
            }
            _ => String::new(),
        }
    }
}

impl Endpoints {
    /// Follows the Services of a configuration, and no others.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn follow(&mut self, configuration: &Configuration) -> Result<(), kubernetes::Error> {
        let mut before = std::mem::take(&mut self.services);
        for service in &configuration.services {
            let wanted = service.instances.kubernetes().iter();
            let wanted: Vec<_> = wanted
                .map(|of| (wanted_of(of, service, configuration), of.weight))
                .collect();
            if !wanted.is_empty() {
                let followed = before.remove(&service.name).unwrap_or_default();
                self.services.insert(service.name.clone(), followed.with(wanted));
            }
        }
        let all = self.services.iter().flat_map(|(name, of)| {
            let sources = of.sources.iter().enumerate();
            sources.map(move |(place, of)| ((name.clone(), place), of.wanted.clone()))
        });
        self.followers.follow(all)
    }
}

fn wanted_of(of: &KubernetesService, service: &Service, configuration: &Configuration) -> Wanted {
    let address = service.vip.as_ref().and_then(|vip| vip.addresses.first());
    Wanted {
        cluster: cluster(&configuration.kubernetes),
        namespace: of.namespace.clone(),
        service: of.name.clone(),
        port: match &of.port {
            None => PortChoice::Only,
            Some(EndpointPort::Name(name)) => PortChoice::Named(name.clone()),
            Some(EndpointPort::Number(number)) => PortChoice::Number(*number),
        },
        is_ipv4: address.is_none_or(std::net::IpAddr::is_ipv4),
    }
}

impl ControlLoop {
    /// Follows what the configuration says from now on.
    pub(super) fn follow_endpoints(&mut self) {
        if let Err(error) = self.endpoints.follow(&self.configuration) {
            let reason = format!("{error}; the instances that are there stay, and no endpoints are followed");
            let what = WHAT.to_owned();
            self.journal.add(EventKind::Failure { what, reason });
        }
    }

    /// Hands what is new to the controller.
    pub(super) fn take_endpoints(&mut self) {
        for ((name, place), news) in self.endpoints.followers.news() {
            let Some(followed) = self.endpoints.services.get_mut(&name) else {
                continue;
            };
            let (what, of) = (WHAT.to_owned(), followed.named(place));
            let kind = match news {
                News::List(list, problem) => {
                    if let Some(source) = followed.sources.get_mut(place) {
                        source.list = Some(list);
                        followed.is_new = true;
                    }
                    let Some(problem) = problem else { continue };
                    let reason = format!("{of}{problem}; these endpoints get no flows");
                    EventKind::Failure { what, reason }
                }
                News::Away(reason) => {
                    let reason = format!("{of}{reason}; flows go on to the endpoints that were known last");
                    EventKind::Failure { what, reason }
                }
                News::Back(after) => EventKind::Recovered {
                    what,
                    after_ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
                },
            };
            self.journal.push(new_event(Some(name), kind));
        }
        for (name, followed) in &mut self.endpoints.services {
            if !followed.is_new {
                continue;
            }
            let services = &self.configuration.services;
            let index = services.iter().position(|of| of.name == *name);
            if let (Some(index), Some(list)) = (index, followed.list()) {
                followed.is_new = false;
                self.decide.order(Command::BackEnds {
                    service: ServiceId(index as u16),
                    list,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn wanted(service: &str) -> Wanted {
        Wanted {
            cluster: kubernetes::Cluster::default(),
            namespace: "shop".to_owned(),
            service: service.to_owned(),
            port: PortChoice::Only,
            is_ipv4: true,
        }
    }

    fn server(last: u8) -> BackEnd {
        BackEnd::at(SocketAddr::from(([10, 0, 0, last], 80)))
    }

    /// What the controller would be told, and that it is.
    fn told(followed: &mut Followed) -> Option<Vec<BackEnd>> {
        let list = followed.list().filter(|_| followed.is_new);
        followed.is_new &= list.is_none();
        list
    }

    #[test]
    fn servers_of_several_services_are_told_once_all_were_listed() {
        let mut of = Followed::default().with(vec![(wanted("web"), 9), (wanted("canary"), 1)]);
        assert_eq!(told(&mut of), None);
        of.sources[0].list = Some(vec![server(1)]);
        assert_eq!(told(&mut of), None, "the other one has not gone");
        assert_eq!(of.named(1), "shop/canary: ");
        of.sources[1].list = Some(vec![server(2)]);
        let list = told(&mut of).unwrap_or_default();
        let times = f64::from(list[0].weight) / f64::from(list[1].weight);
        assert_eq!((list.len(), times.round()), (2, 9.0));
        assert_eq!(told(&mut of), None, "nothing is new");

        // Another weight is told at once, from the lists that are there.
        let mut of = of.with(vec![(wanted("web"), 1), (wanted("canary"), 1)]);
        let list = told(&mut of).unwrap_or_default();
        assert_eq!(list[0].weight, list[1].weight);
        let mut of = of.with(vec![(wanted("web"), 1), (wanted("canary"), 1)]);
        assert_eq!(told(&mut of), None, "the same again");

        // One that is alone has no weight against others.
        let mut of = of.with(vec![(wanted("web"), 1)]);
        assert_eq!(told(&mut of), Some(vec![server(1)]));
        assert_eq!(of.named(0), "");
        // Another one in its place is listed first.
        let mut of = of.with(vec![(wanted("other"), 1)]);
        assert_eq!(told(&mut of), None);
    }
}
