//! Two sessions with each other, and sessions with hostile or silent peers.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use openflow::{Event, Features, FlowMod, Limits, Message, Session, SessionError, Side, Version};

const MS: u64 = 1_000_000;

/// Moves pending output from one to the other, a few bytes at a time.
fn carry(from: &mut Session, to: &mut Session, now_ns: u64) -> Vec<Event> {
    let mut events = Vec::new();
    while !from.output().is_empty() {
        let part = from.output()[..from.output().len().min(5)].to_vec();
        from.written(part.len());
        to.receive(&part, now_ns);
        while let Some(event) = to.next_event().unwrap() {
            events.push(event);
        }
    }
    events
}

fn pair() -> (Session, Session) {
    let new = |side| Session::new(side, Limits::default(), 0);
    let (mut controller, mut switch) = (new(Side::Controller), new(Side::Switch));
    assert_eq!(
        carry(&mut switch, &mut controller, 0),
        [Event::Agreed(Version::V15)]
    );
    let asked = carry(&mut controller, &mut switch, 0);
    assert_eq!(asked[0], Event::Agreed(Version::V15));
    let Event::Message {
        xid,
        message: Message::FeaturesRequest,
    } = asked[1]
    else {
        unreachable!("{asked:?}");
    };
    let features = Features {
        datapath: 7,
        ..Features::default()
    };
    switch.answer(xid, &Message::FeaturesReply(features)).unwrap();
    let told = carry(&mut switch, &mut controller, 0);
    assert_eq!(
        told,
        [Event::Message {
            xid,
            message: Message::FeaturesReply(features)
        }]
    );
    (controller, switch)
}

#[test]
fn sessions_negotiate_and_number_their_messages() {
    let (mut controller, mut switch) = pair();
    let first = controller.send(&Message::FlowMod(FlowMod::default())).unwrap();
    let second = controller.send(&Message::BarrierRequest).unwrap();
    assert_eq!(second, first + 1);
    let events = carry(&mut controller, &mut switch, 0);
    assert_eq!(events.len(), 2);
    assert_eq!(
        events[1],
        Event::Message {
            xid: second,
            message: Message::BarrierRequest
        }
    );
}

#[test]
fn a_bundled_message_has_the_outer_transaction_id() {
    let (mut controller, mut switch) = pair();
    let add = Message::BundleAdd {
        bundle: 3,
        flags: 0,
        xid: 0,
        message: Box::new(Message::FlowMod(FlowMod::default())),
    };
    let xid = controller.send(&add).unwrap();
    let events = carry(&mut controller, &mut switch, 0);
    let [
        Event::Message {
            xid: outer,
            message: Message::BundleAdd { xid: inner, .. },
        },
    ] = events.as_slice()
    else {
        unreachable!("{events:?}");
    };
    assert_eq!((*outer, *inner), (xid, xid));
}

#[test]
fn quiet_peers_get_an_echo_request_and_silent_ones_are_disconnected() {
    let (mut controller, mut switch) = pair();
    controller.tick(999 * MS).unwrap();
    assert!(controller.output().is_empty());
    controller.tick(1_000 * MS).unwrap();
    controller.tick(1_500 * MS).unwrap();
    assert!(
        carry(&mut controller, &mut switch, 1_500 * MS).is_empty(),
        "the echo is answered internally"
    );
    assert!(!switch.output().is_empty());
    assert!(carry(&mut switch, &mut controller, 1_600 * MS).is_empty());
    controller.tick(4_500 * MS).unwrap();
    assert_eq!(
        controller.tick(4_600 * MS),
        Err(SessionError::Silent { for_ns: 3_000 * MS })
    );
}

#[test]
fn pending_output_is_bounded() {
    let (mut controller, _) = pair();
    let packet = Message::EchoRequest(vec![0; 60_000]);
    let sent = (0..1_000)
        .take_while(|_| controller.send(&packet).is_ok())
        .count();
    assert!((60..80).contains(&sent), "{sent}");
    assert!(matches!(controller.send(&packet), Err(SessionError::Full { .. })));
    let waiting = controller.output().len();
    controller.written(waiting);
    controller.send(&packet).unwrap();
}

#[test]
fn a_session_without_a_common_version_ends() {
    // 1.0 alone.
    let mut controller = Session::new(Side::Controller, Limits::default(), 0);
    controller.receive(&[1, 0, 0, 8, 0, 0, 0, 1], 0);
    assert_eq!(
        controller.next_event(),
        Err(SessionError::NoCommonVersion { theirs: 1 })
    );
    // 1.3 without a list of versions.
    let mut controller = Session::new(Side::Controller, Limits::default(), 0);
    controller.receive(&[4, 0, 0, 8, 0, 0, 0, 1], 0);
    assert_eq!(controller.next_event(), Ok(Some(Event::Agreed(Version::V13))));
    // A later version that also supports ours.
    let mut controller = Session::new(Side::Controller, Limits::default(), 0);
    controller.receive(&[7, 0, 0, 16, 0, 0, 0, 1, 0, 1, 0, 8, 0, 0, 0, 0x90], 0);
    assert_eq!(controller.next_event(), Ok(Some(Event::Agreed(Version::V13))));
}

#[test]
fn other_protocols_end_the_session() {
    for text in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[4, 14, 0, 8, 0, 0, 0, 0],
        &[4, 0, 0, 3, 0, 0, 0, 0],
    ] {
        let mut controller = Session::new(Side::Controller, Limits::default(), 0);
        controller.receive(text, 0);
        let came = controller.next_event();
        // The first one declares 8,303 bytes, so the session waits for more until the silence limit.
        assert!(
            matches!(came, Err(SessionError::NotOpenFlow(_)) | Ok(None)),
            "{came:?}"
        );
        assert!(controller.tick(3_000 * MS).is_err());
        assert_eq!(
            controller.send(&Message::BarrierRequest),
            Err(SessionError::NotAgreed)
        );
    }
}

#[test]
fn an_undecodable_message_does_not_end_the_session() {
    let (mut controller, mut switch) = pair();
    // A truncated flow-removed.
    controller.receive(&[6, 11, 0, 12, 0, 0, 0, 0, 1, 2, 3, 4], 0);
    assert!(matches!(
        controller.next_event(),
        Ok(Some(Event::Garbled { kind: 11, .. }))
    ));
    switch.answer(0, &Message::BarrierReply).unwrap();
    assert_eq!(carry(&mut switch, &mut controller, 0).len(), 1);
}
