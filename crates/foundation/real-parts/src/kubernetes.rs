//! A real Kubernetes API server with its store, for tests.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::fs::File;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::available;

/// The programs that have to be there.
const PROGRAMS: [&str; 2] = ["etcd", "kube-apiserver"];

/// What makes this machine a node as well.
const NODE_PROGRAMS: [&str; 3] = ["kube-controller-manager", "kube-scheduler", "kubelet"];
/// What a node needs beside.
const NODE_NEEDS: [&str; 4] = [
    "/usr/bin/containerd",
    "/usr/bin/docker",
    "/usr/lib/cni/bridge",
    "/bin/busybox",
];

/// How long something may be refused that has to succeed.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a program is started: as it is, or in a network of its own.
type Starter = Box<dyn Fn(&str) -> Command + Send + Sync>;

/// An API server with its store. Both end with this value.
pub struct ApiServer {
    folder: PathBuf,
    address: String,
    ports: (u16, u16),
    start: Starter,
    /// Beside the API server and its store.
    programs: &'static [&'static str],
    /// A machine can be one node at a time.
    _turn: Option<File>,
}

/// Whether the programs are here, which `scripts/kubernetes.sh build` makes.
pub fn has_kubernetes() -> bool {
    available("kubernetes", not_built(&PROGRAMS))
}

/// The same of a cluster with a node that runs Pods.
pub fn has_kubernetes_node() -> bool {
    let missing = NODE_NEEDS.iter().find(|file| !Path::new(file).exists());
    let missing = missing.map(|file| {
        format!("there is no {file}: apt-get install docker.io containernetworking-plugins busybox-static")
    });
    let is_root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    available("root", (!is_root).then(|| "this is not run as root".to_owned()))
        && available(
            "kubernetes-node",
            not_built(&PROGRAMS)
                .or_else(|| not_built(&NODE_PROGRAMS))
                .or(missing),
        )
}

/// Which program is not built.
fn not_built(programs: &[&str]) -> Option<String> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(std::env::home_dir()?.join(".cache")));
    let folder = cache.unwrap_or_default().join("inco/kubernetes");
    let missing = programs.iter().find(|program| !folder.join(program).exists());
    missing.map(|program| format!("{program} is not built: make test-cluster"))
}

impl ApiServer {
    /// Starts one on this machine, with its state in a folder.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start(folder: &Path) -> ApiServer {
        let free = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        };
        ApiServer::start_at(
            folder,
            "127.0.0.1",
            (free(), free()),
            Box::new(|program| Command::new(program)),
        )
    }

    /// Starts one that listens at an address and a port, with a store at another port. `start` makes the commands.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start_at(folder: &Path, address: &str, ports: (u16, u16), start: Starter) -> ApiServer {
        let server = ApiServer {
            folder: folder.to_owned(),
            address: address.to_owned(),
            ports,
            start,
            programs: &[],
            _turn: None,
        };
        server.up();
        server
    }

    /// Starts one with a node, which runs Pods in the network in which `start` starts programs. Waits until no other test
    /// of this machine has one.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start_with_node(folder: &Path, start: Starter) -> ApiServer {
        let turn = File::create(std::env::temp_dir().join("inco-kubernetes-node.lock")).unwrap();
        turn.lock().unwrap();
        let server = ApiServer {
            folder: folder.to_owned(),
            address: "127.0.0.1".to_owned(),
            ports: (16_443, 12_379),
            start,
            programs: &NODE_PROGRAMS,
            _turn: Some(turn),
        };
        server.up();
        server
    }

    /// Gives the node an image that Docker has, under its name there.
    ///
    /// # Panics
    /// Where that fails.
    pub fn give_image(&self, name: &str) {
        let archive = self.folder.join("image.tar");
        run(Command::new("docker").args(["save", name, "-o"]).arg(&archive));
        run(self.ctr(&["images", "import"]).arg(&archive));
        std::fs::remove_file(archive).unwrap();
    }

    /// The containers of a Pod that run at the node, by their ids there: all, or those of that name. The node removes what
    /// is left of others within a minute.
    ///
    /// # Panics
    /// Where the node's containerd does not answer.
    pub fn containers(&self, pod: &str, name: Option<&str>) -> Vec<String> {
        let filter = format!("labels.\"io.kubernetes.pod.name\"=={pod}");
        let filter = match name {
            Some(name) => format!("{filter},labels.\"io.kubernetes.container.name\"=={name}"),
            None => filter,
        };
        let listed = run(&mut self.ctr(&["containers", "ls", "-q", &filter]));
        let running = run(&mut self.ctr(&["tasks", "ls", "-q"]));
        let running: Vec<&str> = running.lines().collect();
        let ids = listed.lines().filter(|id| running.contains(id));
        ids.map(str::to_owned).collect()
    }

    /// Kills the program of a Pod, as a crash does.
    ///
    /// # Panics
    /// Where it does not run.
    pub fn kill_container(&self, pod: &str, name: &str) {
        for id in self.containers(pod, Some(name)) {
            run(&mut self.ctr(&["tasks", "kill", "-s", "KILL", &id]));
        }
    }

    fn ctr(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ctr");
        command.arg("-a").arg(self.folder.join("containerd.sock"));
        command.args(["-n", "k8s.io"]).args(arguments);
        command
    }

    /// A kubeconfig of an account of the cluster.
    ///
    /// # Panics
    /// Where the API server gives it no token.
    pub fn kubeconfig_of(&self, namespace: &str, account: &str) -> PathBuf {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = r#"{ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "expirationSeconds": 7200 } }"#;
        let said = self.ask("POST", &path, request).unwrap();
        let (_, rest) = said.split_once("\"token\":").unwrap();
        let token = rest.split('"').nth(1).unwrap();
        let text = std::fs::read_to_string(self.kubeconfig()).unwrap();
        let (before, rest) = text.split_once("token: \"").unwrap();
        let (_, after) = rest.split_once('"').unwrap();
        let file = self.folder.join(format!("{namespace}-{account}.kubeconfig"));
        std::fs::write(&file, format!("{before}token: \"{token}\"{after}")).unwrap();
        file
    }

    /// Starts what does not run.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn up(&self) {
        let output = self.script("up").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the API server does not start: {said}");
    }

    /// Kills the API server. Its store stays.
    ///
    /// # Panics
    /// Where it does not run.
    pub fn kill(&self) {
        self.kill_program("apiserver");
    }

    /// Kills both, and forgets all that was stored.
    ///
    /// # Panics
    /// Where they do not run.
    pub fn lose(&self) {
        self.kill();
        self.kill_program("etcd");
        std::fs::remove_dir_all(self.folder.join("etcd")).unwrap();
    }

    /// Kills the kubelet: the node does not report any more, and its containers run on.
    ///
    /// # Panics
    /// Where it does not run.
    pub fn kill_kubelet(&self) {
        self.kill_program("kubelet");
    }

    fn kill_program(&self, name: &str) {
        let pid = std::fs::read_to_string(self.folder.join(format!("{name}.pid"))).unwrap();
        let killed = Command::new("kill").args(["-9", pid.trim()]).status().unwrap();
        assert!(killed.success(), "{name} does not run");
        while Path::new("/proc").join(pid.trim()).join("exe").exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The kubeconfig of somebody who may do everything.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// The kubeconfig of the user `reader`, who may do what somebody permits.
    pub fn reader_kubeconfig(&self) -> PathBuf {
        self.folder.join("reader.kubeconfig")
    }

    /// Makes an object, or replaces the one that is there.
    ///
    /// # Panics
    /// Where the API server refuses.
    pub fn put(&self, path: &str, name: &str, object: &str) {
        // A server that has just begun lacks its own namespaces for a moment.
        let since = Instant::now();
        while self.ask("PUT", &format!("{path}/{name}"), object).is_err() {
            match self.ask("POST", path, object) {
                Ok(_) => return,
                Err(said) => assert!(since.elapsed() < PATIENCE, "{said}"),
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Deletes an object.
    ///
    /// # Panics
    /// Where the API server refuses.
    pub fn delete(&self, path: &str, name: &str) {
        self.ask("DELETE", &format!("{path}/{name}"), "").unwrap();
    }

    /// Asks the API server.
    ///
    /// # Errors
    /// It refuses, or does not answer.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Result<String, String> {
        self.ask_as("application/json", method, path, body)
    }

    /// Makes the objects of a manifest, of which each is of one of these paths, by its kind; with `is_dry` it only checks
    /// whether it could.
    ///
    /// # Panics
    /// Where the API server refuses one, or a kind has no path.
    pub fn apply(&self, manifest: &str, paths: &[(&str, &str)], is_dry: bool) {
        for object in manifest.split("\n---\n").filter(|of| of.contains("kind:")) {
            let of_kind =
                |(kind, _): &&(&str, &str)| object.lines().any(|line| line == format!("kind: {kind}"));
            let (_, path) = paths.iter().find(of_kind).unwrap();
            let dry = if is_dry { "&dryRun=All" } else { "" };
            let path = format!("{path}?fieldValidation=Strict{dry}");
            let since = Instant::now();
            while let Err(said) = self.ask_as("application/yaml", "POST", &path, object) {
                assert!(since.elapsed() < PATIENCE, "{object}: {said}");
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    }

    fn ask_as(&self, kind: &str, method: &str, path: &str, body: &str) -> Result<String, String> {
        let tokens = std::fs::read_to_string(self.folder.join("tokens.csv")).unwrap();
        let token = tokens.split(',').next().unwrap();
        let mut command = (self.start)("curl");
        let mut curl = command
            .args([
                "-sS",
                "--max-time",
                "20",
                "--fail-with-body",
                "-X",
                method,
                "--cacert",
            ])
            .arg(self.folder.join("certs/apiserver.crt"))
            .args([
                "-H",
                &format!("Authorization: Bearer {token}"),
                "-H",
                &format!("Content-Type: {kind}"),
            ])
            .args(["--data-binary", "@-"])
            .arg(format!("https://{}:{}{path}", self.address, self.ports.0))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        curl.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
        let output = curl.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(said),
            false => Err(said + &String::from_utf8_lossy(&output.stderr)),
        }
    }

    fn script(&self, what: &str) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/kubernetes.sh");
        let mut command = (self.start)(&script.display().to_string());
        command
            .arg(what)
            .arg(&self.folder)
            .args(self.programs.iter().filter(|_| what == "up"))
            .env("ADDRESS", &self.address)
            .env("PORT", self.ports.0.to_string())
            .env("ETCD_PORT", self.ports.1.to_string())
            .stdin(Stdio::null());
        command
    }
}

/// Runs a command; what it writes.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        let _ = self.script("down").status();
    }
}
