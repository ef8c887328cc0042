//! Captures: a stream of packets as a pcapng file, from the switch's queue to one client. The stream's end, also by a
//! client that goes away, ends the capture.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use futures_util::stream::unfold;
use model::{CapturePoint, DropReason, InstanceId};
use serde::{Deserialize, Serialize};
use switch::{CAPTURE_SNAPLEN_LIMIT, Capture, CaptureLimits, CapturedPacket, Sighting};
use tokio::time::Instant;
use utoipa::IntoParams;

use crate::pcapng;
use crate::problem::Problem;

/// How long the stream waits before it looks into an empty queue again. A worker does not tell: that would be a system
/// call.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A piece of the stream has at least so many bytes where there are enough packets.
const PIECE_BYTES: usize = 64 * 1024;

/// Which packets are captured, and how many.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CaptureQuery {
    /// Packets of this service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Packets of this instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<u32>, format = "uint32", maximum = 4_294_967_295_u32)]
    pub instance: Option<InstanceId>,
    /// Packets of this flow, in both directions: `tcp 10.0.0.1:1000 > 10.0.0.2:80`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(format = "flow")]
    pub flow: Option<String>,
    /// Where: `uplink`, `before` or `after` an instance, `dropped`; default: everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(pattern = "^(uplink|before|after|dropped)$")]
    pub point: Option<String>,
    /// Packets dropped for this reason: a label of `inco_dropped_packets_total`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Ends after so many packets; default [`CaptureQuery::PACKETS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(format = "uint32", minimum = 1, maximum = 10_000_000)]
    pub packets: Option<u32>,
    /// Ends before the file has more bytes; default [`CaptureQuery::BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(format = "uint32", minimum = 4096, maximum = 4_294_967_295_u32)]
    pub bytes: Option<u32>,
    /// Ends after so many seconds; default [`CaptureQuery::SECONDS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(format = "uint32", minimum = 1, maximum = 3600)]
    pub seconds: Option<u32>,
    /// Bytes kept of each packet; default [`CaptureQuery::SNAPLEN`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(format = "uint32", minimum = 1, maximum = 65_535)]
    pub snaplen: Option<u32>,
}

impl CaptureQuery {
    /// Packets of a capture that does not say how many.
    pub const PACKETS: u32 = 10_000;
    /// The most packets of a capture.
    pub const PACKETS_LIMIT: u32 = 10_000_000;
    /// Bytes of the file of a capture that does not say how many: 64 MiB.
    pub const BYTES: u32 = 64 << 20;
    /// The fewest bytes of a file: its beginning and its end, and some packets.
    pub const BYTES_LEAST: u32 = 4096;
    /// Seconds of a capture that does not say how many.
    pub const SECONDS: u32 = 60;
    /// The most seconds of a capture.
    pub const SECONDS_LIMIT: u32 = 3600;
    /// Bytes kept of a packet where nothing else is said: headers, also of a tunnel, and the beginning of the payload.
    pub const SNAPLEN: u32 = 256;
    /// The most bytes kept of a packet.
    pub const SNAPLEN_LIMIT: u32 = CAPTURE_SNAPLEN_LIMIT;

    /// The points that it names, in the order of [`CapturePoint::WORDS`]. A reason is one of dropped packets.
    pub fn points(&self) -> Vec<CapturePoint> {
        let is_meant = |word: &str, point: CapturePoint| match &self.point {
            Some(named) => named == word,
            None => self.reason.is_none() || point == CapturePoint::Dropped,
        };
        let words = CapturePoint::WORDS.iter();
        words
            .filter(|(word, point)| is_meant(word, *point))
            .map(|(_, point)| *point)
            .collect()
    }

    /// The reason that it names, if there is such a one.
    pub fn drop_reason(&self) -> Option<DropReason> {
        let named = self.reason.as_deref()?;
        let mut reasons = DropReason::ALL.iter().copied();
        reasons.find(|reason| reason.name() == named)
    }

    /// How much it captures.
    pub fn limits(&self) -> CaptureLimits {
        CaptureLimits {
            packets: self.packets.unwrap_or(Self::PACKETS).into(),
            snaplen: self.snaplen.unwrap_or(Self::SNAPLEN),
        }
    }

    /// How long it takes at most.
    fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds.unwrap_or(Self::SECONDS).into())
    }

    /// Whether it makes sense, but for the names of services and instances.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        let bad = |error: String, hint: String| Err(Problem::new(StatusCode::BAD_REQUEST, error, hint));
        let points = self.points();
        if points.is_empty() {
            let named = self.point.as_deref().unwrap_or_default();
            let words: Vec<&str> = CapturePoint::WORDS.iter().map(|(word, _)| *word).collect();
            return bad(
                format!("unknown point {named:?}"),
                format!("points: {}", words.join(", ")),
            );
        }
        if let Some(reason) = &self.reason {
            if self.drop_reason().is_none() {
                let names: Vec<&str> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
                return bad(
                    format!("unknown reason {reason:?}"),
                    format!("reasons: {}", names.join(", ")),
                );
            }
            if points != [CapturePoint::Dropped] {
                return bad(
                    "a reason is one of dropped packets".to_owned(),
                    "omit `point`, or write `dropped`".to_owned(),
                );
            }
        }
        for (name, value, least, limit) in [
            ("packets", self.packets, 1, Self::PACKETS_LIMIT),
            ("bytes", self.bytes, Self::BYTES_LEAST, u32::MAX),
            ("seconds", self.seconds, 1, Self::SECONDS_LIMIT),
            ("snaplen", self.snaplen, 1, Self::SNAPLEN_LIMIT),
        ] {
            if value.is_some_and(|value| !(least..=limit).contains(&value)) {
                return bad(
                    format!("{name} is not between {least} and {limit}"),
                    "omit it for the default".to_owned(),
                );
            }
        }
        Ok(())
    }
}

/// A capture that runs, with the names that its packets need. Dropping it ends the capture.
#[derive(Debug)]
pub struct RunningCapture {
    /// What the switch fills.
    pub capture: Arc<Capture>,
    /// Names of services, by id.
    pub services: Vec<String>,
    /// Names of uplinks, by id.
    pub uplinks: Vec<String>,
}

impl Drop for RunningCapture {
    fn drop(&mut self) {
        self.capture.end();
    }
}

impl RunningCapture {
    /// The comment of a packet: what is known of it, as `KEY=VALUE`, the flow last.
    fn comment(&self, of: &Sighting) -> String {
        let mut text = String::new();
        let mut add = |key: &str, value: &dyn std::fmt::Display| {
            let space = if text.is_empty() { "" } else { " " };
            // Writing into a text does not fail.
            let _ok = write!(text, "{space}{key}={value}");
        };
        if let Some(reason) = of.reason {
            add("reason", &reason.name());
        }
        let service = of.service.and_then(|id| self.services.get(id.index()));
        match (service, of.instance.filter(|id| *id != InstanceId(u32::MAX))) {
            (Some(service), Some(id)) => add("instance", &format_args!("{service}/{id}")),
            (None, Some(id)) => add("instance", &id),
            (Some(service), None) => add("service", service),
            (None, None) => {}
        }
        if let Some(uplink) = of.uplink.and_then(|id| self.uplinks.get(id.index())) {
            add("uplink", uplink);
        }
        if let Some(tuple) = of.tuple {
            add("flow", &tuple);
        }
        text
    }
}

/// The stream's state.
struct Stream {
    running: RunningCapture,
    points: Vec<CapturePoint>,
    ends: Instant,
    /// Nanoseconds to add to monotonic time for the time since 1970.
    unix_ns: u64,
    /// Packets sent, by point.
    sent: Vec<u64>,
    ready: Vec<u8>,
    /// Bytes that packets may still have, in blocks of the file.
    bytes_left: usize,
    has_ended: bool,
}

impl Stream {
    /// Adds a packet. Whether there was room for it.
    fn put(&mut self, copy: &CapturedPacket) -> bool {
        let Some(interface) = self.points.iter().position(|point| *point == copy.seen.point) else {
            return true;
        };
        let comment = self.running.comment(&copy.seen);
        let packet = pcapng::Packet {
            interface: interface as u32,
            unix_ns: self.unix_ns.wrapping_add(copy.seen.at.0),
            length: copy.length,
            bytes: &copy.bytes,
            leaves: (copy.seen.point == CapturePoint::Uplink).then_some(copy.seen.leaves),
            comment: &comment,
        };
        let before = self.ready.len();
        pcapng::packet(&mut self.ready, &packet);
        let Some(left) = self.bytes_left.checked_sub(self.ready.len() - before) else {
            self.ready.truncate(before);
            return false;
        };
        self.bytes_left = left;
        if let Some(sent) = self.sent.get_mut(interface) {
            *sent += 1;
        }
        true
    }

    /// The next piece; [`None`] at the end.
    async fn next(&mut self) -> Option<Bytes> {
        while self.ready.is_empty() {
            if self.has_ended {
                return None;
            }
            // Before the queue: what came until then is in it.
            let is_over = Instant::now() >= self.ends || self.running.capture.is_over();
            let limit = self.running.capture.limits().packets;
            let mut is_full = self.sent.iter().sum::<u64>() >= limit;
            while !is_full
                && self.ready.len() < PIECE_BYTES
                && let Some(copy) = self.running.capture.take()
            {
                let has_room = self.put(&copy);
                self.running.capture.give_back(copy);
                is_full = !has_room || self.sent.iter().sum::<u64>() >= limit;
            }
            if is_full || is_over && self.ready.len() < PIECE_BYTES {
                self.end();
            } else if self.ready.is_empty() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        Some(std::mem::take(&mut self.ready).into())
    }

    fn end(&mut self) {
        self.running.capture.end();
        self.has_ended = true;
        let now = self.unix_ns.wrapping_add(clock::monotonic().0);
        for (interface, (point, sent)) in (0..).zip(self.points.iter().zip(&self.sent)) {
            let left_out = self.running.capture.left_out(*point);
            pcapng::statistics(&mut self.ready, interface, now, *sent, left_out);
        }
    }
}

/// The capture as a file, until its limits are reached.
pub(crate) fn file(running: RunningCapture, query: &CaptureQuery) -> Body {
    let points = query.points();
    let mut ready = Vec::new();
    pcapng::begin(&mut ready, &points, running.capture.limits().snaplen);
    let ends_with = points.len() * pcapng::STATISTICS_BYTES;
    let limit = query.bytes.unwrap_or(CaptureQuery::BYTES) as usize;
    let stream = Stream {
        bytes_left: limit.saturating_sub(ready.len() + ends_with),
        sent: vec![0; points.len()],
        points,
        ends: Instant::now() + query.duration(),
        unix_ns: clock::wall().0.wrapping_sub(clock::monotonic().0),
        ready,
        has_ended: false,
        running,
    };
    Body::from_stream(unfold(stream, |mut stream| async move {
        let piece = stream.next().await?;
        Some((Ok::<_, Infallible>(piece), stream))
    }))
}

#[cfg(test)]
mod tests {
    use model::{Nanos, ServiceId, Tuple};
    use switch::CaptureFilter;

    use super::*;
    use crate::pcapng::CaptureTally;

    const PACKETS: u32 = 100;

    fn sighting(reason: DropReason) -> Sighting {
        let tuple = Tuple {
            src: "10.0.0.7".parse().unwrap(),
            dst: "10.128.0.1".parse().unwrap(),
            src_port: 1024,
            dst_port: 9,
            protocol: 17,
            vlan: 0,
        };
        Sighting {
            reason: Some(reason),
            service: Some(ServiceId(0)),
            instance: Some(InstanceId(3)),
            ..Sighting::at(CapturePoint::Dropped, Nanos(5), Some(tuple))
        }
    }

    /// A capture of a switch that dropped packets before anybody took them.
    fn running(query: &CaptureQuery) -> RunningCapture {
        let filter = CaptureFilter {
            points: query.points(),
            reason: query.drop_reason(),
            ..CaptureFilter::default()
        };
        let capture = Capture::new(filter, query.limits());
        for _ in 0..PACKETS {
            capture.see(sighting(DropReason::Unmatched), &[7; 80]);
            capture.see(sighting(DropReason::Spoofed), &[8; 90]);
        }
        RunningCapture {
            capture,
            services: vec!["firewall".to_owned()],
            uplinks: Vec::new(),
        }
    }

    fn bytes_of(query: &CaptureQuery) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let whole =
            runtime.block_on(async { axum::body::to_bytes(file(running(query), query), usize::MAX).await });
        whole.unwrap().into()
    }

    #[test]
    fn a_file_ends_with_its_packets_its_bytes_or_its_time() {
        for (packets, bytes) in [
            (7, None),
            (1000, Some(4096)),
            (1000, Some(4097)),
            (1000, Some(9999)),
            (1000, None),
        ] {
            let query = CaptureQuery {
                reason: Some("unmatched".to_owned()),
                packets: Some(packets),
                bytes,
                seconds: Some(1),
                ..CaptureQuery::default()
            };
            let file = bytes_of(&query);
            let mut tally = CaptureTally::default();
            assert_eq!(tally.take(&file), file);
            assert!(tally.is_whole);
            match bytes {
                Some(limit) => {
                    // There is no room for another one, of 200 bytes with its comment.
                    assert!(
                        (limit - 200..=limit).contains(&(file.len() as u32)),
                        "{}",
                        file.len()
                    );
                    assert!(tally.packets < u64::from(PACKETS));
                }
                None => assert_eq!(tally.packets, u64::from(packets.min(PACKETS))),
            }
        }
    }

    #[test]
    fn a_comment_has_what_is_known() {
        let of = running(&CaptureQuery::default());
        assert_eq!(
            of.comment(&sighting(DropReason::Spoofed)),
            "reason=spoofed instance=firewall/3 flow=udp 10.0.0.7:1024 > 10.128.0.1:9"
        );
        let less = Sighting::at(CapturePoint::Uplink, Nanos(5), None);
        assert_eq!(of.comment(&less), "");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_does() {
        let refusal = |query: CaptureQuery| query.check().map_err(|problem| problem.1.to_string());
        let some = |word: &str| Some(word.to_owned());
        let cases = [
            (
                CaptureQuery {
                    point: some("inside"),
                    ..CaptureQuery::default()
                },
                "unknown point",
            ),
            (
                CaptureQuery {
                    reason: some("bad luck"),
                    ..CaptureQuery::default()
                },
                "unknown reason",
            ),
            (
                CaptureQuery {
                    point: some("before"),
                    reason: some("spoofed"),
                    ..CaptureQuery::default()
                },
                "a reason is one of dropped packets",
            ),
            (
                CaptureQuery {
                    bytes: Some(100),
                    ..CaptureQuery::default()
                },
                "bytes is not between 4096 and",
            ),
            (
                CaptureQuery {
                    snaplen: Some(0),
                    ..CaptureQuery::default()
                },
                "snaplen is not between 1 and",
            ),
        ];
        for (query, expected) in cases {
            let told = refusal(query).unwrap_err();
            assert!(told.contains(expected), "{told}");
        }
        assert_eq!(refusal(CaptureQuery::default()), Ok(()));
    }
}
