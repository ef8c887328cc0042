//! Events as text.

use model::{ActorChange, Event, EventKind, FunctionChange, SideChange};

use crate::output::plain;
use crate::table::{percent, span_ms};

/// An event as one line, with its time. `now_unix_ms` is the present, in milliseconds since 1970.
pub fn event_text(event: &Event, now_unix_ms: u64) -> String {
    format!(
        "{} {:>6} {}",
        moment(event.unix_ms, now_unix_ms),
        event.sequence,
        event_sentence(event)
    )
}

/// The sentence that describes an event, without its time.
pub fn event_sentence(event: &Event) -> String {
    let about = match (&event.service, event.instance) {
        (Some(service), Some(instance)) => format!("{service}/{instance}: "),
        (Some(service), None) => format!("{service}: "),
        (None, Some(instance)) => format!("instance {instance}: "),
        (None, None) => String::new(),
    };
    let what = match &event.kind {
        EventKind::Started { adopted, flows, .. } => {
            let mut taken_over = Vec::new();
            if *adopted > 0 {
                taken_over.push(format!("adopted {adopted} containers"));
            }
            if *flows > 0 {
                taken_over.push(format!("took over {flows} flows"));
            }
            let also = taken_over.iter().map(|what| format!(" and {what}"));
            format!("inco started{}", also.collect::<String>())
        }
        EventKind::Stopping { keep: false } => "inco stops".to_owned(),
        EventKind::Stopping { keep: true } => "inco stops; the containers keep running".to_owned(),
        EventKind::Upgraded { from, to, pause_ms } => {
            format!("inco {to} took over from {from} after {}", span_ms(*pause_ms))
        }
        EventKind::State { from, to, reason } => format!("{} -> {} ({reason})", from.name(), to.name()),
        EventKind::Scaled {
            from,
            to,
            policy,
            reason,
            ..
        } => format!("{from} -> {to} instances wanted by {policy} ({reason})"),
        EventKind::Picked {
            policy, flow, fits, ..
        } => {
            let fits = if *fits { "" } else { ", although it does not fit" };
            format!("{policy} picked it for {flow}{fits}")
        }
        EventKind::Shadowed {
            wanted,
            would,
            policy,
            reason,
        } => format!("dry-run decision: {would} instances instead of {wanted} ({policy}: {reason})"),
        EventKind::Resized {
            from_cpus,
            to_cpus,
            policy,
            reason,
            ..
        } => {
            let from = from_cpus.map_or_else(|| "no limit".to_owned(), |cpus| format!("{cpus:.3}"));
            format!("{from} -> {to_cpus:.3} CPUs wanted by {policy} ({reason})")
        }
        EventKind::Relocated {
            from_place,
            to_place,
            policy,
            reason,
            ..
        } => format!("{from_place} -> {to_place} wanted by {policy} ({reason})"),
        EventKind::Unpinned { reason } => format!("its flows are unpinned; they are rescheduled ({reason})"),
        EventKind::Health {
            takes: true,
            weight: 100,
            reason,
        } => format!("healthy ({reason})"),
        EventKind::Health {
            takes: true,
            weight,
            reason,
        } => format!("takes {weight} % of its share of new flows ({reason})"),
        EventKind::Health { reason, .. } => format!("takes no new flows ({reason})"),
        EventKind::Hot { occupancy } => {
            format!("its ring fills up: {} full when looked at", percent(*occupancy))
        }
        EventKind::Overcommitted { flows } => {
            let plural = if *flows == 1 { "" } else { "s" };
            format!(
                "{flows} new flow{plural} beyond the capacity of every instance; given to the least loaded one"
            )
        }
        EventKind::Stayed {
            at_limit,
            refused,
            without_room,
            gone,
        } => {
            let reasons = [
                (*at_limit, "at a limit"),
                (*refused, "refused by a function"),
                (*without_room, "without room for a message"),
                (*gone, "with the end of an instance or of the flow"),
            ];
            let parts: Vec<String> = reasons
                .iter()
                .filter(|(moves, _)| *moves > 0)
                .map(|(moves, why)| format!("{moves} {why}"))
                .collect();
            format!(
                "moves of flows with their state were cancelled: {}",
                parts.join(", ")
            )
        }
        EventKind::Function {
            function,
            change,
            packets,
            drops,
            originated,
            ..
        } => {
            let change = match change {
                FunctionChange::Reloaded => "takes another configuration",
                FunctionChange::Refused => "keeps its configuration, because the changed one is wrong",
                FunctionChange::Ended => "ends",
            };
            let drops: Vec<String> = drops
                .iter()
                .map(|(reason, packets)| format!("{packets} {reason}"))
                .collect();
            let drops = if drops.is_empty() {
                "0".to_owned()
            } else {
                drops.join(", ")
            };
            format!("{function} {change}; packets so far: {packets} in, {originated} made, dropped: {drops}")
        }
        EventKind::Actor {
            actor,
            side,
            change,
            reason,
            took_us,
            lost,
            ..
        } => {
            let (here, there) = (side.name(), side.other().name());
            let mut what = match change {
                ActorChange::MoveBegun => format!("moves from the {here} to the {there}"),
                ActorChange::MoveEnded => format!("is on the {there} now"),
                ActorChange::MoveFailed => format!("stays on the {here}"),
                ActorChange::Downgraded => "is served in turns from now on".to_owned(),
                ActorChange::Upgraded => "is served first come, first served again".to_owned(),
                ActorChange::Paused => "is paused".to_owned(),
                ActorChange::Resumed => "goes on".to_owned(),
                ActorChange::Stopped => format!("is stopped on the {here}"),
                ActorChange::Lost => "is lost".to_owned(),
            };
            if let Some(us) = took_us {
                what.push_str(&format!(" after {:.1} ms", *us as f64 / 1_000.0));
            }
            if let Some(lost) = lost {
                what.push_str(&format!(", with {lost} messages"));
            }
            format!("actor {actor} {what} ({reason})")
        }
        EventKind::ActorSide {
            side, change, reason, ..
        } => {
            let what = match change {
                SideChange::Started => "runs",
                SideChange::Ended => "has ended",
                SideChange::Broken => "is ended by inco",
                SideChange::CoreToRound => "has one more core that serves in turns",
                SideChange::CoreToLine => "has one core less that serves in turns",
            };
            format!("the {} {what} ({reason})", side.name())
        }
        EventKind::Uplink {
            uplink,
            up: true,
            detail,
        } => format!("uplink {uplink} is up: {detail} connected"),
        EventKind::Uplink {
            uplink,
            up: false,
            detail,
        } => format!("uplink {uplink} is down: {detail}"),
        EventKind::Rollout {
            state,
            replaced,
            total,
            reason,
        } => format!(
            "rollout {}: {replaced} of {total} replaced ({reason})",
            state.name()
        ),
        EventKind::Failure { what, reason } => format!("{what} failed: {reason}"),
        EventKind::Recovered { what, after_ms } => format!("{what} recovered after {}", span_ms(*after_ms)),
        EventKind::Action {
            action,
            by,
            refused,
            result,
            ..
        } => {
            let refused = if *refused { "refused: " } else { "" };
            format!("{action} by {by}: {refused}{result}")
        }
    };
    // Also the name of a service: an event may come from a file.
    plain(&(about + &what))
}

/// A past time in UTC: the time of day, and before it how many days ago that was if it was not today.
pub fn moment(unix_ms: u64, now_unix_ms: u64) -> String {
    let day = |ms: u64| ms / 86_400_000;
    match day(now_unix_ms).saturating_sub(day(unix_ms)) {
        0 => clock(unix_ms),
        days => format!("{days}d ago {}", clock(unix_ms)),
    }
}

/// The time of day in UTC, from milliseconds since 1970.
pub fn clock(unix_ms: u64) -> String {
    let day = unix_ms % 86_400_000;
    format!(
        "{:02}:{:02}:{:02}.{:03}Z",
        day / 3_600_000,
        day / 60_000 % 60,
        day / 1000 % 60,
        day % 1000
    )
}

#[cfg(test)]
mod tests {
    use model::{ActorSide, InstanceId, InstanceState, Nanos};

    use super::*;

    #[test]
    fn events_are_sentences() {
        let event = |service: Option<&str>, instance, kind| Event {
            sequence: 12,
            at: Nanos(0),
            unix_ms: 86_400_000 + 3_723_004,
            service: service.map(str::to_owned),
            instance,
            kind,
        };
        let started = |adopted, flows| EventKind::Started {
            adopted,
            flows,
            repaired: 0,
            rejected: 0,
        };
        let state = EventKind::State {
            from: InstanceState::Standby,
            to: InstanceState::Active,
            reason: "scaled\nout".to_owned(),
        };
        let two_lines = event(Some("we\nb"), None, started(0, 0));
        assert_eq!(event_sentence(&two_lines), "we b: inco started");
        assert_eq!(
            event_text(
                &event(Some("web"), Some(InstanceId(3)), state),
                2 * 86_400_000 - 1
            ),
            "01:02:03.004Z     12 web/3: standby -> active (scaled out)"
        );
        assert_eq!(
            event_text(&event(None, None, started(2, 0)), 3 * 86_400_000),
            "2d ago 01:02:03.004Z     12 inco started and adopted 2 containers"
        );
        let sentence = |of: EventKind| event_sentence(&event(None, None, of));
        let function = |change, drops| EventKind::Function {
            function: "firewall".to_owned(),
            stage: 0,
            change,
            packets: 7,
            drops,
            originated: 1,
        };
        assert_eq!(
            sentence(function(FunctionChange::Ended, [("denied".to_owned(), 2)].into())),
            "firewall ends; packets so far: 7 in, 1 made, dropped: 2 denied"
        );
        assert_eq!(
            sentence(function(FunctionChange::Reloaded, Default::default())),
            "firewall takes another configuration; packets so far: 7 in, 1 made, dropped: 0"
        );
        let actor = |change, took_us, lost| EventKind::Actor {
            actor: "counter".to_owned(),
            side: ActorSide::Card,
            change,
            reason: "push".to_owned(),
            took_us,
            lost,
            case: None,
        };
        assert_eq!(
            sentence(actor(ActorChange::MoveBegun, None, None)),
            "actor counter moves from the card to the host (push)"
        );
        assert_eq!(
            sentence(actor(ActorChange::MoveEnded, Some(1_500), None)),
            "actor counter is on the host now after 1.5 ms (push)"
        );
        assert_eq!(
            sentence(actor(ActorChange::Stopped, None, Some(3))),
            "actor counter is stopped on the card, with 3 messages (push)"
        );
        let side = EventKind::ActorSide {
            side: ActorSide::Host,
            change: SideChange::Ended,
            reason: "no message was under way".to_owned(),
            case: None,
        };
        assert_eq!(sentence(side), "the host has ended (no message was under way)");
        assert_eq!(sentence(started(0, 0)), "inco started");
        assert_eq!(
            sentence(started(2, 70)),
            "inco started and adopted 2 containers and took over 70 flows"
        );
    }
}
