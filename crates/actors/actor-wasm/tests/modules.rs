//! Modules as actors in the runtime: their state, its moves, their limits, and what is refused.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

// UNSAFETY: the example in Rust has the exports of a module, and a test calls them as inco does.

use std::cell::RefCell;
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use actor_objects::{Import, Limits, Objects};
use actor_runtime::{
    ActorId, Address, CoreId, Idle, Message, Outside, PolicyName, Queues, Refusal, Registration, Runtime,
    Settings,
};
use actor_wasm::{Module, ModuleError, WasmActor};
use model::Nanos;

const ACTOR: ActorId = ActorId(3);
const PEER: Address = Address::Outside(u64::MAX - 7);
const BUDGET: Duration = Duration::from_millis(50);
/// A page, and what the root takes.
const LIMITS: Limits = Limits {
    bytes: (64 << 10) * 2 + 4096,
    objects: 16,
};

/// Answers with its count and what it was sent; the count is at 8. Kinds 1 to 7 do something else.
const COUNTS: &str = r#"
(module
  (import "inco" "send" (func $send (param i32 i64 i32 i32 i32)))
  (import "inco" "crc32" (func $crc32 (param i32 i32) (result i32)))
  (import "inco" "sha1" (func $sha1 (param i32 i32 i32)))
  (import "inco" "aes256_ctr" (func $aes (param i32 i32 i32 i32)))
  (import "inco" "find" (func $find (param i32 i32 i32 i32) (result i32)))
  (import "inco" "fail" (func $fail (param i32 i32)))
  (import "inco" "me" (func $me (result i32)))
  (memory (export "memory") 1)
  (global $calls (export "calls") (mut i64) (i64.const 0))
  (data (i32.const 32) "enough")
  (func (export "inbox") (result i32) (i32.const 1024))
  (func (export "inbox_bytes") (result i32) (i32.const 2048))
  (func (export "init") (i64.store (i32.const 8) (i64.const 100)))
  (func (export "exec") (param $kind i32) (param $outside i32) (param $from i64) (param $bytes i32) (result i32)
    (global.set $calls (i64.add (global.get $calls) (i64.const 1)))
    (i64.store (i32.const 8) (i64.add (i64.load (i32.const 8)) (i64.const 1)))
    (if (i32.eq (local.get $kind) (i32.const 1)) (then (loop $ever (br $ever))))
    (if (i32.eq (local.get $kind) (i32.const 2)) (then (i32.store (i32.const 0x7fff0000) (i32.const 1))))
    (if (i32.eq (local.get $kind) (i32.const 3)) (then (call $fail (i32.const 32) (i32.const 6))))
    (if (i32.eq (local.get $kind) (i32.const 4))
      (then (i32.store (i32.const 16) (memory.grow (i32.const 1)))))
    (if (i32.eq (local.get $kind) (i32.const 5))
      (then
        (i32.store (i32.const 1100) (call $crc32 (i32.const 1024) (local.get $bytes)))
        (call $sha1 (i32.const 1024) (local.get $bytes) (i32.const 1104))
        (i32.store (i32.const 1124) (call $find (i32.const 0) (i32.const 64) (i32.const 34) (i32.const 3)))
        ;; The key and the counter are zeros.
        (call $aes (i32.const 4096) (i32.const 4128) (i32.const 1128) (i32.const 16))
        (call $send (local.get $outside) (local.get $from) (local.get $kind) (i32.const 1100) (i32.const 44))
        (return (i32.const 0))))
    (if (i32.eq (local.get $kind) (i32.const 6))
      (then (call $send (i32.const 1) (i64.const 1) (i32.const 0) (i32.const 65530) (i32.const 100))))
    (if (i32.eq (local.get $kind) (i32.const 7)) (then (unreachable)))
    ;; The count, the number of calls, memory pages, its number, then the body.
    (i64.store (i32.const 1000) (i64.load (i32.const 8)))
    (i64.store (i32.const 1008) (global.get $calls))
    (i32.store (i32.const 1016) (memory.size))
    (i32.store (i32.const 1020) (call $me))
    (call $send (local.get $outside) (local.get $from) (local.get $kind)
      (i32.const 1000) (i32.add (i32.const 24) (local.get $bytes)))
    (i32.const 0)))
"#;

#[derive(Clone, Default)]
struct Leaving(Arc<Mutex<Vec<Message>>>);

impl Outside for Leaving {
    fn poll(&mut self, _: Nanos, _: &mut Vec<Message>) {}

    fn send(&mut self, messages: &mut Vec<Message>) {
        self.0.lock().unwrap().append(messages);
    }
}

fn settings(cores: u16, idle: Idle) -> Settings {
    Settings {
        policy: PolicyName::Hybrid,
        queues: Queues::Shared,
        cores,
        actors_limit: 8,
        quantum: Nanos::from_micros(20),
        tail_threshold: Nanos::from_micros(200),
        hysteresis: 0.1,
        idle,
    }
}

/// A runtime with one core, turned by hand.
struct Bed {
    runtime: Runtime,
    core: actor_runtime::Core,
    left: Leaving,
}

impl Bed {
    fn new() -> Bed {
        let left = Leaving::default();
        let runtime = Runtime::new(&settings(1, Idle::Poll), Box::new(left.clone()));
        let core = runtime.core(CoreId(0));
        Bed { runtime, core, left }
    }

    fn of(module: &Module, objects: Objects) -> Bed {
        let bed = Bed::new();
        bed.runtime
            .register(ACTOR, registration(module, objects))
            .unwrap();
        bed
    }

    fn send(&self, kind: u32, body: &[u8]) {
        self.runtime.deliver(message(ACTOR, kind, body)).unwrap();
    }

    /// What left after all messages have ended.
    fn turn(&mut self) -> Vec<Vec<u8>> {
        for _ in 0..200 {
            self.core.turn();
        }
        let mut left = self.left.0.lock().unwrap();
        left.drain(..)
            .map(|message| {
                assert_eq!(message.to, PEER);
                message.body
            })
            .collect()
    }

    fn ask(&mut self, kind: u32, body: &[u8]) -> Vec<u8> {
        self.send(kind, body);
        let mut answers = self.turn();
        assert_eq!(answers.len(), 1, "{:?}", self.why_stopped());
        answers.remove(0)
    }

    fn why_stopped(&self) -> Vec<String> {
        self.runtime
            .take_stopped()
            .into_iter()
            .map(|stopped| stopped.reason)
            .collect()
    }
}

fn message(to: ActorId, kind: u32, body: &[u8]) -> Message {
    Message::new(Address::Actor(to), PEER, kind, body.to_vec(), clock::monotonic())
}

fn registration(module: &Module, objects: Objects) -> Registration {
    let actor = Box::new(WasmActor::new(module.clone(), BUDGET));
    Registration::new("wasm", actor).objects(objects)
}

/// An answer of `COUNTS`: the count, calls, pages and the actor's number.
fn told(answer: &[u8]) -> (u64, u64, u32, u32) {
    let at = |place: usize| u64::from_le_bytes(answer[place..place + 8].try_into().unwrap());
    (at(0), at(8), at(16) as u32, (at(16) >> 32) as u32)
}

#[test]
fn a_module_keeps_its_state_in_its_region() {
    let module = Module::compile(COUNTS.as_bytes()).unwrap();
    let mut bed = Bed::of(&module, Objects::create(LIMITS).unwrap().1);
    let answer = bed.ask(0, b"hello");
    assert_eq!((told(&answer), &answer[24..]), ((101, 1, 1, 3), &b"hello"[..]));
    // It has room for one page more, and not for two.
    bed.send(4, b"");
    bed.send(4, b"");
    let answers = bed.turn();
    assert_eq!(told(&answers[0]).2, 2);
    assert_eq!(told(&answers[1]).2, 2);
    // Of a long body the beginning is there; the module's own check is missing here, so it answers with more.
    let answer = bed.ask(0, &[7; 5000]);
    assert_eq!(answer[24..2072], [7; 2048]);
    assert_eq!(told(&answer).0, 104);
}

#[test]
fn state_moves_to_another_region() {
    let module = Module::compile(COUNTS.as_bytes()).unwrap();
    let mut bed = Bed::of(&module, Objects::create(LIMITS).unwrap().1);
    bed.ask(4, b"");
    bed.ask(0, b"");
    let (mut registration_before, _) = bed.runtime.remove(ACTOR).unwrap();
    let objects = registration_before.take_objects().unwrap();
    let (header, mut export) = objects.export();
    let mut import = Import::new(Objects::create(LIMITS).unwrap().1).unwrap();
    import.push(&header).unwrap();
    let mut parts = Vec::new();
    while export.next(&objects, 4000, 8, &mut parts) > 0 {
        for part in &parts {
            import.push(part).unwrap();
        }
    }
    drop(parts);
    let moved = import.finish().unwrap();
    drop(objects);
    // The same actor's value and the same runtime, with other objects; and a new one elsewhere.
    let mut elsewhere = Bed::new();
    elsewhere
        .runtime
        .adopt(ACTOR, registration(&module, moved))
        .unwrap();
    let answer = elsewhere.ask(0, b"there");
    assert_eq!((told(&answer), &answer[24..]), ((103, 3, 2, 3), &b"there"[..]));
    // The region of one module is not that of another.
    let other = COUNTS.replace("i64.const 100", "i64.const 200");
    let other = Module::compile(other.as_bytes()).unwrap();
    let (mut registration_there, _) = elsewhere.runtime.remove(ACTOR).unwrap();
    let objects = registration_there.take_objects().unwrap();
    let mut third = Bed::new();
    third.runtime.adopt(ACTOR, registration(&other, objects)).unwrap();
    third.send(0, b"");
    assert_eq!(third.turn(), Vec::<Vec<u8>>::new());
    assert_eq!(third.why_stopped(), ["its region is not one of this module"]);
}

#[test]
fn state_outlives_the_value_and_a_region_within_a_message_is_refused() {
    let module = Module::compile(COUNTS.as_bytes()).unwrap();
    let (file, objects) = Objects::create(LIMITS).unwrap();
    let mut bed = Bed::of(&module, objects);
    bed.ask(0, b"");
    drop(bed);
    let mut next = Bed::new();
    let objects = Objects::open(file.as_fd()).unwrap();
    next.runtime.adopt(ACTOR, registration(&module, objects)).unwrap();
    assert_eq!(told(&next.ask(0, b"")).0, 102);
    // A trap is within a message.
    next.send(2, b"");
    assert_eq!(next.turn(), Vec::<Vec<u8>>::new());
    let why = next.why_stopped();
    assert!(why[0].contains("out of bounds"), "{why:?}");
    drop(next);
    assert!(Objects::open(file.as_fd()).is_err());
}

#[test]
fn a_loop_is_stopped_after_its_budget() {
    let module = Module::compile(COUNTS.as_bytes()).unwrap();
    let mut bed = Bed::of(&module, Objects::create(LIMITS).unwrap().1);
    bed.ask(0, b"");
    bed.send(1, b"");
    let began = Instant::now();
    bed.turn();
    let took = began.elapsed();
    // Not earlier than its budget; the upper bound is only to notice that nothing ends it.
    assert!(took >= BUDGET && took < Duration::from_secs(20), "{took:?}");
    let why = bed.why_stopped();
    assert!(why[0].contains("interrupt"), "{why:?}");
}

/// Waits until a runtime of threads has come so far.
fn until<T>(what: &str, mut of: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = of() {
            return value;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "not in time: {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn a_trap_or_a_loop_of_one_module_leaves_the_other_one_answering() {
    const OTHER: ActorId = ActorId(4);
    let module = Module::compile(COUNTS.as_bytes()).unwrap();
    for (kind, reason) in [(1, "interrupt"), (2, "out of bounds"), (7, "unreachable")] {
        let left = Leaving::default();
        let settings = settings(2, Idle::Sleep(Duration::from_millis(10)));
        let runtime = Runtime::new(&settings, Box::new(left.clone()));
        for actor in [ACTOR, OTHER] {
            // A loop has to last until the other one has answered.
            let of = Box::new(WasmActor::new(module.clone(), Duration::from_secs(1)));
            let of = Registration::new("wasm", of).objects(Objects::create(LIMITS).unwrap().1);
            runtime.register(actor, of).unwrap();
        }
        let threads = runtime.start(|_| ()).unwrap();
        let mut count = 0;
        let mut asked = |times: u64| {
            for _ in 0..times {
                count += 1;
                runtime.deliver(message(OTHER, 0, b"on")).unwrap();
                let answer = until("an answer", || left.0.lock().unwrap().pop());
                assert_eq!(told(&answer.body), (100 + count, count, 1, OTHER.0));
            }
        };
        asked(10);
        runtime.deliver(message(ACTOR, kind, b"")).unwrap();
        if kind == 1 {
            let runs = || runtime.running().iter().any(|of| of.actor == ACTOR);
            until("it loops", || runs().then_some(()));
            asked(10);
            assert!(runs(), "it loops while the other one answers");
        }
        let stopped = until("it is stopped", || runtime.take_stopped().pop());
        assert_eq!(stopped.actor, ACTOR);
        assert!(stopped.reason.contains(reason), "{stopped:?}");
        asked(10);
        assert_eq!(runtime.deliver(message(ACTOR, 0, b"")), Err(Refusal::NoSuchActor));
        drop(threads);
        assert!(left.0.lock().unwrap().is_empty(), "each was answered once");
    }
}

#[test]
fn a_module_says_why_it_stops_and_cannot_name_memory_that_it_has_not() {
    let module = Module::compile(COUNTS.as_bytes()).unwrap();
    for (kind, reason) in [(3, "enough"), (6, "outside of the memory")] {
        let mut bed = Bed::of(&module, Objects::create(LIMITS).unwrap().1);
        bed.send(kind, b"");
        assert_eq!(bed.turn(), Vec::<Vec<u8>>::new());
        let why = bed.why_stopped();
        assert!(why.len() == 1 && why[0].contains(reason), "{why:?}");
    }
}

#[test]
fn accelerators_give_what_their_standards_say() {
    let module = Module::compile(COUNTS.as_bytes()).unwrap();
    let mut bed = Bed::of(&module, Objects::create(LIMITS).unwrap().1);
    let answer = bed.ask(5, b"123456789");
    // The check value of CRC-32, and SHA-1 of the same text.
    assert_eq!(answer[..4], 0xcbf4_3926_u32.to_le_bytes());
    let sha1 = [
        0xf7, 0xc3, 0xbc, 0x1d, 0x80, 0x8e, 0x04, 0x73, 0x2a, 0xdf, 0x67, 0x99, 0x65, 0xcc, 0xc3, 0x4c, 0xa7,
        0xae, 0x34, 0x41,
    ];
    assert_eq!(answer[4..24], sha1);
    // "oug" is from 34 on, in "enough" at 32: found where it is itself.
    assert_eq!(answer[24..28], 34_u32.to_le_bytes());
    // AES-256 of a block of zeros with a key of zeros (NIST, AESAVS, KAT of GFSbox).
    assert_eq!(answer[28..32], [0xdc, 0x95, 0xc0, 0x78]);
}

#[test]
fn what_cannot_move_or_run_is_refused() {
    let with = |more: &str| COUNTS.replacen("(memory", &format!("{more}\n(memory"), 1);
    let refused = |module: &str| Module::compile(module.as_bytes()).unwrap_err();
    assert!(matches!(refused("(module"), ModuleError::Invalid(_)));
    assert!(matches!(refused("(module)"), ModuleError::Memory));
    assert!(matches!(
        refused(&COUNTS.replace("\"inbox\"", "\"in\"")),
        ModuleError::Missing("inbox")
    ));
    assert!(matches!(
        refused(&COUNTS.replace("(export \"calls\")", "")),
        ModuleError::HiddenGlobal(0)
    ));
    assert!(matches!(
        refused(
            &COUNTS
                .replace("i64) (i64.const 0))", "f64) (f64.const 0))")
                .replace("global.get $calls) (i64.const 1)", "i64.const 1) (i64.const 1)")
                .replace("(global.set $calls (i64.add (i64.const 1) (i64.const 1)))", "")
                .replace("(global.get $calls)", "(i64.const 1)")
        ),
        ModuleError::Globals
    ));
    assert!(matches!(
        refused(&COUNTS.replacen(
            "(func (export \"init\")",
            "(func $i (i64.store (i32.const 8) (i64.const 1))) (start $i) (func (export \"init\")",
            1
        )),
        ModuleError::Start
    ));
    let table = with("(table 1 funcref) (func $never (drop (table.grow (ref.null func) (i32.const 1))))");
    let error = refused(&table);
    assert!(
        matches!(
            error,
            ModuleError::Elsewhere("table.grow") | ModuleError::Compile(_)
        ),
        "{error}"
    );
    let unknown = with("(import \"inco\" \"exit\" (func))");
    let error = refused(&unknown);
    assert!(
        matches!(&error, ModuleError::Compile(why) if why.contains("exit")),
        "{error}"
    );
    // A region without room for its memory.
    let module = Module::compile(COUNTS.as_bytes()).unwrap();
    let small = Limits {
        bytes: 60_000,
        objects: 16,
    };
    let bed = Bed::new();
    let refused = bed
        .runtime
        .register(ACTOR, registration(&module, Objects::create(small).unwrap().1));
    let why = refused.unwrap_err().to_string();
    assert!(
        why.contains("room for 0 bytes of memory; the module begins with 65536"),
        "{why}"
    );
}

/// As docs/tasks/own-actor.md says. The compiler's name may be another: `clang-14` is Debian's.
const IN_C: &str = "clang --target=wasm32 -mmutable-globals -O2 -nostdlib -Wl,--no-entry -Wl,--export=__stack_pointer \
    -Wl,-z,stack-size=4096 -o actor.wasm actor.c";

#[test]
fn the_example_in_c_answers_as_the_one_in_text() {
    let page = include_str!("../../../../docs/tasks/own-actor.md");
    assert!(page.contains(IN_C), "docs/tasks/own-actor.md has another command");
    let folder = tempfile::tempdir().unwrap();
    let source = include_bytes!("../../../../examples/actor.c");
    std::fs::write(folder.path().join("actor.c"), source).unwrap();
    let built = |compiler: &str| {
        let mut command = Command::new(compiler);
        command.args(IN_C.split(' ').skip(1)).current_dir(folder.path());
        command.output()
    };
    let missing = match built("clang").or_else(|_| built("clang-14")) {
        Ok(done) if done.status.success() => None,
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr);
            // clang without its linker for modules.
            assert!(
                said.contains("wasm-ld") && said.contains("unable to execute"),
                "{said}"
            );
            Some("wasm-ld is not installed (package lld)".to_owned())
        }
        Err(error) => Some(format!("clang cannot run: {error}")),
    };
    if !real_parts::available("clang", missing) {
        return;
    }
    let [in_text, in_c] = [
        include_bytes!("../../../../examples/actor.wat").to_vec(),
        std::fs::read(folder.path().join("actor.wasm")).unwrap(),
    ]
    .map(|module| Module::compile(&module).unwrap());
    // The region of the example's configuration.
    let limits = Limits {
        bytes: 128 << 10,
        objects: 16,
    };
    let [mut in_text, mut in_c] =
        [in_text, in_c].map(|module| Bed::of(&module, Objects::create(limits).unwrap().1));
    for (kind, body) in [&b"hello"[..], b"", &[5; 2048], &[6; 5000]]
        .into_iter()
        .enumerate()
    {
        let kind = kind as u32;
        assert_eq!(in_c.ask(kind, body), in_text.ask(kind, body));
    }
}

/// The example in Rust, compiled for this processor instead of as a module.
#[path = "../../../../examples/actor.rs"]
#[expect(unsafe_code, reason = "it has the imports and exports of a module")]
mod in_rust;

/// What calls the exports of the example, and is called by it, as inco and a module do.
#[expect(unsafe_code, reason = "see above")]
mod native {
    use super::RefCell;

    unsafe extern "C" {
        fn inbox() -> *const u8;
        fn inbox_bytes() -> usize;
        fn exec(kind: i32, outside: i32, from: i64, bytes: usize) -> i32;
    }

    /// To whom, outside or not; the kind; the body.
    pub(crate) type Sent = (i32, i64, i32, Vec<u8>);

    thread_local! {
        static SENT: RefCell<Vec<Sent>> = const { RefCell::new(Vec::new()) };
    }

    /// The example's import. It has the name of a function of the C library, which nothing in this test uses.
    #[unsafe(no_mangle)]
    extern "C" fn send(outside: i32, to: i64, kind: i32, at: *const u8, bytes: usize) {
        // SAFETY: the example sends a part of its memory.
        let body = unsafe { std::slice::from_raw_parts(at, bytes) }.to_vec();
        SENT.with_borrow_mut(|sent| sent.push((outside, to, kind, body)));
    }

    /// Gives the example a message. What it returned, and what it sent.
    pub(crate) fn ask(kind: i32, outside: i32, from: i64, body: &[u8]) -> (i32, Vec<Sent>) {
        // SAFETY: the inbox has room for the bytes that are copied, and the example runs in one thread: one test calls it.
        let ended = unsafe {
            let fits = body.len().min(inbox_bytes());
            inbox().cast_mut().copy_from_nonoverlapping(body.as_ptr(), fits);
            exec(kind, outside, from, body.len())
        };
        (ended, SENT.take())
    }
}

#[test]
fn the_example_in_rust_answers_as_the_one_in_text() {
    let module = Module::compile(include_bytes!("../../../../examples/actor.wat")).unwrap();
    let mut bed = Bed::of(&module, Objects::create(LIMITS).unwrap().1);
    for (count, body) in [&b"hello"[..], b"", &[5; 2048], &[6; 5000]]
        .into_iter()
        .enumerate()
    {
        let kind = count as u32;
        let answer = bed.ask(kind, body);
        let mut expected = body[..body.len().min(2048)].to_vec();
        expected.extend((count as u64 + 1).to_le_bytes());
        assert_eq!(answer, expected);
        let (ended, sent) = native::ask(kind as i32, 1, -7, body);
        assert_eq!((ended, sent), (0, vec![(1, -7, kind as i32, expected)]));
    }
}

#[test]
fn the_page_has_the_example_in_rust() {
    let page = include_str!("../../../../docs/tasks/own-actor.md");
    let (_, block) = page.split_once("```rust\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    assert_eq!(block, include_str!("../../../../examples/actor.rs"));
}
