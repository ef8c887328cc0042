//! Sides that break the rules.

use std::path::PathBuf;

use actor_control::{FromSide, InOfSide, Listener, Received, Side, VERSION};
use actor_supervisor::{Event, EventKind, PATIENCE, Service, Supervisor};
use model::Nanos;

use crate::world::region;

/// A side that says whatever the test says.
fn hostile(said: &[FromSide]) -> (Supervisor, InOfSide) {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("side.sock");
    let listener = Listener::bind(&path).unwrap();
    let mut supervisor = Supervisor::new(Service::new(["counter"], region())).unwrap();
    supervisor.began(Side::Card, path, Nanos(1));
    supervisor.turn(Nanos(1)).unwrap();
    let mut side = listener.accept().unwrap().unwrap();
    for said in said {
        assert!(side.send(said, None).unwrap());
    }
    supervisor.turn(Nanos(2)).unwrap();
    assert!(matches!(side.receive(), Received::Nothing | Received::Ended));
    (supervisor, side)
}

fn hello(version: u32, side: Side, has_begun: bool) -> FromSide {
    FromSide::Hello {
        version,
        side,
        has_begun,
        channel: None,
    }
}

#[test]
fn a_side_that_breaks_the_rules_is_to_be_ended() {
    let right = hello(VERSION, Side::Card, false);
    let (supervisor, _side) = hostile(std::slice::from_ref(&right));
    assert!(!supervisor.broken(Side::Card));
    let report = FromSide::Report {
        rows: Vec::new(),
        events: Vec::new(),
        counts: Default::default(),
        decided: None,
    };
    let heard = FromSide::Heard { records: Vec::new() };
    let answer = FromSide::Answer { id: 1, error: None };
    let wrong = [
        vec![hello(VERSION + 1, Side::Card, false)],
        vec![hello(VERSION, Side::Host, false)],
        vec![hello(VERSION, Side::Card, true)],
        vec![FromSide::Ready],
        vec![right.clone(), right.clone()],
        vec![right.clone(), FromSide::Ready],
        vec![right.clone(), report],
        vec![right.clone(), heard],
        vec![right.clone(), answer],
    ];
    for said in wrong {
        let (mut supervisor, _side) = hostile(&said);
        assert!(supervisor.broken(Side::Card), "{said:?}");
        let events = supervisor.take_events();
        assert!(
            matches!(
                events[..],
                [Event {
                    kind: EventKind::Broken { .. },
                    ..
                }]
            ),
            "{events:?}"
        );
    }
    // One that says nothing.
    let (mut supervisor, _side) = hostile(&[]);
    supervisor.turn(Nanos(0) + PATIENCE).unwrap();
    assert!(!supervisor.broken(Side::Card));
    supervisor.turn(Nanos(10) + PATIENCE).unwrap();
    assert!(supervisor.broken(Side::Card));
}
