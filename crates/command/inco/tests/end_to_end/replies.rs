//! Replies through the edge: clients on a network of their own behind it, and two machines behind tunnels, each with an inco
//! and a real nginx. What a machine sent by itself would reach no client.

use model::InstanceState;

use crate::addresses::are_here;
use crate::back_ends::{CLIENTS, SERVICE, is_active, row};
use crate::support::{Engine, Inco, Load, Namespace, PATIENCE, Place, eventually};
use crate::tunnels::{EDGE, FIRST, Machine, SECOND, asked_for_more, once_both_answer, segment, two_machines};

/// A service whose replies return through the edge.
pub(crate) fn through_the_edge(text: &str) -> String {
    let service = "[service.web]\n";
    assert!(text.contains(service), "{text}");
    text.replace(service, &format!("{service}replies = \"edge\"\n"))
}

/// Clients on that network, once both machines have answered.
fn load_on_both(clients: &Namespace) -> Load {
    once_both_answer(clients.within(|| Load::here(SERVICE.parse().unwrap(), CLIENTS)))
}

fn ends_without_a_failure(load: Load, edge: &Inco) {
    let outcome = load.end();
    assert!(
        outcome.failures == 0 && outcome.servers == 2,
        "{outcome:#?}\n{}\n{:#?}",
        edge.told(),
        edge.status().drops
    );
}

/// Replies that an inco has counted, of the instance with that address or of all.
pub(crate) fn replies(inco: &Inco, address: Option<&str>) -> u64 {
    let counters = inco.client().counters().unwrap();
    let id = address.map(|address| row(inco, address).unwrap().id);
    let of = counters
        .instances
        .iter()
        .filter(|of| id.is_none_or(|id| of.id == id.0));
    of.map(|of| of.reply_packets).sum()
}

#[test]
fn replies_return_through_the_edge_while_machines_and_the_edge_come_and_go() {
    if !are_here(Engine::Oci, &["nginx"]) {
        return;
    }
    let cycles = if real_parts::is_full_length() { 20 } else { 1 };
    let (place, network) = (Place::with_a_cpu(), segment());
    let mut machines = two_machines(&network, &place, through_the_edge);
    // The same network of addresses as that of the machines, and another segment.
    let clients = network.server("10.0.0.2/24");
    let text = through_the_edge(EDGE).replace(
        "[service.web]\n",
        "[[uplink]]\nname = \"clients\"\ndevice = \"kernel:eth2\"\n[service.web]\nuplinks = [\"clients\"]\n",
    );
    let mut edge = network.run(&place, &text);
    is_active(&edge, FIRST);
    is_active(&edge, SECOND);
    ends_without_a_failure(load_on_both(&clients), &edge);

    // What each machine put into tunnels, the edge took out, and matched with its pins.
    assert_eq!(edge.at_rest().drops.get("tunnel"), None);
    for (machine, address) in machines.iter().zip([FIRST, SECOND]) {
        machine.inco.at_rest();
        let sent = replies(&machine.inco, None);
        eventually("both ends have counted the same replies", PATIENCE, || {
            (sent > 0 && replies(&edge, Some(address)) == sent).then_some(())
        });
    }
    let counters = edge.client().counters().unwrap();
    assert!(
        counters
            .instances
            .iter()
            .all(|of| of.return_unmatched_packets == 0),
        "{counters:#?}"
    );

    let load = load_on_both(&clients);
    for cycle in 0..cycles {
        let (at, address) = [(0, FIRST), (1, SECOND)][cycle % 2];
        let id = row(&edge, address).unwrap().id.to_string();
        place.must(&["drain", &id]);
        eventually("the machine is empty", PATIENCE, || {
            row(&edge, address).filter(|row| row.state == InstanceState::Draining && row.live_flows == 0)
        });
        asked_for_more(&load);
        place.must(&["undrain", &id]);
        is_active(&edge, address);
        asked_for_more(&load);

        drop(edge.kill());
        edge = network.run(&place, &text);
        is_active(&edge, FIRST);
        is_active(&edge, SECOND);
        asked_for_more(&load);

        let machine = machines.remove(at).with_another_inco();
        machine.inco.settled(1, 0);
        machines.insert(at, machine);
        asked_for_more(&load);
    }
    ends_without_a_failure(load, &edge);
    for inco in machines.iter().map(|machine| &machine.inco).chain([&edge]) {
        let status = inco.at_rest();
        assert_eq!(status.accounting.expected_moves, 0, "{status:#?}");
    }
    for machine in &machines {
        // The edge itself may refuse what comes before it knows its machines again.
        let drops = machine.inco.status().drops;
        assert_eq!(drops.get("tunnel"), None, "{drops:#?}");
    }
    drop(edge.stop_with(&place, &[]));
    machines.into_iter().for_each(Machine::stop);
}
