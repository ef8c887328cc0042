//! The driver `hybrid`: real clients and servers whose connections change between the worker and the kernel's programs.

use std::process::Stdio;
use std::time::{Duration, Instant};

use model::{EventKind, InstanceState};
use real_parts::is_full_length;

use crate::addresses::{are_here, nginx};
use crate::support::{Engine, Inco, Network, PATIENCE, Place, eventually, example};

/// Clients at a time, the requests of each over one connection, and bytes of an answer.
const CLIENTS: usize = 16;
const REQUESTS: usize = 60;
const BYTES: usize = 100_000;

/// Servers behind an address, with the keys of the driver.
fn configuration(place: &Place, engine: Engine, hybrid: &str, more: &str) -> String {
    let text = nginx(place, engine, "hybrid", more);
    let keys = format!("driver = \"hybrid\"\nworkers = [0]\nhybrid = {{ {hybrid} }}\n");
    text.replace("driver = \"hybrid\"\n", &keys)
}

/// Promotions, and packets that rules have taken.
fn promoted(inco: &Inco) -> (u64, u64) {
    let counters = inco.client().counters().unwrap();
    let promotions = counters.workers.iter().map(|of| of.promotions).sum();
    let packets = counters.instances.iter().map(|of| of.fast_packets).sum();
    (promotions, packets)
}

/// As `clients.rs` has it.
fn assert_accounted(inco: &Inco) {
    let status = inco.at_rest();
    let of = &status.accounting;
    assert_eq!(of.dropped, 0, "{:#?}", status.drops);
    assert_eq!(of.expected_moves, 0, "{of:#?}");
    assert!(
        of.offered + of.originated == of.returned + of.delivered,
        "{of:#?}"
    );
}

/// Downloads over kept connections. Each answer has its length, and no connection is made anew.
fn download(network: &Network) {
    let url = format!("http://10.0.0.100/file?[1-{REQUESTS}]");
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut curl = network.client(
                "curl",
                &[
                    "-sSf",
                    "--max-time",
                    "60",
                    "-w",
                    "%{stderr}%{size_download} %{num_connects}\n",
                    "-o",
                    "/dev/null",
                    &url,
                ],
            );
            curl.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for client in clients {
        let output = client.wait_with_output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{told}");
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), REQUESTS, "{told}");
        for (at, line) in lines.iter().enumerate() {
            let connects = usize::from(at == 0);
            assert_eq!(*line, format!("{BYTES} {connects}"), "{told}");
        }
    }
}

fn clients_notice_nothing(engine: Engine) {
    if !are_here(engine, &["nginx", "curl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let text = configuration(
        &place,
        engine,
        "window = \"1ms\"",
        "instances = { min = 2, max = 3, standby = 0 }\ndrain_deadline = \"60s\"\n",
    );
    std::fs::write(place.path("srv").join("file"), vec![b'x'; BYTES]).unwrap();
    let inco = network.run(&place, &text);
    inco.settled(2, 0);
    let began = Instant::now();
    let span = Duration::from_secs(if is_full_length() { 60 } else { 5 });
    let mut count = 3;
    // On a busy machine most of a download is over before its flow has a rule.
    let (promotions, packets) = loop {
        download(&network);
        // Another instance comes, or one leaves, while flows have rules.
        place.must(&["scale", "web", &count.to_string()]);
        count = 5 - count;
        let (promotions, packets) = promoted(&inco);
        let is_much = promotions > 100 && packets > 1_000;
        if began.elapsed() > span && (is_much || began.elapsed() > Duration::from_secs(120)) {
            break (promotions, packets);
        }
    };
    println!(
        "{promotions} promotions in {:.1} s, {packets} packets by rules",
        began.elapsed().as_secs_f64()
    );
    assert!(promotions > 100 && packets > 1_000, "{promotions} {packets}");
    assert_accounted(&inco);
    inco.stop(&place);
}

#[test]
fn clients_notice_nothing_while_flows_change_their_path_oci() {
    clients_notice_nothing(Engine::Oci);
}

#[test]
fn clients_notice_nothing_while_flows_change_their_path_docker() {
    clients_notice_nothing(Engine::Docker);
}

#[test]
fn a_download_with_a_rule_outlives_a_kill_9() {
    if !are_here(Engine::Oci, &["nginx", "curl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let text = configuration(&place, Engine::Oci, "rules = 100", "instances = 2\n");
    let bytes = 32 << 20;
    std::fs::write(place.path("srv").join("file"), vec![b'x'; bytes]).unwrap();
    let inco = network.run(&place, &text);
    inco.settled(2, 0);
    let mut curl = network.client(
        "curl",
        &[
            "-sSf",
            "--max-time",
            "60",
            "--limit-rate",
            "8M",
            "-w",
            "%{size_download}",
            "-o",
            "/dev/null",
            "http://10.0.0.100/file",
        ],
    );
    let curl = curl
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("it has a rule", PATIENCE, || {
        (promoted(&inco).1 > 100).then_some(())
    });
    inco.kill();
    let inco = network.run(&place, &text);
    let output = curl.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), bytes.to_string());
    eventually("all instances are there", PATIENCE, || {
        (inco.count(InstanceState::Active) == 2).then_some(())
    });
    inco.at_rest();
    inco.stop(&place);
}

#[test]
fn the_hybrid_example_runs_as_it_is() {
    if !are_here(Engine::Oci, &["nginx", "curl"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    place.must(&["image", "import", "nginx"]);
    let inco = network.run_file(&place, &example("hybrid.toml"));
    eventually("its servers are there", PATIENCE, || {
        (inco.count(InstanceState::Active) >= 2).then_some(())
    });
    let body = network.get("http://10.0.0.100/").unwrap();
    assert!(body.contains("nginx"), "{body}");
    inco.stop(&place);
}

/// Whether an event says that this failed, or works again.
fn is_told(inco: &Inco, of: &str, works: bool) -> Option<()> {
    let is_it = |event: &model::Event| match &event.kind {
        EventKind::Failure { what, .. } => !works && what == of,
        EventKind::Recovered { what, .. } => works && what == of,
        _ => false,
    };
    inco.events().iter().any(is_it).then_some(())
}

#[test]
fn readers_see_what_the_fast_path_does() {
    if !are_here(Engine::Oci, &["nginx", "curl", "tc"]) {
        return;
    }
    let (place, network) = (Place::new(), Network::new());
    let keys = "rules = 1, window = \"200ms\"";
    let text = configuration(&place, Engine::Oci, keys, "instances = 1\n");
    std::fs::write(place.path("srv").join("file"), vec![b'x'; 256 << 20]).unwrap();
    let inco = network.run(&place, &text);
    inco.settled(1, 0);
    let mut clients: Vec<_> = (0..2)
        .map(|_| {
            let mut curl = network.client(
                "curl",
                &[
                    "-sSf",
                    "--limit-rate",
                    "4M",
                    "-o",
                    "/dev/null",
                    "http://10.0.0.100/file",
                ],
            );
            curl.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    eventually("one has the rule, and the other is refused one", PATIENCE, || {
        let page = inco.client().flows(&api::types::FlowFilter::default()).unwrap();
        let said: Vec<String> = page
            .flows
            .iter()
            .map(|of| place.must(&["explain", "flow", &of.flow]))
            .collect();
        let count = |words: &str| said.iter().filter(|of| of.contains(words)).count();
        (count("programs of the kernel forward it") == 1 && count("all 1 rules are in use") == 1)
            .then_some(())
    });
    let status = place.must(&["status"]);
    assert!(status.contains("1 of 1 rules in use; promoted "), "{status}");
    let of = inco.client().counters().unwrap().workers[0].clone();
    assert_eq!((of.fast_rules, of.fast_rules_limit), (1, 1));
    assert!(of.refused_promotions > 0 && of.fast_packets > 0, "{of:?}");
    eventually("the budget is told", PATIENCE, || {
        is_told(&inco, "rules of the fast path", false)
    });

    // Somebody removes the programs. Packets go on through the worker, and inco puts its programs back.
    let pid = network.machine_pid().to_string();
    let removed = std::process::Command::new("nsenter")
        .args(["-t", &pid, "-n", "tc", "qdisc", "del", "dev", "eth1", "clsact"])
        .status();
    assert!(removed.unwrap().success());
    for works in [false, true] {
        eventually("that they were gone is told", PATIENCE, || {
            is_told(&inco, "the fast path", works)
        });
    }
    let before = promoted(&inco).1;
    eventually("rules take packets again", PATIENCE, || {
        (promoted(&inco).1 > before + 100).then_some(())
    });
    for client in &mut clients {
        assert!(client.try_wait().unwrap().is_none(), "a download has ended");
        client.kill().unwrap();
        client.wait().unwrap();
    }
    eventually("no flow is refused a rule any more", PATIENCE, || {
        is_told(&inco, "rules of the fast path", true)
    });
    inco.stop(&place);
}
