//! Bounds on what `+` and `*` make of lists.
//!
//! The engine joins and repeats lists lazily and pays no fuel when it later copies them, so a few dozen doublings would
//! take all memory. A filter put beside each operand closes the gap: it returns what it is given, after a look at its
//! length.

use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, State, Value};

const SUMMAND: &str = "__summand";
const FACTOR: &str = "__factor";
/// No conversation has more messages, tools or parts.
const MAX_ITEMS: usize = 1 << 16;

/// Registers the filters, and takes away one that joins lists unpaid and that Jinja does not have.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.remove_filter("chain");
    environment.add_filter(SUMMAND, summand);
    environment.add_filter(FACTOR, factor);
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn summand(state: &State, value: Value) -> Result<Value, Error> {
    if is_list(&value) {
        match value.len() {
            Some(len) if len <= MAX_ITEMS => state.consume_fuel(len as u64 / 64)?,
            _ => return Err(Error::new(ErrorKind::OutOfFuel, "a list of too many items")),
        }
    }
    Ok(value)
}

fn factor(value: Value) -> Result<Value, Error> {
    if is_list(&value) && !value.is_tuple() {
        return Err(Error::new(ErrorKind::InvalidOperation, "lists cannot be repeated with *"));
    }
    Ok(value)
}

/// The source with a filter beside each operand of `+` and `*`. Line numbers stay.
pub(super) fn guarded(source: &str) -> String {
    let mut insertions = Vec::new();
    let mut at = 0;
    while let Some(open) = next_tag(source, at) {
        let rest = &source[open..];
        if rest.starts_with("{#") {
            at = rest.find("#}").map_or(source.len(), |end| open + end + 2);
            continue;
        }
        let (tokens, end) = tokens(source, open + 2);
        at = end;
        if rest.starts_with("{%") && tokens.first().is_some_and(|t| t.text(source) == "raw") {
            at = end_of_raw(source, end);
            continue;
        }
        insert_guards(source, &tokens, &mut insertions);
    }
    insertions.sort_by_key(|&(at, _)| at);
    let mut out = String::with_capacity(source.len() + 12 * insertions.len());
    let mut done = 0;
    for (at, filter) in insertions {
        out.push_str(&source[done..at]);
        out.push('|');
        out.push_str(filter);
        done = at;
    }
    out.push_str(&source[done..]);
    out
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Name,
    Literal,
    Open,
    Close,
    Sign,
}

#[derive(Clone, Copy)]
struct Token {
    kind: Kind,
    start: usize,
    end: usize,
}

impl Token {
    fn text(self, source: &str) -> &str {
        &source[self.start..self.end]
    }
}

fn next_tag(source: &str, from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += source.get(at..)?.find('{')?;
        if matches!(source.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')) {
            return Some(at);
        }
        at += 1;
    }
}

fn end_of_raw(source: &str, from: usize) -> usize {
    let mut at = from;
    while let Some(open) = source[at..].find("{%").map(|open| at + open) {
        let (tokens, end) = tokens(source, open + 2);
        if tokens.first().is_some_and(|t| t.text(source) == "endraw") {
            return end;
        }
        at = open + 2;
    }
    source.len()
}

/// The tokens of a tag and where it ends; brackets must be closed before the end of a tag counts.
fn tokens(source: &str, from: usize) -> (Vec<Token>, usize) {
    let bytes = source.as_bytes();
    let mut tokens = Vec::new();
    let (mut at, mut depth) = (from, 0usize);
    // White space control of the opening.
    if matches!(bytes.get(at), Some(b'-' | b'+')) {
        at += 1;
    }
    while at < bytes.len() {
        let start = at;
        let closes = |i: usize| bytes.get(i..i + 2).is_some_and(|two| two == b"%}" || two == b"}}");
        if depth == 0 && closes(at) {
            return (tokens, at + 2);
        }
        let kind = match bytes[at] {
            b'-' | b'+' if depth == 0 && closes(at + 1) => return (tokens, at + 3),
            b if b.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            quote @ (b'\'' | b'"') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at = (at + 1).min(bytes.len());
                Kind::Literal
            }
            b if b.is_ascii_digit() => {
                let word = |&(_, b): &(usize, &u8)| !(b.is_ascii_alphanumeric() || *b == b'_' || *b == b'.');
                at = bytes.iter().enumerate().skip(at).find(word).map_or(bytes.len(), |(i, _)| i);
                Kind::Literal
            }
            b if b.is_ascii_alphabetic() || b == b'_' || b >= 0x80 => {
                let word = |&(_, b): &(usize, &u8)| !(b.is_ascii_alphanumeric() || *b == b'_' || *b >= 0x80);
                at = bytes.iter().enumerate().skip(at).find(word).map_or(bytes.len(), |(i, _)| i);
                Kind::Name
            }
            b'(' | b'[' | b'{' => {
                depth += 1;
                at += 1;
                Kind::Open
            }
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                at += 1;
                Kind::Close
            }
            b => {
                let double = matches!(b, b'*' | b'/' | b'=') && bytes.get(at + 1) == Some(&b);
                at += if double { 2 } else { 1 };
                Kind::Sign
            }
        };
        tokens.push(Token { kind, start, end: at });
    }
    (tokens, source.len())
}

/// Words after which an expression begins.
const KEYWORDS: &[&str] =
    &["and", "or", "not", "in", "is", "if", "else", "elif", "set", "for", "do", "call", "filter", "with"];

fn insert_guards(source: &str, tokens: &[Token], insertions: &mut Vec<(usize, &'static str)>) {
    for (i, token) in tokens.iter().enumerate() {
        let filter = match token.text(source) {
            "+" if token.kind == Kind::Sign => SUMMAND,
            "*" if token.kind == Kind::Sign => FACTOR,
            _ => continue,
        };
        let Some(before) = i.checked_sub(1).map(|i| tokens[i]) else { continue };
        let text = before.text(source);
        let operand = match before.kind {
            Kind::Name => !KEYWORDS.contains(&text) || (i > 1 && tokens[i - 2].text(source) == "."),
            Kind::Literal | Kind::Close => true,
            Kind::Open | Kind::Sign => false,
        };
        if !operand {
            continue;
        }
        // The name of a test takes no filter.
        let word = |back: usize| i.checked_sub(back).map(|i| tokens[i].text(source));
        let test = word(2) == Some("is") || (word(2) == Some("not") && word(3) == Some("is"));
        if before.kind != Kind::Literal && !test {
            insertions.push((before.end, filter));
        }
        if let Some(end) = end_of_operand(source, &tokens[i + 1..]) {
            insertions.push((end, filter));
        }
    }
}

/// The end of the operand that begins here, without its filters; none for a literal.
fn end_of_operand(source: &str, tokens: &[Token]) -> Option<usize> {
    let mut at = tokens.iter().position(|t| !matches!(t.text(source), "-" | "+" | "not"))?;
    let literal = tokens[at].kind == Kind::Literal;
    match tokens[at].kind {
        Kind::Name | Kind::Literal => at += 1,
        Kind::Open => at = after_group(tokens, at)?,
        Kind::Close | Kind::Sign => return None,
    }
    let primary = at;
    while let Some(token) = tokens.get(at) {
        match token.text(source) {
            "." => at += 2,
            "(" | "[" => at = after_group(tokens, at)?,
            _ => break,
        }
    }
    let end = tokens.get(at.checked_sub(1)?)?.end;
    (!literal || at > primary).then_some(end)
}

fn after_group(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(i + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guards(source: &str) -> String {
        guarded(source).replace(SUMMAND, "S").replace(FACTOR, "F")
    }

    #[test]
    fn operands_get_filters() {
        assert_eq!(guards("{{ a + b }}"), "{{ a|S + b|S }}");
        assert_eq!(
            guards("{%- set x = a.b[1] + c.d('+') | trim -%}"),
            "{%- set x = a.b[1]|S + c.d('+')|S | trim -%}"
        );
        assert_eq!(guards("{{ 'a' + b|f(x) + \"}}\" }}"), "{{ 'a' + b|S|f(x)|S + \"}}\" }}");
        assert_eq!(guards("{{ [1] + (a + b) * c }}"), "{{ [1]|S + (a|S + b|S)|S|F * c|F }}");
        assert_eq!(guards("{{ f(*a, **b) ~ +1 ~ -c }}"), "{{ f(*a, **b) ~ +1 ~ -c }}");
        assert_eq!(
            guards("{{ {'a': {'b': c + d}}.a }}{{ x + y }}"),
            "{{ {'a': {'b': c|S + d|S}}.a }}{{ x|S + y|S }}"
        );
        assert_eq!(
            guards("a + b {# c + d #}{% raw %}{{ e + f }}{% endraw %}{{ g + h }}"),
            "a + b {# c + d #}{% raw %}{{ e + f }}{% endraw %}{{ g|S + h|S }}"
        );
        assert_eq!(guards("{%+ if a +%}{{+ b }}"), "{%+ if a +%}{{+ b }}");
        assert_eq!(guards("{{ x if a is defined + b }}"), "{{ x if a is defined + b|S }}");
        assert_eq!(guards("{{ 'x'.join(y) + ' ' if z else w }}"), "{{ 'x'.join(y)|S + ' ' if z else w }}");
        assert_eq!(guards("{{ a + "), "{{ a|S + ");
        assert_eq!(guards("{{ a + ("), "{{ a|S + (");
    }
}
