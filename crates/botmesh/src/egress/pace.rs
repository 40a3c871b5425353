use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::core::id::ChatId;
use crate::core::provider::Rate;

/// Chats that are remembered before those are looked for that say nothing any more.
const REMEMBERED: usize = 1000;

/// When a message may go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Now; it is counted.
    Free,
    /// Not before so long, because of what its chat was sent.
    ChatIn(Duration),
    /// Not before so long, because of what all chats were sent.
    AnyIn(Duration),
}

/// How fast the channel is called: what it declares, and what it asked for when it was called too often. All times are on
/// the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    all: Window,
    chats: HashMap<ChatId, Window>,
    /// With how many chats those are looked for that can be forgotten.
    crowded: usize,
}

/// The last messages of a chat, or of all.
#[derive(Debug, Default)]
struct Window {
    sent: VecDeque<Duration>,
    paused: Duration,
}

impl Window {
    /// How long until another message may go out.
    fn wait(&mut self, rate: Option<Rate>, now: Duration) -> Duration {
        let paused = self.paused.saturating_sub(now);
        let Some(Rate { messages, per }) = rate else {
            self.sent.clear();
            return paused;
        };
        while self.sent.front().is_some_and(|sent| *sent + per <= now) {
            self.sent.pop_front();
        }
        let messages = messages.max(1) as usize;
        let full = self.sent.len().checked_sub(messages).map(|earlier| self.sent[earlier]);
        full.map_or(paused, |sent| paused.max((sent + per).saturating_sub(now)))
    }

    fn is_over(&self, now: Duration) -> bool {
        self.sent.is_empty() && self.paused <= now
    }
}

impl Pace {
    /// Takes a place for a message to `chat`, if there is one now.
    pub(crate) fn take(
        &self,
        chat: &ChatId,
        rate: Option<Rate>,
        of_chat: Option<Rate>,
        now: Duration,
    ) -> Slot {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let State { all, chats, crowded } = &mut *state;
        if let Some(window) = chats.get_mut(chat) {
            let wait = window.wait(of_chat, now);
            if !wait.is_zero() {
                return Slot::ChatIn(wait);
            }
        }
        let wait = all.wait(rate, now);
        if !wait.is_zero() {
            return Slot::AnyIn(wait);
        }
        if rate.is_some() {
            all.sent.push_back(now);
        }
        if let Some(of_chat) = of_chat {
            if chats.len() >= (*crowded).max(REMEMBERED) {
                // Chats of one channel differ little in their rates.
                chats.retain(|_, window| {
                    window.wait(Some(of_chat), now);
                    !window.is_over(now)
                });
                *crowded = 2 * chats.len();
            }
            chats.entry(chat.clone()).or_default().sent.push_back(now);
        }
        Slot::Free
    }

    /// The channel asked for no message to this chat, or to any, for a while.
    pub(crate) fn pause(&self, chat: Option<&ChatId>, wait: Duration, now: Duration) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let window = match chat {
            Some(chat) => state.chats.entry(chat.clone()).or_default(),
            None => &mut state.all,
        };
        window.paused = window.paused.max(now.saturating_add(wait));
    }

    /// Whether nothing at all may go out now, as the channel asked.
    pub(crate) fn is_paused(&self, now: Duration) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).all.paused > now
    }
}
