//! A function of the library as an actor: a frame is a message, and what leaves is one, too.
//!
//! The function's own memory is a copy. What it knows of a flow or an association is written to an object before what it
//! sends leaves, in the form in which flows move between containers ([`functions::Chain::export`]). A new value of the
//! actor, on the other side or in the next process, takes all of it over with its first message.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use actor_objects::{ObjectId, Objects};
use actor_runtime::{Actor, Address, Context, Message, Progress};
use actor_side::HOST_NETWORK;
use functions::{Burst, Chain, LIBRARY, RECEIVED_LIMIT, STATE_BYTES_LIMIT, Setup};
use model::{AffinityKey, FlowKey, Nanos, Tuple};
use packet::Parsed;

use crate::kinds::TICKS;

/// The functions whose state of each flow can be written down as a whole.
const KNOWN: [&str; 2] = ["firewall", "ipsec"];
/// Bytes of a flow's tuple in its object.
const TUPLE_BYTES: usize = 40;
/// Flows that are looked at with each tick, whether the function still knows them.
const SWEPT: usize = 64;

/// The port of a client's number: of a network that takes whole frames, the clients are its ports.
const PORT_BITS: u64 = 0xff;

/// The actor.
pub(crate) struct FunctionActor {
    chain: Chain,
    burst: Burst,
    ports: u8,
    /// What is known of flows, as objects; those that were looked at last are behind.
    known: HashMap<FlowKey, (Tuple, ObjectId)>,
    order: VecDeque<FlowKey>,
    is_loaded: bool,
}

impl FunctionActor {
    /// The function of that name, with a configuration from a file.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn new(name: &str, configuration: Option<&str>, ports: u8) -> Result<FunctionActor, String> {
        let entry = LIBRARY.iter().find(|of| of.about().name == name);
        let entry = entry.filter(|_| KNOWN.contains(&name));
        let entry =
            entry.ok_or_else(|| format!("no function {name:?} as an actor: write {}", KNOWN.join(" or ")))?;
        if !(1..=2).contains(&ports) {
            return Err(format!("{ports} ports: write 1 or 2"));
        }
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| format!("no random numbers: {error}"))?;
        let setup = Setup {
            instance: 0,
            ports,
            seed: u64::from_ne_bytes(seed),
            external: None,
        };
        let text = match configuration {
            Some(path) => {
                std::fs::read_to_string(Path::new(path)).map_err(|error| format!("{path}: {error}"))?
            }
            None => String::new(),
        };
        let stage = entry.make(&text, &setup).map_err(|error| error.to_string())?;
        Ok(FunctionActor {
            chain: Chain::new(vec![stage]).map_err(|error| error.to_string())?,
            burst: Burst::new(),
            ports,
            known: HashMap::new(),
            order: VecDeque::new(),
            is_loaded: false,
        })
    }

    /// Takes over what the objects have.
    fn load(&mut self, objects: &Objects, now: Nanos) -> Result<(), String> {
        for (id, bytes) in objects.iter() {
            let (tuple, state) = read_tuple(bytes).ok_or("an object is no state of a flow")?;
            // What is too old by now is not taken over, and its object goes with the next look at it.
            let _forgotten = self.chain.import(&tuple, state, now);
            let (key, _) = FlowKey::new(&tuple);
            self.known.insert(key, (tuple, id));
            self.order.push_back(key);
        }
        self.is_loaded = true;
        Ok(())
    }

    /// Writes what the function knows of a flow now; nothing stays of one that it does not know.
    fn save(&mut self, tuple: &Tuple, objects: &mut Objects, now: Nanos) -> Result<(), String> {
        let (key, _) = FlowKey::new(tuple);
        let before = self.known.get(&key).copied();
        // In the direction of its first packet.
        let tuple = before.map_or(*tuple, |(tuple, _)| tuple);
        let mut state = [0; STATE_BYTES_LIMIT];
        // One function: its number, its bytes in two bytes, and these.
        let length = self.chain.export(&tuple, &mut state, now).ok();
        let state = length
            .and_then(|length| state.get(..length))
            .filter(|state| state.len() > 3);
        let Some(state) = state else {
            if let Some((_, id)) = before {
                objects.free(id).map_err(|error| error.to_string())?;
                self.known.remove(&key);
            }
            return Ok(());
        };
        let mut bytes = write_tuple(&tuple).to_vec();
        bytes.extend(state);
        if let Some((_, id)) = before {
            let old = objects.get(id).map_err(|error| error.to_string())?;
            if old == bytes {
                return Ok(());
            }
            if old.len() == bytes.len() {
                return objects.write(id, 0, &bytes).map_err(|error| error.to_string());
            }
            objects.free(id).map_err(|error| error.to_string())?;
            self.known.remove(&key);
        }
        let Ok(id) = objects.allocate(bytes.len()) else {
            // It must not know what a move would lose.
            self.chain.forget(&tuple, now);
            return Ok(());
        };
        objects.write(id, 0, &bytes).map_err(|error| error.to_string())?;
        self.known.insert(key, (tuple, id));
        if before.is_none() {
            self.order.push_back(key);
        }
        Ok(())
    }

    /// Gives the frames of one port to the function, and sends what leaves.
    fn pass(&mut self, messages: &[Message], port: u8, context: &mut Context<'_>) -> Result<(), String> {
        let now = context.now();
        let opposite = if self.ports == 1 { port } else { 1 - port };
        self.burst.begin(port, opposite);
        let mut flows = Vec::new();
        for message in messages {
            flows_of(&message.body, &mut flows);
            self.burst.push(&message.body);
        }
        self.chain.process(&mut self.burst, now);
        let network = match messages.first().map(|of| of.from) {
            Some(Address::Outside(number)) => number & HOST_NETWORK,
            _ => 0,
        };
        self.leave(network, &mut flows, context);
        let objects = context.objects().ok_or("a function needs objects")?;
        flows.iter().try_for_each(|flow| self.save(flow, objects, now))
    }

    fn leave(&mut self, network: u64, flows: &mut Vec<Tuple>, context: &mut Context<'_>) {
        for extent in self.burst.leaving() {
            let frame = self.burst.bytes_of(extent);
            flows_of(frame, flows);
            let to = Address::Outside(network | u64::from(extent.port()));
            context.send(to, 0, frame.to_vec());
        }
    }

    /// Does what time requires, and frees what the function has forgotten.
    fn tick(&mut self, context: &mut Context<'_>) -> Result<(), String> {
        let now = context.now();
        let mut flows = Vec::new();
        let opposite = self.ports - 1;
        for stage in 0..self.chain.stages().len() {
            if self.chain.tick(stage, &mut self.burst, opposite, now) {
                self.leave(0, &mut flows, context);
            }
        }
        for _ in 0..SWEPT.min(self.order.len()) {
            if let Some(key) = self.order.pop_front()
                && let Some((tuple, _)) = self.known.get(&key)
            {
                flows.push(*tuple);
                self.order.push_back(key);
            }
        }
        let objects = context.objects().ok_or("a function needs objects")?;
        flows.iter().try_for_each(|flow| self.save(flow, objects, now))
    }

    fn take(&mut self, messages: &[Message], context: &mut Context<'_>) -> Result<(), String> {
        if !self.is_loaded {
            let now = context.now();
            let objects = context.objects().ok_or("a function needs objects")?;
            self.load(objects, now)?;
        }
        let port = |message: &Message| match message.from {
            Address::Outside(_) if message.kind == TICKS => None,
            Address::Outside(number) => Some((number & PORT_BITS) as u8),
            Address::Actor(_) => Some(0),
        };
        for messages in messages.chunk_by(|a, b| port(a) == port(b)) {
            let Some(port) = messages.first().and_then(port) else {
                self.tick(context)?;
                continue;
            };
            if port < self.ports {
                for messages in messages.chunks(RECEIVED_LIMIT) {
                    self.pass(messages, port, context)?;
                }
            }
        }
        Ok(())
    }
}

impl Actor for FunctionActor {
    fn exec(&mut self, message: &mut Message, context: &mut Context<'_>) -> Progress {
        if let Err(reason) = self.take(std::slice::from_ref(message), context) {
            context.fail(reason);
        }
        Progress::Done
    }

    /// The frames of a batch are a burst of the function.
    fn exec_all(&mut self, messages: &mut [Message], context: &mut Context<'_>) -> usize {
        context.begin();
        if let Err(reason) = self.take(messages, context) {
            context.fail(reason);
        }
        for place in 0..messages.len() {
            if place > 0 {
                context.begin();
            }
            context.complete();
        }
        messages.len()
    }
}

/// Adds the flows of which a frame may change what a function knows: its own, and its association.
fn flows_of(frame: &[u8], into: &mut Vec<Tuple>) {
    let Parsed::Flow(info) = packet::parse(frame) else {
        return;
    };
    let mut add = |key: FlowKey, direction| {
        let tuple = key.tuple(direction);
        if !into.iter().any(|of| FlowKey::new(of).0 == key) {
            into.push(tuple);
        }
    };
    add(info.key, info.direction);
    if let Parsed::Flow(content) = packet::parse_content(frame, &info, AffinityKey::Spi)
        && packet::association_of(&content.key.tuple(content.direction)).is_some()
    {
        add(content.key, content.direction);
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(of) => of.to_ipv6_mapped().octets(),
        IpAddr::V6(of) => of.octets(),
    }
}

/// Source and destination (16 each; IPv4 as mapped), ports (2 each), VLAN (2), protocol (1), 1 for IPv4 (1).
fn write_tuple(tuple: &Tuple) -> [u8; TUPLE_BYTES] {
    let mut bytes = [0; TUPLE_BYTES];
    bytes[..16].copy_from_slice(&octets(tuple.src));
    bytes[16..32].copy_from_slice(&octets(tuple.dst));
    bytes[32..34].copy_from_slice(&tuple.src_port.to_be_bytes());
    bytes[34..36].copy_from_slice(&tuple.dst_port.to_be_bytes());
    bytes[36..38].copy_from_slice(&tuple.vlan.to_be_bytes());
    bytes[38] = tuple.protocol;
    bytes[39] = u8::from(tuple.src.is_ipv4());
    bytes
}

fn read_tuple(bytes: &[u8]) -> Option<(Tuple, &[u8])> {
    let (head, state) = bytes.split_first_chunk::<TUPLE_BYTES>()?;
    let address = |at: usize| -> Option<IpAddr> {
        let six = Ipv6Addr::from(<[u8; 16]>::try_from(&head[at..at + 16]).ok()?);
        let four = || six.to_ipv4_mapped().map(<IpAddr as From<Ipv4Addr>>::from);
        if head[39] == 1 { four() } else { Some(six.into()) }
    };
    let number = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let tuple = Tuple {
        src: address(0)?,
        dst: address(16)?,
        src_port: number(32),
        dst_port: number(34),
        protocol: head[38],
        vlan: number(36),
    };
    Some((tuple, state))
}

#[cfg(test)]
mod tests {
    use actor_objects::Limits;
    use packet::build::Frame;

    use super::*;

    fn tuple(src: &str, dst: &str) -> Tuple {
        Tuple {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            src_port: 1_000,
            dst_port: 53,
            protocol: 17,
            vlan: 7,
        }
    }

    #[test]
    fn a_tuple_is_read_as_it_was_written() {
        for of in [
            tuple("10.0.0.1", "192.0.2.7"),
            tuple("2001:db8::1", "::ffff:1.2.3.4"),
        ] {
            let mut bytes = write_tuple(&of).to_vec();
            bytes.push(9);
            assert_eq!(read_tuple(&bytes), Some((of, &[9][..])));
            assert_eq!(read_tuple(&bytes[..TUPLE_BYTES - 1]), None);
        }
    }

    #[test]
    fn only_functions_whose_state_can_move_are_actors() {
        assert!(FunctionActor::new("nat", None, 2).is_err());
        assert!(FunctionActor::new("firewall", Some("/does/not/exist"), 2).is_err());
        assert!(FunctionActor::new("firewall", None, 3).is_err());
        assert!(FunctionActor::new("firewall", None, 2).is_ok());
    }

    /// What a firewall knows of connections is in its objects, and another one goes on with it.
    #[test]
    fn another_value_goes_on_with_the_objects() {
        let rules = "default = \"deny\"\nconnections = 64\n[[rule]]\nname = \"out\"\naction = \"allow\"\nsource = \
                     \"10.1.0.0/16\"\n";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), rules).unwrap();
        let make = || FunctionActor::new("firewall", file.path().to_str(), 2).unwrap();
        let limits = Limits {
            bytes: 1 << 16,
            objects: 64,
        };
        let (_region, mut objects) = actor_objects::Objects::create(limits).unwrap();
        let frame = |src: &str, dst: &str| {
            let frame = Frame::udp(src.parse().unwrap(), dst.parse().unwrap(), b"x").unwrap();
            frame.to_vec().unwrap()
        };
        let passes = |of: &mut FunctionActor, objects: &mut Objects, frame: &[u8], port: u8| {
            if !of.is_loaded {
                of.load(objects, Nanos(5)).unwrap();
            }
            of.burst.begin(port, 1 - port);
            assert!(of.burst.push(frame));
            of.chain.process(&mut of.burst, Nanos(5));
            let leaves = of.burst.leaving().len();
            let mut flows = Vec::new();
            flows_of(frame, &mut flows);
            flows
                .iter()
                .for_each(|flow| of.save(flow, objects, Nanos(5)).unwrap());
            leaves == 1
        };
        let (out, back) = (("10.1.0.1:9", "10.2.0.1:53"), ("10.2.0.1:53", "10.1.0.1:9"));
        let mut first = make();
        assert!(!passes(&mut first, &mut objects, &frame(back.0, back.1), 1));
        assert_eq!(objects.len(), 0);
        assert!(passes(&mut first, &mut objects, &frame(out.0, out.1), 0));
        assert_eq!(objects.len(), 1);
        let mut second = make();
        assert!(passes(&mut second, &mut objects, &frame(back.0, back.1), 1));
        assert!(!passes(
            &mut second,
            &mut objects,
            &frame("10.2.0.1:54", back.1),
            1
        ));
        assert_eq!(objects.len(), 1);
    }
}
