//! The whole text side of the demo model: a GGUF with byte-level BPE, a chat template and harmony channels.

use std::path::Path;

use turbospark_formats::Checkpoint;
use turbospark_text::{Dialect, Event, Message, RenderOptions, Special, Stop, StopStrings, TextModel};

fn open() -> TextModel {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/assets/tiny-storyteller-mxfp4.gguf");
    TextModel::open(&Checkpoint::open(&path).expect("the demo model")).expect("its text side")
}

/// As text: answers and reasoning joined, and why the reply ended.
fn read(text: &TextModel, prompt: &[u32], ids: &[u32], stops: &[&str]) -> (String, String, Option<Stop>) {
    let mut reply = text.reply(prompt, StopStrings::new(stops.iter().copied())).expect("a reply");
    let mut events = Vec::new();
    let mut stop = None;
    for &id in ids {
        stop = reply.push(id, &mut events).expect("an id");
        if stop.is_some() {
            break;
        }
    }
    reply.finish(&mut events);
    let (mut answer, mut reasoning) = (String::new(), String::new());
    for event in events {
        match event {
            Event::Answer(text) => answer.push_str(&text),
            Event::Reasoning(text) => reasoning.push_str(&text),
            Event::ToolCall { .. } => panic!("a call"),
        }
    }
    (answer, reasoning, stop)
}

#[test]
fn a_prompt_is_rendered_and_parsed() {
    let text = open();
    assert_eq!(text.dialect, Dialect::Harmony);
    let messages = [Message::new("user", "Tell me a story about a fox and a lantern.")];
    let rendered = text.render(&messages, &RenderOptions::prompt()).expect("renders");
    assert_eq!(
        rendered,
        "<|start|>user<|message|>Tell me a story about a fox and a lantern.<|end|><|start|>assistant"
    );
    let ids = text.prompt_ids(&messages, &RenderOptions::prompt()).expect("encodes");
    assert_eq!(ids[0], 4092);
    assert_eq!(text.tokenizer.decode_all(&ids).expect("decodes"), rendered);
    assert_eq!(
        text.tokenizer.decode(&ids).expect("decodes"),
        "userTell me a story about a fox and a lantern.assistant"
    );
    let literal = text.tokenizer.encode("<|end|>", Special::AsText).expect("encodes");
    assert!(literal.len() > 1 && literal.iter().all(|&id| !text.tokenizer.is_special(id)));
    assert_eq!(text.tokenizer.id("<|end|>"), Some(4093));
}

/// The end of text, of the answer and of a call stop; the end of a message does not.
#[test]
fn stops_are_gathered() {
    assert_eq!(open().stop_ids, [4088, 4089, 4095]);
}

#[test]
fn an_answer_is_read_from_ids() {
    let text = open();
    let prompt =
        text.prompt_ids(&[Message::new("user", "Hello!")], &RenderOptions::prompt()).expect("encodes");
    let ids = |s: &str| text.tokenizer.encode(s, Special::Parse).expect("encodes");
    let answer = ids("<|channel|>final<|message|>Once upon a time 🦊.<|return|>");
    let end = text.tokenizer.id("<|return|>").expect("an id");
    assert_eq!(
        read(&text, &prompt, &answer, &[]),
        ("Once upon a time 🦊.".into(), String::new(), Some(Stop::Token(end)))
    );
    let both =
        ids("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.");
    assert_eq!(read(&text, &prompt, &both, &[]), ("Yes.".into(), "Hm.".into(), None));
    let stop = Some(Stop::String("time".into()));
    assert_eq!(
        read(&text, &prompt, &answer, &["time", "never"]),
        ("Once upon a ".into(), String::new(), stop)
    );
    // What might have become a stop string is shown in the end.
    let held = ids("<|channel|>final<|message|>Once upon a ti");
    assert_eq!(read(&text, &prompt, &held, &["upon a time"]).0, "Once upon a ti");
    // A cut character ends as U+FFFD.
    let fox = ids("🦊");
    assert!(fox.len() > 1);
    let cut = [ids("<|channel|>final<|message|>a"), fox[..fox.len() - 1].to_vec()].concat();
    assert_eq!(read(&text, &prompt, &cut, &[]).0, "a\u{fffd}");
}

#[test]
fn raw_text_goes_on() {
    let text = open();
    let prompt = text.raw_ids("Once upon").expect("encodes");
    assert!(!prompt.is_empty());
    let mut reply = text.raw_reply(StopStrings::default());
    let mut events = Vec::new();
    for id in text.tokenizer.encode(" a time", Special::Parse).expect("encodes") {
        reply.push(id, &mut events).expect("an id");
    }
    reply.finish(&mut events);
    let answer: String =
        events.iter().map(|e| if let Event::Answer(t) = e { t.as_str() } else { "" }).collect();
    assert_eq!(answer, " a time");
    assert!(reply.push(u32::MAX, &mut events).is_err());
}
