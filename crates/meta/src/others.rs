//! Posts that are not for this channel.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// How many ids are remembered. Posts about any more are left out without a warning.
const MAX: usize = 100;

/// How much of an id is remembered and shown, in characters.
const SHOWN: usize = 64;

/// The ids of others about which something was posted here. Each is warned of once: if it is the id that the bot was meant to
/// have, the bot never answers.
#[derive(Debug, Default)]
pub(crate) struct Others(Mutex<BTreeSet<String>>);

impl Others {
    /// A post is left out because it is about `id`, and not about `own`.
    pub(crate) fn left_out(&self, id: &str, own: &str) {
        let id: String = id.chars().take(SHOWN).collect();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX || !known.insert(id.clone()) {
            return tracing::debug!(of = %id, "a post about another id is left out");
        }
        tracing::warn!(
            of = %id,
            %own,
            "a post is about another id than this bot's, and is left out, as all that follow; if it is meant for this bot, make the \
             bot with that id"
        );
    }
}
