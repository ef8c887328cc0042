//! Runs a scenario file and prints every metric and the simulation speed: `cargo run --release -p simulation
//! --example play -- FILE [VARIANT] [KEY=VALUE…]`
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "an example")]

use std::path::PathBuf;
use std::time::Instant;

use simulation::{ScenarioFile, run};

fn main() {
    let data = real_parts::data_folder();
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap();
    let mut file = ScenarioFile::load(PathBuf::from(&path).as_path()).unwrap();
    for argument in arguments {
        if argument.contains('=') {
            file.set(&argument).unwrap();
        } else {
            file.keep(&[argument]).unwrap();
        }
    }
    let start = Instant::now();
    let result = run(&file, None, &data, &mut |_, _, _| {}).unwrap();
    let wall_s = start.elapsed().as_secs_f64();
    let simulated_s = result.duration_s * (result.variants.len() as u64 * result.seeds) as f64;
    let events: f64 = result
        .variants
        .iter()
        .filter_map(|v| v.metrics.get("events"))
        .map(|e| e.mean * result.seeds as f64)
        .sum();
    print!("{path}: {wall_s:.3} s, {:.0} x real time", simulated_s / wall_s);
    if events > 0.0 {
        print!(", {:.2} M events/s", events / wall_s / 1e6);
    }
    println!();
    for variant in &result.variants {
        println!("  {}", variant.name);
        for (name, figure) in &variant.metrics {
            println!("    {name} {}", figure.mean);
        }
    }
    for check in &result.checks {
        println!(
            "  {} {} ({} {})",
            if check.met { "met" } else { "NOT" },
            check.check,
            check.left,
            check.right
        );
    }
}
