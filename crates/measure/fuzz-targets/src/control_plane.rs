//! Switches and API clients.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use api::{ControlRequest, EventLog, Limits, Server, ServerSettings, request_queue};
use model::{Nanos, ServiceId, Slot};
use openflow::{Field, Message, Session, Version, decode, encode};
use openflow_switch::{InstanceTerms, Part, ServiceRules, Settings, Side, Spread, Steering};
use openvswitch::{Endpoint, Ovsdb, datapath_flows};
use scheduling::Scheduler;

use crate::{pieces, scratch};

/// A decoded message can be encoded, and the result decoded. They need not be equal: invalid text is replaced.
pub(crate) fn openflow_message(bytes: &[u8]) {
    for version in Version::ALL {
        let Ok((xid, message)) = decode(version, bytes) else {
            continue;
        };
        let mut written = Vec::new();
        if encode(version, xid, &message, &mut written).is_ok() {
            assert!(decode(version, &written).is_ok());
        }
    }
}

/// A stream in pieces: the output stays bounded, and only an error ends the session.
pub(crate) fn openflow_session(bytes: &[u8]) {
    for side in [openflow::Side::Controller, openflow::Side::Switch] {
        let mut session = Session::new(side, openflow::Limits::default(), 0);
        'pieces: for (now, piece) in pieces(bytes).enumerate() {
            session.receive(piece, now as u64);
            loop {
                match session.next_event() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => break 'pieces,
                }
            }
            assert!(session.output().len() <= openflow::Limits::default().output_bytes + 65_536);
        }
    }
}

/// The steering core with a switch that sends anything: rules, flows and queues stay within their limits.
pub(crate) fn openflow_steering(bytes: &[u8]) {
    let service = ServiceRules {
        id: ServiceId(0),
        sides: vec![Side {
            uplink: 0,
            port: 1,
            data_port: 0,
            is_answering: false,
            fields: vec![Field::eth_type(0x0800)],
        }],
        spread: Spread {
            parts: vec![(Part::SourceAddress, 2)],
        },
        uplinks: vec![1],
        fit: 1.0,
    };
    let settings = Settings {
        rule_limit: 64,
        flow_limit: 128,
        ..Settings::default()
    };
    let mut steering = Steering::new(settings, vec![(service, Scheduler::default())], 9);
    steering.attach(Slot(0), ServiceId(0), vec![100]);
    let terms = InstanceTerms {
        takes_flows: true,
        capacity: 1e6,
        ..InstanceTerms::default()
    };
    steering.set_terms(Slot(0), terms);
    steering.connected();
    let mut xid = 0;
    for (time, piece) in pieces(bytes).enumerate() {
        let now = Nanos(time as u64 * 1_000_000);
        match piece {
            [of, message @ ..] if of % 2 == 0 => {
                if let Ok((_, message)) = decode(Version::V15, message) {
                    steering.message(u32::from(of / 2) % 64, &message, now);
                }
            }
            [_, frame @ ..] => steering.monitor(frame, now),
            [] => {}
        }
        steering.tick(now);
        steering.send(|_: &Message| {
            xid += 1;
            (xid % 5 != 0).then_some(xid)
        });
        while steering.next_injection().is_some() {}
        let figures = steering.figures();
        assert!(figures.rules <= 64 && figures.queued <= 4096 + 64 && steering.flows().count() <= 128);
    }
}

/// The replies of a database, and a dump of a datapath: each call ends with a result or an error.
pub(crate) fn ovsdb(bytes: &[u8]) {
    static PLACE: LazyLock<(PathBuf, UnixListener)> = LazyLock::new(|| {
        let path = scratch("ovsdb.sock");
        let listener = UnixListener::bind(&path).unwrap();
        (path, listener)
    });
    let (path, listener) = &*PLACE;
    let mut database = Ovsdb::connect(&Endpoint::Unix(path.clone()), Duration::from_secs(1)).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    // More would block this thread: the other end does not read yet.
    let _ = peer.write_all(bytes.get(..32 << 10).unwrap_or(bytes));
    peer.shutdown(Shutdown::Write).unwrap();
    let _ = database.interface("eth0");
    let _ = database.bridge_ids("br0");
    let _ = database.other_config("hw-offload");
    for flow in datapath_flows(&String::from_utf8_lossy(bytes)) {
        let _ = format!("{flow:?}");
    }
}

/// A connection to the API: the server answers or closes it, and serves the next one.
pub(crate) fn http(bytes: &[u8]) {
    static SERVER: LazyLock<Server> = LazyLock::new(|| {
        let (asker, mut inbox) = request_queue();
        std::thread::spawn(move || {
            while let Some(request) = inbox.wait() {
                match request {
                    ControlRequest::Status(answer) => answer.give(api::types::Status::default()),
                    ControlRequest::Services(answer) => answer.give(Vec::new()),
                    ControlRequest::Instances(answer) => answer.give(Vec::new()),
                    // The server answers requests whose reply is dropped with an error.
                    _ => {}
                }
            }
        });
        let limits = Limits {
            requests_per_s: u32::MAX,
            head_time: Duration::from_millis(200),
            ..Limits::default()
        };
        Server::start(
            ServerSettings {
                limits,
                ..ServerSettings::on(scratch("api.sock"))
            },
            asker,
            EventLog::default(),
        )
        .unwrap()
    });
    let mut stream = UnixStream::connect(SERVER.socket()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    // Streams of events do not end: a first piece is enough.
    let mut answer = [0; 4096];
    let read = loop {
        match stream.read(&mut answer) {
            // By the fuzzer's own timer.
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            read => break read,
        }
    };
    match read {
        Ok(read) if read > 0 => assert!(answer.starts_with(b"HTTP/1."), "{:?}", &answer[..read.min(32)]),
        Ok(_) => {}
        Err(error) => assert_eq!(
            error.kind(),
            std::io::ErrorKind::ConnectionReset,
            "the server hangs"
        ),
    }
}
