//! `--selector`: selects instances by columns of `inco instances`.

use std::str::FromStr;

use api::types::InstanceRow;

/// A list of requirements, all of which must hold: `service=firewall,state!=active`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: Key,
    /// Whether the value must be equal; otherwise it must differ.
    must_equal: bool,
    value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Service,
    Place,
    State,
    Adopted,
}

impl Selector {
    /// Whether the instance is selected.
    pub(crate) fn selects(&self, row: &InstanceRow) -> bool {
        let holds = |of: &Requirement| {
            let is_equal = match of.key {
                Key::Service => row.service == of.value,
                Key::Place => row.place.as_ref() == Some(&of.value),
                Key::State => row.state.name() == of.value,
                Key::Adopted => row.adopted.to_string() == of.value,
            };
            is_equal == of.must_equal
        };
        self.0.iter().all(holds)
    }
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Selector, String> {
        let requirement = |text: &str| {
            let (key, must_equal, value) = match (text.split_once("!="), text.split_once('=')) {
                (Some((key, value)), _) => (key, false, value),
                (None, Some((key, value))) => (key, true, value),
                (None, None) => return Err(format!("{text:?} is not KEY=VALUE or KEY!=VALUE")),
            };
            let key = match key.trim() {
                "service" => Key::Service,
                "place" => Key::Place,
                "state" => Key::State,
                "adopted" => Key::Adopted,
                other => {
                    return Err(format!(
                        "unknown key {other:?}: write service, place, state or adopted"
                    ));
                }
            };
            let value = value.trim().to_owned();
            Ok(Requirement {
                key,
                must_equal,
                value,
            })
        };
        text.split(',')
            .map(requirement)
            .collect::<Result<_, _>>()
            .map(Selector)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn instances_are_selected_by_what_is_shown_of_them() {
        let row: InstanceRow = serde_json::from_value(json!({
            "id": 3, "service": "web", "place": "card", "state": "draining", "state_ms": 1, "slot": null, "container": null,
            "pid": null,
            "adopted": false, "to_pps": 0.0, "back_pps": 0.0, "to_packets": 0, "back_packets": 0, "live_flows": 0,
            "ring_occupancy": 0.0, "dropped_packets": 0, "capacity_pps": null, "cpu_quota": null, "busy": null,
            "memory_bytes": null, "reason": "",
        }))
        .unwrap();
        for (text, is_meant) in [
            ("service=web", true),
            ("service=web,state=draining", true),
            ("service = web, state != active", true),
            ("service=web,state=active", false),
            ("service!=web", false),
            ("adopted=false", true),
            ("place=card", true),
            ("place!=card", false),
        ] {
            assert_eq!(
                text.parse::<Selector>().unwrap().selects(&row),
                is_meant,
                "{text}"
            );
        }
        for (text, told) in [
            ("web", "KEY=VALUE"),
            ("zone=a", "service, place, state or adopted"),
        ] {
            let error = text.parse::<Selector>().unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
