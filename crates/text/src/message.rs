//! A conversation as callers give it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One message of a conversation, in the shape of the OpenAI API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// system, developer, user, assistant or tool.
    pub role: String,
    /// A string, a list of parts, or nothing (an assistant's message that only calls tools).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Value>,
    /// Name of the speaker or tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tool calls of an assistant's message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool's message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// What the assistant thought before it answered; templates see it as `reasoning_content` and `thinking`.
    #[serde(
        default,
        alias = "reasoning_content",
        alias = "thinking",
        skip_serializing_if = "Option::is_none"
    )]
    pub reasoning: Option<String>,
}

/// A call that an assistant's message makes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Chosen by the caller, referred to by the tool's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always `function`.
    #[serde(rename = "type", default = "function")]
    pub kind: String,
    /// What is called.
    pub function: FunctionCall,
}

/// Name and arguments of a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// Name of the function.
    pub name: String,
    /// A JSON object, or its text.
    #[serde(default)]
    pub arguments: Value,
}

fn function() -> String {
    "function".into()
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: Some(Value::String(content.into())), ..Self::default() }
    }

    /// The message as templates expect it: reasoning under the names that templates use.
    pub(crate) fn for_template(&self, arguments: Arguments) -> Value {
        let mut map = serde_json::Map::new();
        map.insert("role".into(), self.role.clone().into());
        map.insert("content".into(), self.content.clone().unwrap_or_else(|| "".into()));
        if let Some(name) = &self.name {
            map.insert("name".into(), name.clone().into());
        }
        if let Some(id) = &self.tool_call_id {
            map.insert("tool_call_id".into(), id.clone().into());
        }
        if let Some(reasoning) = &self.reasoning {
            for key in ["reasoning_content", "thinking", "reasoning"] {
                map.insert(key.into(), reasoning.clone().into());
            }
        }
        if !self.tool_calls.is_empty() {
            let calls = self.tool_calls.iter().map(|call| call.for_template(arguments)).collect();
            map.insert("tool_calls".into(), Value::Array(calls));
        }
        Value::Object(map)
    }
}

/// How a template is to see the arguments of a call.
#[derive(Clone, Copy)]
pub(crate) enum Arguments {
    /// As an object where they are one: most templates print them with `tojson`, which would quote a text again.
    Parsed,
    /// As text.
    Text,
}

impl ToolCall {
    fn for_template(&self, arguments: Arguments) -> Value {
        let arguments = match (&self.function.arguments, arguments) {
            (Value::String(text), Arguments::Parsed) => match serde_json::from_str(text) {
                Ok(Value::Object(object)) => Value::Object(object),
                _ => Value::String(text.clone()),
            },
            (Value::String(_), Arguments::Text) | (_, Arguments::Parsed) => self.function.arguments.clone(),
            (object, Arguments::Text) => Value::String(object.to_string()),
        };
        let mut map = serde_json::Map::new();
        if let Some(id) = &self.id {
            map.insert("id".into(), id.clone().into());
        }
        map.insert(
            "type".into(),
            if self.kind.is_empty() { "function".into() } else { self.kind.clone().into() },
        );
        map.insert(
            "function".into(),
            serde_json::json!({"name": self.function.name, "arguments": arguments}),
        );
        Value::Object(map)
    }
}
