//! The OVSDB calls (RFC 7047) that configure bridges and ports. The schema is that of
//! `ovs-vswitchd.conf.db(5)`.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use thiserror::Error;

use crate::endpoint::Endpoint;
use crate::rpc::Rpc;

const DATABASE: &str = "Open_vSwitch";
/// Polling interval while waiting for a change to be applied.
const LOOK: Duration = Duration::from_millis(5);

/// Why a call failed.
#[derive(Debug, Error)]
pub enum OvsdbError {
    /// The socket failed, or the endpoint does not listen.
    #[error("{endpoint}: {source}")]
    Socket {
        /// The endpoint.
        endpoint: Endpoint,
        /// The system's error.
        source: io::Error,
    },
    /// No reply in time.
    #[error("{endpoint}: {what} took longer than {limit:?}")]
    Timeout {
        /// The endpoint.
        endpoint: Endpoint,
        /// The operation.
        what: String,
        /// The time limit.
        limit: Duration,
    },
    /// An invalid reply.
    #[error("{endpoint}: this is not OVSDB: {what}")]
    NotOvsdb {
        /// The endpoint.
        endpoint: Endpoint,
        /// The reply.
        what: String,
    },
    /// The database refused the operation.
    #[error("Open vSwitch refused the change: {what}")]
    Refused {
        /// Its reason.
        what: String,
    },
    /// The switch could not create the interface.
    #[error("Open vSwitch could not create the interface {interface}: {what}")]
    Interface {
        /// The interface.
        interface: String,
        /// Its reason.
        what: String,
    },
}

/// The configuration of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeSpec {
    /// Its name, also of its internal interface: at most 15 bytes.
    pub name: String,
    /// `netdev` is the userspace datapath, `system` the kernel's, which a card can offload.
    pub datapath: String,
    /// Keys and values that identify its creator.
    pub external_ids: BTreeMap<String, String>,
    /// An additional OpenFlow listener beside its unix socket: [`Endpoint::passive`].
    pub listens: Option<String>,
}

/// The configuration of a port with one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    /// Its name, also of its interface.
    pub name: String,
    /// The interface type: empty for a system interface, `dpdk`, `internal`.
    pub kind: String,
    /// The interface options, such as `dpdk-devargs`.
    pub options: BTreeMap<String, String>,
    /// A requested OpenFlow port number.
    pub number: Option<u16>,
}

/// The status of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceStatus {
    /// Its OpenFlow port number, once assigned.
    pub number: Option<u32>,
    /// Why it could not be created.
    pub error: Option<String>,
    /// Whether it has a link.
    pub is_up: bool,
}

/// A connection to the database. Each call blocks at most for its limit.
#[derive(Debug)]
pub struct Ovsdb {
    rpc: Rpc,
}

impl Ovsdb {
    /// Connects to `unix:/run/openvswitch/db.sock` or another endpoint.
    ///
    /// # Errors
    /// [`OvsdbError::Socket`].
    pub fn connect(endpoint: &Endpoint, limit: Duration) -> Result<Ovsdb, OvsdbError> {
        let rpc = Rpc::connect(endpoint, limit)?;
        Ok(Ovsdb { rpc })
    }

    /// Creates a bridge without rules and without a controller, unless it exists.
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn ensure_bridge(&mut self, bridge: &BridgeSpec) -> Result<(), OvsdbError> {
        if self.find("Bridge", &bridge.name)?.is_some() {
            return Ok(());
        }
        let mut operations = vec![
            json!({"op": "insert", "table": "Interface", "uuid-name": "interface",
                "row": {"name": bridge.name, "type": "internal"}}),
            json!({"op": "insert", "table": "Port", "uuid-name": "port",
                "row": {"name": bridge.name, "interfaces": ["named-uuid", "interface"]}}),
            // With prefix tries, every rule change may invalidate cached decisions. Those are dropped, and a
            // packet that is classified again is sent before the cached packets of its burst, which reorders
            // flows.
            json!({"op": "insert", "table": "Flow_Table", "uuid-name": "table",
                "row": {"prefixes": ["set", ["none"]]}}),
            json!({"op": "insert", "table": "Bridge", "uuid-name": "bridge", "row": {
                "name": bridge.name,
                "datapath_type": bridge.datapath,
                // Without rules it drops, and does not learn addresses.
                "fail_mode": "secure",
                "protocols": ["set", ["OpenFlow13", "OpenFlow15"]],
                "external_ids": map(&bridge.external_ids),
                "flow_tables": ["map", [[0, ["named-uuid", "table"]]]],
                "ports": ["named-uuid", "port"]}}),
            json!({"op": "mutate", "table": "Open_vSwitch", "where": [],
                "mutations": [["bridges", "insert", ["set", [["named-uuid", "bridge"]]]]]}),
        ];
        if let Some(target) = &bridge.listens {
            operations.extend([
                json!({"op": "insert", "table": "Controller", "uuid-name": "controller",
                    "row": {"target": target, "connection_mode": "out-of-band"}}),
                json!({"op": "mutate", "table": "Bridge", "where": [["name", "==", bridge.name]],
                    "mutations": [["controller", "insert", ["set", [["named-uuid", "controller"]]]]]}),
            ]);
        }
        self.change(format!("creating the bridge {}", bridge.name), &operations)
    }

    /// The external ids of a bridge; [`None`] if it does not exist.
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn bridge_ids(&mut self, name: &str) -> Result<Option<BTreeMap<String, String>>, OvsdbError> {
        let answers = self.transact(&[json!({"op": "select", "table": "Bridge",
            "where": [["name", "==", name]], "columns": ["external_ids"]})])?;
        let ids = answers
            .first()
            .and_then(|answer| answer.pointer("/rows/0/external_ids/1"));
        let text = |pair: &Value, index: usize| pair.get(index)?.as_str().map(str::to_owned);
        Ok(ids.and_then(Value::as_array).map(|pairs| {
            let pairs = pairs.iter();
            pairs
                .filter_map(|pair| Some((text(pair, 0)?, text(pair, 1)?)))
                .collect()
        }))
    }

    /// Deletes a bridge with its ports, if it exists.
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn delete_bridge(&mut self, name: &str) -> Result<(), OvsdbError> {
        let Some(id) = self.find("Bridge", name)? else {
            return Ok(());
        };
        let operations = [json!({"op": "mutate", "table": "Open_vSwitch", "where": [],
            "mutations": [["bridges", "delete", ["set", [["uuid", id]]]]]})];
        self.change(format!("deleting the bridge {name}"), &operations)
    }

    /// Creates missing ports of a bridge in one transaction and returns the OpenFlow numbers of all, in
    /// order.
    ///
    /// # Errors
    /// [`OvsdbError::Interface`] if the switch cannot create one of them; [`OvsdbError`].
    pub fn ensure_ports(&mut self, bridge: &str, ports: &[PortSpec]) -> Result<Vec<u32>, OvsdbError> {
        let mut operations = Vec::new();
        let mut new = Vec::new();
        for (index, port) in ports.iter().enumerate() {
            if self.find("Port", &port.name)?.is_some() {
                continue;
            }
            let (interface_id, port_id) = (format!("interface{index}"), format!("port{index}"));
            let mut interface = json!({"name": port.name, "type": port.kind, "options": map(&port.options)});
            if let (Some(number), Some(row)) = (port.number, interface.as_object_mut()) {
                row.insert("ofport_request".to_owned(), json!(number));
            }
            operations.push(
                json!({"op": "insert", "table": "Interface", "uuid-name": interface_id, "row": interface}),
            );
            operations.push(json!({"op": "insert", "table": "Port", "uuid-name": port_id,
                "row": {"name": port.name, "interfaces": ["named-uuid", interface_id]}}));
            new.push(json!(["named-uuid", port_id]));
        }
        if !new.is_empty() {
            operations.push(
                json!({"op": "mutate", "table": "Bridge", "where": [["name", "==", bridge]],
                "mutations": [["ports", "insert", ["set", new]]]}),
            );
            self.change(format!("creating ports of {bridge}"), &operations)?;
        }
        let mut numbers = Vec::new();
        for port in ports {
            let status = self.interface(&port.name)?;
            let failed = |what: String| OvsdbError::Interface {
                interface: port.name.clone(),
                what,
            };
            if let Some(error) = status.error {
                return Err(failed(error));
            }
            numbers.push(
                status
                    .number
                    .ok_or_else(|| failed("it has no number".to_owned()))?,
            );
        }
        Ok(numbers)
    }

    /// Deletes ports of a bridge; ignores missing ones.
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn delete_ports(&mut self, bridge: &str, names: &[&str]) -> Result<(), OvsdbError> {
        let mut ids = Vec::new();
        for name in names {
            if let Some(id) = self.find("Port", name)? {
                ids.push(json!(["uuid", id]));
            }
        }
        if ids.is_empty() {
            return Ok(());
        }
        let operations = [
            json!({"op": "mutate", "table": "Bridge", "where": [["name", "==", bridge]],
            "mutations": [["ports", "delete", ["set", ids]]]}),
        ];
        self.change(format!("deleting ports of {bridge}"), &operations)
    }

    /// Sets keys of the switch's configuration (`other_config`), such as `max-revalidator`.
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn set_other_config(&mut self, settings: &BTreeMap<String, String>) -> Result<(), OvsdbError> {
        let keys: Vec<&String> = settings.keys().collect();
        let operations = [
            json!({"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [
            ["other_config", "delete", ["set", keys]],
            ["other_config", "insert", map(settings)]]}),
        ];
        self.change("setting other_config".to_owned(), &operations)
    }

    /// A key of the switch's configuration (`other_config`), such as `hw-offload`, if set.
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn other_config(&mut self, key: &str) -> Result<Option<String>, OvsdbError> {
        let answers = self.transact(&[
            json!({"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["other_config"]}),
        ])?;
        // A map is ["map", [[key, value], ...]].
        let pairs = answers
            .first()
            .and_then(|answer| answer.pointer("/rows/0/other_config/1"))
            .and_then(Value::as_array);
        let value = pairs.into_iter().flatten().find_map(|pair| {
            let is_it = pair.get(0).and_then(Value::as_str) == Some(key);
            pair.get(1).and_then(Value::as_str).filter(|_| is_it)
        });
        Ok(value.map(str::to_owned))
    }

    /// The status of an interface.
    ///
    /// # Errors
    /// [`OvsdbError`].
    pub fn interface(&mut self, name: &str) -> Result<InterfaceStatus, OvsdbError> {
        let answers = self.transact(&[json!({"op": "select", "table": "Interface",
            "where": [["name", "==", name]], "columns": ["ofport", "error", "link_state"]})])?;
        let row = answers
            .first()
            .and_then(|answer| answer.pointer("/rows/0"))
            .cloned()
            .unwrap_or_default();
        let text = |key: &str| row.get(key).and_then(Value::as_str).map(str::to_owned);
        Ok(InterfaceStatus {
            // -1 if it could not be created, an empty set if not known yet.
            number: row
                .get("ofport")
                .and_then(Value::as_u64)
                .and_then(|number| u32::try_from(number).ok()),
            error: text("error"),
            is_up: text("link_state").as_deref() == Some("up"),
        })
    }

    /// The id of the named row.
    fn find(&mut self, table: &str, name: &str) -> Result<Option<String>, OvsdbError> {
        let answers = self.transact(&[json!({"op": "select", "table": table,
            "where": [["name", "==", name]], "columns": ["_uuid"]})])?;
        Ok(answers
            .first()
            .and_then(|answer| answer.pointer("/rows/0/_uuid/1"))
            .and_then(Value::as_str)
            .map(str::to_owned))
    }

    /// Changes the database and waits until the switch has applied it.
    fn change(&mut self, what: String, operations: &[Value]) -> Result<(), OvsdbError> {
        let mut all = operations.to_vec();
        all.push(json!({"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["next_cfg", "+=", 1]]}));
        all.push(json!({"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["next_cfg"]}));
        let answers = self.transact(&all)?;
        let wanted = answers
            .get(all.len() - 1)
            .and_then(|answer| answer.pointer("/rows/0/next_cfg"))
            .and_then(Value::as_i64)
            .ok_or_else(|| OvsdbError::Refused {
                what: "the database has no switch in it; `ovs-vsctl init` makes it".to_owned(),
            })?;
        let since = Instant::now();
        loop {
            let answers = self.transact(&[
                json!({"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["cur_cfg"]}),
            ])?;
            let now = answers
                .first()
                .and_then(|answer| answer.pointer("/rows/0/cur_cfg"));
            if now.and_then(Value::as_i64).is_some_and(|now| now >= wanted) {
                return Ok(());
            }
            if since.elapsed() > self.rpc.limit {
                return Err(OvsdbError::Timeout {
                    endpoint: self.rpc.endpoint.clone(),
                    what,
                    limit: self.rpc.limit,
                });
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Executes operations in one transaction and returns a result for each.
    fn transact(&mut self, operations: &[Value]) -> Result<Vec<Value>, OvsdbError> {
        let mut parameters = vec![json!(DATABASE)];
        parameters.extend_from_slice(operations);
        let message = self.rpc.call("transact", &parameters)?;
        let refused = |error: &Value| OvsdbError::Refused {
            what: match (
                error.get("error").and_then(Value::as_str),
                error.get("details").and_then(Value::as_str),
            ) {
                (Some(error), Some(details)) => format!("{error} ({details})"),
                _ => error.to_string(),
            },
        };
        if let Some(error) = message.get("error").filter(|error| !error.is_null()) {
            return Err(refused(error));
        }
        let Some(answers) = message.get("result").and_then(Value::as_array) else {
            return Err(OvsdbError::NotOvsdb {
                endpoint: self.rpc.endpoint.clone(),
                what: message.to_string(),
            });
        };
        if let Some(failed) = answers.iter().find(|answer| answer.get("error").is_some()) {
            return Err(refused(failed));
        }
        Ok(answers.clone())
    }
}

/// A map as OVSDB writes it.
fn map(entries: &BTreeMap<String, String>) -> Value {
    let pairs: Vec<Value> = entries.iter().map(|(key, value)| json!([key, value])).collect();
    json!(["map", pairs])
}
