//! The report: one self-contained HTML page.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use display::chart::{Chart, Series, Style, escape};
use display::page;

use super::findings::Finding;
use super::outcome::{Figures, Outcome};
use crate::args::{PathName, PathScope, PathWork};

/// The page.
pub(super) fn html(
    outcome: &Outcome,
    findings: &[Finding],
    facts: &[(&'static str, String)],
    rounds: u32,
) -> String {
    let mut page = page::begin("inco bench paths");
    let _ = write!(
        page,
        "<h1>inco bench paths</h1><p>The same traffic over each path of this machine, in turns. Figures are medians of \
         {rounds} rounds, with the least and the greatest. CPU time is that of the whole machine, with the programs that send \
         and receive. What stands in for a card is called a stand-in.</p>"
    );
    let mut rows = vec![vec!["machine".to_owned(), String::new()]];
    rows.extend(
        facts
            .iter()
            .map(|(name, value)| vec![(*name).to_owned(), value.clone()]),
    );
    page::table(&mut page, &rows);
    for (work, title) in [
        (PathWork::Tcp, "TCP"),
        (PathWork::Requests, "Requests"),
        (PathWork::Tiers, "Requests through three tiers"),
        (PathWork::Packets, "Packets of 64 bytes"),
        (PathWork::MixLarge, "Large flows at a fixed rate"),
        (PathWork::MixHalf, "Large and small flows at a fixed rate"),
        (PathWork::MixSmall, "Small flows at a fixed rate"),
    ] {
        let Some(table) = outcome.table(work) else {
            continue;
        };
        let _ = write!(page, "<h2>{title}</h2>");
        page::table(&mut page, &table.cells());
    }
    if let Some(table) = outcome.comparison_table() {
        page.push_str(
            "<h2>The driver hybrid beside the best path for all flows</h2><p>CPU time of a packet there ÷ that of hybrid, in the \
             same rounds: the median, and what it is at least with 95 %.</p>",
        );
        page::table(&mut page, &table.cells());
    }
    for scope in PathScope::ALL {
        let charts: Vec<Chart> = [
            ("Gbit/s", "Gbit/s", rate as fn(&Figures) -> Option<f64>),
            ("CPU time per Gbit", "CPU s/Gbit", cpu),
        ]
        .into_iter()
        .filter_map(|(title, y, figure)| by_streams(outcome, scope, title, y, figure))
        .collect();
        if !charts.is_empty() {
            let title = format!("TCP by the number of connections, {}", scope.name());
            page::section(
                &mut page,
                &title,
                "Each point is the median of the rounds.",
                charts,
            );
        }
    }
    page.push_str("<h2>Beside the offload evaluation</h2>");
    let mut rows = vec![
        ["finding", "reported", "measured here", "shape"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(findings.iter().map(|of| {
        vec![
            of.id.to_owned(),
            of.reported.to_owned(),
            of.measured.clone(),
            of.shape.word().to_owned(),
        ]
    }));
    page.push_str("<div class=\"events\">");
    page::table(&mut page, &rows);
    page.push_str("</div><h2>Paths</h2>");
    let mut rows = vec![["path", "what it is"].map(str::to_owned).to_vec()];
    rows.extend(PathName::ALL.map(|path| vec![path.name().to_owned(), path.about().to_owned()]));
    page::table(&mut page, &rows);
    if !outcome.missing.is_empty() {
        page.push_str("<h2>Not measured</h2><ul>");
        for reason in outcome.reasons() {
            let _ = write!(page, "<li>{}</li>", escape(&reason));
        }
        page.push_str("</ul>");
    }
    page::end(page)
}

fn rate(figures: &Figures) -> Option<f64> {
    figures.gbps
}

fn cpu(figures: &Figures) -> Option<f64> {
    figures.cpu_s_per_gbit
}

/// A figure of each path over the number of connections; none without a path.
fn by_streams(
    outcome: &Outcome,
    scope: PathScope,
    title: &str,
    y: &'static str,
    figure: fn(&Figures) -> Option<f64>,
) -> Option<Chart> {
    let mut points: BTreeMap<PathName, Vec<(f64, f64)>> = BTreeMap::new();
    for row in outcome.rows() {
        if row.key.work == PathWork::Tcp
            && row.key.scope == scope
            && let Some(value) = outcome.median(row.key, figure)
        {
            let of_path = points.entry(row.key.path).or_default();
            of_path.push((f64::from(row.key.streams), value));
        }
    }
    let series: Vec<Series> = PathName::ALL
        .into_iter()
        .enumerate()
        .filter_map(|(colour, path)| Some(Series::new(path.name(), colour, points.remove(&path)?)))
        .collect();
    (!series.is_empty()).then(|| Chart {
        title: title.to_owned(),
        x: "connections",
        y,
        style: Style::Points,
        series,
    })
}

#[cfg(test)]
mod tests {
    use super::super::findings::findings;
    use super::super::outcome::{Key, Missing, Turn};
    use super::*;

    #[test]
    fn the_page_has_each_part() {
        let turn = |streams, gbps| Turn {
            key: Key {
                path: PathName::Bridge,
                scope: PathScope::Local,
                work: PathWork::Tcp,
                streams,
            },
            round: 1,
            figures: Figures {
                gbps: Some(gbps),
                cpu_s_per_gbit: Some(0.1),
                ..Figures::default()
            },
        };
        let outcome = Outcome {
            turns: vec![turn(1, 10.0), turn(4, 12.5)],
            card_is_stand_in: false,
            missing: vec![Missing {
                path: PathName::Ovs,
                scope: PathScope::Across,
                work: None,
                reason: "a <reason>".to_owned(),
            }],
        };
        let findings = findings(&outcome, &Ok(7.0));
        let page = html(&outcome, &findings, &[("cpus", "2".to_owned())], 3);
        for part in [
            "12.50",
            "PT-11",
            "PT-20",
            "a &lt;reason&gt;",
            "<svg",
            "stand-in",
            "CPU s/Gbit",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(
            !page.contains("http://") && !page.contains("src="),
            "it is self-contained"
        );
        assert!(page.ends_with("</html>\n"));
    }
}
