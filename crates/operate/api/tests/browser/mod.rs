//! A real browser without a window, driven by its DevTools protocol over a pair of pipes, and a way for it to the
//! API's socket: what `ssh -L` does.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Long enough for anything that must happen at all, on a machine that is busy with other things.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Chromium under the names that distributions give it.
const NAMES: [&str; 4] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
];

/// The browser, if there is one.
pub(crate) fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = NAMES
        .iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)))
        .find(|program| program.is_file());
    let missing = "Chromium is not installed (scripts/setup.sh browser)";
    real_parts::available("browser", found.is_none().then(|| missing.to_owned()));
    found
}

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    next_id: u64,
    session: Option<String>,
    /// What the page complained of.
    complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Opens that address.
    pub(crate) fn open(program: &Path, url: &str) -> Browser {
        let profile = tempfile::tempdir().unwrap();
        // It reads commands from descriptor 3 and answers on 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh"])
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--window-size=1280,1600",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (told, messages) = channel();
        std::thread::spawn(move || {
            for message in output.split(0).map_while(Result::ok) {
                if told.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser {
            child,
            input,
            messages,
            next_id: 1,
            session: None,
            complaints: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached = browser.call(
            "Target.attachToTarget",
            json!({"targetId": target["targetId"], "flatten": true}),
        );
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Runtime.enable", "Log.enable", "Page.enable"] {
            browser.call(domain, json!({}));
        }
        browser.call("Page.navigate", json!({"url": url}));
        browser
    }

    /// Calls a method of the protocol.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Value {
        let id = self.next_id;
        self.next_id += 1;
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message).unwrap();
        bytes.push(0);
        self.input.write_all(&bytes).unwrap();
        loop {
            let mut answer = match self.messages.recv_timeout(TIMEOUT) {
                Ok(answer) => answer,
                Err(RecvTimeoutError::Timeout) => panic!("the browser does not answer {method}"),
                Err(RecvTimeoutError::Disconnected) => panic!("the browser has ended at {method}"),
            };
            if answer["id"] == json!(id) {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].take();
            }
            self.note(&answer);
        }
    }

    fn note(&mut self, event: &Value) {
        let said = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => &event["params"]["exceptionDetails"],
            Some("Log.entryAdded") => &event["params"]["entry"],
            _ => return,
        };
        // A page gets no answer while inco is away.
        let text = said.to_string();
        if !text.contains("net::ERR_") {
            self.complaints.push(text);
        }
    }

    /// What an expression of the page is.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut result = self.call("Runtime.evaluate", parameters);
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {}",
            result["exceptionDetails"]
        );
        result["result"]["value"].take()
    }

    /// The text of the first element that a selector finds; empty where there is none.
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let found = format!("document.querySelector({})?.textContent ?? ''", json!(selector));
        self.value(&found).as_str().unwrap().to_owned()
    }

    /// The texts of all elements that a selector finds.
    pub(crate) fn texts(&mut self, selector: &str) -> Vec<String> {
        let found = format!(
            "[...document.querySelectorAll({})].map((node) => node.textContent)",
            json!(selector)
        );
        serde_json::from_value(self.value(&found)).unwrap()
    }

    /// Waits until an expression of the page is true.
    pub(crate) fn until(&mut self, expression: &str) {
        let started = Instant::now();
        while self.value(expression) != json!(true) {
            assert!(
                started.elapsed() < TIMEOUT,
                "not within {} s: {expression}",
                TIMEOUT.as_secs()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Memory that the page's script holds, in bytes, after garbage collection; and its number of nodes.
    pub(crate) fn memory(&mut self) -> (f64, u64) {
        self.call("HeapProfiler.collectGarbage", json!({}));
        let heap = self.call("Runtime.getHeapUsage", json!({}));
        let counters = self.call("Memory.getDOMCounters", json!({}));
        (
            heap["usedSize"].as_f64().unwrap(),
            counters["nodes"].as_u64().unwrap(),
        )
    }

    /// What the page complained of so far: exceptions, and what its policy refused.
    pub(crate) fn complaints(&mut self) -> &[String] {
        // So that what came before is read.
        self.value("0");
        &self.complaints
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// A port of this machine that leads to a unix socket, for as long as the test runs.
pub(crate) fn port_to(socket: &Path) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let socket = socket.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // There is no listener while inco is away: the connection closes.
            if let Ok(to) = UnixStream::connect(&socket) {
                join(stream, to);
            }
        }
    });
    port
}

fn join(tcp: TcpStream, unix: UnixStream) {
    let (mut tcp_in, mut unix_out) = (tcp.try_clone().unwrap(), unix.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ended = std::io::copy(&mut tcp_in, &mut unix_out);
        let _closed = unix_out.shutdown(Shutdown::Write);
    });
    let (mut tcp, mut unix) = (tcp, unix);
    std::thread::spawn(move || {
        let _ended = std::io::copy(&mut unix, &mut tcp);
        let _closed = tcp.shutdown(Shutdown::Both);
    });
}
