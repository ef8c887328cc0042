use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::consistent::{Consistent, TABLE_ENTRIES, deserialize_entries};
use crate::{Candidates, NewFlow, Parameter, Policy};

/// Maglev's consistent hashing (Eisenbud et al., NSDI 2016): the flow's hash names an entry of a table, the entry an
/// instance. Instances get flows in proportion to their weights; when one leaves, at most 1 % of the flows of the others
/// would be given elsewhere. Of use where pins may be lost (another balancer takes over, a full flow table) and a flow
/// should then still find its instance.
///
/// The table follows a change of instances within milliseconds, step by step; until then flows of one that has left go
/// to the next entry's instance. A fresh instance gets its entries as its [ramp](Candidates::ramp) says.
#[derive(Clone, Debug)]
pub struct Maglev {
    pub(crate) table: Consistent,
}

/// What is written of a policy with a table.
#[derive(Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Written {
    #[serde(deserialize_with = "deserialize_entries")]
    table: u32,
}

impl Default for Written {
    fn default() -> Self {
        Written { table: TABLE_ENTRIES }
    }
}

impl Default for Maglev {
    fn default() -> Self {
        Maglev {
            table: Consistent::new(TABLE_ENTRIES),
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

/// The parameter of policies with a table.
pub(crate) const TABLE: Parameter = Parameter {
    name: "table",
    kind: "prime number from 3 to 1048573",
    default: "65537",
    meaning: "entries of the table: more make shares more even, and fewer flows of others move when an instance leaves",
};

impl Policy for Maglev {
    const NAME: &'static str = "maglev";
    const BY_FLOW: bool = true;
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
