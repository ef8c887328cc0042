//! Tests of plans.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use super::*;

const BASE: &str = "[switch]\n[service.own]\nport = \"null\"\n";

/// A checker with some of inco's rules: known ports, unique addresses, next services that are there, at most five.
fn check(text: &str) -> Vec<Fault> {
    let fault = |key: String, text: &str| Fault {
        key,
        text: text.to_owned(),
    };
    let all = match toml::from_str::<Table>(text) {
        Ok(all) => all,
        Err(error) => return vec![fault(String::new(), &error.to_string())],
    };
    let Some(services) = all.get("service").and_then(Value::as_table) else {
        return vec![fault("service".to_owned(), "there is none; write one")];
    };
    let mut faults = Vec::new();
    let mut addresses = Vec::new();
    for (name, of) in services {
        let text = |key: &str| of.get(key).and_then(Value::as_str);
        if text("port").is_some_and(|port| port != "null") {
            faults.push(fault(format!("service.{name}.port"), "no port; write null"));
        }
        if text("next").is_some_and(|next| !services.contains_key(next)) {
            faults.push(fault(format!("service.{name}.next"), "no service; write one"));
        }
        if let Some(address) = text("vip") {
            if addresses.contains(&address) {
                faults.push(fault(
                    format!("service.{name}.vip"),
                    "it is taken; write another one",
                ));
            }
            addresses.push(address);
        }
    }
    if services.len() > 5 {
        faults.push(fault("service".to_owned(), "too many; write at most 5"));
    }
    faults
}

fn id(name: &str) -> Id {
    Id {
        kind: "NetworkFunction",
        namespace: "edge".to_owned(),
        name: name.to_owned(),
    }
}

/// Objects are made in the order of their numbers.
fn wanted(number: u32, name: &str, table: &str) -> Wanted {
    Wanted {
        id: id(name),
        created: format!("2026-01-01T00:00:{number:02}Z"),
        service: name.to_owned(),
        table: Ok(toml::from_str(table).unwrap()),
        grants: None,
    }
}

fn planned_with(before: &str, wanted: &[Wanted], refused: &BTreeMap<Part, (Table, String)>) -> Plan {
    let input = Input {
        base: BASE,
        before,
        wanted,
        refused,
        waiting: &BTreeSet::new(),
        kept: &|_| false,
    };
    plan(&input, &check).unwrap()
}

fn planned(before: &str, wanted: &[Wanted]) -> Plan {
    planned_with(before, wanted, &BTreeMap::new())
}

fn names(plan: &Plan) -> Vec<String> {
    services(&plan.text).into_keys().collect()
}

/// The verdict of the only part of an object.
fn verdict<'a>(plan: &'a Plan, name: &str) -> &'a Verdict {
    let mut all = plan.verdicts.iter().filter(|((of, _), _)| *of == id(name));
    let (_, verdict) = all.next().unwrap();
    assert!(all.next().is_none(), "{name} has one part");
    verdict
}

fn refusal<'a>(plan: &'a Plan, name: &str) -> Option<&'a str> {
    verdict(plan, name).refused.as_deref()
}

#[test]
fn services_follow_the_base_word_by_word() {
    let plan = planned(
        "",
        &[wanted(1, "b", "image = \"x\""), wanted(2, "a", "image = \"y\"")],
    );
    assert!(plan.text.starts_with(&format!("{HEAD}{BASE}")), "{}", plan.text);
    assert_eq!(names(&plan), ["a", "b", "own"]);
    assert_eq!(services(&plan.text)["b"]["image"].as_str(), Some("x"));
    assert!(
        plan.verdicts
            .values()
            .all(|of| of.refused.is_none() && of.is_in_force)
    );
    // The same again is the same text.
    assert_eq!(
        planned(
            &plan.text,
            &[wanted(2, "a", "image = \"y\""), wanted(1, "b", "image = \"x\"")]
        )
        .text,
        plan.text
    );
}

#[test]
fn an_invalid_object_keeps_what_it_had_and_the_others_go_on() {
    let first = planned(
        "",
        &[
            wanted(1, "a", "image = \"old\""),
            wanted(2, "b", "image = \"old\""),
        ],
    );
    let second = planned(
        &first.text,
        &[
            wanted(1, "a", "image = \"new\"\nport = \"wrong\""),
            wanted(2, "b", "image = \"new\""),
            wanted(3, "c", "port = \"wrong\""),
        ],
    );
    let of = services(&second.text);
    assert_eq!(of["a"]["image"].as_str(), Some("old"));
    assert_eq!(of["b"]["image"].as_str(), Some("new"));
    assert_eq!(refusal(&second, "a"), Some("service.a.port: no port; write null"));
    assert!(verdict(&second, "a").is_in_force);
    assert_eq!(refusal(&second, "b"), None);
    assert_eq!(refusal(&second, "c"), Some("service.c.port: no port; write null"));
    assert!(!verdict(&second, "c").is_in_force && !of.contains_key("c"));
}

#[test]
fn an_object_that_cannot_be_read_keeps_what_it_had() {
    let first = planned("", &[wanted(1, "a", "image = \"old\"")]);
    let broken = Wanted {
        table: Err("spec.min: write a number".to_owned()),
        ..wanted(1, "a", "")
    };
    let second = planned(&first.text, &[broken, wanted(2, "b", "")]);
    assert_eq!(services(&second.text)["a"]["image"].as_str(), Some("old"));
    assert_eq!(refusal(&second, "a"), Some("spec.min: write a number"));
    assert_eq!(names(&second), ["a", "b", "own"]);
}

#[test]
fn a_newcomer_cannot_take_what_an_accepted_one_has() {
    // The checker blames the second in the file, which is the one that was there.
    let first = planned("", &[wanted(1, "z", "vip = \"10.0.0.1\"")]);
    let second = planned(
        &first.text,
        &[
            wanted(1, "z", "vip = \"10.0.0.1\""),
            wanted(2, "a", "vip = \"10.0.0.1\""),
        ],
    );
    assert_eq!(names(&second), ["own", "z"]);
    assert_eq!(refusal(&second, "z"), None);
    assert_eq!(
        refusal(&second, "a"),
        Some("service.z.vip: it is taken; write another one")
    );
}

#[test]
fn names_belong_to_the_base_and_then_to_the_older_object() {
    let mut other = wanted(1, "other", "image = \"young\"");
    other.created = "2026-02-01".to_owned();
    other.service = "a".to_owned();
    let plan = planned(
        "",
        &[other, wanted(3, "a", "image = \"old\""), wanted(4, "own", "")],
    );
    assert_eq!(services(&plan.text)["a"]["image"].as_str(), Some("old"));
    let said = refusal(&plan, "other").unwrap();
    assert!(
        said.contains("the NetworkFunction edge/a has a service \"a\"; write another name"),
        "{said}"
    );
    let said = refusal(&plan, "own").unwrap();
    assert!(said.contains("the base file"), "{said}");
    assert_eq!(services(&plan.text)["own"]["port"].as_str(), Some("null"));
}

#[test]
fn the_services_of_one_object_are_accepted_and_refused_apart() {
    let part = |service: &str, table: &str| Wanted {
        service: service.to_owned(),
        ..wanted(1, "web", table)
    };
    let first = planned(
        "",
        &[part("web", "image = \"old\""), part("web-dns", "image = \"old\"")],
    );
    let changed = [
        part("web", "image = \"new\""),
        part("web-dns", "port = \"wrong\""),
        part("web-sip", "image = \"new\""),
    ];
    let second = planned(&first.text, &changed);
    let of = services(&second.text);
    let image = |name: &str| of[name]["image"].as_str().unwrap();
    assert_eq!(
        (image("web"), image("web-dns"), image("web-sip")),
        ("new", "old", "new")
    );
    let refused = |of: &Wanted| second.verdicts[&of.part()].refused.is_some();
    assert_eq!(changed.each_ref().map(refused), [false, true, false]);
    // What inco has refused of one part is not held against another one.
    let table = changed[2].table.clone().unwrap();
    let refused = BTreeMap::from([(changed[2].part(), (table, "no".to_owned()))]);
    let third = planned_with(&first.text, &changed, &refused);
    assert_eq!(names(&third), ["own", "web", "web-dns"]);
    assert_eq!(services(&third.text)["web"]["image"].as_str(), Some("new"));
}

#[test]
fn a_chain_is_accepted_whatever_the_order_and_beside_what_is_wrong() {
    let chain = [
        wanted(1, "a", "next = \"b\""),
        wanted(2, "b", "next = \"c\""),
        wanted(3, "c", ""),
        wanted(4, "d", "port = \"wrong\""),
    ];
    let plan = planned("", &chain);
    assert_eq!(names(&plan), ["a", "b", "c", "own"]);
    assert_eq!(refusal(&plan, "a"), None);
    assert!(refusal(&plan, "d").is_some());
}

#[test]
fn more_than_there_is_room_for_is_refused_and_the_older_stay() {
    let many: Vec<Wanted> = (1..=7).map(|of| wanted(of, &format!("s{of}"), "")).collect();
    let plan = planned("", &many);
    assert_eq!(names(&plan), ["own", "s1", "s2", "s3", "s4"]);
    assert_eq!(refusal(&plan, "s5"), Some("service: too many; write at most 5"));
}

#[test]
fn what_nobody_wants_goes_unless_it_is_kept() {
    let first = planned("", &[wanted(1, "a", ""), wanted(2, "b", "")]);
    let of_b = [wanted(2, "b", "")];
    let second = planned(&first.text, &of_b);
    assert_eq!(
        (names(&second), second.unwanted),
        (vec!["b".to_owned(), "own".to_owned()], vec!["a".to_owned()])
    );
    let input = Input {
        base: BASE,
        before: &first.text,
        wanted: &of_b,
        refused: &BTreeMap::new(),
        waiting: &BTreeSet::new(),
        kept: &|name| name == "a",
    };
    let kept = plan(&input, &check).unwrap();
    assert_eq!(
        (names(&kept), kept.unwanted),
        (
            vec!["a".to_owned(), "b".to_owned(), "own".to_owned()],
            vec!["a".to_owned()]
        )
    );
}

#[test]
fn what_this_node_refused_is_not_tried_until_it_differs() {
    let first = planned("", &[wanted(1, "a", "image = \"old\"")]);
    let new = wanted(1, "a", "image = \"missing\"");
    let refused = BTreeMap::from([(
        new.part(),
        (new.table.clone().unwrap(), "there is no image".to_owned()),
    )]);
    let second = planned_with(&first.text, &[new], &refused);
    assert_eq!(services(&second.text)["a"]["image"].as_str(), Some("old"));
    assert_eq!(refusal(&second, "a"), Some("there is no image"));
    let third = planned_with(&first.text, &[wanted(1, "a", "image = \"there\"")], &refused);
    assert_eq!(services(&third.text)["a"]["image"].as_str(), Some("there"));
    assert_eq!(refusal(&third, "a"), None);
}

#[test]
fn a_wrong_base_changes_nothing_and_a_changed_one_drops_what_does_not_fit() {
    let of = |base: &str, before: &str, wanted: &[Wanted]| {
        let input = Input {
            base,
            before,
            wanted,
            refused: &BTreeMap::new(),
            waiting: &BTreeSet::new(),
            kept: &|_| false,
        };
        plan(&input, &check)
    };
    for base in ["[switch", "[switch]\n", "service = 3\n"] {
        let said = of(base, "", &[]).unwrap_err().to_string();
        assert!(said.starts_with("the base file: "), "{said}");
    }
    let both = [wanted(1, "a", "vip = \"10.0.0.1\""), wanted(2, "b", "")];
    let first = of(BASE, "", &both).unwrap();
    let second = of(&format!("{BASE}vip = \"10.0.0.1\"\n"), &first.text, &both).unwrap();
    assert_eq!(names(&second), ["b", "own"]);
    assert!(refusal(&second, "a").is_some_and(|said| said.contains("taken")));
    // A file that somebody else has broken is as none.
    assert_eq!(of(BASE, "[[[", &both).unwrap().text, first.text);
}

#[test]
fn a_refusal_names_services_by_their_whole_names() {
    let all = ["web", "web-2", "b"];
    let said = "inco.toml:9: service.web-2.image: there is no image \"b\"; build it";
    assert_eq!(named(said, all.into_iter()), ["web-2"]);
    assert_eq!(
        named("service.web: x; service \"b\" is y", all.into_iter()),
        ["web", "b"]
    );
    assert_eq!(named("uplink[0]: x", all.into_iter()), Vec::<&str>::new());
}

#[test]
fn the_service_of_an_object_that_is_gone_is_not_that_of_the_next_one() {
    let of = |name: &str, number: u32, table: &str| Wanted {
        service: "web".to_owned(),
        ..wanted(number, name, table)
    };
    let (old, wrong) = (of("x", 1, "image = \"x\""), of("y", 2, "port = \"wrong\""));
    let both = planned("", &[old.clone(), wrong.clone()]);
    assert_eq!(services(&both.text)["web"]["image"].as_str(), Some("x"));
    assert_eq!(owners(&both.text)["web"], "NetworkFunction edge/x");
    let invalid = Wanted {
        table: Err("spec.settings.x: it may not be written".to_owned()),
        ..wrong.clone()
    };
    for (next, unwanted) in [(wrong, vec![]), (invalid, vec!["web".to_owned()])] {
        let after = planned(&both.text, std::slice::from_ref(&next));
        assert_eq!(after.unwanted, unwanted, "{next:?}");
        assert!(!verdict(&after, "y").is_in_force);
        assert_eq!(names(&after), ["own"], "{next:?}");
    }
    // One that is valid takes its place at once.
    let after = planned(&both.text, &[of("y", 2, "image = \"y\"")]);
    assert_eq!(
        (names(&after), after.unwanted),
        (vec!["own".to_owned(), "web".to_owned()], vec![])
    );
    assert_eq!(owners(&after.text)["web"], "NetworkFunction edge/y");
    // A configuration of an earlier operator does not say whose a service is: it stays with who wants it.
    let without: Vec<&str> = both
        .text
        .lines()
        .filter(|of| !of.starts_with("# service"))
        .collect();
    let after = planned(&without.join("\n"), &[of("y", 2, "port = \"wrong\"")]);
    assert!(verdict(&after, "y").is_in_force);
}

#[test]
fn what_was_accepted_does_not_stay_with_services_that_are_not_permitted_any_more() {
    let of = |table: Result<Table, String>, grants: &[(&str, Option<&str>)]| Wanted {
        table,
        grants: Some(Grants(
            grants
                .iter()
                .map(|(namespace, name)| ((*namespace).to_owned(), name.map(str::to_owned)))
                .collect(),
        )),
        ..wanted(1, "route", "")
    };
    let one = "instances = { from = \"kubernetes:pay/api\" }";
    let several = "instances = { from = [{ service = \"edge/web\" }, { service = \"pay/api\" }] }";
    let wrong = || Err("spec.rules: write one".to_owned());
    for text in [one, several] {
        let table: Table = toml::from_str(text).unwrap();
        let before = planned("", &[of(Ok(table), &[("pay", Some("api"))])]).text;
        for permitted in [("pay", Some("api")), ("pay", None)] {
            let after = planned(&before, &[of(wrong(), &[permitted])]);
            assert_eq!(names(&after), ["own", "route"]);
        }
        for others in [&[][..], &[("pay", Some("other"))], &[("others", None)]] {
            let after = planned(&before, &[of(wrong(), others)]);
            assert_eq!((names(&after), after.unwanted.len()), (vec!["own".to_owned()], 0));
            assert!(!verdict(&after, "route").is_in_force);
        }
    }
}

#[test]
fn what_waits_stays_as_it_is_and_is_not_refused() {
    let first = planned("", &[wanted(1, "a", "image = \"old\"")]);
    let new = [
        wanted(1, "a", "image = \"new\""),
        wanted(2, "b", ""),
        wanted(3, "c", ""),
    ];
    let input = Input {
        base: BASE,
        before: &first.text,
        wanted: &new,
        refused: &BTreeMap::new(),
        waiting: &BTreeSet::from([new[0].part(), new[1].part()]),
        kept: &|_| false,
    };
    let of = plan(&input, &check).unwrap();
    assert_eq!(
        (names(&of), &of.unwanted),
        (vec!["a".to_owned(), "c".to_owned(), "own".to_owned()], &vec![])
    );
    assert_eq!(services(&of.text)["a"]["image"].as_str(), Some("old"));
    assert_eq!((refusal(&of, "a"), refusal(&of, "b")), (None, None));
    assert!(verdict(&of, "a").is_in_force && !verdict(&of, "b").is_in_force);
}
