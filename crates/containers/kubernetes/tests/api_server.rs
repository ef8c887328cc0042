//! Followers at a real API server: what they say, what they may do, and what they do when it is away.
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "what goes wrong here fails the test"
)]

use std::time::{Duration, Instant};

use kubernetes::{Cluster, Followers, News, PortChoice, TO_FOLLOW, Wanted};
use model::BackEnd;
use real_parts::{ApiServer, has_kubernetes};
use serde_json::{Value, json};

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const PATIENCE: Duration = Duration::from_secs(60);

fn put(server: &ApiServer, name: &str, service: &str, addresses: &[&str]) {
    let endpoint = |at: &&str| {
        json!({ "addresses": [at], "conditions": { "ready": true },
            "targetRef": { "kind": "Pod", "name": format!("pod-{at}"), "namespace": "default", "uid": format!("uid-{at}") } })
    };
    let slice: Value = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": { "name": name, "labels": { "kubernetes.io/service-name": service } },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
    });
    server.put(SLICES, name, &slice.to_string());
}

fn wanted(server: &ApiServer, service: &str) -> Wanted {
    Wanted {
        cluster: Cluster {
            kubeconfig: Some(server.kubeconfig()),
            context: None,
        },
        namespace: "default".to_owned(),
        service: service.to_owned(),
        port: PortChoice::Named("http".to_owned()),
        is_ipv4: true,
    }
}

/// What comes until it is what is waited for.
fn next<T>(followers: &Followers<String>, what: &str, mut of: impl FnMut(&str, &News) -> Option<T>) -> T {
    let since = Instant::now();
    let mut others = Vec::new();
    while since.elapsed() < PATIENCE {
        for (name, news) in followers.news() {
            if let Some(found) = of(&name, &news) {
                return found;
            }
            others.push((name, news));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{what} did not come, but {others:#?}");
}

fn addresses(list: &[BackEnd]) -> Vec<String> {
    list.iter().map(|of| of.at.ip().to_string()).collect()
}

fn list(followers: &Followers<String>, service: &str, expected: &[&str]) {
    next(
        followers,
        &format!("the list {expected:?} of {service}"),
        |name, news| match news {
            News::List(list, None) if name == service && addresses(list) == expected => Some(()),
            _ => None,
        },
    );
}

#[test]
fn services_of_kubernetes_are_followed_while_the_api_server_comes_and_goes() {
    if !has_kubernetes() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start(folder.path());
    let mut followers = Followers::default();
    put(&server, "web-1", "web", &["10.1.0.1", "10.1.0.2"]);
    let both = ["web", "other"].map(|name| (name.to_owned(), wanted(&server, name)));
    followers.follow(both.clone()).unwrap();
    list(&followers, "web", &["10.1.0.1", "10.1.0.2"]);
    // A Service without slices has an empty list.
    put(&server, "other-1", "other", &["10.1.0.9"]);
    list(&followers, "other", &["10.1.0.9"]);
    put(&server, "web-2", "web", &["10.1.0.3"]);
    list(&followers, "web", &["10.1.0.1", "10.1.0.2", "10.1.0.3"]);
    put(&server, "web-1", "web", &["10.1.0.2"]);
    list(&followers, "web", &["10.1.0.2", "10.1.0.3"]);

    // The API server is away. What it says when it is back is the list: nothing in between.
    server.kill();
    next(&followers, "that it is away", |name, news| match news {
        News::Away(reason) if name == "web" => {
            assert!(reason.contains("does not answer"), "{reason}");
            Some(())
        }
        _ => None,
    });
    // Longer than some attempts, of which none may become a list.
    std::thread::sleep(Duration::from_secs(3));
    let lists = followers
        .news()
        .iter()
        .filter(|(_, news)| matches!(news, News::List(..)))
        .count();
    assert_eq!(lists, 0);
    server.up();
    next(&followers, "that it is back", |name, news| {
        (name == "web" && matches!(news, News::Back(_))).then_some(())
    });
    put(&server, "web-2", "web", &["10.1.0.4"]);
    list(&followers, "web", &["10.1.0.2", "10.1.0.4"]);

    // It has lost everything, and begins to count again: the watch would begin in its future.
    server.lose();
    server.up();
    put(&server, "web-9", "web", &["10.1.0.5"]);
    list(&followers, "web", &["10.1.0.5"]);

    // One that is not wanted any more is not followed, and the other one goes on.
    followers.follow([both[0].clone()]).unwrap();
    put(&server, "other-1", "other", &["10.1.0.8"]);
    server.delete(SLICES, "web-9");
    list(&followers, "web", &[]);
    assert_eq!(followers.news(), []);
}

#[test]
fn kubernetes_says_who_may_follow() {
    if !has_kubernetes() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start(folder.path());
    let reader = Cluster {
        kubeconfig: Some(server.reader_kubeconfig()),
        context: None,
    };
    reader.check().unwrap();
    let access = reader.access(Some("default"), &TO_FOLLOW).unwrap();
    assert!(access.version == "1.34", "{access:?}");
    assert_eq!(access.forbidden, ["list endpointslices", "watch endpointslices"]);

    let mut followers = Followers::default();
    let wanted = Wanted {
        cluster: reader.clone(),
        ..wanted(&server, "web")
    };
    followers.follow([("web".to_owned(), wanted)]).unwrap();
    let reason = next(&followers, "that it is refused", |_, news| match news {
        News::Away(reason) => Some(reason.clone()),
        _ => None,
    });
    assert!(reason.contains("refuses") && reason.contains("403"), "{reason}");

    // The Role of the documentation is enough.
    let docs = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../docs/tasks/kubernetes.md"
    ))
    .unwrap();
    assert!(
        docs.contains("resources: [endpointslices], verbs: [list, watch]"),
        "the test has another Role"
    );
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": { "name": "inco" },
        "rules": [{ "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"] }] });
    server.put(&format!("{rbac}/roles"), "inco", &role.to_string());
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "inco" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "inco" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader" }] });
    server.put(&format!("{rbac}/rolebindings"), "inco", &binding.to_string());
    put(&server, "web-1", "web", &["10.1.0.1"]);
    list(&followers, "web", &["10.1.0.1"]);
    let since = Instant::now();
    while !reader
        .access(Some("default"), &TO_FOLLOW)
        .unwrap()
        .forbidden
        .is_empty()
    {
        assert!(since.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(
        reader.access(Some("kube-system"), &TO_FOLLOW).unwrap().forbidden,
        ["list endpointslices", "watch endpointslices"]
    );
}

#[test]
fn mistakes_in_a_kubeconfig_are_said_without_what_is_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let at = |context: Option<&str>| Cluster {
        kubeconfig: Some(file.clone()),
        context: context.map(str::to_owned),
    };
    let said = |cluster: Cluster| cluster.check().unwrap_err().to_string();
    assert!(
        said(at(None)).ends_with("kubeconfig: No such file or directory (os error 2)"),
        "{}",
        said(at(None))
    );
    let good = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: \"https://127.0.0.1:1\"}}]\nusers: [{name: u, \
                user: {token: secret-token}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n";
    for (text, context, expected) in [
        (
            good.replace("}}]\ncontexts", "}]\ncontexts"),
            None,
            "its YAML cannot be read",
        ),
        (good.to_owned(), Some("y"), "it has no context \"y\""),
        (good.replace("current-context: x", ""), None, "context"),
        (
            good.replace("cluster: c,", "cluster: d,"),
            None,
            "it has no cluster \"d\"",
        ),
        (good.replace("https://127", "a b://127"), None, "url"),
    ] {
        std::fs::write(&file, text).unwrap();
        let said = said(at(context));
        assert!(
            said.contains(expected) && !said.contains("secret"),
            "{expected}: {said}"
        );
    }
    std::fs::write(&file, good).unwrap();
    at(Some("x")).check().unwrap();
    let away = at(None)
        .access(Some("default"), &TO_FOLLOW)
        .unwrap_err()
        .to_string();
    assert!(
        away.contains("does not answer") && away.contains("refused"),
        "{away}"
    );
    assert!(!format!("{:?}", at(None)).contains("secret"));
}
