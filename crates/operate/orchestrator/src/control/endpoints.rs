//! Endpoints of Kubernetes Services: what their followers have found goes to the controller. The API server is asked by
//! a thread of its own.

use configuration::{Configuration, EndpointPort, Service};
use controller::Command;
use kubernetes::{Followers, News, PortChoice, Wanted};
use model::{EventKind, ServiceId};

use super::ControlLoop;
use super::journal::new_event;
use crate::machine::cluster;

/// What fails when the API server is away, in events.
const WHAT: &str = "kubernetes";

/// The state of this part.
#[derive(Default)]
pub(super) struct Endpoints {
    followers: Followers,
}

impl Endpoints {
    /// Follows the Services of a configuration, and no others.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn follow(&mut self, configuration: &Configuration) -> Result<(), kubernetes::Error> {
        let services = configuration.services.iter();
        let wanted =
            services.filter_map(|service| Some((service.name.clone(), wanted(service, configuration)?)));
        self.followers.follow(wanted)
    }
}

fn wanted(service: &Service, configuration: &Configuration) -> Option<Wanted> {
    let of = service.instances.kubernetes()?;
    let address = service.vip.as_ref().and_then(|vip| vip.addresses.first());
    Some(Wanted {
        cluster: cluster(&configuration.kubernetes),
        namespace: of.namespace.clone(),
        service: of.name.clone(),
        port: match &of.port {
            None => PortChoice::Only,
            Some(EndpointPort::Name(name)) => PortChoice::Named(name.clone()),
            Some(EndpointPort::Number(number)) => PortChoice::Number(*number),
        },
        is_ipv4: address.is_none_or(std::net::IpAddr::is_ipv4),
    })
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
        for (name, news) in self.endpoints.followers.news() {
            let services = &self.configuration.services;
            let Some(index) = services.iter().position(|of| of.name == name) else {
                continue;
            };
            let what = WHAT.to_owned();
            let kind = match news {
                News::List(list, problem) => {
                    self.decide.order(Command::BackEnds {
                        service: ServiceId(index as u16),
                        list,
                    });
                    let Some(problem) = problem else { continue };
                    let reason = format!("{problem}; these endpoints get no flows");
                    EventKind::Failure { what, reason }
                }
                News::Away(reason) => {
                    let reason = format!("{reason}; flows go on to the endpoints that were known last");
                    EventKind::Failure { what, reason }
                }
                News::Back(after) => EventKind::Recovered {
                    what,
                    after_ms: u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
                },
            };
            self.journal.push(new_event(Some(name), kind));
        }
    }
}
