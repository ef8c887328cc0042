use maglev::ENTRIES;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::consistent::{Consistent, deserialize_entries};
use crate::{Candidates, NewFlow, Parameter, Policy};

/// Maglev's consistent hashing (Eisenbud et al., NSDI 2016): the flow's hash selects a table entry, which
/// names an instance. Shares are proportional to weights. When an instance leaves, at most 1 % of the others'
/// flows would move. Useful if pins may be lost (failover to another balancer, a full flow table) and flows
/// should still find their instance.
///
/// The table follows a change of instances in steps, within milliseconds. Until then flows of a departed
/// instance go to the next entry's instance. A fresh instance gets entries by its [ramp](Candidates::ramp).
#[derive(Clone, Debug)]
pub struct Maglev {
    pub(crate) table: Consistent,
}

/// The serialised form of a table-based policy.
#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Written {
    #[serde(deserialize_with = "deserialize_entries")]
    table: u32,
}

impl Default for Written {
    fn default() -> Self {
        Written { table: ENTRIES }
    }
}

impl Default for Maglev {
    fn default() -> Self {
        Maglev {
            table: Consistent::new(ENTRIES),
        }
    }
}

impl Maglev {
    /// A table of so many entries, a prime, in which a fresh instance has its whole share at once.
    pub(crate) fn steady(entries: u32) -> Maglev {
        Maglev {
            table: Consistent::new(entries).steady(),
        }
    }
}

impl Serialize for Maglev {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let table = self.table.len();
        Written { table }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Maglev {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { table } = Written::deserialize(deserializer)?;
        Ok(Maglev {
            table: Consistent::new(table),
        })
    }
}

/// The parameter of table-based policies.
pub(crate) const TABLE: Parameter = Parameter {
    name: "table",
    kind: "prime number from 3 to 1048573",
    default: "65537",
    meaning: "table entries; more give more even shares and move fewer flows when an instance leaves",
};

impl Policy for Maglev {
    const NAME: &'static str = "maglev";
    const RULE: &'static str = "the hash's entry of the table";
    const BY_FLOW: bool = true;
    const BY_HASH: bool = true;
    const PARAMETERS: &'static [Parameter] = &[TABLE];

    fn refill(&mut self, candidates: &Candidates) {
        self.table.refill(candidates);
    }

    fn settle(&mut self, candidates: &Candidates) {
        self.table.settle(candidates);
    }

    #[inline]
    fn choose(&mut self, flow: &NewFlow<'_>, candidates: &Candidates) -> usize {
        self.table.index(flow.hash, candidates)
    }

    fn shares(&self, candidates: &Candidates) -> Option<Vec<f64>> {
        Some(self.table.shares(candidates))
    }
}
