//! Functions' own counters, which they publish in shared pages. A page is what a container says: its numbers are shown.
//! Of these, busy time and memory decide something, and only where a policy is told to go by them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use api::counters::FunctionCounters as ApiCounters;
use model::{EventKind, FunctionChange, InstanceId, Nanos, Percentiles, Slot};
use nf_page::{MetricKind, NfCounters, PageReader, StageReport};
use switch::{FunctionCounters, SlotCounters};

use super::rota::Rota;

/// Interval at which a page is offered to a function that does not listen yet.
const OFFER_INTERVAL: Nanos = Nanos::from_millis(50);
/// How long a page is offered. A third-party function never listens.
const OFFER_FOR: Nanos = Nanos::from_secs(5);
/// In which time each page is read as a whole: some pages in each turn. Nothing but busy time, which is read in each turn,
/// decides anything within milliseconds; and times and memory are those of a whole second.
const WHOLE_PERIOD: Nanos = Nanos::from_millis(50);
/// In which time reloads of each instance's functions are looked for: also how often a function can cause events by them.
const LOOK_PERIOD: Nanos = Nanos::from_secs(1);
/// Packets dropped for a reason that the page has no room for, or for none.
const OTHER_REASON: &str = "other";

/// The page of one instance. It is offered until the function takes it.
struct FunctionPage {
    reader: PageReader,
    socket: PathBuf,
    since: Nanos,
    offer_at: Nanos,
    offered: bool,
    instance: InstanceId,
    service: String,
    /// Reloads so far: those of each function, and those that were refused. [`None`] before they are known: an adopted
    /// instance has some of the time before.
    reloads: Option<(Vec<u64>, u64)>,
}

impl FunctionPage {
    fn event(&self, of: &StageReport, change: FunctionChange) -> FunctionEvent {
        let kind = EventKind::Function {
            function: of.name.clone(),
            stage: of.stage as u32,
            change,
            packets: of.counters.packets,
            drops: drops(of)
                .into_iter()
                .filter(|(_, packets)| *packets > 0)
                .collect(),
            originated: of.counters.originated,
        };
        (self.service.clone(), self.instance, kind)
    }

    /// Events of the reloads since the last call.
    fn reloads(&mut self, events: &mut Vec<FunctionEvent>) {
        let functions = self.reader.functions();
        let Some(said) = self.reader.read().filter(|_| !functions.is_empty()) else {
            return;
        };
        let reloads = functions.iter().map(|of| of.counters.reloads).collect();
        let Some((before, refused)) = self.reloads.replace((reloads, said.reloads_failed)) else {
            return;
        };
        for (of, before) in functions.iter().zip(before) {
            if of.counters.reloads > before {
                events.push(self.event(of, FunctionChange::Reloaded));
            }
        }
        if let Some(first) = functions.first().filter(|_| said.reloads_failed > refused) {
            events.push(self.event(first, FunctionChange::Refused));
        }
    }
}

/// An event of a function: its service, its instance, and what happened.
pub(super) type FunctionEvent = (String, InstanceId, EventKind);

/// The pages of all instances.
pub(super) struct FunctionPages {
    pages: BTreeMap<Slot, FunctionPage>,
    /// Which pages are read as a whole.
    whole: Rota,
    /// In which pages reloads are looked for.
    looks: Rota,
}

impl Default for FunctionPages {
    fn default() -> FunctionPages {
        FunctionPages {
            pages: BTreeMap::new(),
            whole: Rota::new(WHOLE_PERIOD),
            looks: Rota::new(LOOK_PERIOD),
        }
    }
}

impl FunctionPages {
    /// Starts to offer a page to the slot's new instance, on that socket.
    pub(super) fn add(
        &mut self,
        slot: Slot,
        (service, instance): (String, InstanceId),
        socket: &Path,
        now: Nanos,
    ) {
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
                    instance,
                    service,
                    reloads: None,
                },
            );
        }
    }

    /// Removes the page of a slot that is free now, and reads it a last time. Gives what its functions had done.
    pub(super) fn remove(&mut self, slot: Slot, counters: &mut [SlotCounters]) -> Vec<FunctionEvent> {
        let Some(page) = self.pages.remove(&slot) else {
            return Vec::new();
        };
        if let (Some(counters), Some(said)) = (counters.get_mut(slot.index()), page.reader.read()) {
            counters.function = Some(said_of_all(&said));
        }
        let functions = page.reader.functions();
        functions
            .iter()
            .map(|of| page.event(of, FunctionChange::Ended))
            .collect()
    }

    /// Reloads of functions since the last look at each page; one look in [`LOOK_PERIOD`].
    pub(super) fn reloads(&mut self, now: Nanos) -> Vec<FunctionEvent> {
        let mut events = Vec::new();
        let due = self.looks.due(self.pages.len(), now);
        let pages = self.pages.values_mut().skip(due.start).take(due.len());
        pages.for_each(|page| page.reloads(&mut events));
        events
    }

    /// What all functions say of themselves.
    pub(super) fn counters(&self) -> Vec<ApiCounters> {
        let each = self.pages.values().flat_map(|page| {
            let functions = page.reader.functions().into_iter();
            functions.map(move |of| counters(page, &of))
        });
        each.collect()
    }

    /// Offers the pages that are not taken yet, and reads the others into their slots' counters: the busy time of each, and
    /// the rest once in [`WHOLE_PERIOD`].
    pub(super) fn read(&mut self, counters: &mut [SlotCounters], now: Nanos) {
        let whole = self.whole.due(self.pages.len(), now);
        for (at, (slot, page)) in self.pages.iter_mut().enumerate() {
            if !page.offered && now >= page.offer_at && now.since(page.since) < OFFER_FOR {
                page.offered = page.reader.offer(&page.socket).is_ok();
                page.offer_at = now + OFFER_INTERVAL;
            }
            let Some(counters) = counters.get_mut(slot.index()) else {
                continue;
            };
            match (page.reader.busy_ns(), &mut counters.function) {
                (Some(busy_ns), Some(known)) if !whole.contains(&at) => known.busy_ns = busy_ns,
                (Some(_), function) => *function = page.reader.read().as_ref().map(said_of_all),
                (None, function) => *function = None,
            }
        }
    }
}

/// What an instance's page says of all its functions.
fn said_of_all(said: &NfCounters) -> FunctionCounters {
    let total = said.total();
    FunctionCounters {
        packets: total.packets_in,
        dropped: total.dropped().saturating_add(said.dropped_by_functions),
        busy_ns: said.busy_ns,
        memory_bytes: said.rss_bytes,
        held_flows: said.held_flows,
        took: said.took_ns.map(|[p50, p99]| Percentiles {
            p50: Nanos(p50),
            p99: Nanos(p99),
        }),
    }
}

/// Packets that a function dropped, by reason.
fn drops(of: &StageReport) -> BTreeMap<String, u64> {
    let reasons = of
        .metrics
        .iter()
        .filter(|metric| metric.kind == MetricKind::Reason);
    let mut drops: BTreeMap<String, u64> = reasons
        .map(|reason| (reason.name.clone(), reason.value))
        .collect();
    let named = drops
        .values()
        .fold(0_u64, |sum, packets| sum.saturating_add(*packets));
    let other = of.counters.dropped.saturating_sub(named);
    if other > 0 {
        *drops.entry(OTHER_REASON.to_owned()).or_default() += other;
    }
    drops
}

/// What a function says of itself, as the API tells it.
fn counters(page: &FunctionPage, of: &StageReport) -> ApiCounters {
    let named = |kind| -> BTreeMap<String, u64> {
        let metrics = of.metrics.iter().filter(move |metric| metric.kind == kind);
        metrics
            .map(|metric| (metric.name.clone(), metric.value))
            .collect()
    };
    let counted = of.counters;
    ApiCounters {
        instance: page.instance.0,
        service: page.service.clone(),
        stage: of.stage as u32,
        name: of.name.clone(),
        packets: counted.packets,
        forwarded: counted.forwarded,
        answered: counted.answered,
        consumed: counted.consumed,
        originated: counted.originated,
        refused: counted.refused,
        drops: drops(of),
        totals: named(MetricKind::Counter),
        gauges: named(MetricKind::Gauge),
        reloads: counted.reloads,
        entries: counted.entries,
        flows: counted.flows,
        flows_limit: counted.flows_limit,
    }
}

#[cfg(test)]
mod tests {
    use nf_page::PageListener;

    use super::*;

    const INSTANCES: u16 = 64;

    /// Functions that publish new numbers in each of a thousand turns: how often their readers see new ones.
    #[test]
    fn pages_of_64_instances_are_read_in_turns() {
        let folder = tempfile::tempdir().unwrap();
        let mut pages = FunctionPages::default();
        let mut now = Nanos::from_secs(1);
        let mut slots = vec![SlotCounters::default(); INSTANCES.into()];
        let listeners: Vec<_> = (0..INSTANCES)
            .map(|slot| {
                let socket = folder.path().join(slot.to_string());
                let listener = PageListener::bind(&socket).unwrap();
                let whose = ("forward".to_owned(), InstanceId(slot.into()));
                pages.add(Slot(slot), whose, &socket, now);
                listener
            })
            .collect();
        pages.read(&mut slots, now);
        assert!(slots.iter().all(|of| of.function.is_none()), "none is written");
        let functions: Vec<_> = listeners.iter().map(|of| of.accept().unwrap().unwrap()).collect();

        let (mut of_busy, mut of_rest, mut most) = (0, 0, 0);
        let mut before = vec![FunctionCounters::default(); INSTANCES.into()];
        for turn in 1..=1_000 {
            now = now + Nanos::from_millis(1);
            for function in &functions {
                function.publish(&NfCounters {
                    busy_ns: turn,
                    rss_bytes: turn,
                    ..NfCounters::default()
                });
            }
            pages.read(&mut slots, now);
            let mut at_once = 0;
            for (slot, before) in slots.iter().zip(&mut before) {
                let said = slot.function.unwrap();
                of_busy += u64::from(said.busy_ns == turn);
                at_once += u64::from(said.memory_bytes != before.memory_bytes);
                assert!(said.memory_bytes + 52 > turn, "{said:?} in turn {turn}");
                *before = said;
            }
            of_rest += at_once;
            // In the first turn nothing was known.
            most = most.max(if turn == 1 { 0 } else { at_once });
        }
        assert_eq!(
            of_busy, 64_000,
            "busy time of 64 pages, a thousand times a second"
        );
        assert!(
            (1_216..=1_408).contains(&of_rest),
            "{of_rest} whole pages in a second"
        );
        assert!(most <= 3, "{most} at once");

        // The last of an instance counts, and a page of the next one has nothing of it.
        functions[7].publish(&NfCounters {
            rss_bytes: 5_000,
            ..NfCounters::default()
        });
        pages.remove(Slot(7), &mut slots);
        assert_eq!(slots[7].function.unwrap().memory_bytes, 5_000);
        let socket = folder.path().join("next");
        pages.add(Slot(7), (String::new(), InstanceId(99)), &socket, now);
        pages.read(&mut slots, now + Nanos::from_millis(1));
        assert_eq!(slots[7].function, None);
    }
}
