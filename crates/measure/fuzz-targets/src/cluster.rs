//! What machines and edges of a cluster say to each other.

use std::cell::RefCell;

use edge_steering::{
    DATAGRAM_LIMIT, Gate, Head, MachineId, Machines, Member, ONWARD_BYTES, Onward, Rule, SERVICES_LIMIT,
    ServiceLoad, Serving, Settings, Towards, Verdict, at_machine, machine_of, write,
};
use model::{Nanos, mix};
use signal::Key;

use crate::pieces;

/// The edge's run.
const AUDIENCE: u64 = 11;
/// The machines of the cluster.
const MACHINES: u16 = 4;
/// The service that the edge steers.
const SERVICE: u32 = 1;

thread_local! {
    /// One for all inputs: a table takes longer to build than an input to run.
    static EDGE: RefCell<Machines> = RefCell::new({
        let mut machines = Machines::new(Settings::default());
        let members: Vec<Member> = (0..MACHINES)
            .map(|id| Member { id: MachineId(id), name: mix(u64::from(id)), weight: 1.0 })
            .collect();
        machines.set_members(&members);
        machines
    });
}

fn key() -> Key {
    Key::of_random([5; 24])
}

/// A report of machine 0, with rows from what is left of an input.
fn genuine(incarnation: u8, counter: u8, rest: &[u8]) -> Vec<u8> {
    let head = Head {
        machine: MachineId(0),
        audience: AUDIENCE,
        incarnation: u64::from(incarnation),
        counter: u64::from(counter),
    };
    let services: Vec<ServiceLoad> = rest
        .chunks_exact(4)
        .zip(1_u32..)
        .take(SERVICES_LIMIT)
        .map(|(bytes, service)| ServiceLoad {
            service,
            state: [Serving::Serving, Serving::Draining, Serving::Leaving][usize::from(bytes[0]) % 3],
            instances: u16::from(bytes[1]),
            capacity: u64::from(bytes[2]) << (bytes[1] % 57),
            // May be more than the capacity: then the report is refused.
            capacity_left: u64::from(bytes[3]) << (bytes[1] % 57),
            live_flows: u32::from(bytes[3]),
        })
        .collect();
    write(&head, &services, &key(), &mut [0; DATAGRAM_LIMIT])
        .unwrap()
        .to_vec()
}

/// Datagrams to an edge, some of them genuine reports of a machine, some of those changed: a gate accepts each report
/// once, nothing else changes it, and whatever is reported, new flows have machines that take them. And lists of machines
/// in packets.
pub(crate) fn load_reports(bytes: &[u8]) {
    let mut gate = Gate::new(MachineId(0), key(), AUDIENCE);
    let mut last = (0, 0);
    let mut now = Nanos::from_secs(1);
    let mut towards = Towards::new(MachineId(0), key(), 1);
    towards.write(&[], &mut [0; DATAGRAM_LIMIT]).unwrap();
    EDGE.with_borrow_mut(|edge| {
        let usual = ServiceLoad {
            service: SERVICE,
            state: Serving::Serving,
            instances: 1,
            capacity: 100,
            capacity_left: 50,
            live_flows: 5,
        };
        for id in 0..MACHINES {
            edge.reported(MachineId(id), &usual, now);
        }
        edge.renew(now);
        for piece in pieces(bytes) {
            onward(piece);
            let Some((how, rest)) = piece.split_first() else {
                continue;
            };
            let mut datagram = rest.to_vec();
            if how & 1 == 1
                && let [incarnation, counter, at, flip, rest @ ..] = rest
            {
                datagram = genuine(*incarnation, *counter, rest);
                if how & 2 == 2 {
                    let at = usize::from(*at) % datagram.len();
                    datagram[at] ^= flip;
                }
            }
            // Nobody without the key can answer for the edge, and an answer is no report.
            assert!(!towards.hear(&datagram));
            if let Some(answer) = gate.answer(&datagram) {
                assert!(answer.len() <= 64 && gate.clone().accept(&answer).is_err());
            }
            match gate.accept(&datagram) {
                Ok(report) => {
                    let rank = (report.head.incarnation, report.head.counter);
                    assert!(rank > last, "{rank:?} after {last:?}");
                    last = rank;
                    assert_eq!(machine_of(&datagram), Some(report.head.machine));
                    let services: Vec<ServiceLoad> = report.services().collect();
                    let ascend = services.windows(2).all(|pair| pair[0].service < pair[1].service);
                    assert!(ascend && services.iter().all(|load| load.capacity_left <= load.capacity));
                    let mut into = [0; DATAGRAM_LIMIT];
                    let again = write(&report.head, &services, &key(), &mut into).unwrap();
                    assert_eq!(again, datagram, "a tag is good for one report");
                    for load in services.iter().filter(|load| load.service == SERVICE) {
                        edge.reported(report.head.machine, load, now);
                    }
                }
                Err(_) => {
                    let next = Head {
                        machine: MachineId(0),
                        audience: AUDIENCE,
                        incarnation: last.0 + 1,
                        counter: 0,
                    };
                    let mut into = [0; DATAGRAM_LIMIT];
                    let next = write(&next, &[], &key(), &mut into).unwrap();
                    assert!(
                        gate.clone().accept(next).is_ok(),
                        "a refused datagram has changed the gate"
                    );
                }
            }
            now = now + Nanos::from_millis(u64::from(*how));
            edge.renew(now);
            let hash = mix(now.0);
            if let Some(picked) = edge.pick(hash) {
                assert!(picked.machine.0 < MACHINES && !edge.must_move(picked.machine));
                let is_found = edge.look(hash).machines().contains(&picked.machine);
                assert!(is_found || picked.rule == Rule::Beyond);
            }
        }
    });
}

/// A packet is forwarded at most seven times, and to each machine once.
fn onward(piece: &[u8]) {
    let Some(bytes) = piece.first_chunk::<ONWARD_BYTES>() else {
        return;
    };
    let Ok(mut onward) = Onward::from_bytes(bytes) else {
        return;
    };
    assert_eq!(onward.bytes(), *bytes);
    let mut asked = Vec::new();
    while let Verdict::Forward(machine, rest) = at_machine(false, false, onward) {
        assert!(!asked.contains(&machine));
        asked.push(machine);
        onward = Onward::from_bytes(&rest.bytes()).unwrap();
    }
    assert_eq!(asked.len(), usize::from(bytes[0]));
}
