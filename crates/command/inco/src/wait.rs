//! `--wait`: waits until a request has taken effect, or reports what is missing.

use std::time::{Duration, Instant};

use api::Client;
use api::types::{FlowFilter, ServiceRow, Snapshot};
use display::output;
use display::table::grouped;
use model::{InstanceId, InstanceState, RolloutState};

use crate::cli::WaitArgs;

/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which it prints what it waits for.
const MESSAGE_DELAY: Duration = Duration::from_secs(1);

/// If waiting is requested, waits until `missing` returns nothing.
///
/// # Errors
/// A timeout, with what is missing; or an error of `missing`.
pub(crate) fn until(
    args: &WaitArgs,
    client: &Client,
    missing: impl Fn(&Snapshot) -> anyhow::Result<Option<String>>,
) -> anyhow::Result<()> {
    if !args.wait {
        return Ok(());
    }
    let started = Instant::now();
    let mut told = false;
    loop {
        let Some(text) = missing(&client.snapshot()?)? else {
            return Ok(());
        };
        if started.elapsed() >= args.timeout {
            anyhow::bail!("timed out after {} s: {text}", args.timeout.as_secs_f64());
        }
        if !told && started.elapsed() >= MESSAGE_DELAY {
            told = true;
            output::complain(&format!("inco: waiting: {text}"));
        }
        std::thread::sleep(POLL_INTERVAL.min(args.timeout));
    }
}

fn service<'a>(snapshot: &'a Snapshot, name: &str) -> anyhow::Result<&'a ServiceRow> {
    let found = snapshot.services.iter().find(|row| row.name == name);
    found.ok_or_else(|| anyhow::anyhow!("service {name:?} is not configured any more"))
}

fn failing(row: &ServiceRow) -> String {
    row.failing
        .as_ref()
        .map_or_else(String::new, |how| format!(", {}", output::plain(how)))
}

/// The services that have not reached their target number of instances, with their state.
pub(crate) fn for_active(snapshot: &Snapshot, services: &[String]) -> anyhow::Result<Option<String>> {
    let mut lacks = Vec::new();
    for name in services {
        let row = service(snapshot, name)?;
        if row.active != row.desired || row.draining > 0 {
            lacks.push(format!(
                "{name} has {} of {} active instances, {} starting, {} draining{}",
                row.active,
                row.desired,
                row.starting,
                row.draining,
                failing(row)
            ));
        }
    }
    Ok((!lacks.is_empty()).then(|| lacks.join("; ")))
}

/// The instances that still have flows or take new ones.
pub(crate) fn for_drained(snapshot: &Snapshot, instances: &[InstanceId]) -> Option<String> {
    let rows = snapshot
        .instances
        .iter()
        .filter(|row| instances.contains(&row.id));
    let left: Vec<String> = rows
        .filter_map(|row| match row.state {
            InstanceState::Active => Some(format!(
                "instance {} stays active until a replacement is ready",
                row.id
            )),
            InstanceState::Draining => Some(format!(
                "instance {} drains with {} flows left",
                row.id,
                grouped(row.live_flows)
            )),
            _ => None,
        })
        .collect();
    (!left.is_empty()).then(|| left.join("; "))
}

/// The progress of a rollout; nothing once it has succeeded.
pub(crate) fn for_rollout(snapshot: &Snapshot, name: &str) -> anyhow::Result<Option<String>> {
    let Some(rollout) = &service(snapshot, name)?.rollout else {
        return Ok(None);
    };
    let so_far = format!("{} of {} are replaced", rollout.replaced, rollout.total);
    match rollout.state {
        RolloutState::Finished => Ok(None),
        RolloutState::Running => Ok(Some(format!("{name}: {so_far} ({})", rollout.reason))),
        RolloutState::Aborted => {
            anyhow::bail!("{name}: the rollout was aborted, {so_far}: {}", rollout.reason)
        }
    }
}

/// The flows that have been pinned to an instance since before `unix_ms`, by inco's clock.
pub(crate) fn for_unpinned(
    client: &Client,
    instance: InstanceId,
    unix_ms: u64,
) -> anyhow::Result<Option<String>> {
    let filter = FlowFilter {
        instance: Some(instance),
        limit: Some(FlowFilter::LIMIT),
        ..FlowFilter::default()
    };
    let flows = client.flows(&filter)?.flows;
    let left = flows.iter().filter(|flow| {
        let pins = [flow.forward, flow.reverse].into_iter().zip(flow.since_unix_ms);
        pins.into_iter()
            .any(|(pin, since)| pin == Some(instance) && since.is_some_and(|since| since < unix_ms))
    });
    Ok(match left.count() {
        0 => None,
        left => Some(format!("{left} flows are still pinned to instance {instance}")),
    })
}

#[cfg(test)]
mod tests {
    use api::types::InstanceRow;
    use model::Rollout;

    use super::*;

    fn snapshot(rollout: Option<Rollout>) -> Snapshot {
        let instance = |id: u32, state: InstanceState| -> InstanceRow {
            serde_json::from_value(serde_json::json!({
                "id": id, "service": "web", "state": state, "state_ms": 1, "slot": null, "container": null,
                "pid": null,
                "adopted": false, "to_pps": 0.0, "back_pps": 0.0, "to_packets": 0, "back_packets": 0,
                "live_flows": 1200,
                "ring_occupancy": 0.0, "dropped_packets": 0, "capacity_pps": null, "cpu_quota": null, "busy": null,
                "memory_bytes": null, "reason": "",
            }))
            .unwrap()
        };
        Snapshot {
            services: vec![ServiceRow {
                name: "web".to_owned(),
                active: 2,
                desired: 3,
                starting: 1,
                failing: Some("failing (1 failure, last: it died)".to_owned()),
                rollout,
                ..ServiceRow::default()
            }],
            instances: vec![
                instance(3, InstanceState::Active),
                instance(4, InstanceState::Draining),
                instance(5, InstanceState::Standby),
            ],
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_timeout_lists_what_is_missing() {
        let snapshot = snapshot(None);
        assert_eq!(
            for_active(&snapshot, &["web".to_owned()]).unwrap().unwrap(),
            "web has 2 of 3 active instances, 1 starting, 0 draining, failing (1 failure, last: it died)"
        );
        assert!(for_active(&snapshot, &["gone".to_owned()]).is_err());
        let ids = [3, 4, 5, 6].map(InstanceId);
        assert_eq!(
            for_drained(&snapshot, &ids).unwrap(),
            "instance 3 stays active until a replacement is ready; instance 4 drains with 1,200 flows left"
        );
        assert_eq!(for_drained(&snapshot, &ids[2..]), None);
    }

    #[test]
    fn a_rollout_is_waited_for_until_it_has_ended() {
        let with = |state| {
            let reason = "instance 3 drains".to_owned();
            let rollout = Rollout {
                state,
                replaced: 1,
                total: 4,
                reason,
            };
            for_rollout(&snapshot(Some(rollout)), "web")
        };
        assert_eq!(
            with(RolloutState::Running).unwrap().unwrap(),
            "web: 1 of 4 are replaced (instance 3 drains)"
        );
        assert_eq!(with(RolloutState::Finished).unwrap(), None);
        let error = with(RolloutState::Aborted).unwrap_err().to_string();
        assert_eq!(
            error,
            "web: the rollout was aborted, 1 of 4 are replaced: instance 3 drains"
        );
    }
}
