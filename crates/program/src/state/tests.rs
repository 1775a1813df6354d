use super::*;
use crate::builder::Builder;
use crate::op::Attention;
use crate::program::KvLayer;

fn program(window: Option<usize>) -> Program {
    let mut b = Builder::new(4, 1000);
    let table = b.weight("embed", &[8, 4]);
    let x = b.embed(table, 1.0);
    let cache = b.kv_layer(KvLayer { layer: 0, key_width: 4, value_width: 4, window });
    let attention =
        Attention { cache, heads: 1, kv_heads: 1, head: 4, scale: 1.0, window, sinks: None, softcap: None };
    let a = b.attention(x, Some((x, x)), attention);
    let s = b.select_rows(a);
    let logits = b.linear(s, table, None);
    b.finish(logits, 1).unwrap()
}

fn append(states: &mut States, id: SequenceId, n: usize) -> Vec<PageCopy> {
    let batch = Batch::append(states, id, &vec![0; n]);
    states.prepare(&batch).unwrap();
    let copies = states.take_copies();
    states.commit(&batch);
    copies
}

#[test]
fn pages_come_and_go_with_positions() {
    let mut states = States::new(&program(None), None);
    let id = states.create();
    append(&mut states, id, PAGE_POSITIONS);
    assert_eq!(states.pages_in_use(0), 1);
    append(&mut states, id, 1);
    assert_eq!((states.length(id), states.pages_in_use(0)), (Some(65), 2));
    states.truncate(id, 64).unwrap();
    assert_eq!(states.pages_in_use(0), 1);
    states.remove(id).unwrap();
    assert_eq!(states.pages_in_use(0), 0);
    assert_eq!(states.truncate(id, 0), Err(StateError::Unknown(id)));
}

#[test]
fn forks_part_when_appended_to() {
    let mut states = States::new(&program(None), None);
    let a = states.create();
    append(&mut states, a, 70);
    let b = states.fork(a).unwrap();
    assert_eq!(states.page(a, 0, 69), states.page(b, 0, 69));
    let copies = append(&mut states, b, 1);
    assert_eq!(copies.len(), 1);
    assert_eq!(Some(copies[0].from), states.page(a, 0, 69));
    assert_eq!(Some(copies[0].to), states.page(b, 0, 69));
    assert_eq!(states.page(a, 0, 0), states.page(b, 0, 0));
    assert!(append(&mut states, a, 1).is_empty());
}

#[test]
fn a_window_frees_pages_and_refuses_to_go_back() {
    let mut states = States::new(&program(Some(10)), None);
    let id = states.create();
    append(&mut states, id, 3 * PAGE_POSITIONS);
    assert_eq!(states.pages_in_use(0), 1);
    assert_eq!(states.page(id, 0, 0), None);
    states.truncate(id, 3 * PAGE_POSITIONS as u32 - 20).unwrap();
    let back = states.truncate(id, 100);
    assert!(matches!(back, Err(StateError::WindowPassed { kept: 128, .. })), "{back:?}");
    assert!(matches!(states.truncate(id, 500), Err(StateError::TooShort { .. })));
}

#[test]
fn a_failed_step_leaves_no_trace() {
    let mut states = States::new(&program(None), Some(1));
    let id = states.create();
    append(&mut states, id, 10);
    let batch = Batch::append(&states, id, &[0; 60]);
    let error = states.prepare(&batch).unwrap_err();
    assert_eq!(error, StateError::Full { layer: 0, pages: 1 });
    assert_eq!((states.length(id), states.pages_in_use(0)), (Some(10), 1));
    append(&mut states, id, 54);
}
