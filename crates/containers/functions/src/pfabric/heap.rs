//! A heap of numbered items, any of which can be removed.

/// What items are ordered by.
type Rank = (u32, u64);

/// Items 0 to a limit, the one of the smallest rank first.
#[derive(Debug)]
pub(super) struct Heap {
    heap: Vec<(Rank, u32)>,
    /// Where each item is in it.
    places: Box<[u32]>,
}

impl Heap {
    pub(super) fn new(limit: usize) -> Heap {
        Heap {
            heap: Vec::with_capacity(limit),
            places: vec![0; limit].into(),
        }
    }

    /// The item of the smallest rank.
    pub(super) fn first(&self) -> Option<u32> {
        self.heap.first().map(|of| of.1)
    }

    /// Adds an item that is not in it.
    pub(super) fn push(&mut self, item: u32, rank: Rank) {
        let place = self.heap.len();
        self.heap.push((rank, item));
        self.places[item as usize] = place as u32;
        self.rise(place);
    }

    /// Removes an item that is in it.
    pub(super) fn remove(&mut self, item: u32) {
        let place = self.places[item as usize] as usize;
        let Some(last) = self.heap.pop() else { return };
        if let Some(of) = self.heap.get_mut(place) {
            *of = last;
            self.places[last.1 as usize] = place as u32;
            self.sink(place);
            self.rise(place);
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a].1 as usize] = a as u32;
        self.places[self.heap[b].1 as usize] = b as u32;
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.heap[parent].0 <= self.heap[place].0 {
                return;
            }
            self.swap(place, parent);
            place = parent;
        }
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = [2 * place + 1, 2 * place + 2].into_iter();
            let children = children.filter(|child| *child < self.heap.len());
            let Some(least) = children.min_by_key(|child| self.heap[*child].0) else {
                return;
            };
            if self.heap[place].0 <= self.heap[least].0 {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }
}
