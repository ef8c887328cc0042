//! Functions' own counters, which they publish in shared pages.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::{Nanos, Slot};
use nf_page::PageReader;
use switch::{FunctionCounters, SlotCounters};

/// Interval at which a page is offered to a function that does not listen yet.
const OFFER_INTERVAL: Nanos = Nanos::from_millis(50);
/// How long a page is offered. A third-party function never listens.
const OFFER_FOR: Nanos = Nanos::from_secs(5);

/// The page of one instance. It is offered until the function takes it.
struct FunctionPage {
    reader: PageReader,
    socket: PathBuf,
    since: Nanos,
    offer_at: Nanos,
    offered: bool,
}

/// The pages of all instances.
#[derive(Default)]
pub(super) struct FunctionPages {
    pages: BTreeMap<Slot, FunctionPage>,
}

impl FunctionPages {
    /// Starts to offer a page to the slot's new instance, on that socket.
    pub(super) fn add(&mut self, slot: Slot, socket: &Path, now: Nanos) {
        // Without a page, only the function's own counters are missing.
        if let Ok(reader) = PageReader::create() {
            let socket = socket.to_path_buf();
            self.pages.insert(
                slot,
                FunctionPage {
                    reader,
                    socket,
                    since: now,
                    offer_at: now,
                    offered: false,
                },
            );
        }
    }

    /// Removes the page of a slot that is free now.
    pub(super) fn remove(&mut self, slot: Slot) {
        self.pages.remove(&slot);
    }

    /// Offers the pages that are not taken yet, and reads the others into their slots' counters.
    pub(super) fn read(&mut self, counters: &mut [SlotCounters], now: Nanos) {
        for (slot, page) in &mut self.pages {
            if !page.offered && now >= page.offer_at && now.since(page.since) < OFFER_FOR {
                page.offered = page.reader.offer(&page.socket).is_ok();
                page.offer_at = now + OFFER_INTERVAL;
            }
            let Some(counters) = counters.get_mut(slot.index()) else {
                continue;
            };
            counters.function = page.reader.read().map(|said| {
                let total = said.total();
                FunctionCounters {
                    packets: total.packets_in,
                    dropped: total.dropped(),
                    busy_ns: said.busy_ns,
                    memory_bytes: said.rss_bytes,
                }
            });
        }
    }
}
