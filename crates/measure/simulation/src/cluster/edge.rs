//! An edge, and the routers in front of all edges.

use edge_steering::{DATAGRAM_LIMIT, Gate, Machines, Member, Settings};
use maglev::Table;
use model::{Nanos, mix};

use super::keys::Ecmp;
use super::machine::{Machine, SERVICE};

/// Entries of the routers' table, and of the one of edges that own hashes: a prime, a hundred times the edges.
const EDGE_ENTRIES: u32 = 4_093;

/// Reports that do not arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) until: Nanos,
    pub(super) machines: (u16, u16),
    pub(super) packets: bool,
}

pub(super) struct Edge {
    pub(super) machines: Machines,
    gates: Vec<Gate>,
    audience: u64,
    pub(super) is_up: bool,
    pub(super) cut: Option<Cut>,
    /// Flows in its table.
    pub(super) pins: u64,
    pub(super) pins_max: u64,
    /// By machine: whether its pins are void.
    pub(super) void: Vec<bool>,
    pub(super) reports: u64,
    pub(super) report_bytes: u64,
    pub(super) refused: u64,
}

impl Edge {
    /// A new run of an edge. It is told of the members before, and of those now.
    pub(super) fn new(
        audience: u64,
        settings: Settings,
        machines: &[Machine],
        [before, members]: [&[Member]; 2],
    ) -> Edge {
        let mut of = Machines::new(settings);
        if !before.is_empty() {
            of.set_members(before);
        }
        of.set_members(members);
        let gates = machines.iter().map(|machine| gate(machine, audience));
        Edge {
            machines: of,
            gates: gates.collect(),
            audience,
            is_up: true,
            cut: None,
            pins: 0,
            pins_max: 0,
            void: vec![false; machines.len()],
            reports: 0,
            report_bytes: 0,
            refused: 0,
        }
    }

    /// Whether what a machine sends is cut off.
    fn misses(&self, machine: &Machine) -> bool {
        self.cut
            .is_some_and(|cut| (cut.machines.0..cut.machines.1).contains(&machine.id.0))
    }

    /// Whether packets do not reach a machine.
    pub(super) fn is_cut_from(&self, machine: &Machine) -> bool {
        self.misses(machine) && self.cut.is_some_and(|cut| cut.packets)
    }

    /// Takes the reports of an interval, as bytes.
    pub(super) fn hear(&mut self, machines: &[Machine], replies_through_edge: bool, now: Nanos) {
        if self.cut.is_some_and(|cut| now >= cut.until) {
            self.cut = None;
        }
        let mut into = [0; DATAGRAM_LIMIT];
        for machine in machines {
            if replies_through_edge && machine.is_up() && machine.live > 0 && !self.is_cut_from(machine) {
                self.machines.heard(machine.id, now);
            }
            if self.misses(machine) {
                continue;
            }
            let Some(datagram) = machine.report(self.audience, &mut into) else {
                continue;
            };
            self.report_bytes += datagram.len() as u64;
            let index = machine.id.index();
            if self.gates.len() <= index {
                let new = machines.get(self.gates.len()..).unwrap_or_default();
                self.gates
                    .extend(new.iter().map(|machine| gate(machine, self.audience)));
                self.void.resize(self.gates.len(), false);
            }
            let Some(gate) = self.gates.get_mut(index) else {
                continue;
            };
            match gate.accept(datagram) {
                Ok(report) => {
                    self.reports += 1;
                    for load in report.services().filter(|load| load.service == SERVICE) {
                        self.machines.reported(machine.id, &load, now);
                    }
                }
                Err(_) => self.refused += 1,
            }
        }
        self.machines.renew(now);
    }

    pub(super) fn add_pin(&mut self) {
        self.pins += 1;
        self.pins_max = self.pins_max.max(self.pins);
    }
}

fn gate(machine: &Machine, audience: u64) -> Gate {
    Gate::new(machine.id, machine.key.clone(), audience)
}

/// Which edge gets a flow.
pub(super) struct Routers {
    kind: Ecmp,
    /// The edges that they send to.
    pub(super) edges: Vec<u8>,
    table: Table,
}

impl Routers {
    pub(super) fn new(kind: Ecmp) -> Routers {
        Routers {
            kind,
            edges: Vec::new(),
            table: Table::new(EDGE_ENTRIES, 0),
        }
    }

    pub(super) fn set(&mut self, mut edges: Vec<u8>) {
        edges.sort_unstable();
        self.edges = edges;
        fill(&mut self.table, &self.edges);
    }

    /// The edge of a flow.
    pub(super) fn edge(&self, hash: u64) -> Option<u8> {
        // Routers hash otherwise than edges do.
        let hash = mix(hash ^ 0x0072_6f75_7465_7273);
        match self.kind {
            Ecmp::Modulo => self
                .edges
                .get((hash % self.edges.len().max(1) as u64) as usize)
                .copied(),
            Ecmp::Resilient => by_table(&self.table, hash),
        }
    }
}

/// The edges that own hashes, for the mechanism that asks the owner.
pub(super) struct Owners {
    table: Table,
    before: Option<Table>,
}

impl Owners {
    pub(super) fn new() -> Owners {
        Owners {
            table: Table::new(EDGE_ENTRIES, 0),
            before: None,
        }
    }

    pub(super) fn set(&mut self, edges: &[u8]) {
        self.before = Some(self.table.clone());
        fill(&mut self.table, edges);
    }

    /// The owner of a flow, and the one before the edges last changed.
    pub(super) fn of(&self, hash: u64) -> (Option<u8>, Option<u8>) {
        let hash = mix(hash ^ 0x006f_776e_6572);
        let before = self.before.as_ref().and_then(|table| by_table(table, hash));
        (by_table(&self.table, hash), before)
    }
}

fn fill(table: &mut Table, edges: &[u8]) {
    table.begin(edges.iter().map(|edge| maglev::Member {
        id: u16::from(*edge),
        name: mix(u64::from(*edge) | 1 << 32),
        weight: 1.0,
    }));
    if !table.fill(u32::MAX) {
        *table = Table::new(EDGE_ENTRIES, 0);
    }
}

fn by_table(table: &Table, hash: u64) -> Option<u8> {
    let id = table.entries().get(table.place(hash))?;
    u8::try_from(*id).ok()
}
