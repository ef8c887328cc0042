//! Helm's templates, as far as the charts of deploy/ use them. Everything else is refused, so nothing here is taken for
//! something that Helm would not. Helm itself is not needed.

use std::collections::BTreeMap;

use serde_json::{Value, json};

pub(crate) fn read(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The documents of a text; one with comments only is none.
pub(crate) fn documents(text: &str) -> Vec<Value> {
    let has_keys = |of: &&str| {
        let mut lines = of.lines().map(str::trim);
        lines.any(|line| !line.is_empty() && !line.starts_with('#'))
    };
    let all = text.split("\n---\n").filter(has_keys);
    all.map(read).collect()
}

/// What a template is rendered with.
pub(crate) struct Context<'a> {
    pub(crate) release: &'a str,
    pub(crate) namespace: &'a str,
    /// `Chart.yaml`.
    pub(crate) chart: &'a str,
    pub(crate) values: &'a Value,
    /// Names and texts of what `.Files.Get` finds.
    pub(crate) files: &'a [(&'a str, &'a str)],
}

enum Piece<'a> {
    Text(&'a str),
    Action(&'a str),
}

/// The variables of a range.
type Variables<'a> = BTreeMap<&'a str, Value>;

/// Splits a template. `{{-` takes away the spaces and line ends before it.
fn pieces(template: &str) -> Vec<Piece<'_>> {
    let (mut pieces, mut rest) = (Vec::new(), template);
    while let Some((before, after)) = rest.split_once("{{") {
        let (action, end) = after.split_once("}}").unwrap();
        let (text, action) = match action.strip_prefix("- ") {
            Some(action) => (before.trim_end(), action),
            None => (before, action),
        };
        assert!(!action.ends_with('-'), "{action} is not known");
        pieces.push(Piece::Text(text));
        pieces.push(Piece::Action(action.trim()));
        rest = end;
    }
    pieces.push(Piece::Text(rest));
    pieces
}

/// Whether a value counts as true: zero and what is empty do not.
fn holds(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(of) => *of,
        Value::Number(of) => of.as_f64() != Some(0.0),
        Value::String(of) => !of.is_empty(),
        Value::Array(of) => !of.is_empty(),
        Value::Object(of) => !of.is_empty(),
    }
}

impl Context<'_> {
    pub(crate) fn render(&self, template: &str) -> String {
        let (mut out, mut at) = (String::new(), 0);
        let pieces = pieces(template);
        let end = self.block((&pieces, &mut at), &Variables::new(), true, &mut out);
        assert_eq!(end, None, "more ends than beginnings");
        out
    }

    /// Renders up to the end of a block, and says with which word that is.
    fn block<'t>(
        &self,
        (pieces, at): (&[Piece<'t>], &mut usize),
        variables: &Variables<'t>,
        is_live: bool,
        out: &mut String,
    ) -> Option<&'t str> {
        while let Some(piece) = pieces.get(*at) {
            *at += 1;
            let action = match piece {
                Piece::Text(text) if is_live => {
                    *out += text;
                    continue;
                }
                Piece::Text(_) => continue,
                Piece::Action(action) => *action,
            };
            if let "end" | "else" = action {
                return Some(action);
            }
            if let Some(condition) = action.strip_prefix("if ") {
                let is_so = is_live && holds(&self.value(condition, variables));
                let mut end = self.block((pieces, at), variables, is_so, out);
                if end == Some("else") {
                    end = self.block((pieces, at), variables, is_live && !is_so, out);
                }
                assert_eq!(end, Some("end"), "{action} has no end");
            } else if let Some(of) = action.strip_prefix("range $key, $value := ") {
                let of = if is_live {
                    self.value(of, variables)
                } else {
                    json!({})
                };
                let table = of.as_object().unwrap_or_else(|| panic!("{of} is no table"));
                let begin = *at;
                let mut end = self.block((pieces, at), variables, false, &mut String::new());
                for (key, value) in table.iter().filter(|_| is_live) {
                    *at = begin;
                    let own = [("$key", json!(key)), ("$value", value.clone())];
                    end = self.block((pieces, at), &Variables::from(own), true, out);
                }
                assert_eq!(end, Some("end"), "{action} has no end");
            } else if is_live {
                *out += &self.text(action, variables);
            }
        }
        None
    }

    fn text(&self, expression: &str, variables: &Variables<'_>) -> String {
        match self.value(expression, variables) {
            Value::String(of) => of,
            Value::Number(of) if of.is_u64() => of.to_string(),
            other => panic!("{expression} is no text: {other}"),
        }
    }

    /// The value of an expression.
    fn value(&self, expression: &str, variables: &Variables<'_>) -> Value {
        let mut parts = expression.split(" | ");
        let mut value = self.term(parts.next().unwrap(), variables);
        for part in parts {
            value = match part.strip_prefix("default ") {
                Some(other) if !holds(&value) => self.term(other, variables),
                Some(_) => value,
                None if part == "toJson" => json!(value.to_string()),
                None if part.starts_with("nindent ") => {
                    let depth = part.strip_prefix("nindent ").unwrap().parse().unwrap();
                    let line = format!("\n{}", " ".repeat(depth));
                    json!(format!("{line}{}", value.as_str().unwrap().replace('\n', &line)))
                }
                None => panic!("{part} is not known"),
            };
        }
        value
    }

    fn term(&self, term: &str, variables: &Variables<'_>) -> Value {
        let inner = term.strip_prefix('(').and_then(|of| of.strip_suffix(')'));
        let term = inner.unwrap_or(term);
        let file = term
            .strip_prefix(".Files.Get \"")
            .and_then(|of| of.strip_suffix('"'));
        if let Some(file) = file {
            let mut files = self.files.iter();
            let found = files.find(|(name, _)| *name == file);
            return json!(found.unwrap_or_else(|| panic!("there is no file {file}")).1);
        }
        match term {
            ".Release.Name" => json!(self.release),
            ".Release.Namespace" => json!(self.namespace),
            ".Chart.AppVersion" => read(self.chart)["appVersion"].clone(),
            "$key" | "$value" => variables[term].clone(),
            _ => {
                let path = term
                    .strip_prefix(".Values.")
                    .unwrap_or_else(|| panic!("{term} is not known"));
                let found = self.values.pointer(&format!("/{}", path.replace('.', "/")));
                found
                    .unwrap_or_else(|| panic!("there is no value {path}"))
                    .clone()
            }
        }
    }
}

#[test]
fn the_renderer_knows_what_the_charts_use() {
    let values =
        json!({ "a": { "b": "x", "no": false, "port": 9443 }, "all": { "k": "v", "l": 1 }, "none": {} });
    let context = Context {
        release: "r",
        namespace: "n",
        chart: "appVersion: '1.2'",
        values: &values,
        files: &[("f", "text")],
    };
    for (template, expected) in [
        ("k: {{ .Values.a.b }}-{{ .Release.Name }}\n", "k: x-r\n"),
        ("k: {{ .Values.all | toJson }}", "k: {\"k\":\"v\",\"l\":1}"),
        ("k: |\n  {{- .Files.Get \"f\" | nindent 2 }}", "k: |\n  text"),
        ("{{ .Values.none | default .Chart.AppVersion }}", "1.2"),
        (
            "{{ .Values.a.b | default (.Files.Get \"f\") }}:{{ .Values.a.port }}",
            "x:9443",
        ),
        (
            "a\n{{- if .Values.a.no }}\nb\n{{- else }}\nc\n{{- end }}\nd",
            "a\nc\nd",
        ),
        (
            "{{- if .Values.none }}{{ if .Values.a.b }}x{{ end }}{{- end }}y",
            "y",
        ),
        (
            "a:\n{{- range $key, $value := .Values.all }}\n  {{ $key }}: {{ $value | toJson }}\n{{- end }}\nb",
            "a:\n  k: \"v\"\n  l: 1\nb",
        ),
        ("a{{- range $key, $value := .Values.none }}x{{- end }}b", "ab"),
    ] {
        assert_eq!(context.render(template), expected, "{template}");
    }
    for unknown in [
        "{{ .Values.absent }}",
        "{{ .Values.a.b | upper }}",
        "{{- if .Values.a }}",
        "{{- with .Values.a }}{{- end }}",
        "{{ .Values.a }}",
        "{{ .Values.a.b -}}",
        "{{- end }}",
    ] {
        let refused = std::panic::catch_unwind(|| context.render(unknown));
        assert!(refused.is_err(), "{unknown}");
    }
    assert_eq!(documents("# a\n---\nk: 1\n---\nk: 2\n").len(), 2);
}
