//! `placement = "auto"` beside each static placement, in every mix of a sweep over load, frame length and the host's link.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;
use std::path::Path;

use simulation::{ScenarioFile, sweep};

/// What is varied: 10 to 80 Mpps in 300 flows, short and long frames, a host that is near its link's limit or far from it.
const VARIED: [(&str, &[&str]); 3] = [
    (
        "traffic.0.pps",
        &["33e3", "67e3", "100e3", "133e3", "167e3", "200e3", "267e3"],
    ),
    ("traffic.0.bytes", &["64", "512", "1500"]),
    ("place.1.link_bps", &["50e9", "200e9"]),
];

#[test]
fn auto_serves_what_the_best_static_placement_serves_in_every_mix() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scenarios");
    let file = ScenarioFile::load(&folder.join("placement-mixes.toml")).unwrap();
    let owned = |(key, values): (&str, &[&str])| {
        let values = values.iter().map(|value| (*value).to_owned());
        (key.to_owned(), values.collect::<Vec<_>>())
    };
    let vary: Vec<_> = VARIED.into_iter().map(owned).collect();
    let points = sweep(&file, &vary, Some(1), &folder, &mut |_, _| {}).unwrap();
    let mut mixes: BTreeMap<String, Vec<(String, f64)>> = BTreeMap::new();
    for point in points {
        let served = point.metrics["served_packets"].mean;
        let mix = format!("{:?}", point.set);
        mixes.entry(mix).or_default().push((point.variant, served));
    }
    assert_eq!(mixes.len(), 7 * 3 * 2);
    let mut worst = f64::INFINITY;
    let mut below = Vec::new();
    for (mix, served) in &mixes {
        let of_auto = served.iter().find(|(name, _)| name == "auto").unwrap().1;
        let statics = served.iter().filter(|(name, _)| name != "auto");
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
