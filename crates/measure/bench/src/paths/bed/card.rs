//! Paths of a card: two of its functions are the ends, each in a namespace. What joins them is the card itself, a bridge of
//! their representors in software, or rules of the card. Interfaces go back to where they were when the path ends.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use testbed::network::{Namespace, output, run};

use super::kernel::{CLIENT_ADDRESS, SERVER, SERVER_ADDRESS};
use super::{Bed, CLIENT, END, address_of, namespace};
use crate::args::PathName;

/// Two functions of a card, and their representors.
#[derive(Clone, Debug)]
pub(in crate::paths) struct Card {
    functions: [String; 2],
    representors: Option<[String; 2]>,
}

impl Card {
    /// Those of the command line; nothing is changed yet.
    ///
    /// # Errors
    /// They cannot be taken: there are not two, one is in use, or one is of no card and that is not permitted.
    pub(in crate::paths) fn new(
        functions: &[String],
        representors: &[String],
        permits_stand_in: bool,
    ) -> Result<Card> {
        let two = |option: &str, names: &[String]| -> Result<[String; 2]> {
            let [first, second] = names else {
                anyhow::bail!(
                    "{option} needs two interfaces, like `{option} eth2,eth3`: it has {}",
                    names.len()
                );
            };
            ensure!(first != second, "{option} names {first} twice");
            Ok([first.clone(), second.clone()])
        };
        let card = Card {
            functions: two("--device", functions)?,
            representors: match representors {
                [] => None,
                names => Some(two("--representors", names)?),
            },
        };
        let others = card.representors.iter().flatten();
        for name in card.functions.iter().chain(others) {
            let place = Path::new("/sys/class/net").join(name);
            ensure!(
                place.exists(),
                "{name}: there is no such network interface; `ip link` lists them"
            );
            ensure!(
                permits_stand_in || !is_virtual(name),
                "{name} is no function of a card: the kernel knows no device behind it. `--stand-in` measures it all the same, \
                 and says so wherever a figure is"
            );
            ensure!(
                !place.join("master").exists(),
                "{name} is a port of a bridge or bond: take one that nothing uses"
            );
            let listed =
                output(std::process::Command::new("ip").args(["-brief", "address", "show", "dev", name]))?;
            let addresses: Vec<&str> = listed
                .split_whitespace()
                .skip(2)
                .filter(|of| !of.starts_with("fe80:"))
                .collect();
            ensure!(
                addresses.is_empty(),
                "{name} has the address {}, so this machine uses it: take one that nothing uses",
                addresses.join(", ")
            );
        }
        Ok(card)
    }

    /// Whether an interface stands in for the card.
    pub(in crate::paths) fn is_stand_in(&self) -> bool {
        let others = self.representors.iter().flatten();
        self.functions.iter().chain(others).any(|name| is_virtual(name))
    }

    /// What it is, for the facts of a report.
    pub(in crate::paths) fn about(&self) -> String {
        let mut text = self.functions.join(", ");
        if let Some(representors) = &self.representors {
            text.push_str(&format!("; representors {}", representors.join(", ")));
        }
        if self.is_stand_in() {
            text.push_str(" (a STAND-IN: virtual interfaces, no card)");
        }
        text
    }

    /// Why it has no such path; none if it has.
    pub(in crate::paths) fn lacks(&self, path: PathName) -> Option<&'static str> {
        match (path, &self.representors) {
            (PathName::Representors | PathName::CardRules, None) => {
                Some("`--representors` names those of the functions, which a card has in the mode switchdev")
            }
            (PathName::Device, Some(_)) => {
                Some("with `--representors`, the card joins its functions only by rules: see card-rules")
            }
            _ => None,
        }
    }

    /// Sets the path up.
    pub(super) fn start<'g>(&self, path: PathName) -> Result<Bed<'g>> {
        let (client, server) = (namespace(CLIENT)?, namespace("server")?);
        let mut borrowed = Vec::new();
        for (name, end, address) in self
            .functions
            .iter()
            .zip([(&client, CLIENT_ADDRESS), (&server, SERVER_ADDRESS)])
            .map(|(name, (end, address))| (name, end, address))
        {
            borrowed.push(Taken::Function(Borrowed::new(name, end)?));
            address_of(end, address)?;
        }
        if let Some(representors) = &self.representors {
            match path {
                PathName::CardRules => borrowed.extend(rules(representors)?),
                _ => borrowed.push(bridge(representors)?),
            }
        }
        let mut bed = Bed::of(client, server, Vec::new(), SERVER);
        bed._card = borrowed;
        Ok(bed)
    }
}

/// Whether no device is behind an interface.
fn is_virtual(name: &str) -> bool {
    !Path::new("/sys/class/net").join(name).join("device").exists()
}

/// What was changed for a path, and is changed back when it is dropped.
#[derive(Debug)]
pub(super) enum Taken {
    Function(#[expect(dead_code, reason = "it goes back when it is dropped")] Borrowed),
    /// A bridge in the network of this process, and its ports.
    Bridge {
        name: String,
        ports: [String; 2],
    },
    /// Rules at a representor.
    Rules {
        representor: String,
    },
}

impl Drop for Taken {
    fn drop(&mut self) {
        // What is gone already needs no change.
        match self {
            Taken::Function(_) => {}
            Taken::Bridge { name, ports } => {
                for port in ports {
                    let _ = run("ip", &["link", "set", port, "nomaster"]);
                }
                let _ = run("ip", &["link", "del", name]);
            }
            Taken::Rules { representor } => {
                let _ = run("tc", &["qdisc", "del", "dev", representor, "clsact"]);
            }
        }
    }
}

/// An interface of this machine that is in a namespace for a while.
#[derive(Debug)]
pub(super) struct Borrowed {
    name: String,
    namespace: String,
    was_up: bool,
}

impl Borrowed {
    fn new(name: &str, to: &Namespace) -> Result<Borrowed> {
        let flags = format!("/sys/class/net/{name}/flags");
        let flags = fs::read_to_string(&flags).with_context(|| format!("cannot read {flags}"))?;
        let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16)
            .context("flags of an interface")?;
        let borrowed = Borrowed {
            name: name.to_owned(),
            namespace: to.name().to_owned(),
            was_up: flags & 1 != 0,
        };
        run("ip", &["link", "set", name, "down"])?;
        run("ip", &["link", "set", name, "netns", to.name(), "name", END])?;
        Ok(borrowed)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let Borrowed { name, namespace, .. } = &*self;
        let here = std::process::id().to_string();
        let _ = run("ip", &["-n", namespace, "link", "set", END, "down"]);
        let _ = run(
            "ip",
            &["-n", namespace, "link", "set", END, "netns", &here, "name", name],
        );
        if self.was_up {
            let _ = run("ip", &["link", "set", name, "up"]);
        }
    }
}

/// Joins representors by a bridge of the kernel: each packet passes through the host's CPU.
fn bridge(representors: &[String; 2]) -> Result<Taken> {
    let name = super::bridge_name();
    run("ip", &["link", "add", &name, "type", "bridge"])?;
    let taken = Taken::Bridge {
        name: name.clone(),
        ports: representors.clone(),
    };
    for port in representors {
        run("ip", &["link", "set", port, "master", &name, "up"])?;
    }
    run("ip", &["link", "set", &name, "up"])?;
    Ok(taken)
}

/// Joins representors by rules that the card has and the kernel has not (`skip_sw`).
fn rules(representors: &[String; 2]) -> Result<Vec<Taken>> {
    let [first, second] = representors;
    let mut taken = Vec::new();
    for (from, to) in [(first, second), (second, first)] {
        let there = output(std::process::Command::new("tc").args(["qdisc", "show", "dev", from]))?;
        ensure!(
            !there.contains("clsact") && !there.contains("ingress"),
            "{from} has rules of somebody else: `tc qdisc show dev {from}`"
        );
        run("ip", &["link", "set", from, "up"])?;
        run("tc", &["qdisc", "add", "dev", from, "clsact"])?;
        taken.push(Taken::Rules {
            representor: from.clone(),
        });
        let rule = [
            "filter", "add", "dev", from, "ingress", "protocol", "all", "prio", "1", "flower", "skip_sw",
            "action", "mirred", "egress", "redirect", "dev", to,
        ];
        run("tc", &rule).with_context(|| format!("{from}: the card takes no rule"))?;
        let listed =
            output(std::process::Command::new("tc").args(["filter", "show", "dev", from, "ingress"]))?;
        ensure!(
            listed.split_whitespace().any(|word| word == "in_hw"),
            "{from}: the card has not taken the rule: {listed}"
        );
    }
    Ok(taken)
}
