//! A recorded scheduling decision and its replay: the instance that each of some new flows is scheduled to.

use std::fmt;

use flow_table::FlowHasher;
use model::written::{self, Written};
use model::{FlowKey, InstanceId, InstanceState, Nanos, PlaceId, Slot};
use scheduling::{
    Candidate, Candidates, Metric, NewFlow, PRIORITIES, Pick, Scheduler, Settings, State, Terms,
};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use switch::{PickRecord, RecordedFlow};

/// A situation: a scheduler, instances and new flows. The event log records decisions in this form.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    policy: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    parameters: Map<String, Value>,
    #[serde(default)]
    metric: Metric,
    #[serde(default = "default_fit")]
    fit: f32,
    /// Seconds, or text with a unit.
    #[serde(default = "default_slow_start", with = "model::span")]
    slow_start: Nanos,
    #[serde(default = "default_spill")]
    spill: bool,
    #[serde(default, skip_serializing_if = "is_nothing")]
    state: State,
    instances: Vec<CaseInstance>,
    flows: Vec<FlowInput>,
}

fn default_fit() -> f32 {
    Terms::default().fit
}

fn default_slow_start() -> Nanos {
    Settings::default().slow_start
}

fn default_spill() -> bool {
    Settings::default().spill
}

fn is_nothing(state: &State) -> bool {
    *state == State::default()
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseInstance {
    /// The instance's id; the slot if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instance: Option<InstanceId>,
    /// The slot; the index in the list if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slot: Option<u16>,
    /// The name of its place, where places are configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    place: Option<String>,
    #[serde(default = "active")]
    state: InstanceState,
    /// Capacity in the metric; twice the highest load if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capacity: Option<f32>,
    #[serde(default)]
    load: f32,
    /// How far the load is believed, 0 to 1: for `machines`.
    #[serde(default = "full_trust", skip_serializing_if = "is_full_trust")]
    trust: f32,
    #[serde(default)]
    flows: u32,
    #[serde(default = "full_weight")]
    weight: u16,
    /// How long it has been Active, in seconds; long enough to have no slow start if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    active_s: Option<f64>,
    /// Load by priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    queues: Option<[f32; PRIORITIES]>,
}

fn active() -> InstanceState {
    InstanceState::Active
}

fn full_weight() -> u16 {
    256
}

fn full_trust() -> f32 {
    1.0
}

fn is_full_trust(trust: &f32) -> bool {
    *trust == 1.0
}

/// A flow: its text alone, or with known figures.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum FlowInput {
    Text(String),
    Known(KnownFlow),
}

impl<'de> Deserialize<'de> for FlowInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FlowInput, D::Error> {
        struct TextOrObject;

        impl<'de> Visitor<'de> for TextOrObject {
            type Value = FlowInput;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a flow as text, or an object with `flow`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<FlowInput, E> {
                Ok(FlowInput::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<FlowInput, A::Error> {
                KnownFlow::deserialize(MapAccessDeserializer::new(map)).map(FlowInput::Known)
            }
        }

        deserializer.deserialize_any(TextOrObject)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownFlow {
    /// The flow as `inco flows` shows it, in the direction of its first packet.
    flow: String,
    #[serde(default)]
    dscp: u8,
    /// Expected load of the flow, in the metric.
    #[serde(default)]
    expected: f32,
    /// The running system's hash as hexadecimal text, because JSON numbers may not hold 64 bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    /// The slots that it is to get one of, where its hash says that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    among: Vec<u16>,
}

impl Case {
    /// A recorded decision as a case.
    pub fn of(
        record: &PickRecord,
        flow: &RecordedFlow,
        scheduler: &Scheduler,
        id_of: impl Fn(Slot) -> Option<InstanceId>,
        name_of: impl Fn(PlaceId) -> Option<String>,
    ) -> Case {
        let parameters = match scheduler.serialize_parameters(serde_json::value::Serializer) {
            Ok(Value::Object(parameters)) => parameters,
            _ => Map::new(),
        };
        let instances = record.candidates.iter().map(|row| CaseInstance {
            instance: id_of(row.slot),
            slot: Some(row.slot.0),
            place: name_of(row.place),
            state: InstanceState::Active,
            capacity: Some(row.capacity),
            load: row.load,
            trust: row.trust,
            flows: row.live_flows,
            weight: row.weight,
            active_s: Some(row.active_for.as_secs_f64()),
            queues: Some(row.queues),
        });
        Case {
            policy: scheduler.name().to_owned(),
            parameters,
            metric: scheduler.settings().metric,
            fit: record.terms.fit,
            slow_start: scheduler.settings().slow_start,
            spill: scheduler.settings().spill,
            state: record.state.clone(),
            instances: instances.collect(),
            flows: vec![FlowInput::Known(KnownFlow {
                flow: flow.key.tuple(flow.direction).to_string(),
                dscp: flow.dscp,
                expected: flow.expected,
                hash: Some(format!("{:#018x}", flow.hash)),
                among: flow
                    .among
                    .iter()
                    .filter(|slot| slot.is_some())
                    .map(|slot| slot.0)
                    .collect(),
            })],
        }
    }

    /// The scheduler named in the case.
    fn scheduler(&self) -> Result<Scheduler, InvalidField> {
        let settings = Settings {
            metric: self.metric,
            slow_start: self.slow_start,
            spill: self.spill,
        };
        Scheduler::from_name(&self.policy).map_err(|error| InvalidField::new("policy", error))?;
        let parameters = Value::Object(self.parameters.clone());
        let mut track = serde_path_to_error::Track::new();
        let tracked = serde_path_to_error::Deserializer::new(parameters, &mut track);
        let mut scheduler = Scheduler::with_parameters(&self.policy, settings, tracked).map_err(|error| {
            let field = match track.path().to_string().as_str() {
                "." => "parameters".to_owned(),
                path => format!("parameters.{path}"),
            };
            InvalidField::new(field, error)
        })?;
        scheduler.restore(&self.state);
        Ok(scheduler)
    }

    /// The slot of each instance.
    fn slots(&self) -> Result<Vec<Slot>, InvalidField> {
        let mut slots = Vec::new();
        for (index, instance) in self.instances.iter().enumerate() {
            let field = |name: &str| format!("instances[{index}].{name}");
            let slot = Slot(instance.slot.unwrap_or(u16::try_from(index).unwrap_or(u16::MAX)));
            if slot.index() >= Slot::LIMIT {
                let what = format!("{} is not less than {}", slot.0, Slot::LIMIT);
                return Err(InvalidField::new(field("slot"), what));
            }
            if slots.contains(&slot) {
                return Err(InvalidField::new(
                    field("slot"),
                    format!("{} is there twice", slot.0),
                ));
            }
            check_number(field("load"), instance.load.into())?;
            check_number(field("trust"), instance.trust.into())?;
            check_number(field("capacity"), instance.capacity.unwrap_or(0.0).into())?;
            check_number(field("active_s"), instance.active_s.unwrap_or(0.0))?;
            for (priority, load) in instance.queues.iter().flatten().enumerate() {
                check_number(field(&format!("queues[{priority}]")), f64::from(*load))?;
            }
            slots.push(slot);
        }
        Ok(slots)
    }

    /// The places that the case names, in the order of their numbers.
    fn places(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.instances.iter().filter_map(|of| of.place.as_deref()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn candidates(&self, slots: &[Slot]) -> Candidates {
        let places = self.places();
        let number_of = |name: &String| places.iter().position(|of| of == name).unwrap_or_default();
        let highest = self.instances.iter().map(|i| i.load).fold(0.0, f32::max);
        let usual = if highest > 0.0 { 2.0 * highest } else { 1.0 };
        let mut rows: Vec<Candidate> = Vec::new();
        for (instance, slot) in self.instances.iter().zip(slots) {
            if instance.state.takes_new_flows() {
                let active_for = instance
                    .active_s
                    .map_or(Nanos(u64::MAX), |age| Nanos((age * 1e9) as u64));
                rows.push(Candidate {
                    slot: *slot,
                    place: PlaceId(instance.place.as_ref().map_or(0, number_of) as u8),
                    capacity: instance.capacity.unwrap_or(usual),
                    load: instance.load,
                    trust: instance.trust,
                    weight: instance.weight,
                    live_flows: instance.flows,
                    active_for,
                    queues: instance.queues.unwrap_or_default(),
                });
            }
        }
        rows.sort_by_key(|row| row.slot);
        let mut candidates = Candidates::new();
        candidates.begin(Terms {
            at: Nanos::ZERO,
            fit: self.fit,
            slow_start: self.slow_start,
        });
        rows.into_iter().for_each(|row| candidates.push(row));
        candidates
    }

    /// Replays the case.
    ///
    /// # Errors
    /// Returns the first invalid field, with the reason.
    pub fn explain(&self) -> Result<Explanation, InvalidField> {
        check_number("fit", self.fit.into())?;
        if self.fit <= 0.0 {
            return Err(InvalidField::new("fit", "the value must be greater than 0"));
        }
        let places = self.places().len();
        if places > PlaceId::LIMIT {
            let what = format!("{places} places are named; at most {} exist", PlaceId::LIMIT);
            return Err(InvalidField::new("instances", what));
        }
        let mut scheduler = self.scheduler()?;
        let slots = self.slots()?;
        let mut candidates = self.candidates(&slots);
        scheduler.settle(&candidates);
        let name_of = |slot: Slot| {
            let place = slots.iter().position(|s| *s == slot);
            let instance = place.and_then(|place| self.instances.get(place)?.instance);
            instance.map_or(u32::from(slot.0), |id| id.0)
        };
        let shares = scheduler.shares(&candidates);
        let mut picks = Vec::new();
        for (index, flow) in self.flows.iter().enumerate() {
            picks.push(self.pick(index, flow, &mut scheduler, &mut candidates, name_of)?);
        }
        let instances = self.instances.iter().zip(&slots).map(|(instance, slot)| {
            let index = candidates.index_of(*slot);
            InstanceOutcome {
                instance: name_of(*slot),
                place: instance.place.clone(),
                state: instance.state,
                load: index
                    .and_then(|index| candidates.get(index))
                    .map_or(instance.load, |row| row.load),
                picks: picks.iter().filter(|pick| pick.slot == Some(slot.0)).count(),
                share: index.and_then(|index| shares.as_ref()?.get(index).copied()),
                ramp: index.map(|index| candidates.ramp(index)),
            }
        });
        Ok(Explanation {
            policy: scheduler.name(),
            metric: self.metric,
            instances: instances.collect(),
            picks,
        })
    }

    fn pick(
        &self,
        index: usize,
        flow: &FlowInput,
        scheduler: &mut Scheduler,
        candidates: &mut Candidates,
        name_of: impl Fn(Slot) -> u32,
    ) -> Result<PickOutcome, InvalidField> {
        let known = match flow {
            FlowInput::Known(known) => known.clone(),
            FlowInput::Text(text) => KnownFlow {
                flow: text.clone(),
                dscp: 0,
                expected: 0.0,
                hash: None,
                among: Vec::new(),
            },
        };
        let field = |name: &str| format!("flows[{index}].{name}");
        let tuple = api::parse_tuple(&known.flow).map_err(|error| InvalidField::new(field("flow"), error))?;
        if known.dscp > 63 {
            return Err(InvalidField::new(
                field("dscp"),
                format!("{} is not below 64", known.dscp),
            ));
        }
        check_number(field("expected"), known.expected.into())?;
        let (key, direction) = FlowKey::new(&tuple);
        let hash = match &known.hash {
            None => FlowHasher::new([0; 4]).hash(&key),
            Some(text) => text
                .strip_prefix("0x")
                .and_then(|digits| u64::from_str_radix(digits, 16).ok())
                .ok_or_else(|| {
                    InvalidField::new(
                        field("hash"),
                        format!("{text:?} is not 0x followed by up to 16 hexadecimal digits"),
                    )
                })?,
        };
        let among: Vec<Slot> = known.among.iter().copied().map(Slot).collect();
        let flow = NewFlow {
            key: &key,
            direction,
            hash,
            expected: known.expected,
            dscp: known.dscp,
            among: &among,
        };
        let picked = scheduler.pick(&flow, candidates);
        let row = picked.index().and_then(|index| candidates.get(index)).copied();
        let rank = picked
            .index()
            .and_then(|index| scheduler.rank(&flow, candidates, index));
        let own_hash = scheduler.hash(&flow);
        if let Some(index) = picked.index() {
            candidates.pin(index, &flow);
        }
        Ok(PickOutcome {
            flow: tuple.to_string(),
            instance: row.map(|row| name_of(row.slot)),
            slot: row.map(|row| row.slot.0),
            fits: matches!(picked, Pick::Fits(_)),
            hash: own_hash.unwrap_or(hash),
            hash_hex: match own_hash {
                Some(own) => format!("{own:#0digits$x}", digits = 2 + scheduler.hash_bits() / 4),
                None => format!("{hash:#018x}"),
            },
            rank,
            reason: reason(scheduler.rule(), picked, row.as_ref(), self.fit),
        })
    }
}

/// The reason for the pick, in a sentence.
fn reason(rule: &str, picked: Pick, row: Option<&Candidate>, fit: f32) -> String {
    let Some(row) = row else {
        return "no instance takes new flows".to_owned();
    };
    let load = format!("load {} of {} x {fit}", row.load, row.capacity);
    match picked {
        Pick::Fits(_) => format!("{rule}, or the next that it fits; {load}"),
        _ => format!("it fits nowhere, or may not spill; {rule}; {load}"),
    }
}

/// The outcome of a replay.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// The scheduler's name.
    pub policy: &'static str,
    /// The unit of load and capacity.
    pub metric: Metric,
    /// One per flow, in the case's order.
    pub picks: Vec<PickOutcome>,
    /// One per instance, in the case's order.
    pub instances: Vec<InstanceOutcome>,
}

/// The instance that one new flow was scheduled to.
#[derive(Debug, Serialize)]
pub struct PickOutcome {
    /// The flow, as `inco flows` shows it.
    pub flow: String,
    /// The instance's id; [`None`] if no instance takes new flows.
    pub instance: Option<u32>,
    /// The instance's slot.
    pub slot: Option<u16>,
    /// Whether the flow fits the instance.
    pub fits: bool,
    /// Toeplitz hash for rss, hash of the source address for source-hash, else the flow's hash.
    pub hash: u64,
    /// `hash` as hexadecimal text.
    pub hash_hex: String,
    /// The rank of the pick, if the scheduler ranks instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<f32>,
    /// The reason for the pick, in a sentence.
    pub reason: String,
}

/// The flows that one instance got.
#[derive(Debug, Serialize)]
pub struct InstanceOutcome {
    /// Its id, or its slot if it has none.
    pub instance: u32,
    /// The name of its place, if the case has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// The state given in the case.
    pub state: InstanceState,
    /// Load after all flows, in the metric.
    pub load: f32,
    /// Flows of the case that were scheduled to it.
    pub picks: usize,
    /// Its share of new flows, if the scheduler has shares: of the table, or the weight ÷ 256.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// The share of its capacity that counts during slow start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ramp: Option<f32>,
}

/// An invalid field of a case.
#[derive(Debug)]
pub struct InvalidField {
    /// The field's path; empty for the case as a whole.
    pub field: String,
    /// The problem.
    pub why: String,
}

impl InvalidField {
    fn new(field: impl Into<String>, why: impl ToString) -> InvalidField {
        InvalidField {
            field: field.into(),
            why: why.to_string(),
        }
    }
}

/// Checks that a load, capacity or span is a usable number.
fn check_number(field: impl Into<String>, number: f64) -> Result<(), InvalidField> {
    if !number.is_finite() {
        return Err(InvalidField::new(
            field,
            format!("it must be below {:e}", f32::MAX),
        ));
    }
    if number < 0.0 {
        return Err(InvalidField::new(field, format!("{number} is below 0")));
    }
    Ok(())
}

/// Parses a case, either alone or inside an event of the log.
///
/// # Errors
/// Returns the first problem of the text, with its field.
pub fn read(text: &str) -> Result<Case, InvalidField> {
    let value = written::parse(text).map_err(|error| InvalidField::new("", error))?;
    let value = match value {
        Value::Object(mut event) if event.contains_key("event") && event.contains_key("case") => {
            event.remove("case").unwrap_or_default()
        }
        other => other,
    };
    serde_path_to_error::deserialize(Written(&value))
        .map_err(|error| InvalidField::new(error.path().to_string(), error.inner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(case: Value) -> Value {
        let case = read(&case.to_string()).unwrap();
        serde_json::to_value(case.explain().unwrap()).unwrap()
    }

    #[test]
    fn a_pick_per_flow_with_what_the_policy_goes_by() {
        let outcome = explained(serde_json::json!({
            "policy": "worst-fit",
            "instances": [
                {"instance": 7, "capacity": 1000, "load": 300},
                {"instance": 8, "capacity": 1000, "load": 200},
                {"instance": 9, "capacity": 1000, "load": 0, "state": "draining"},
                {"instance": 10, "capacity": 1000, "load": 0, "state": "standby"},
            ],
            "flows": [
                {"flow": "tcp 10.0.0.1:1000 > 10.128.0.1:80", "expected": 150},
                "udp 10.0.0.2:1000 > 10.128.0.1:53",
            ],
        }));
        assert_eq!(
            (&outcome["picks"][0]["instance"], &outcome["picks"][1]["instance"]),
            (&8.into(), &7.into())
        );
        assert_eq!(outcome["instances"][1]["load"], 350.0);
    }

    #[test]
    fn candidates_have_the_places_that_the_case_names() {
        let case = serde_json::json!({
            "policy": "worst-fit",
            "instances": [
                {"load": 5, "place": "card"},
                {"load": 3, "place": "host"},
                {"load": 1, "place": "host", "state": "draining"},
                {"load": 4, "place": "card"},
            ],
            "flows": ["udp 10.0.0.2:1000 > 10.128.0.1:53"],
        });
        let read = read(&case.to_string()).unwrap();
        let candidates = read.candidates(&read.slots().unwrap());
        let places = (0..3).map(|index| candidates.get(index).unwrap().place);
        assert_eq!(places.collect::<Vec<_>>(), [PlaceId(0), PlaceId(1), PlaceId(0)]);
        let outcome = explained(case);
        assert_eq!(outcome["picks"][0]["instance"], 1);
        assert_eq!(outcome["instances"][1]["place"], "host");
        // A recorded case is one that is read.
        let again = serde_json::to_value(&read).unwrap();
        assert_eq!(again["instances"][0]["place"], "card");
        let many: Vec<_> = (0..17)
            .map(|at| serde_json::json!({"place": format!("p{at}")}))
            .collect();
        let wrong =
            super::read(&serde_json::json!({"policy": "rss", "instances": many, "flows": []}).to_string());
        assert_eq!(wrong.unwrap().explain().unwrap_err().field, "instances");
    }

    #[test]
    fn rss_reports_its_hash_and_maglev_its_shares() {
        let outcome = explained(serde_json::json!({
            "policy": "rss",
            "instances": [{}, {}, {}],
            "flows": ["tcp 66.9.149.187:2794 > 161.142.100.80:1766"],
        }));
        assert_eq!(outcome["picks"][0]["hash"], 0x51cc_c178);
        assert_eq!(outcome["picks"][0]["hash_hex"], "0x51ccc178");
        assert_eq!(outcome["picks"][0]["slot"], (0x78 % 3));
        let outcome = explained(serde_json::json!({
            "policy": "maglev",
            "parameters": {"table": 1009},
            "instances": [{"weight": 64}, {"weight": 192}],
            "flows": [],
        }));
        let share = outcome["instances"][1]["share"].as_f64().unwrap();
        assert!((share - 0.75).abs() < 0.01, "{share}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let flow = "tcp 10.0.0.1:1 > 10.0.0.2:2";
        for (case, field) in [
            (
                serde_json::json!({"policy": "x", "instances": [], "flows": []}),
                "policy",
            ),
            (
                serde_json::json!({"policy": "rss", "instances": [{"laod": 1}], "flows": []}),
                "instances[0].laod",
            ),
            (
                serde_json::json!({"policy": "rss", "instances": [{"load": "x"}], "flows": []}),
                "instances[0].load",
            ),
            (
                serde_json::json!({"policy": "rss", "instances": [{"load": -1}], "flows": []}),
                "instances[0].load",
            ),
            (
                serde_json::json!({"policy": "rss", "instances": [{}, {"slot": 0}], "flows": []}),
                "instances[1].slot",
            ),
            (
                serde_json::json!({"policy": "rss", "instances": [], "flows": ["tcp"]}),
                "flows[0].flow",
            ),
            (
                serde_json::json!({"policy": "rss", "instances": [], "flows": [{"flow": flow, "dscp": 64}]}),
                "flows[0].dscp",
            ),
            (
                serde_json::json!({"policy": "rss", "parameters": {"x": 1}, "instances": [], "flows": []}),
                "parameters.x",
            ),
        ] {
            let wrong = read(&case.to_string())
                .and_then(|case| case.explain())
                .unwrap_err();
            assert_eq!(wrong.field, field, "{}", wrong.why);
        }
    }
}
