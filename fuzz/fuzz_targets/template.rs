//! Any text as a chat template: the template, a zero byte, and a message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turbospark_text::{ChatTemplate, Message, RenderOptions};

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let (source, content) = text.split_once('\0').unwrap_or((&text, "Hello!"));
    let Ok(template) = ChatTemplate::new(source) else { return };
    let messages = [Message::new("system", "Be brief."), Message::new("user", content)];
    let _ = template.render(&messages, &RenderOptions::prompt());
});
