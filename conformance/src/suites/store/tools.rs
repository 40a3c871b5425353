//! Words for the cases about stores.

use std::future::pending;
use std::sync::Arc;

use async_trait::async_trait;
use botmesh_core::coordinator::{Fence, Turn, TurnHandle};
use botmesh_core::error::{Cas, LeaseLost};
use botmesh_core::id::{ConversationKey, SessionId};
use botmesh_core::store::{Checkpoint, CheckpointPhase, Revision, Store};
use serde_json::{Value, json};

use crate::Failure;

pub(super) type Held = Arc<dyn Store>;
pub(super) type Done<T = ()> = Result<T, Failure>;

/// Ids that numbers, patterns, separators or escapes confuse. No two are the same.
pub(super) const LOOK_ALIKES: &[&str] = &[
    "-1001557912345",
    "1001557912345",
    "-1001557912345.0",
    "300000000",
    "3e8",
    "3e+8",
    "1",
    "01",
    "a",
    "A",
    "a/b",
    "a%2Fb",
    "a%",
    "a_",
    "a*",
    "a:b",
    "a{b}",
    "{a}:b",
    "a b",
    "a ",
    "á",
    "a\u{301}",
    "a\0",
    "a'b",
    "a\"b",
    "a\\b",
    "\u{1F600}",
    "34600111222@s.whatsapp.net",
    "34600111222:12@s.whatsapp.net",
];

struct Steady;

#[async_trait]
impl TurnHandle for Steady {
    fn check(&self) -> Result<(), LeaseLost> {
        Ok(())
    }

    async fn lost(&self) -> LeaseLost {
        pending().await
    }

    fn release(&self) {}
}

/// A turn that is never lost.
pub(crate) fn turn(fence: u64, session: &str) -> Turn {
    Turn::new(Fence(fence), SessionId::from(session), None, Arc::new(Steady))
}

/// A checkpoint at `step` without a deadline.
pub(crate) fn plain_checkpoint(step: &str) -> Checkpoint {
    Checkpoint {
        flow: "signup".into(),
        version: 1,
        fingerprint: "f1".into(),
        step: step.into(),
        phase: CheckpointPhase::Waiting,
        state: json!({"step": step}),
        input: None,
        sends: 0,
        begun_with: None,
        input_order: None,
        earlier: Vec::new(),
        answer: None,
        midway: None,
        callers: Vec::new(),
        deadline: None,
        expires: None,
        due: None,
        revision: Checkpoint::unwritten_revision(),
        fence: Fence(0),
        session: Checkpoint::unwritten_session(),
    }
}

pub(super) fn conversation(chat: &str) -> ConversationKey {
    ConversationKey::private(chat)
}

/// Writes a checkpoint that must be applied, and returns its revision.
pub(super) async fn applied(
    store: &Held,
    turn: &Turn,
    key: &ConversationKey,
    expect: Option<Revision>,
    checkpoint: &Checkpoint,
) -> Done<Revision> {
    match store.set_checkpoint(turn, key, expect, checkpoint).await? {
        Cas::Applied(revision) => Ok(revision),
        Cas::Lost => Err(Failure::new(format!(
            "a checkpoint was refused that {turn:?} may write for {key} expecting {expect:?}"
        ))),
    }
}

/// Whether a write of a checkpoint is refused.
pub(super) async fn is_lost(
    store: &Held,
    turn: &Turn,
    key: &ConversationKey,
    expect: Option<Revision>,
) -> Done<bool> {
    Ok(store.set_checkpoint(turn, key, expect, &plain_checkpoint("refused")).await? == Cas::Lost)
}

/// Reads a checkpoint that must be there.
pub(super) async fn existing(store: &Held, key: &ConversationKey) -> Done<Checkpoint> {
    let found = store.checkpoint(key).await?;
    found.ok_or_else(|| Failure::new(format!("there is no checkpoint of {key}")))
}

/// JSON that a store which parses numbers or text loses something of. Case J04.
pub(super) fn exact_values() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!("9223372036854775807"),
        json!("-1001234567890123"),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(9_007_199_254_740_993_i64),
        json!(15_947_634_569_000_323_i64),
        json!(0.1),
        json!(-0.0),
        json!(0.1 + 0.2),
        json!(1e308),
        json!(1.276_763_381_621_345_8e45),
        json!(2.629_199_459_512_835_8e160),
        json!(5e-324),
        json!(1.0),
        json!(1),
        json!(""),
        json!("a\0b"),
        json!("\u{1F600} e\u{301} \u{FEFF} \u{FFFD} \u{2028}"),
        json!("it's \"quoted\" \\ back % under_score"),
        json!("x".repeat(300_000)),
        json!([]),
        json!({}),
        json!({"e": [], "o": {}, "f": 0.1, "n": null, "": 1, "a\0b": "\0", "nested": {"deep": [[[1, 2.5, "three"]]]}}),
    ]
}

/// Whether two values are the same to the last bit: minus zero is not zero, and one is not 1.0.
pub(super) fn same_json(one: &Value, other: &Value) -> bool {
    let [one_text, other_text] = [one, other].map(ToString::to_string);
    one == other && one_text == other_text
}
