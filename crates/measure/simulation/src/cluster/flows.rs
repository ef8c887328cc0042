//! The live flows.

use model::Slot;

/// A live flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) hash: u64,
    /// Its rate, in thousandths of packets per second.
    pub(super) milli_pps: u32,
    /// The interval in which it began, and the one in which it ends.
    pub(super) born: u32,
    pub(super) ends: u32,
    pub(super) machine: u16,
    /// Its instance there; [`Slot::NONE`] if the machine never got it.
    pub(super) slot: Slot,
    /// The edge that routers send it to.
    pub(super) edge: u8,
    /// A bit for each edge that has a pin of it.
    pub(super) pinned_at: u16,
}

impl Flow {
    pub(super) fn is_pinned_at(&self, edge: u8) -> bool {
        self.pinned_at & bit(edge) != 0
    }

    pub(super) fn pps(&self) -> f64 {
        f64::from(self.milli_pps) / 1e3
    }
}

pub(super) fn bit(edge: u8) -> u16 {
    1_u16.checked_shl(u32::from(edge)).unwrap_or(0)
}

/// All of them, and when they end.
pub(super) struct Flows {
    all: Vec<Option<Flow>>,
    free: Vec<u32>,
    /// By interval.
    ends: Vec<Vec<u32>>,
    pub(super) live: u64,
    pub(super) live_max: u64,
}

impl Flows {
    pub(super) fn new(intervals: usize) -> Flows {
        Flows {
            all: Vec::new(),
            free: Vec::new(),
            ends: vec![Vec::new(); intervals + 1],
            live: 0,
            live_max: 0,
        }
    }

    pub(super) fn add(&mut self, flow: Flow) -> u32 {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.all.push(None);
                self.all.len() as u32 - 1
            }
        };
        if let Some(place) = self.all.get_mut(id as usize) {
            *place = Some(flow);
        }
        if let Some(ends) = self.ends.get_mut(flow.ends as usize) {
            ends.push(id);
        }
        self.live += 1;
        self.live_max = self.live_max.max(self.live);
        id
    }

    /// The flows that end in an interval.
    pub(super) fn end(&mut self, interval: u32) -> Vec<Flow> {
        let ids = self.ends.get_mut(interval as usize).map(std::mem::take);
        let mut ended = Vec::new();
        for id in ids.unwrap_or_default() {
            if let Some(flow) = self.all.get_mut(id as usize).and_then(Option::take) {
                self.free.push(id);
                self.live -= 1;
                ended.push(flow);
            }
        }
        ended
    }

    pub(super) fn get(&self, id: u32) -> Option<&Flow> {
        self.all.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Flow> {
        self.all.get_mut(id as usize)?.as_mut()
    }

    /// The numbers of those for which something holds.
    pub(super) fn numbers(&self, of: impl Fn(&Flow) -> bool) -> Vec<u32> {
        let live = (0..).zip(&self.all);
        live.filter(|(_, flow)| flow.as_ref().is_some_and(&of))
            .map(|(id, _)| id)
            .collect()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Flow> {
        self.all.iter_mut().flatten()
    }
}
