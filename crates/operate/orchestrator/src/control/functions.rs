//! Functions' own counters, which they publish in shared pages. A page is what a container says: its numbers are shown,
//! and decide nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use api::counters::FunctionCounters as ApiCounters;
use model::{EventKind, FunctionChange, InstanceId, Nanos, Percentiles, Slot};
use nf_page::{MetricKind, PageReader, StageReport};
use switch::{FunctionCounters, SlotCounters};

/// Interval at which a page is offered to a function that does not listen yet.
const OFFER_INTERVAL: Nanos = Nanos::from_millis(50);
/// How long a page is offered. A third-party function never listens.
const OFFER_FOR: Nanos = Nanos::from_secs(5);
/// Interval at which reloads of functions are looked for: also how often a function can cause events by them.
const LOOK_INTERVAL: Nanos = Nanos::from_secs(1);
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
#[derive(Default)]
pub(super) struct FunctionPages {
    pages: BTreeMap<Slot, FunctionPage>,
    look_at: Nanos,
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

    /// Removes the page of a slot that is free now. Gives what its functions had done.
    pub(super) fn remove(&mut self, slot: Slot) -> Vec<FunctionEvent> {
        let Some(page) = self.pages.remove(&slot) else {
            return Vec::new();
        };
        let functions = page.reader.functions();
        functions
            .iter()
            .map(|of| page.event(of, FunctionChange::Ended))
            .collect()
    }

    /// Reloads of functions since the last call; at most one look in [`LOOK_INTERVAL`].
    pub(super) fn reloads(&mut self, now: Nanos) -> Vec<FunctionEvent> {
        let mut events = Vec::new();
        if now >= self.look_at {
            self.look_at = now + LOOK_INTERVAL;
            self.pages.values_mut().for_each(|page| page.reloads(&mut events));
        }
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
                    dropped: total.dropped().saturating_add(said.dropped_by_functions),
                    busy_ns: said.busy_ns,
                    memory_bytes: said.rss_bytes,
                    held_flows: said.held_flows,
                    took: said.took_ns.map(|[p50, p99]| Percentiles {
                        p50: Nanos(p50),
                        p99: Nanos(p99),
                    }),
                }
            });
        }
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
