//! `inco logs`: what containers write.

use std::collections::BTreeMap;
use std::time::Duration;

use api::types::{LogRow, Refusal};
use api::{ApiError, Client};
use display::output;
use model::InstanceId;

use crate::cli::LogsArgs;
use crate::client_commands::connect;
use crate::target::Target;

/// Polling interval of `inco logs --follow`.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);

/// The output of one container that has been read.
#[derive(Debug)]
struct Reader {
    instance: InstanceId,
    /// The position of the next byte.
    next: u64,
    /// Text that is not printed yet: with a prefix before each line, an incomplete line.
    pending: String,
    /// Whether the output has ended.
    has_ended: bool,
}

impl Reader {
    fn at(row: &LogRow) -> Reader {
        Reader {
            instance: row.instance,
            next: row.first,
            pending: String::new(),
            has_ended: false,
        }
    }

    /// Reads the available output.
    fn read(&mut self, client: &Client, service: &str, row: &LogRow) -> Result<(), ApiError> {
        while self.next < row.next {
            let piece = client.log(service, self.instance, self.next)?;
            let skipped = piece.from.saturating_sub(self.next);
            if skipped > 0 {
                let instance = self.instance;
                output::complain(&format!(
                    "inco: {skipped} bytes of instance {instance} are missing: it wrote more than inco stores"
                ));
            }
            self.next = piece.next;
            self.pending.push_str(&piece.text);
            if piece.next == piece.from {
                // An incomplete character.
                break;
            }
        }
        self.has_ended = row.ended_unix_ms.is_some() && self.next >= row.next;
        Ok(())
    }

    /// Keeps only the last lines.
    fn keep_lines(&mut self, lines: usize) {
        let text = self.pending.strip_suffix('\n').unwrap_or(&self.pending);
        let start = match lines {
            0 => Some(self.pending.len()),
            _ => text.rmatch_indices('\n').nth(lines - 1).map(|(at, _)| at + 1),
        };
        self.pending.drain(..start.unwrap_or(0));
    }

    /// The text that can be printed now. With a prefix, each line begins with the instance, and an incomplete line
    /// waits for its end.
    fn take(&mut self, is_marked: bool) -> String {
        if !is_marked {
            return std::mem::take(&mut self.pending);
        }
        if self.has_ended && !self.pending.is_empty() && !self.pending.ends_with('\n') {
            self.pending.push('\n');
        }
        let whole = self.pending.rfind('\n').map_or(0, |at| at + 1);
        let lines: String = self.pending.drain(..whole).collect();
        let marked = lines.lines().map(|line| format!("{}: {line}\n", self.instance));
        marked.collect()
    }
}

/// Prints a container's output. On a terminal, control characters are removed.
pub(crate) fn write(text: &str) -> anyhow::Result<()> {
    if !output::is_terminal() {
        return output::text(text);
    }
    let harms = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    output::text(&text.replace(harms, "?"))
}

pub(crate) fn logs(args: &LogsArgs) -> anyhow::Result<()> {
    let client = connect(&args.connection)?;
    let target = Target::of(&args.target);
    let service = match (target.service, target.instance) {
        (Some(service), _) => service.to_owned(),
        (None, id) => service_of(&client, id)?,
    };
    let is_one = target.instance.is_some();
    let mut readers: BTreeMap<InstanceId, Reader> = BTreeMap::new();
    let mut is_first = true;
    loop {
        let mut rows = client.logs(&service)?;
        rows.retain(|row| target.instance.is_none_or(|id| id == row.instance));
        if let Some(id) = target.instance
            && rows.is_empty()
            && is_first
        {
            let error = format!("no stored output of instance {id} of {service}");
            let hint = format!("`inco logs {service}` shows the stored output");
            return Err(Refusal::new(error, hint).into());
        }
        for row in &rows {
            let reader = readers.entry(row.instance).or_insert_with(|| Reader::at(row));
            reader.read(&client, &service, row)?;
            if is_first && let Some(lines) = args.tail {
                reader.keep_lines(lines as usize);
            }
            write(&reader.take(!is_one))?;
        }
        let has_ended = is_one && readers.values().all(|reader| reader.has_ended);
        if !args.follow || has_ended {
            return Ok(());
        }
        is_first = false;
        std::thread::sleep(FOLLOW_EVERY);
    }
}

/// The service of a current or former instance.
fn service_of(client: &Client, instance: Option<InstanceId>) -> anyhow::Result<String> {
    for service in client.services()? {
        let rows = client.logs(&service.name)?;
        if rows.iter().any(|row| Some(row.instance) == instance) {
            return Ok(service.name);
        }
    }
    let id = instance.map_or_else(String::new, |id| id.to_string());
    let hint = "`inco services` shows the services: `inco logs SERVICE` shows all output of one";
    Err(Refusal::new(format!("no stored output of an instance {id}"), hint).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(pending: &str) -> Reader {
        Reader {
            instance: InstanceId(3),
            next: 0,
            pending: pending.to_owned(),
            has_ended: false,
        }
    }

    #[test]
    fn the_last_lines_are_kept() {
        for (text, lines, kept) in [
            ("one\ntwo\nthree\n", 2, "two\nthree\n"),
            ("one\ntwo\nthree", 1, "three"),
            ("one\n", 5, "one\n"),
            ("one\n", 0, ""),
            ("", 3, ""),
        ] {
            let mut reader = reader(text);
            reader.keep_lines(lines);
            assert_eq!(reader.pending, kept, "{lines} of {text:?}");
        }
    }

    #[test]
    fn a_marked_line_is_written_once_it_has_its_end() {
        let mut reader = reader("one\ntw");
        assert_eq!(reader.take(true), "3: one\n");
        reader.pending.push_str("o\nthr");
        assert_eq!(reader.take(true), "3: two\n");
        reader.has_ended = true;
        assert_eq!(reader.take(true), "3: thr\n");
        assert_eq!(reader.take(true), "");
        reader.pending.push_str("ee");
        assert_eq!(reader.take(false), "ee");
    }
}
