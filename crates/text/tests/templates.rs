//! Real chat templates against transformers.
//!
//! Reads templates.json, which make_expected.py wrote into the folder that TURBOSPARK_TEXT_SWEEP names; see
//! docs/development/text-sweeps.md.

mod common;

use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use turbospark_text::{ChatTemplate, Message, RenderOptions};

/// Where transformers' own text is an accident: adding to text marked safe escapes the rest as HTML.
const DIFFERS: &[(&str, &str)] = &[("meetkai-functionary-medium-v3.1", "tools")];

#[test]
fn rendered_text_equals_transformers() {
    let Some(folder) = common::sweep("templates") else { return };
    let data = std::fs::read(folder.join("templates.json")).expect("templates.json");
    report(&serde_json::from_slice(&data).expect("JSON"));
}

fn report(data: &Value) {
    let conversations = data["conversations"].as_object().expect("conversations");
    let templates = data["templates"].as_object().expect("templates");
    let mut differ = Vec::new();
    for (case, conversation) in conversations {
        let (mut rendered, mut equal, mut both_refuse, mut total) = (0, 0, 0, 0);
        for (name, entry) in templates {
            total += 1;
            let ours = render(
                entry["source"].as_str().expect("source"),
                conversation,
                data["now"].as_u64().expect("now"),
            );
            let theirs = entry[case.as_str()]["text"].as_str();
            match (&ours, theirs) {
                (Ok(text), Some(theirs)) => {
                    rendered += 1;
                    if text == theirs {
                        equal += 1;
                    } else if DIFFERS.contains(&(name, case)) {
                        println!("{name}, {case}: differs as expected: {}", difference(text, theirs));
                    } else {
                        differ.push(format!("{name}, {case}: differs: {}", difference(text, theirs)));
                    }
                }
                (Ok(_), None) => {
                    rendered += 1;
                    println!(
                        "{name}, {case}: renders here, in transformers: {}",
                        entry[case.as_str()]["error"]
                    );
                }
                (Err(ours), Some(_)) => differ.push(format!("{name}, {case}: {ours}")),
                (Err(ours), None) => {
                    both_refuse += 1;
                    println!("{name}, {case}: refused by both: {ours}; {}", entry[case.as_str()]["error"]);
                }
            }
        }
        println!(
            "{case}: {rendered} of {total} render, {equal} equal to transformers, {both_refuse} refused by both"
        );
    }
    assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ.join("\n"));
}

fn render(source: &str, conversation: &Value, now: u64) -> Result<String, String> {
    let mut template = ChatTemplate::new(source).map_err(|e| e.to_string())?;
    template.set_token("bos_token", "<BOS>");
    template.set_token("eos_token", "<EOS>");
    let messages: Vec<Message> = serde_json::from_value(conversation["messages"].clone()).expect("messages");
    let options = RenderOptions {
        tools: conversation["tools"].as_array().expect("tools").clone(),
        args: conversation["args"].as_object().cloned().unwrap_or_default(),
        now: Some(UNIX_EPOCH + Duration::from_secs(now)),
        ..RenderOptions::prompt()
    };
    template.render(&messages, &options).map_err(|e| e.to_string())
}

fn difference(ours: &str, theirs: &str) -> String {
    let same = ours.chars().zip(theirs.chars()).take_while(|(a, b)| a == b).count();
    let part = |text: &str| text.chars().skip(same.saturating_sub(20)).take(80).collect::<String>();
    format!("here {:?}, transformers {:?}", part(ours), part(theirs))
}
