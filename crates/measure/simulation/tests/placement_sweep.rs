//! `placement = "auto"` beside each static placement, in every mix of a sweep over load, frame length and the host's link.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;
use std::path::Path;

use simulation::{ScenarioFile, SweepPoint, sweep};

/// What is varied: 10 to 80 Mpps in 300 flows, short and long frames, a host that is near its link's limit or far from it.
const VARIED: [(&str, &[&str]); 3] = [
    (
        "traffic.0.pps",
        &["33e3", "67e3", "100e3", "133e3", "167e3", "200e3", "267e3"],
    ),
    ("traffic.0.bytes", &["64", "512", "1500"]),
    ("place.1.link_bps", &["50e9", "200e9"]),
];

/// What the sweep gives, by mix.
fn played(varied: &[(&str, &[&str])]) -> BTreeMap<String, Vec<SweepPoint>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scenarios");
    let file = ScenarioFile::load(&folder.join("placement-mixes.toml")).unwrap();
    let owned = |(key, values): &(&str, &[&str])| {
        let values = values.iter().map(|value| (*value).to_owned());
        ((*key).to_owned(), values.collect::<Vec<_>>())
    };
    let vary: Vec<_> = varied.iter().map(owned).collect();
    let points = sweep(&file, &vary, Some(1), &folder, &mut |_, _| {}).unwrap();
    let mut mixes: BTreeMap<String, Vec<SweepPoint>> = BTreeMap::new();
    for point in points {
        mixes.entry(format!("{:?}", point.set)).or_default().push(point);
    }
    mixes
}

#[test]
fn auto_serves_what_the_best_static_placement_serves_in_every_mix() {
    let mixes = played(&VARIED);
    assert_eq!(mixes.len(), 7 * 3 * 2);
    let mut worst = f64::INFINITY;
    let mut below = Vec::new();
    for (mix, points) in &mixes {
        let served = points
            .iter()
            .map(|of| (of.variant.as_str(), of.metrics["served_packets"].mean));
        let served: Vec<(&str, f64)> = served.collect();
        let of_auto = served.iter().find(|(name, _)| *name == "auto").unwrap().1;
        let statics = served.iter().filter(|(name, _)| *name != "auto");
        let best = statics.map(|(_, served)| *served).fold(0.0, f64::max);
        let ratio = of_auto / best;
        worst = worst.min(ratio);
        if ratio < 0.98 {
            below.push(format!("{ratio:.3} in {mix}: {served:?}"));
        }
    }
    println!(
        "auto ÷ best static placement: at least {worst:.3} in {} mixes",
        mixes.len()
    );
    assert!(below.is_empty(), "{}", below.join("\n"));
}

/// With the goal `power`, which fills instances to nine tenths.
const POWER: [(&str, &[&str]); 2] = [
    ("service.autoscaler.goal", &["power"]),
    (
        "traffic.0.pps",
        &[
            "33e3", "67e3", "90e3", "100e3", "133e3", "167e3", "200e3", "267e3",
        ],
    ),
];

#[test]
fn auto_takes_no_more_watts_than_the_best_static_placement() {
    let mut wrong = Vec::new();
    for (mix, placements) in &played(&POWER) {
        let of = |name: &str| &placements.iter().find(|of| of.variant == name).unwrap().metrics;
        let figure = |name: &str, key: &str| of(name)[key].mean;
        let auto = (
            figure("auto", "served_packets"),
            figure("auto", "model_power_w_mean"),
        );
        // A placement that loses packets saves watts by that.
        let enough = ["card", "host", "split"]
            .into_iter()
            .filter(|name| figure(name, "served_packets") >= 0.998 * auto.0);
        let best = enough
            .map(|name| figure(name, "model_power_w_mean"))
            .fold(f64::INFINITY, f64::min);
        println!(
            "MODEL: auto {:.1} W, best static placement {best:.1} W in {mix}",
            auto.1
        );
        if auto.1 > 1.005 * best {
            wrong.push(format!("{:.1} W, {best:.1} W in {mix}", auto.1));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
