//! The page in which the functions' counters are published.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use anyhow::Result;
use functions::{About, Chain, Kind, Metric};
use nf_page::{MetricKind, MetricName, NfCounters, PageListener, PageWriter, StageCounters};

// The page has room for each chain, and for the metrics of each function by itself.
const _: () = assert!(functions::STAGES_LIMIT <= nf_page::STAGES_LIMIT);
const _: () = assert!(functions::METRICS_LIMIT + functions::REASONS_LIMIT <= nf_page::METRICS_LIMIT);

/// Where the host offers pages, and the one that it has offered last.
pub(crate) struct Pages {
    listener: PageListener,
    page: Option<PageWriter>,
}

impl Pages {
    /// Listens for pages.
    pub(crate) fn bind(path: &Path) -> Result<Pages> {
        Ok(Pages {
            listener: PageListener::bind(path)?,
            page: None,
        })
    }

    /// The page, if the host has offered one.
    pub(crate) fn page(&self) -> Option<&PageWriter> {
        self.page.as_ref()
    }

    /// Takes the page that the host has offered, if any.
    pub(crate) fn accept(&mut self, chain: &Chain) {
        // An invalid offer is the host's error and no reason to stop working.
        let Ok(Some(page)) = self.listener.accept() else {
            return;
        };
        let abouts: Vec<About> = chain.stages().iter().map(|stage| stage.about()).collect();
        let metrics = abouts
            .iter()
            .enumerate()
            .flat_map(|(stage, about)| names(stage, about));
        page.name_functions(abouts.iter().map(|about| about.name), metrics);
        self.page = Some(page);
    }
}

impl AsFd for Pages {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Names of a function's numbers, in the order in which [`publish`] gives the values.
fn names(stage: usize, about: &About) -> impl Iterator<Item = MetricName<'static>> {
    let name = move |of: &'static Metric, kind| MetricName {
        stage,
        name: of.name,
        kind,
    };
    let reasons = about.reasons.iter().map(move |of| name(of, MetricKind::Reason));
    let metrics = about.metrics.iter().map(move |of| match of.kind {
        Kind::Counter => name(of, MetricKind::Counter),
        Kind::Gauge => name(of, MetricKind::Gauge),
    });
    reasons.chain(metrics)
}

/// Publishes all counters. `counters` lacks those of functions.
pub(crate) fn publish(page: &PageWriter, chain: &Chain, mut counters: NfCounters) {
    let mut next = 0;
    for (at, stage) in chain.stages().iter().enumerate() {
        let (totals, summary) = (stage.totals(), stage.summary());
        page.publish_function(
            at,
            &StageCounters {
                packets: totals.packets,
                forwarded: totals.forwarded,
                answered: totals.answered,
                consumed: totals.consumed,
                dropped: totals.dropped,
                originated: totals.originated,
                refused: totals.refused,
                reloads: totals.reloads,
                entries: summary.entries,
                flows: summary.flows,
                flows_limit: summary.flows_limit,
            },
        );
        *counters.held_flows.get_or_insert_default() += summary.flows;
        counters.dropped_by_functions += totals.dropped + totals.consumed;
        let mut values = [0; functions::METRICS_LIMIT];
        let values = &mut values[..stage.about().metrics.len().min(functions::METRICS_LIMIT)];
        stage.metrics(values);
        for value in stage.dropped().iter().chain(&*values) {
            page.publish_metric(next, *value);
            next += 1;
        }
    }
    page.publish(&counters);
}
