//! Chat templates: Jinja as transformers runs it.

mod clock;
mod guard;
mod python;

use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value as Jinja};
use serde_json::{Map, Value};

use crate::TextError;
use crate::message::{Arguments, Message};

/// Instructions and data a render may use: each unit is one instruction or 64 bytes. Real templates take some hundreds
/// for each message.
const FUEL: u64 = 300_000;
/// Stack of a render, reserved rather than used.
const STACK: usize = 64 << 20;
const STACK_PER_FUEL: usize = 256;
/// A template beyond this is not a chat template.
const MAX_SOURCE: usize = 1 << 20;

/// What a template is given besides the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// Leave the assistant's turn open for the answer.
    pub add_generation_prompt: bool,
    /// Tool schemas, in the shape of the OpenAI API.
    pub tools: Vec<Value>,
    /// Documents for retrieval templates.
    pub documents: Vec<Value>,
    /// Further variables (`enable_thinking`, `reasoning_effort`, ...).
    pub args: Map<String, Value>,
    /// The time for `strftime_now`; the clock's when absent.
    pub now: Option<SystemTime>,
}

impl RenderOptions {
    /// The options for a prompt that the model is to answer.
    pub fn prompt() -> Self {
        RenderOptions { add_generation_prompt: true, ..Self::default() }
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    tokens: Map<String, Value>,
}

const NAME: &str = "chat_template";

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// Syntax that is not Jinja.
    pub fn new(source: &str) -> Result<Self, TextError> {
        if source.len() > MAX_SOURCE {
            return Err(TextError::TemplateSyntax(format!(
                "{} bytes, at most {MAX_SOURCE} are read",
                source.len()
            )));
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| TextError::TemplateSyntax(describe(&e)))?);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_formatter(python::format);
        environment.add_filter("tojson", python::tojson);
        environment.add_filter("string", python::string);
        environment.add_test("iterable", python::is_iterable);
        guard::install(&mut environment);
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_template_owned(NAME, guard::guarded(&without_generation_tags(source)))
            .map_err(|e| TextError::TemplateSyntax(describe(&e)))?;
        Ok(ChatTemplate { environment, source: source.to_owned(), tokens: Map::new() })
    }

    /// Gives the template a special token's text, for instance `bos_token`.
    pub fn set_token(&mut self, name: &str, text: impl Into<String>) {
        self.tokens.insert(name.to_owned(), Value::String(text.into()));
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The prompt for a conversation.
    ///
    /// # Errors
    /// What the template itself raises, a variable that it misses, or more work than a chat can need.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, TextError> {
        let parsed = messages.iter().map(|m| m.for_template(Arguments::Parsed)).collect();
        let first = self.render_values(parsed, options);
        if first.is_ok() || messages.iter().all(|m| m.tool_calls.is_empty()) {
            return first;
        }
        // A few templates expect arguments as the API has them, as text.
        let text = messages.iter().map(|m| m.for_template(Arguments::Text)).collect();
        self.render_values(text, options).or(first)
    }

    /// As [`ChatTemplate::render`], with the messages as the template is to see them.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_values(&self, messages: Vec<Value>, options: &RenderOptions) -> Result<String, TextError> {
        let mut context = self.tokens.clone();
        context.insert("messages".into(), Value::Array(messages));
        context.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
        let list =
            |items: &[Value]| if items.is_empty() { Value::Null } else { Value::Array(items.to_vec()) };
        context.insert("tools".into(), list(&options.tools));
        context.insert("documents".into(), list(&options.documents));
        context.extend(options.args.clone());
        let extra = context.values().map(cost).sum::<u64>();

        let mut environment = self.environment.clone();
        environment.set_fuel(Some(FUEL + extra));
        let now = options.now.unwrap_or_else(SystemTime::now);
        environment.add_function("strftime_now", move |format: &str| clock::strftime(now, format));
        let context = jinja(&Value::Object(context));
        let render = move || {
            let rendered = environment.get_template(NAME).and_then(|t| t.render(context));
            rendered.map_err(|e| TextError::TemplateRender(describe(&e)))
        };
        // Values that a template nests are dropped by recursion: the stack has to last for all that fuel can nest.
        let thread =
            std::thread::Builder::new().stack_size(STACK + STACK_PER_FUEL * extra as usize).spawn(render);
        let thread = thread.map_err(|e| TextError::TemplateRender(format!("no thread to render in: {e}")))?;
        thread.join().unwrap_or_else(|_| Err(TextError::TemplateRender("the template engine failed".into())))
    }
}

fn jinja(value: &Value) -> Jinja {
    match value {
        Value::Null => Jinja::from(()),
        Value::Bool(b) => Jinja::from(*b),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Jinja::from(n),
            (_, Some(n)) => Jinja::from(n),
            _ => Jinja::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(s) => Jinja::from(s.as_str()),
        Value::Array(items) => Jinja::from(items.iter().map(jinja).collect::<Vec<_>>()),
        Value::Object(map) => Jinja::from_pairs(map.iter().map(|(key, value)| (key.as_str(), jinja(value)))),
    }
}

fn raise_exception(message: &str) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()))
}

/// The message and the line, and for the usual suspect what to do.
fn describe(error: &Error) -> String {
    let mut text = match error.kind() {
        ErrorKind::OutOfFuel => {
            "uses more time or memory than a chat can need (it may loop for ever)".to_owned()
        }
        kind => match error.detail() {
            Some(detail) if kind == ErrorKind::InvalidOperation => detail.to_owned(),
            Some(detail) => format!("{kind}: {detail}"),
            None => kind.to_string(),
        },
    };
    if let Some(line) = error.line() {
        text.push_str(&format!(" (line {line})"));
    }
    text
}

/// Training frameworks mark the assistant's text with `{% generation %}`; for prompts the tag means nothing, and an
/// always true condition keeps the white space rules of a block.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start + 2..].find("%}").map(|at| at + 2) else { break };
        let tag = &rest[start + 2..start + len];
        let inner = tag.strip_prefix(['-', '+']).unwrap_or(tag);
        let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner).trim();
        out.push_str(&rest[..start + 2]);
        match inner {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        out.push_str("%}");
        rest = &rest[start + len + 2..];
    }
    out.push_str(rest);
    out
}

/// The fuel that a value may need on its way through a template: some passes over its text, some hundred instructions
/// for each message, call or parameter.
fn cost(value: &Value) -> u64 {
    match value {
        Value::String(s) => s.len() as u64 / 4,
        Value::Array(items) => 500 + items.iter().map(cost).sum::<u64>(),
        Value::Object(map) => 500 + map.values().map(cost).sum::<u64>(),
        _ => 8,
    }
}
