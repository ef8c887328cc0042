//! The documentation of every key.

use std::fmt::Write as _;

use autoscaling::Autoscaler;
use scheduling::{Parameter, Scheduler};

use crate::key::{KeyDefault, heading};
use crate::keys::{KEYS, TABLES};

/// The reference of the configuration, as Markdown: `docs/reference/configuration.md`.
pub fn reference() -> String {
    let mut text = String::from(
        "# Configuration\n\nThe file that `inco run -f` and `inco check -f` read, in [TOML](https://toml.io). This \
         page is made from the table in `crates/policy/configuration/src/keys.rs`; `INCO_WRITE_REFERENCE=1 cargo \
         test -p configuration` writes it again.\n\nA key that is not listed here is refused, with the nearest one \
         that is. Figures may carry a unit, as text: packet rates `kpps`, `Mpps`, `Gpps`; spans of time `ns`, `us`, \
         `ms`, `s`, `m`, `h`, `d` (always needed); sizes `B`, `KiB`, `MiB`, `GiB`, `kB`, `MB`, `GB`, where `K`, `M`, \
         `G` and `Ki`, `Mi`, `Gi` are `KiB`, `MiB`, `GiB`; CPUs `m` (a thousandth); numbers `k` (1,000), `M`, `G`; \
         shares `%`. A name is 1 to 32 of a-z, 0-9 and `-`.\n",
    );
    for (table, meaning) in TABLES.iter().filter(|(table, _)| !table.is_empty()) {
        let heading = heading(table);
        let _ = write!(text, "\n## `{heading}`\n\n{meaning}\n\n");
        text.push_str("| key | what may be written | default | meaning |\n| --- | --- | --- | --- |\n");
        for key in KEYS.iter().filter(|key| key.table == *table) {
            let default = match key.default {
                KeyDefault::Required => "must be written".to_owned(),
                KeyDefault::Value(value) => format!("`{value}`"),
                KeyDefault::Words(words) => words.to_owned(),
            };
            let _ = writeln!(
                text,
                "| `{}` | {}; `{} = {}` | {default} | {} |",
                key.name, key.kind, key.name, key.example, key.meaning
            );
        }
        if *table == "service.NAME.scheduler" {
            let _ = write!(text, "\nPolicies: {}. Parameters:\n\n", words(Scheduler::NAMES));
            text.push_str(
                "| policy | parameter | what may be written | default | meaning |\n\
                           | --- | --- | --- | --- | --- |\n",
            );
            for policy in Scheduler::NAMES {
                for parameter in Scheduler::parameters_of(policy).unwrap_or_default() {
                    let Parameter {
                        name,
                        kind,
                        default,
                        meaning,
                    } = parameter;
                    let _ = writeln!(
                        text,
                        "| `{policy}` | `{name}` | {kind} | `{default}` | {meaning} |"
                    );
                }
            }
        }
        if *table == "service.NAME.autoscaler" {
            for policy in Autoscaler::NAMES {
                let _ = write!(text, "\n### `{policy}`\n\n");
                text.push_str(
                    "| parameter | what may be written | default | meaning |\n| --- | --- | --- | --- |\n",
                );
                for parameter in Autoscaler::parameters_of(policy).unwrap_or_default() {
                    let _ = writeln!(
                        text,
                        "| `{}` | {} | {} | {} |",
                        parameter.name, parameter.kind, parameter.default, parameter.meaning
                    );
                }
            }
        }
    }
    text
}

fn words(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    quoted.join(", ")
}
