//! Card and host as two processes of the program `inco-actors`, with clients over UDP. Processes are killed at any
//! time under load, while an actor moves: each request is answered at most once and in order, and changes the state
//! once. The processes are this test itself, with one test.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod groups;
mod hostile;
mod isolated;
mod memif_port;
mod world;

use std::time::{Duration, Instant};

use actor_control::Side;
use actor_supervisor::{Event, EventKind, Wish};

use world::{Client, WAIT, World};

/// Processes that are killed, at least.
const KILLS: u64 = 40;

/// The process of a side.
#[test]
#[ignore = "the other tests start it"]
fn process() {
    let arguments = std::env::var("ARGUMENTS").unwrap();
    let arguments = arguments.split(' ').map(Into::into);
    assert_eq!(inco_actors::run(isolated::make, arguments), 0);
}

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        // The generator of Knuth's MMIX.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn an_actor_moves_there_and_back_and_no_request_is_lost() {
    let mut world = World::new(&["counter", "echo"]);
    world.until_running();
    assert_eq!(world.place(0), Some(Side::Card));
    let mut client = Client::new(world.address);
    client.ask(5, &mut world);
    for to in [Side::Host, Side::Card, Side::Host, Side::Card] {
        client.turn();
        world.moves(0, to);
        client.ask(3, &mut world);
    }
    client.check();
    // All were answered, and each was counted.
    assert_eq!(client.answers.len() as u64, client.next - 1);
    assert!(client.answers.iter().all(|(number, count)| number == count));
    let rows = world.supervisor.rows();
    let objects = [0, 1].map(|row: usize| (rows[row].line.objects, rows[row].line.object_bytes));
    assert_eq!(objects, [(1, 8), (0, 0)]);
    assert_eq!(
        (rows[0].moves, rows[1].moves, rows[1].side),
        (4, 0, Some(Side::Card))
    );
    world.until("all answers are counted", |world| {
        world.supervisor.counts(Side::Card).answers == client.next - 1
    });
}

#[test]
fn a_paused_actor_handles_nothing_until_it_goes_on() {
    let mut world = World::new(&["counter"]);
    world.until_running();
    assert_eq!(world.place(0), Some(Side::Card));
    let mut client = Client::new(world.address);
    client.ask(3, &mut world);
    let pause = world.supervisor.command(0, Wish::Pause).unwrap();
    world.until("it is paused", |world| world.supervisor.rows()[0].line.is_paused);
    client.turn();
    let waiting = client.next - 4;
    world.until("requests wait", |world| {
        world.supervisor.rows()[0].line.waiting == waiting
    });
    let refused = world.supervisor.command(0, Wish::Move(Side::Host)).unwrap();
    let resume = world.supervisor.command(0, Wish::Resume).unwrap();
    world.until("it has gone on", |world| {
        world.supervisor.rows()[0].line.served == 3 + waiting
    });
    let answers = world.supervisor.take_answers();
    let errors: Vec<_> = answers.iter().map(|of| (of.id, of.error.is_some())).collect();
    assert_eq!(errors, [(pause, false), (refused, true), (resume, false)]);
    client.ask(1, &mut world);
    client.check();
    assert_eq!(client.answers.len() as u64, client.next - 1);
}

#[test]
fn processes_are_killed_at_any_time_under_load() {
    let mut numbers = Numbers(22);
    let (mut kills, mut in_moves, mut resumed, mut recovered, mut lost) = (0, 0, 0, 0, 0);
    while kills < KILLS {
        let mut world = World::new(&["counter", "counter"]);
        world.until_running();
        let mut client = Client::new(world.address);
        client.ask(3, &mut world);
        while kills < KILLS {
            let victim = Side::BOTH[numbers.below(2) as usize];
            let both = numbers.below(4) == 0;
            if let Some(side) = world.place(0)
                && numbers.below(3) > 0
            {
                world.supervisor.command(0, Wish::Move(side.other())).unwrap();
            }
            for _ in 0..numbers.below(400) {
                client.turn();
                world.turn();
            }
            // inco may go before, between, or after that; each time another one comes.
            let gone = numbers.below(4);
            let mut resume_at = |at: u64, world: &mut World| {
                if gone == at {
                    world.resume();
                    resumed += 1;
                }
            };
            resume_at(0, &mut world);
            kills += 1;
            let row = &world.supervisor.rows()[0];
            in_moves += u64::from(row.side.is_none() || row.line.phase.is_some());
            world.kill(victim);
            if both {
                kills += 1;
                world.kill(victim.other());
            }
            resume_at(1, &mut world);
            // The other one may go on meanwhile.
            for _ in 0..numbers.below(20) {
                client.turn();
                world.turn();
            }
            world.start(victim);
            if both {
                world.start(victim.other());
            }
            for _ in 0..numbers.below(30) {
                world.turn();
            }
            resume_at(2, &mut world);
            world.until_running();
            if world.place(0).is_none() {
                lost += 1;
                break;
            }
            client.give_up();
            client.ask(5, &mut world);
            client.check();
            let last = &client.answers[client.answers.len() - 5..];
            let is_next = |pair: &[(u64, u64)]| pair[1].0 == pair[0].0 + 1 && pair[1].1 == pair[0].1 + 1;
            assert!(last.windows(2).all(is_next), "{last:?}");
            recovered += 1;
        }
    }
    eprintln!(
        "{kills} killed, {in_moves} times in a move; {recovered} recovered, {lost} lost with a message under way"
    );
    // Most of the time no message is under way.
    assert!(recovered > lost, "{recovered} {lost}");
}

#[test]
fn both_sides_go_on_without_inco_and_the_next_one_takes_over() {
    let mut world = World::new(&["counter", "echo"]);
    world.until_running();
    assert_eq!(world.place(0), Some(Side::Card));
    let mut client = Client::new(world.address);
    client.ask(3, &mut world);
    world.moves(0, Side::Host);
    for _ in 0..3 {
        world.resume();
        // Nobody looks after the sides.
        client.settle_alone();
        world.until_running();
        let place = world.place(0).unwrap();
        world.moves(0, place.other());
        client.ask(3, &mut world);
    }
    client.check();
    assert_eq!(client.answers.len() as u64, client.next - 1);
    // Both have the processes of the beginning, and the same clients.
    assert_eq!(world.supervisor.counts(Side::Card).unknown_clients, 0);
    assert_eq!(world.started, 2);
}

#[test]
fn a_process_that_ends_before_both_have_started_begins_anew() {
    let mut world = World::new(&["counter"]);
    // Without the host nothing starts.
    world.kill(Side::Host);
    for _ in 0..50 {
        world.turn();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!world.supervisor.is_running(Side::Card));
    world.start(Side::Host);
    world.until_running();
    let mut client = Client::new(world.address);
    client.ask(2, &mut world);
    assert_eq!(client.answers, [(1, 1), (2, 2)]);
}

#[test]
fn a_kind_that_nobody_makes_is_refused_with_its_name() {
    let mut world = World::new(&["counter", "dragon"]);
    let since = Instant::now();
    let reason = loop {
        world.supervisor.turn(clock::monotonic()).unwrap();
        let broken = |event: Event| match event.kind {
            EventKind::Broken { reason } => Some(reason),
            _ => None,
        };
        if let Some(reason) = world.supervisor.take_events().into_iter().find_map(broken) {
            break reason;
        }
        assert!(since.elapsed() < WAIT);
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(reason.contains("no actor of kind `dragon`"), "{reason}");
}
