//! From slices to a list of servers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use model::{BackEnd, BackEndState};

use crate::service::PortChoice;

/// Most servers of a list: more than there can be instances. Those beyond are left out.
const SERVERS_LIMIT: usize = 4096;

/// The slices of a Service, and the servers in them.
///
/// A server keeps its place in the list as long as it is there. An address is there once.
#[derive(Clone, Debug)]
pub struct Slices {
    port: PortChoice,
    is_ipv4: bool,
    /// By name.
    slices: BTreeMap<String, EndpointSlice>,
    list: Vec<BackEnd>,
    problem: Option<String>,
}

impl Slices {
    /// Nothing yet. Endpoints of the other IP version are left out.
    pub fn new(port: PortChoice, is_ipv4: bool) -> Slices {
        Slices {
            port,
            is_ipv4,
            slices: BTreeMap::new(),
            list: Vec::new(),
            problem: None,
        }
    }

    /// Takes a slice that is new or has changed.
    pub fn apply(&mut self, slice: EndpointSlice) {
        if let Some(name) = slice.metadata.name.clone() {
            self.slices.insert(name, slice);
            self.update();
        }
    }

    /// Takes a slice that was deleted.
    pub fn delete(&mut self, name: &str) {
        if self.slices.remove(name).is_some() {
            self.update();
        }
    }

    /// Takes all slices that there are, in place of those known so far.
    pub fn replace(&mut self, all: impl IntoIterator<Item = EndpointSlice>) {
        let named = all
            .into_iter()
            .filter_map(|slice| Some((slice.metadata.name.clone()?, slice)));
        self.slices = named.collect();
        self.update();
    }

    /// The servers, in a stable order.
    pub fn list(&self) -> &[BackEnd] {
        &self.list
    }

    /// Why endpoints have no port to serve at, if so.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    fn update(&mut self) {
        // The slices of a Service do not change at one time: a Pod may be in two of them for a moment.
        let mut pods: BTreeMap<(SocketAddr, Option<String>), BackEnd> = BTreeMap::new();
        self.problem = None;
        for slice in self.slices.values() {
            if !is_of_version(slice, self.is_ipv4) {
                continue;
            }
            let port = match port_of(slice, &self.port) {
                Ok(port) => port,
                // A slice without endpoints may have no ports, either.
                Err(_) if slice.endpoints.is_empty() => continue,
                Err(problem) => {
                    self.problem = Some(problem);
                    continue;
                }
            };
            let servers = slice.endpoints.iter();
            for server in servers.filter_map(|of| server(of, port, self.is_ipv4)) {
                let pod = pods
                    .entry((server.at, server.id.clone()))
                    .or_insert_with(|| server.clone());
                if of_a_pod(server.state) > of_a_pod(pod.state) {
                    *pod = server;
                }
            }
        }
        let before: BTreeMap<SocketAddr, Option<String>> =
            self.list.iter().map(|of| (of.at, of.id.clone())).collect();
        // Of the Pods with one address, the one that serves has it; else the one that had it.
        let worth = |of: &BackEnd| (of_an_address(of.state), before.get(&of.at) == Some(&of.id));
        let mut found: BTreeMap<SocketAddr, BackEnd> = BTreeMap::new();
        for pod in pods.into_values() {
            match found.get(&pod.at) {
                Some(other) if worth(other) > worth(&pod) => {}
                _ => {
                    found.insert(pod.at, pod);
                }
            }
        }
        // Those that were there keep their places, and new ones follow.
        let mut list = Vec::with_capacity(found.len());
        for before in &self.list {
            list.extend(found.remove(&before.at));
        }
        list.extend(found.into_values());
        list.truncate(SERVERS_LIMIT);
        self.list = list;
    }
}

/// Which state counts where slices say different ones of a Pod: one that ends does not come back.
fn of_a_pod(state: BackEndState) -> u8 {
    match state {
        BackEndState::NotReady => 0,
        BackEndState::Serving => 1,
        BackEndState::Draining => 2,
    }
}

/// Which Pod has an address that several are said to have.
fn of_an_address(state: BackEndState) -> u8 {
    match state {
        BackEndState::NotReady => 0,
        BackEndState::Draining => 1,
        BackEndState::Serving => 2,
    }
}

fn is_of_version(slice: &EndpointSlice, is_ipv4: bool) -> bool {
    slice.address_type == if is_ipv4 { "IPv4" } else { "IPv6" }
}

fn port_of(slice: &EndpointSlice, choice: &PortChoice) -> Result<u16, String> {
    let ports: Vec<(&str, u16)> = slice
        .ports
        .iter()
        .flatten()
        .filter(|of| of.protocol.as_deref() != Some("SCTP"))
        .filter_map(|of| {
            let number = u16::try_from(of.port?).ok().filter(|port| *port != 0)?;
            Some((of.name.as_deref().unwrap_or_default(), number))
        })
        .collect();
    let there = || match ports.is_empty() {
        true => "they have none".to_owned(),
        false => {
            let named = ports.iter().map(|(name, number)| match *name {
                "" => number.to_string(),
                name => format!("{name} ({number})"),
            });
            format!("they have {}", named.collect::<Vec<_>>().join(", "))
        }
    };
    let found = match choice {
        PortChoice::Only => match ports[..] {
            [(_, number)] => return Ok(number),
            [] => return Err("the endpoints have no port".to_owned()),
            _ => return Err(format!("`instances.port` does not say which port: {}", there())),
        },
        PortChoice::Named(wanted) => ports.iter().find(|(name, _)| name == wanted),
        PortChoice::Number(wanted) => ports.iter().find(|(_, number)| number == wanted),
    };
    let wanted = match choice {
        PortChoice::Named(name) => format!("{name:?}"),
        PortChoice::Number(number) => number.to_string(),
        PortChoice::Only => String::new(),
    };
    found
        .map(|(_, number)| *number)
        .ok_or_else(|| format!("the endpoints have no port {wanted}: {}", there()))
}

fn server(endpoint: &Endpoint, port: u16, is_ipv4: bool) -> Option<BackEnd> {
    // Nothing is said about what further addresses mean.
    let ip: IpAddr = endpoint.addresses.first()?.parse().ok()?;
    let is_usable =
        ip.is_ipv4() == is_ipv4 && !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast();
    let target = endpoint.target_ref.as_ref();
    is_usable.then(|| BackEnd {
        at: SocketAddr::new(ip, port),
        id: target.and_then(|of| of.uid.clone()),
        name: target.and_then(|of| of.name.clone()),
        state: state(endpoint),
        weight: BackEnd::WEIGHT,
    })
}

/// What is not said counts as ready, and as not terminating: so says the API.
fn state(endpoint: &Endpoint) -> BackEndState {
    let conditions = endpoint.conditions.as_ref();
    let is = |of: Option<bool>, unsaid: bool| of.unwrap_or(unsaid);
    let terminates = is(conditions.and_then(|of| of.terminating), false);
    let is_ready = is(conditions.and_then(|of| of.ready), true);
    match (terminates, is_ready) {
        (true, _) => BackEndState::Draining,
        (false, true) => BackEndState::Serving,
        (false, false) => BackEndState::NotReady,
    }
}
