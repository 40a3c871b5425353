//! What must hold after a run, whatever went wrong in it.

use std::collections::HashSet;

use botmesh_core::journal::{InboxState, OutboxRecord, OutboxState};

use super::drive::Play;
use super::scenario::REFUSED;
use crate::Failure;

/// Nothing is lost that was not told; nothing is doubled but where the policy permits it and it was told; the order of
/// each chat is kept; no record is stuck.
pub(super) async fn verify(play: &Play) -> Result<(), Failure> {
    let mut sends = Vec::new();
    for state in [OutboxState::Sent, OutboxState::Unknown, OutboxState::Dead] {
        sends.extend(play.outbox(state).await?);
    }
    let (counted, told) = play.ambiguous();
    if counted != told.len() as u64 {
        return Err(play.failure(&format!("{counted} ambiguous sends are counted, but {} told", told.len())));
    }
    let told: HashSet<_> = told.into_iter().collect();
    verify_records(play, &sends, &told).await?;
    for (chat, expected) in play.scenario.replies() {
        let seen = play.bot.channel().texts_to(chat);
        verify_chat(play, &sends, &told, chat, &expected, &seen)?;
    }
    Ok(())
}

async fn verify_records(play: &Play, sends: &[OutboxRecord], told: &HashSet<String>) -> Result<(), Failure> {
    let done = play.inbox(InboxState::Done).await?.len();
    if done != play.scenario.messages {
        return Err(play.failure(&format!("{done} of {} messages are done", play.scenario.messages)));
    }
    for send in sends {
        let text = send.content.readable_text();
        let wrong = match send.state {
            OutboxState::Sent => text == REFUSED,
            OutboxState::Dead => text != REFUSED,
            OutboxState::Unknown => !play.policy.may_lose() || !is_told(play, send, told),
            OutboxState::InFlight | OutboxState::Waiting => true,
        };
        if wrong {
            return Err(play.failure(&format!("the send {} ({text:?}) is {:?}", send.key, send.state)));
        }
    }
    Ok(())
}

/// A process that dies right after it wrote what becomes of an ambiguous send cannot tell it any more.
fn is_told(play: &Play, send: &OutboxRecord, told: &HashSet<String>) -> bool {
    told.contains(send.key.as_str()) || play.may_die_at_a_decision()
}

fn verify_chat(
    play: &Play,
    sends: &[OutboxRecord],
    told: &HashSet<String>,
    chat: &str,
    expected: &[&str],
    seen: &[String],
) -> Result<(), Failure> {
    let fail = |what: String| Err(play.failure(&format!("{chat}: {what}; seen: {seen:?}")));
    if let Some(strange) = seen.iter().find(|text| !expected.contains(&text.as_str())) {
        return fail(format!("{strange:?} is said, which nothing asked for"));
    }
    for text in expected {
        let of_text = || sends.iter().filter(|send| send.content.readable_text() == *text);
        let unknown = of_text().any(|send| send.state == OutboxState::Unknown);
        let ambiguous = of_text().any(|send| is_told(play, send, told));
        match seen.iter().filter(|seen| seen == text).count() {
            1 => {}
            0 if unknown && play.policy.may_lose() => {}
            0 => return fail(format!("{text:?} is lost")),
            _ if ambiguous && play.policy.may_double() => {}
            times => return fail(format!("{text:?} is said {times} times")),
        }
    }
    let place = |text: &String| expected.iter().position(|expected| expected == text);
    let places: Vec<_> = seen.iter().map(place).collect();
    if !places.is_sorted() {
        return fail("the order is not kept".to_owned());
    }
    Ok(())
}

/// What is finished was removed.
pub(super) async fn verify_removal(play: &Play) -> Result<(), Failure> {
    let (done, sent) =
        (play.inbox(InboxState::Done).await?.len(), play.outbox(OutboxState::Sent).await?.len());
    if done + sent > 0 {
        return Err(play.failure(&format!("{done} messages and {sent} sends outlive their retention")));
    }
    Ok(())
}
