//! What makes other instances has inco replace those that are there: once, and also where the operator or inco ends
//! meanwhile.

use model::RolloutState;
use serde_json::json;

use crate::cluster::Server;
use crate::node::Node;
use crate::{FUNCTIONS, becomes, condition, event_is_told, eventually, function, with_both};

fn rolls_out(server: &dyn Server) {
    let node = Node::start(server, "n1");
    let path = format!("{FUNCTIONS}/firewall");
    server.make(
        FUNCTIONS,
        &function("firewall", &json!({ "image": "a", "min": 2 })),
    );
    becomes(server, &path, "Ready", "True");
    let change = |key: &str, to: &str| server.merge(&path, &json!({ "spec": { key: to } }));
    let begun = |node: &Node, count: (u32, u32)| {
        eventually(&format!("{count:?} rollouts"), || {
            (node.rollouts() == count).then_some(())
        });
    };
    // The operator has carried out another change since.
    let goes_on = |instances: u32| {
        server.merge(&path, &json!({ "spec": { "min": instances } }));
        eventually(&format!("{instances} instances"), || {
            (server.get(&path)?["status"]["active"] == instances).then_some(())
        });
    };
    // Without another image there is nothing to replace.
    goes_on(3);
    assert_eq!(node.rollouts(), (0, 0));

    change("image", "b");
    let seen = becomes(server, &path, "Progressing", "True");
    let of = condition(&seen, "Progressing").unwrap();
    assert_eq!(
        (&of["reason"], &of["message"]),
        (
            &json!("RollingOut"),
            &json!("node n1: 0 of 2 instances are replaced: started")
        )
    );
    assert_eq!(seen["status"]["nodes"][0]["rollingOut"], true);
    event_is_told(server, "firewall", "RollingOut");
    // It ends without an operator, and the next one does not begin it again.
    let node = node.operator_after(server, |node| node.end_rollouts(RolloutState::Finished));
    becomes(server, &path, "Progressing", "False");
    event_is_told(server, "firewall", "RolledOut");
    assert_eq!(node.rollouts(), (1, 0));

    // One that goes on is left to go on, and one of before another change begins anew.
    change("image", "c");
    begun(&node, (2, 0));
    let node = node.operator_again(server);
    goes_on(4);
    assert_eq!(node.rollouts(), (2, 0));
    change("image", "d");
    begun(&node, (3, 1));
    // inco starts again meanwhile.
    node.lose_rollouts();
    begun(&node, (4, 1));
    node.end_rollouts(RolloutState::Finished);
    becomes(server, &path, "Progressing", "False");

    // What this operator could not have begun, the next one has.
    node.refuse_rollouts(true);
    change("image", "e");
    let seen = becomes(server, &path, "Progressing", "True");
    let said = condition(&seen, "Progressing").unwrap()["message"]
        .as_str()
        .unwrap();
    assert!(said.contains("are to be replaced"), "{said}");
    let node = node.operator_after(server, |node| node.refuse_rollouts(false));
    begun(&node, (5, 1));
    node.end_rollouts(RolloutState::Aborted);
    eventually("it has failed", || {
        let seen = server.get(&path)?;
        let of = condition(&seen, "Progressing")?;
        (of["status"] == "False" && of["reason"] == "Aborted").then_some(())
    });
    event_is_told(server, "firewall", "RolloutAborted");
    goes_on(5);
    assert_eq!(node.rollouts(), (5, 1));
    node.end();
}

#[test]
fn other_instances_of_a_changed_object_of_kubernetes_are_rolled_out() {
    with_both(rolls_out);
}
