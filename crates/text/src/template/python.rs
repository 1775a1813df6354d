//! Values written as Python writes them.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};

/// A template can build a value that contains itself many times over: what is written is bounded.
const MAX_BYTES: usize = 16 << 20;
const MAX_DEPTH: usize = 64;
const MAX_INDENT: usize = 32;

/// Prints `{{ value }}` as Python's `str` does.
pub(super) fn format(out: &mut Output, _state: &mut State, value: &Value) -> Result<(), Error> {
    if value.is_undefined() {
        return Ok(());
    }
    match value.as_str() {
        Some(text) => out.write_str(text)?,
        None => out.write_str(&text(value)?)?,
    }
    Ok(())
}

/// The `string` filter.
pub(super) fn string(value: Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(_) => Ok(value),
        None => Ok(Value::from(text(&value)?)),
    }
}

/// The `iterable` test: in Python, None is not.
pub(super) fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

fn text(value: &Value) -> Result<String, Error> {
    let mut writer =
        Writer { out: String::new(), style: Style::Repr, indent: None, separators: None, sort: false };
    if value.is_undefined() {
        return Ok(String::new());
    }
    writer.write(value, 0)?;
    Ok(writer.out)
}

/// `tojson` as transformers defines it: `json.dumps` with `ensure_ascii=False`, so `", "` and `": "` between items.
pub(super) fn tojson(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<Value> = options.get("indent")?;
    let indent = match indent.filter(|v| !v.is_none() && !v.is_undefined()) {
        None => None,
        Some(value) => match usize::try_from(value.clone()) {
            Ok(n) if n <= MAX_INDENT => Some(n),
            _ => return Err(invalid(format!("tojson: indent {value} is not a number up to {MAX_INDENT}"))),
        },
    };
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let separators = match separators.as_deref() {
        None => None,
        Some([item, key]) => Some((item.clone(), key.clone())),
        Some(_) => return Err(invalid("tojson: separators are two strings".into())),
    };
    let style = Style::Json { ascii: ensure_ascii.unwrap_or(false) };
    let mut writer = Writer { out: String::new(), style, indent, separators, sort: sort.unwrap_or(false) };
    writer.write(&value, 0)?;
    Ok(Value::from_safe_string(writer.out))
}

#[derive(Clone, Copy, PartialEq)]
enum Style {
    Json { ascii: bool },
    Repr,
}

struct Writer {
    out: String,
    style: Style,
    indent: Option<usize>,
    separators: Option<(String, String)>,
    sort: bool,
}

impl Writer {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(invalid(format!("a value nested more than {MAX_DEPTH} levels deep")));
        }
        if self.out.len() > MAX_BYTES {
            return Err(Error::new(ErrorKind::OutOfFuel, "a value of more than 16 MiB"));
        }
        let json = self.style != Style::Repr;
        match value.kind() {
            ValueKind::Undefined if json => return Err(invalid("tojson: the value is undefined".into())),
            ValueKind::Undefined => self.out.push_str("Undefined"),
            ValueKind::None => self.out.push_str(if json { "null" } else { "None" }),
            ValueKind::Bool => self.out.push_str(match (value.is_true(), json) {
                (true, true) => "true",
                (true, false) => "True",
                (false, true) => "false",
                (false, false) => "False",
            }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.quoted(value.as_str().unwrap_or("")),
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            _ => self.out.push_str(&value.to_string()),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
            return;
        }
        match f64::try_from(value.clone()) {
            Ok(x) => self.out.push_str(&float(x, self.style != Style::Repr)),
            Err(_) => self.out.push_str(&value.to_string()),
        }
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let tuple = self.style == Style::Repr && value.is_tuple();
        self.out.push(if tuple { '(' } else { '[' });
        let mut any = false;
        for item in value.try_iter()? {
            self.between(any, depth + 1);
            any = true;
            self.write(&item, depth + 1)?;
        }
        if tuple && value.len() == Some(1) {
            self.out.push(',');
        }
        self.close(any, depth, if tuple { ')' } else { ']' });
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort {
            keys.sort();
        }
        self.out.push('{');
        let any = !keys.is_empty();
        for (i, key) in keys.iter().enumerate() {
            self.between(i > 0, depth + 1);
            match (key.as_str(), self.style) {
                (Some(text), _) => self.quoted(text),
                // JSON's keys are strings.
                (None, Style::Json { .. }) => {
                    self.out.push('"');
                    self.write(key, depth + 1)?;
                    self.out.push('"');
                }
                (None, Style::Repr) => self.write(key, depth + 1)?,
            }
            match &self.separators {
                Some((_, colon)) => self.out.push_str(&colon.clone()),
                None => self.out.push_str(": "),
            }
            self.write(&value.get_item(key)?, depth + 1)?;
        }
        self.close(any, depth, '}');
        Ok(())
    }

    fn between(&mut self, comma: bool, depth: usize) {
        if comma {
            match &self.separators {
                Some((comma, _)) => self.out.push_str(&comma.clone()),
                None if self.indent.is_some() => self.out.push(','),
                None => self.out.push_str(", "),
            }
        }
        self.line(depth);
    }

    fn close(&mut self, any: bool, depth: usize, bracket: char) {
        if any {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn quoted(&mut self, text: &str) {
        match self.style {
            Style::Json { ascii } => json_string(text, ascii, &mut self.out),
            Style::Repr => repr_string(text, &mut self.out),
        }
    }
}

fn json_string(text: &str, ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && !c.is_ascii()) || (ascii && c == '\u{7f}') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Single quotes unless the text has some and no double ones.
fn repr_string(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c < ' ' || c == '\u{7f}' => out.push_str(&format!("\\x{:02x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// The shortest digits that read back the same, in Python's spelling.
fn float(x: f64, json: bool) -> String {
    if x.is_nan() {
        return if json { "NaN" } else { "nan" }.into();
    }
    if x.is_infinite() {
        return match (x > 0.0, json) {
            (true, true) => "Infinity",
            (false, true) => "-Infinity",
            (true, false) => "inf",
            (false, false) => "-inf",
        }
        .into();
    }
    let scientific = format!("{x:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_pythons() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (-0.0, "-0.0"),
        ];
        for (x, text) in cases {
            assert_eq!(float(x, true), text);
        }
        assert_eq!(float(f64::NAN, true), "NaN");
        assert_eq!(float(f64::INFINITY, false), "inf");
    }

    #[test]
    fn strings_are_quoted_as_in_python() {
        let repr = |text: &str| {
            let mut out = String::new();
            repr_string(text, &mut out);
            out
        };
        assert_eq!(repr("a'b"), "\"a'b\"");
        assert_eq!(repr("a'\"b\n"), "'a\\'\"b\\n'");
        let mut out = String::new();
        json_string("é\u{1}\"🦙", false, &mut out);
        assert_eq!(out, "\"é\\u0001\\\"🦙\"");
        out.clear();
        json_string("é🦙", true, &mut out);
        assert_eq!(out, "\"\\u00e9\\ud83e\\udd99\"");
    }
}
