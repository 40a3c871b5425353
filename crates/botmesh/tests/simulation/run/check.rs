//! What must hold at the end of a run.

use botmesh::core::journal::InboxState;

use super::{Run, USERS};

impl Run {
    pub(super) async fn check(&self) -> Result<(), String> {
        self.nothing_is_left().await?;
        for user in USERS {
            let texts = self.texts_to(user);
            self.each_message_came_to_one_thing(user, &texts)?;
            each_conversation_heard_what_it_said(&texts)?;
            each_question_follows_the_one_before(&texts)?;
        }
        Ok(())
    }

    /// Every message is done, and none was given up.
    async fn nothing_is_left(&self) -> Result<(), String> {
        let states = [InboxState::Queued, InboxState::Working, InboxState::Waiting, InboxState::Dead];
        let left = self.bot.does(move |bot| async move {
            let journals = bot.durability().ok_or("the bot does not run")?;
            for state in states {
                let page = journals.inbox().list(state, None, 10).await.map_err(|error| error.to_string())?;
                if let Some(stored) = page.records.first() {
                    return Err(format!("a message is left {state:?}: {:?}", stored.record));
                }
            }
            Ok::<_, String>(())
        });
        left.await.unwrap_or(Err("the bot crashed".to_owned()))
    }

    /// A message leads to one thing that is said. It may lead to nothing if its user did not wait for the bot before: then
    /// it may only have woken a step; or if its conversation was interrupted before it came to anything. What was in the
    /// memory of a replica that is gone may be handled again.
    fn each_message_came_to_one_thing(&self, user: &str, texts: &[String]) -> Result<(), String> {
        let of_user =
            self.said.iter().filter(|(text, _)| text.trim_end_matches(char::is_numeric).ends_with(user));
        // Or begun again, because it came from a newer version to an older one.
        let interrupts = |text: &&String| text.starts_with("interrupted") || text.ends_with("|nothing");
        let mut interruptions = texts.iter().filter(interrupts).count();
        for (said, how) in of_user {
            let suffix = format!("|{said}");
            let things: Vec<_> = texts.iter().filter(|text| text.ends_with(&suffix)).collect();
            let in_memory =
                things.iter().any(|text| text.starts_with("talk") || text.starts_with("interrupted"));
            let allowed = match (how.patient, in_memory) {
                (true, false) => 1..=1,
                (false, false) => 0..=1,
                (_, true) => 1..=2,
            };
            if things.is_empty() && how.patient && interruptions > 0 {
                interruptions -= 1;
            } else if !allowed.contains(&things.len()) {
                return Err(format!(
                    "`{said}` (patient: {}) led to {things:?}; expected {allowed:?}",
                    how.patient
                ));
            }
        }
        Ok(())
    }
}

/// A question of what is in the store is asked where the one before it is the last thing that was asked: nobody goes on with what
/// is over, or with what another replica went on with. What is only in memory may begin late, after its replica crashed.
fn each_question_follows_the_one_before(texts: &[String]) -> Result<(), String> {
    let mut open = String::new();
    for text in texts {
        let said = text.split('|').next().unwrap_or_default();
        let (name, rest) = said.split_once(' ').unwrap_or((said, ""));
        let (ticket, question) = rest.split_once(", ").unwrap_or(("", rest));
        let before = match (name, question) {
            ("second?", _) => Some("first?".to_owned()),
            ("third?", _) => Some("second?".to_owned()),
            ("not", _) => Some("third?".to_owned()),
            ("desk", "2?") => Some(format!("desk {ticket}, 1?")),
            ("desk", "3?") => Some(format!("desk {ticket}, 2?")),
            ("order" | "quick", _) => Some("third?".to_owned()),
            _ => None,
        };
        if let Some(before) = before.filter(|before| *before != open) {
            return Err(format!("`{text}` comes where `{open}` is open, and not `{before}`"));
        }
        // A replica may have said that it is interrupted and died before that was written down: then it goes on where it was.
        let goes_on = name == "not" || name == "interrupted";
        if !goes_on {
            open = said.to_owned();
        }
    }
    Ok(())
}

/// What a conversation says in the end is what led to its questions, each once and in this order.
fn each_conversation_heard_what_it_said(texts: &[String]) -> Result<(), String> {
    for (at, text) in texts.iter().enumerate() {
        let Some((name, rest)) = text.split_once(" done: ") else { continue };
        let heard: Vec<_> = rest.split('|').next().unwrap_or_default().split(' ').collect();
        let questions: Vec<_> =
            texts[..at].iter().filter_map(|text| text.split_once('|')).map(|(_, after)| after).collect();
        let mut from = 0;
        for word in &heard[..heard.len().saturating_sub(1)] {
            match questions[from..].iter().position(|after| after == word) {
                Some(found) => from += found + 1,
                None => {
                    return Err(format!(
                        "{name} heard {heard:?}, but asked nothing after `{word}` in its order"
                    ));
                }
            }
        }
    }
    Ok(())
}
