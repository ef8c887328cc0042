//! A run of the switch takes over what the one before left with a keeper.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering;

use model::{InstanceState, Match, Polling, UplinkId};
use switch::{Switch as _, SwitchRequest};

use crate::bed::{Bed, Function, echo, service, stamp, udp_flows, unstamped};
use crate::kept::Kept;

const FLOWS: u32 = 90;

fn has(kept: &Kept, name: &str) -> bool {
    let entries = kept.client().take().unwrap();
    entries.iter().any(|entry| entry.name == name)
}

/// As where there were no descriptors left for it.
fn lose(kept: &Kept, name: &str) {
    assert!(has(kept, name));
    let client = kept.client();
    client.forget(name);
    // The answer comes after it.
    client.entries().unwrap();
}

/// A packet of each flow goes there and back: by flow, the number of the function that had it.
fn served(bed: &mut Bed) -> BTreeMap<Vec<u8>, u8> {
    let sent = udp_flows(FLOWS);
    bed.send(0, sent.iter().map(Vec::as_slice));
    let back = bed.take_all(0, sent.len());
    back.iter()
        .map(|frame| (unstamped(frame), stamp(frame)))
        .collect()
}

/// Another function with that number in the place of one.
fn replace(bed: &mut Bed, place: usize, number: u32) {
    bed.functions[place].kill();
    bed.functions[place] = Function::start(bed.directory.path(), number, 1, echo);
}

/// Connects the function to the slot of the same number, and lets it take flows.
fn attach(bed: &mut Bed, slot: u16, queues: u16) {
    let socket = bed.functions[usize::from(slot)].socket.clone();
    bed.attach(slot, 0, socket, 1, queues);
    bed.set_state(slot, 0, InstanceState::Active);
    bed.publish();
}

fn moves(bed: &Bed) -> u64 {
    bed.reading.slots.iter().map(|slot| slot.expected_moves).sum()
}

#[test]
fn an_instance_whose_rings_were_not_kept_is_connected_anew_and_keeps_its_flows() {
    let kept = Kept::start();
    let mut bed = Bed::with(1, 1, vec![service(0, &[0], Match::default())], |config| {
        config.keep = kept.run();
    });
    for slot in 0..3 {
        bed.add(slot, 0, 1, echo);
    }
    let before = served(&mut bed);
    lose(&kept, "port/1");
    lose(&kept, "port/2");
    bed.run_again(|config| config.keep = kept.run());
    // One listens again. In the other's place comes a new one.
    replace(&mut bed, 1, 1);
    replace(&mut bed, 2, 7);
    (0..3).for_each(|slot| attach(&mut bed, slot, 1));
    bed.ask(SwitchRequest::OpenUplink(UplinkId(0)));
    let resumed = bed.switch.resumed().unwrap();
    assert_eq!(
        (
            resumed.flows.flows,
            resumed.instances,
            resumed.uplinks,
            &resumed.rejected
        ),
        (FLOWS.into(), 1, 1, &Vec::new())
    );
    let after = served(&mut bed);
    for (flow, number) in &before {
        match number {
            2 => assert_ne!(after[flow], 2),
            _ => assert_eq!(after[flow], *number),
        }
    }
    let moved = before.values().filter(|number| **number == 2).count();
    assert!(moved > 0);
    bed.assert_accounts_close();
    assert_eq!(moves(&bed), moved as u64);
    // The run after that knows them, too, though nothing of their rings is left.
    (0..3).for_each(|slot| lose(&kept, &format!("port/{slot}")));
    bed.run_again(|config| config.keep = kept.run());
    for (place, number) in [(0, 0), (1, 1), (2, 7)] {
        replace(&mut bed, place, number);
        attach(&mut bed, place as u16, 1);
    }
    bed.ask(SwitchRequest::OpenUplink(UplinkId(0)));
    let last = served(&mut bed);
    let of_old = |of: &BTreeMap<Vec<u8>, u8>| -> Vec<u8> {
        let flows = before.iter().filter(|(_, number)| **number != 2);
        flows.map(|(flow, _)| of[flow]).collect()
    };
    assert_eq!(of_old(&last), of_old(&before));
    bed.finish();
}

#[test]
fn instances_with_more_queues_than_there_are_workers_now_keep_their_flows() {
    let kept = Kept::start();
    let mut bed = Bed::with(2, 1, vec![service(0, &[0], Match::default())], |config| {
        config.keep = kept.run();
    });
    for slot in 0..2 {
        bed.add_function(slot, slot.into(), 0, 1, 2, echo);
    }
    let before = served(&mut bed);
    bed.run_again(|config| {
        config.keep = kept.run();
        config.workers.truncate(1);
    });
    let resumed = bed.switch.resumed().unwrap();
    let refused = |name: &str| resumed.rejected.iter().any(|of| of.starts_with(name));
    assert!(
        refused("port/0: it has 2 queues") && refused("port/1: it has 2 queues"),
        "{resumed:?}"
    );
    assert_eq!((resumed.flows.flows, resumed.converted), (FLOWS.into(), 2));
    for slot in 0..2 {
        replace(&mut bed, usize::from(slot), slot.into());
        attach(&mut bed, slot, 2);
    }
    bed.ask(SwitchRequest::OpenUplink(UplinkId(0)));
    assert_eq!(served(&mut bed), before);
    bed.assert_accounts_close();
    assert_eq!(moves(&bed), 0);
    bed.finish();
}

#[test]
fn a_turn_in_which_no_ring_moves_notes_nothing() {
    let kept = Kept::start();
    let mut bed = Bed::with(1, 1, vec![service(0, &[0], Match::default())], |config| {
        config.keep = kept.run();
        config.polling = Polling::Busy;
    });
    bed.add(0, 0, 1, echo);
    served(&mut bed);
    bed.assert_accounts_close();
    let mut entries = kept.client().take().unwrap().into_iter();
    let page = entries.find(|entry| entry.name == "turn/0").unwrap();
    let page = File::from(page.files.into_iter().next().unwrap());
    let noted = || {
        let mut words = [0; 24];
        page.read_exact_at(&mut words, 0).unwrap();
        let (words, _) = words.as_chunks::<8>();
        (u64::from_le_bytes(words[1]), u64::from_le_bytes(words[2]))
    };
    let (before, turns) = (noted(), bed.reading.workers[0].turns);
    assert!(before.0 > 0 && before.0 == before.1, "{before:?}");
    bed.until("a thousand turns", |bed| {
        bed.reading.workers[0].turns > turns + 1000
    });
    assert_eq!(noted(), before);
    served(&mut bed);
    assert!(noted().0 > before.0);
    bed.finish();
}

#[test]
fn what_a_slow_keeper_did_not_take_is_forgotten_once_it_answers() {
    let kept = Kept::start();
    let mut bed = Bed::with(1, 1, vec![service(0, &[0], Match::default())], |config| {
        config.keep = kept.run();
    });
    let keep = bed.config.keep.clone().unwrap();
    let file = tempfile::tempfile().unwrap();
    let before = keep.keeper().entries().unwrap();
    keep.keeper().keep("extra", "", &[file.as_fd()]).unwrap();
    kept.hangs.store(true, Ordering::Relaxed);
    // More than a socket holds.
    for number in 0..2_000 {
        keep.keeper().forget(&format!("{number:090}"));
    }
    keep.keeper().forget("extra");
    kept.hangs.store(false, Ordering::Relaxed);
    let client = kept.client();
    assert_eq!(client.entries().unwrap(), before + 1);
    bed.until("it is forgotten", |_| client.entries().unwrap() == before);
    bed.finish();
}
