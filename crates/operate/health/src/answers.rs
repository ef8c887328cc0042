//! What instances answer: lines of HTTP and of agents, and datagrams of DNS. All of it is foreign.

use crate::{AgentReport, AgentState};

/// Bytes of a line at most.
pub(crate) const MAX_TEXT: usize = 1024;
/// Characters of an answer that a message shows.
const SHOWN: usize = 60;
/// A header of DNS, and the longest name and label in it (RFC 1035 §2.3.4).
const DNS_HEADER: usize = 12;
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let text: String = text
        .trim()
        .chars()
        .filter(|c| !c.is_control())
        .take(SHOWN)
        .collect();
    format!("{text:?}")
}

/// The verdict on the first line of an answer of HTTP: status 2xx and 3xx pass.
///
/// # Errors
/// Another status, or no HTTP.
pub fn status(line: &[u8]) -> Result<(), String> {
    let no_http = || format!("its answer {} is not HTTP", shown(line));
    let rest = line.strip_prefix(b"HTTP/1.").ok_or_else(no_http)?;
    let status = match rest {
        [b'0' | b'1', b' ', status @ ..] => status.first_chunk::<3>().ok_or_else(no_http)?,
        _ => return Err(no_http()),
    };
    if !status.iter().all(u8::is_ascii_digit) {
        return Err(no_http());
    }
    match status[0] {
        b'2' | b'3' => Ok(()),
        _ => Err(format!(
            "it answers with status {}",
            String::from_utf8_lossy(status)
        )),
    }
}

/// What an agent says: words with blanks or commas between them, of the agent-check of HAProxy.
///
/// # Errors
/// None of the words is known.
pub fn agent(line: &[u8]) -> Result<AgentReport, String> {
    let text = String::from_utf8_lossy(line);
    let mut report = AgentReport::default();
    // A comment follows some words.
    let text = text.split('#').next().unwrap_or_default();
    for word in text.split([' ', '\t', ',', '\r', '\0']) {
        match word {
            "up" => report.state = Some(AgentState::Up),
            "down" | "failed" | "stopped" | "fail" => report.state = Some(AgentState::Down),
            "drain" => report.mode = Some(AgentState::Drain),
            "maint" => report.mode = Some(AgentState::Maintenance),
            "ready" => report.mode = Some(AgentState::Ready),
            _ => {
                let percent = word
                    .strip_suffix('%')
                    .and_then(|number| number.parse::<u32>().ok());
                if let Some(percent) = percent {
                    report.percent = Some(percent.min(100));
                }
            }
        }
    }
    if report == AgentReport::default() {
        return Err(format!(
            "its agent says {}, of which nothing is known",
            shown(line)
        ));
    }
    Ok(report)
}

/// A question of DNS for the IPv4 addresses of a name.
///
/// # Errors
/// It is no name.
pub fn question(id: u16, name: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(DNS_HEADER + MAX_NAME + 6);
    bytes.extend(id.to_be_bytes());
    // A standard query that asks for recursion, with one question.
    bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    let name = name.trim_end_matches('.');
    if name.len() > MAX_NAME {
        return Err(format!("{name:?} is no name: it is too long"));
    }
    for label in name.split('.').filter(|_| !name.is_empty()) {
        let length = u8::try_from(label.len()).unwrap_or(u8::MAX);
        if label.is_empty() || label.len() > MAX_LABEL {
            return Err(format!("{name:?} is no name"));
        }
        bytes.push(length);
        bytes.extend(label.as_bytes());
    }
    // The end of the name, an address (A), the Internet.
    bytes.extend([0, 0, 1, 0, 1]);
    Ok(bytes)
}

/// The verdict on an answer to that question; [`None`]: it is none to it. That a name does not exist is an answer.
pub fn resolved(answer: &[u8], question: &[u8]) -> Option<Result<(), String>> {
    let header = answer.first_chunk::<DNS_HEADER>()?;
    let asked = question.get(DNS_HEADER..)?;
    // A server may write the name in other letters.
    let is_asked = answer
        .get(DNS_HEADER..DNS_HEADER + asked.len())
        .is_some_and(|it| it.eq_ignore_ascii_case(asked));
    let (id, flags, code) = (question.first_chunk::<2>()?, header[2], header[3] & 0xf);
    if header.first_chunk::<2>()? != id || flags & 0x80 == 0 {
        return None;
    }
    Some(match code {
        // Without a fault the question is repeated.
        0 | 3 if is_asked => Ok(()),
        0 | 3 => return None,
        2 => Err("its answer is a failure of the server (SERVFAIL)".to_owned()),
        5 => Err("it refuses the question (REFUSED)".to_owned()),
        other => Err(format!("its answer has code {other}")),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use super::*;

    #[test]
    fn status_2xx_and_3xx_pass() {
        for (line, passes) in [
            ("HTTP/1.1 200 OK\r", true),
            ("HTTP/1.0 204", true),
            ("HTTP/1.1 301 Moved", true),
            ("HTTP/1.1 404 Not Found", false),
            ("HTTP/1.1 503", false),
            ("HTTP/1.1 20", false),
            ("HTTP/2 200", false),
            ("HTTP/1.1  200", false),
            ("220 mail", false),
            ("", false),
        ] {
            assert_eq!(status(line.as_bytes()).is_ok(), passes, "{line}");
        }
        let said = status(b"HTTP/1.1 503 Busy").unwrap_err();
        assert_eq!(said, "it answers with status 503");
        let said = status(&[0xff; 500]).unwrap_err();
        assert!(said.len() < 300, "{said}");
    }

    #[test]
    fn an_agent_says_weight_and_state() {
        let report = |state, mode, percent| AgentReport { state, mode, percent };
        for (line, expected) in [
            ("75%", report(None, None, Some(75))),
            ("up 50%\r", report(Some(AgentState::Up), None, Some(50))),
            (
                "ready,up,100%",
                report(Some(AgentState::Up), Some(AgentState::Ready), Some(100)),
            ),
            ("drain", report(None, Some(AgentState::Drain), None)),
            ("maint", report(None, Some(AgentState::Maintenance), None)),
            (
                "down # disk is full, 5%",
                report(Some(AgentState::Down), None, None),
            ),
            ("400%", report(None, None, Some(100))),
        ] {
            assert_eq!(agent(line.as_bytes()), Ok(expected), "{line}");
        }
        for line in ["", "hello", "%", "-5%", "1e9%"] {
            assert!(agent(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn an_answer_is_one_to_its_question() {
        let question = question(0x1234, "Example.com.").unwrap();
        assert_eq!(&question[12..], b"\x07Example\x03com\x00\x00\x01\x00\x01");
        let answer = |id: u16, flags: u8, code: u8| {
            let mut answer = question.clone();
            answer[..2].copy_from_slice(&id.to_be_bytes());
            (answer[2], answer[3]) = (flags, code);
            answer
        };
        assert_eq!(resolved(&answer(0x1234, 0x81, 0x80), &question), Some(Ok(())));
        let lower = answer(0x1234, 0x81, 0x83).to_ascii_lowercase();
        assert_eq!(resolved(&lower, &question), Some(Ok(())));
        assert!(resolved(&answer(0x1234, 0x81, 0x82), &question).unwrap().is_err());
        assert!(resolved(&answer(0x1234, 0x81, 0x85), &question).unwrap().is_err());
        assert_eq!(
            resolved(&answer(0x1235, 0x81, 0x80), &question),
            None,
            "another id"
        );
        assert_eq!(
            resolved(&answer(0x1234, 0x01, 0x80), &question),
            None,
            "a question"
        );
        let mut other = answer(0x1234, 0x81, 0x80);
        other[14] = b'Z';
        assert_eq!(resolved(&other, &question), None, "to another question");
        for length in 0..DNS_HEADER {
            assert_eq!(resolved(&question[..length], &question), None);
        }
    }

    #[test]
    fn names_have_limits() {
        assert!(question(1, "").is_ok(), "the root");
        assert!(question(1, "a..b").is_err());
        assert!(question(1, &"a".repeat(64)).is_err());
        assert!(question(1, &"a.".repeat(130)).is_err());
    }
}
