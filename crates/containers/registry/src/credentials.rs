//! Credentials of registries in Docker's configuration: `config.json`, as `docker login` writes it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde::Deserialize;

use crate::RegistryError;

/// Bytes of the file, and of a helper's answer.
const MAX_BYTES: u64 = 1 << 20;
/// How long a helper may take. One that asks its user is given up.
const HELPER_LIMIT: Duration = Duration::from_secs(20);
/// What Docker's registry is called in the file.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";
/// The user that stands for an identity token.
const TOKEN_USER: &str = "<token>";

/// A user with a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// Its name.
    pub user: String,
    /// Its password.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    auths: BTreeMap<String, Entry>,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entry")
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Helped {
    username: String,
    secret: String,
}

/// The file that Docker's client would read: in `$DOCKER_CONFIG`, else `~/.docker`.
pub fn docker_config() -> PathBuf {
    let given = |name| std::env::var_os(name).filter(|text: &OsString| !text.is_empty());
    let directory = given("DOCKER_CONFIG").map(PathBuf::from).unwrap_or_else(|| {
        given("HOME")
            .map_or_else(|| PathBuf::from("/root"), PathBuf::from)
            .join(".docker")
    });
    directory.join("config.json")
}

/// The login for a registry (`docker.io`, `localhost:5000`) in the file; `None` where the file, or the entry, is not
/// there. Runs a credential helper if the file names one.
///
/// # Errors
/// [`RegistryError::Credentials`].
pub(crate) fn find(file: &Path, registry: &str) -> Result<Option<Login>, RegistryError> {
    let text = match std::fs::File::open(file) {
        Ok(opened) => read_some(opened),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(error.to_string()),
    };
    text.and_then(|text| find_in(&text, registry, ask_helper))
        .map_err(|reason| RegistryError::Credentials {
            file: file.to_owned(),
            reason,
        })
}

/// The registry of an image, as Docker writes it, and the login for it in the file that Docker's client would read. Runs a
/// credential helper if the file names one. `None` where there is none, or the name is none of an image.
///
/// # Errors
/// [`RegistryError::Credentials`].
pub fn login_of_image(image: &str) -> Result<Option<(String, Login)>, RegistryError> {
    let Ok(image) = crate::Reference::parse(image) else {
        return Ok(None);
    };
    let registry = image.registry();
    let login = find(&docker_config(), registry)?;
    let name = if registry == "docker.io" {
        DOCKER_HUB
    } else {
        registry
    };
    Ok(login.map(|login| (name.to_owned(), login)))
}

/// The login for a registry in the text of a `config.json`. `helper` answers for a credential helper of that name;
/// its second argument is what the registry is called.
///
/// # Errors
/// What is wrong with the text, or with what the helper said.
pub fn find_in(
    text: &[u8],
    registry: &str,
    helper: impl Fn(&str, &str) -> Result<Option<Login>, String>,
) -> Result<Option<Login>, String> {
    let file: File = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let full = if registry == "docker.io" {
        DOCKER_HUB
    } else {
        registry
    };
    let named = [full, registry]
        .into_iter()
        .find_map(|name| file.cred_helpers.get(name));
    if let Some(name) = named {
        return helper(name, full);
    }
    if let Some(name) = file.creds_store.as_deref().filter(|name| !name.is_empty())
        && let Some(login) = helper(name, full)?
    {
        return Ok(Some(login));
    }
    let mut entries = file.auths.iter().filter(|(name, _)| name.as_str() == full);
    let same_host = || file.auths.iter().find(|(name, _)| host_of(name) == host_of(full));
    let Some((_, entry)) = entries.next().or_else(same_host) else {
        return Ok(None);
    };
    if entry
        .identitytoken
        .as_deref()
        .is_some_and(|token| !token.is_empty())
    {
        return Err(identity_token(registry));
    }
    login_of(entry, registry)
}

fn login_of(entry: &Entry, registry: &str) -> Result<Option<Login>, String> {
    if let (Some(user), Some(password)) = (&entry.username, &entry.password) {
        let (user, password) = (user.clone(), password.clone());
        return Ok(Some(Login { user, password }));
    }
    let Some(auth) = entry.auth.as_deref().filter(|auth| !auth.is_empty()) else {
        // Docker leaves such entries where a helper has the password.
        return Ok(None);
    };
    let wrong = || format!("the entry of {registry} is damaged: run `docker login {registry}` again");
    let decoded = base64::engine::general_purpose::STANDARD
        .decode(auth.trim())
        .map_err(|_| wrong())?;
    let decoded = String::from_utf8(decoded).map_err(|_| wrong())?;
    let (user, password) = decoded.split_once(':').ok_or_else(wrong)?;
    // Docker's own client removes these, too.
    let password = password.trim_end_matches('\0');
    Ok(Some(Login {
        user: user.to_owned(),
        password: password.to_owned(),
    }))
}

/// `https://HOST[:PORT]/v1/` and `HOST[:PORT]` are the same registry.
fn host_of(name: &str) -> &str {
    let name = name.split_once("://").map_or(name, |(_, rest)| rest);
    name.split('/').next().unwrap_or_default()
}

fn identity_token(registry: &str) -> String {
    format!(
        "the entry of {registry} is an identity token, which inco does not send: log in with a password or an \
         access token, `docker login --username USER {registry}`"
    )
}

/// Asks `docker-credential-NAME`, by its protocol: the registry on its input, JSON on its output.
fn ask_helper(name: &str, registry: &str) -> Result<Option<Login>, String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > 64 || !name.bytes().all(allowed) {
        return Err(format!("{name:?} cannot be the name of a credential helper"));
    }
    let program = format!("docker-credential-{name}");
    let mut child = Command::new(&program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| {
            format!(
                "it leaves credentials to {program}, which cannot run here ({error}): install it, or remove \
                 credsStore and credHelpers there and run `docker login` again"
            )
        })?;
    if let Some(mut input) = child.stdin.take() {
        // One that reads nothing has closed it.
        let _ = writeln!(input, "{registry}");
    }
    let output = child.stdout.take();
    let reader = std::thread::spawn(move || output.map_or(Ok(Vec::new()), read_some));
    let until = Instant::now() + HELPER_LIMIT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!(
                    "{program} gave no answer within {} s; run it by hand: echo {registry} | {program} get",
                    HELPER_LIMIT.as_secs()
                ));
            }
            Err(error) => return Err(format!("{program}: {error}")),
        }
    };
    let output = reader.join().unwrap_or_else(|_| Ok(Vec::new()))?;
    if !status.success() {
        let said = crate::client::printable(&output);
        if said.contains("credentials not found") {
            return Ok(None);
        }
        return Err(format!("{program} failed ({status}): {said}"));
    }
    let helped: Helped = serde_json::from_slice(&output)
        .map_err(|_| format!("{program} did not answer with a user and a secret"))?;
    if helped.username == TOKEN_USER {
        return Err(identity_token(registry));
    }
    Ok(Some(Login {
        user: helped.username,
        password: helped.secret,
    }))
}

fn read_some(from: impl std::io::Read) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    from.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn login(user: &str, password: &str) -> Login {
        Login {
            user: user.to_owned(),
            password: password.to_owned(),
        }
    }

    fn none(_: &str, _: &str) -> Result<Option<Login>, String> {
        Ok(None)
    }

    #[test]
    fn logins_are_found_by_all_names_of_a_registry() {
        // tester:secret
        let auth = "dGVzdGVyOnNlY3JldA==";
        let expected = Some(login("tester", "secret"));
        for (name, registry) in [
            ("https://index.docker.io/v1/", "docker.io"),
            ("index.docker.io", "docker.io"),
            ("registry.lan", "registry.lan"),
            ("https://registry.lan", "registry.lan"),
            ("https://registry.lan/v2/", "registry.lan"),
            ("localhost:5000", "localhost:5000"),
        ] {
            let text = format!(r#"{{"auths":{{"{name}":{{"auth":"{auth}"}}}},"HttpHeaders":{{}}}}"#);
            assert_eq!(
                find_in(text.as_bytes(), registry, none).unwrap(),
                expected,
                "{name}"
            );
            assert_eq!(find_in(text.as_bytes(), "other.lan", none).unwrap(), None);
            assert_eq!(find_in(text.as_bytes(), "registry.lan:5000", none).unwrap(), None);
        }
        let plain = br#"{"auths":{"a.lan":{"username":"u","password":"p:q"}}}"#;
        assert_eq!(find_in(plain, "a.lan", none).unwrap(), Some(login("u", "p:q")));
        let empty = br#"{"auths":{"a.lan":{}}}"#;
        assert_eq!(find_in(empty, "a.lan", none).unwrap(), None);
        for (text, word) in [
            (&br#"{"auths":{"a.lan":{"auth":"%"}}}"#[..], "docker login a.lan"),
            (br#"{"auths":{"a.lan":{"auth":"dGVzdGVy"}}}"#, "is damaged"),
            (br#"{"auths":{"a.lan":{"identitytoken":"x"}}}"#, "identity token"),
            (b"nonsense", "expected"),
            (br#"{"auths":[]}"#, "invalid type"),
        ] {
            let error = find_in(text, "a.lan", none).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_helper_is_asked_where_the_file_names_one() {
        let text = br#"{"auths":{"a.lan":{"auth":"dGVzdGVyOnNlY3JldA=="}},"credsStore":"all",
                       "credHelpers":{"b.lan":"one","docker.io":"hub"}}"#;
        let helper = |name: &str, registry: &str| match name {
            "all" => Ok((registry == "c.lan").then(|| login("all", registry))),
            _ => Ok(Some(login(name, registry))),
        };
        let found = |registry: &str| find_in(text, registry, helper).unwrap();
        assert_eq!(
            found("a.lan"),
            Some(login("tester", "secret")),
            "what the helper does not have"
        );
        assert_eq!(found("b.lan"), Some(login("one", "b.lan")));
        assert_eq!(found("c.lan"), Some(login("all", "c.lan")));
        assert_eq!(found("docker.io"), Some(login("hub", DOCKER_HUB)));
        assert_eq!(found("d.lan"), None);
    }

    #[test]
    fn helpers_are_programs_and_their_failures_say_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.json");
        std::fs::write(&file, r#"{"credsStore":"nobody-has-this"}"#).unwrap();
        let error = find(&file, "a.lan").unwrap_err().to_string();
        assert!(
            error.contains("docker-credential-nobody-has-this") && error.contains("install it"),
            "{error}"
        );
        std::fs::write(&file, r#"{"credsStore":"../evil"}"#).unwrap();
        assert!(
            find(&file, "a.lan")
                .unwrap_err()
                .to_string()
                .contains("cannot be the name")
        );
        assert_eq!(find(&directory.path().join("missing"), "a.lan").unwrap(), None);

        // By its path, so that the test changes no variable of this process.
        let helper = directory.path().join("docker-credential-test");
        let script = "#!/bin/sh\nread registry\n[ \"$registry\" = a.lan ] || { echo credentials not found; exit 1; }\n\
                      echo \"{\\\"ServerURL\\\":\\\"$registry\\\",\\\"Username\\\":\\\"u\\\",\\\"Secret\\\":\\\"p\\\"}\"\n";
        std::fs::write(&helper, script).unwrap();
        std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755)).unwrap();
        let run = |registry: &str| {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child
                .args(["--exact", "credentials::tests::as_a_child", "--nocapture"])
                .env("PATH", format!("{}:/usr/bin:/bin", directory.path().display()))
                .env("ASK_FOR", registry);
            String::from_utf8_lossy(&child.output().unwrap().stdout).into_owned()
        };
        let said = run("a.lan");
        assert!(said.contains("found u:p"), "{said}");
        let said = run("b.lan");
        assert!(said.contains("found nothing"), "{said}");
    }

    /// Runs in a process with its own PATH; see above.
    #[test]
    fn as_a_child() {
        let Ok(registry) = std::env::var("ASK_FOR") else {
            return;
        };
        let said = match ask_helper("test", &registry).unwrap() {
            Some(login) => format!("found {}:{}", login.user, login.password),
            None => "found nothing".to_owned(),
        };
        std::io::stdout().write_all(said.as_bytes()).unwrap();
    }
}
