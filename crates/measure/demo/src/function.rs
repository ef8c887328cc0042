//! `--function`: a function of the library in the instances, behind `forward`, which paces it and stamps packets.
//!
//! The demo tells from the packets that come back whether each was lost, moved, duplicated or reordered. So a function
//! has to return each packet of its traffic, with its addresses and its payload.

use traffic::Verify;

/// A function that the demo's traffic passes.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    /// Its name in the library.
    pub(super) name: &'static str,
    /// Its configuration. The limits of its tables suit 64 MiB of memory and the demo's flows.
    configuration: &'static str,
    /// What of a packet it leaves as it is.
    pub(super) verify: Verify,
}

/// Those that there are.
static FUNCTIONS: [Function; 5] = [
    Function {
        name: "firewall",
        configuration: "default = \"deny\"\nconnections = 4096\n\n[[rule]]\naction = \"allow\"\nprotocol = \
                        \"udp\"\nsource = \"10.0.0.0/9\"\ndestination = \"10.128.0.0/16\"\ndestination_ports = 9\n",
        verify: Verify::Exact,
    },
    // The rate of a flow in the demo is far below: no packet is lost by it.
    Function {
        name: "limiter",
        configuration: "buckets_limit = 4096\n\n[[rule]]\nkey = \"flow\"\nrate = \"100kpps\"\nburst_packets = 10000\n",
        verify: Verify::Exact,
    },
    Function {
        name: "monitor",
        configuration: "flows_limit = 4096\n",
        verify: Verify::Exact,
    },
    // Each payload is searched, and none has it.
    Function {
        name: "ids",
        configuration: "flows = 1024\nmemory_mib = 16\nrules = '''\nalert udp any any -> any 9 (msg:\"SQL injection\"; \
                        content:\"UNION\"; nocase; pcre:\"/union\\s+select/i\"; sid:1000001;)\n'''\n",
        verify: Verify::Exact,
    },
    // It changes the time to live and the checksum: what comes back is known by its stamp.
    Function {
        name: "router",
        configuration: "[[next_hop]]\nname = \"core\"\n\n[[next_hop]]\nname = \"servers\"\n\n[[route]]\nprefix = \
                        \"0.0.0.0/0\"\nnext_hop = \"core\"\n\n[[route]]\nprefix = \"10.128.0.0/16\"\nnext_hop = \
                        \"servers\"\n",
        verify: Verify::Off,
    },
];

/// Why the demo cannot have the others.
const OTHERS: [(&str, &str); 10] = [
    ("cache", ANSWERS),
    ("classifier", ANSWERS),
    ("dns", ANSWERS),
    ("forward", "is what the demo has without --function"),
    (
        "ipsec",
        "encrypts packets, so that the demo cannot tell which came back",
    ),
    ("maglev", ADDRESSES),
    ("nat", ADDRESSES),
    (
        "pfabric",
        "puts packets in another order, which the demo counts as a fault",
    ),
    ("ranker", ANSWERS),
    ("replica", ANSWERS),
];
const ANSWERS: &str = "answers requests of its own protocol, and the demo sends none";
const ADDRESSES: &str = "changes where packets go, so that the demo cannot tell which came back";

impl Function {
    /// That of this name.
    ///
    /// # Errors
    /// Why the demo has no such function, and which it has.
    pub(super) fn named(name: &str) -> Result<&'static Function, String> {
        if let Some(function) = FUNCTIONS.iter().find(|function| function.name == name) {
            return Ok(function);
        }
        let names = FUNCTIONS.each_ref().map(|function| function.name).join(", ");
        let why = match OTHERS.iter().find(|(other, _)| *other == name) {
            Some((_, why)) => format!("{name} {why}"),
            None => format!("there is no function {name}"),
        };
        Err(format!("{why}. Functions of the demo: {names}"))
    }

    /// The words behind those of `inco-nf forward` that add it to the chain.
    pub(super) fn words(&self) -> [String; 4] {
        ["--", self.name, "--config-text", self.configuration].map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_of_the_library_is_there_or_is_refused_with_a_reason() {
        let setup = functions::Setup {
            instance: 1,
            ports: 1,
            seed: 1,
            external: None,
        };
        for entry in functions::LIBRARY {
            let name = entry.about().name;
            match Function::named(name) {
                Ok(function) => {
                    entry.compile(function.configuration, &setup).unwrap();
                }
                Err(told) => {
                    let begins = told.starts_with(name);
                    assert!(
                        begins && told.ends_with("firewall, limiter, monitor, ids, router"),
                        "{told}"
                    );
                }
            }
        }
        assert_eq!(functions::LIBRARY.len(), FUNCTIONS.len() + OTHERS.len());
        let unknown = Function::named("firewal").unwrap_err();
        assert!(unknown.starts_with("there is no function firewal. "), "{unknown}");
    }
}
