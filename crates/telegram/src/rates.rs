//! How many messages Telegram takes.

use std::time::Duration;

use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::ChatId;
use botmesh_core::provider::Rate;

use crate::address::Address;

#[derive(Clone, Copy)]
pub(crate) struct Rates {
    pub(crate) all: Option<Rate>,
    pub(crate) private: Option<Rate>,
    pub(crate) group: Option<Rate>,
}

impl Default for Rates {
    /// What Telegram documents: one message a second in a private chat, but short bursts are fine.
    fn default() -> Self {
        Self {
            all: Some(Rate::new(30, Duration::from_secs(1))),
            private: Some(Rate::new(5, Duration::from_secs(5))),
            group: Some(Rate::new(20, Duration::from_secs(60))),
        }
    }
}

impl Rates {
    pub(crate) const NONE: Self = Self { all: None, private: None, group: None };

    /// Groups and channels have negative ids, or names.
    pub(crate) fn of(&self, chat: &ChatId) -> Option<Rate> {
        let is_group =
            Address::parse(chat).is_ok_and(|address| address.chat.as_str().starts_with(['-', '@']));
        if is_group { self.group } else { self.private }
    }

    pub(crate) fn check(&self) -> Result<(), ChannelError> {
        let fields = [("rate", self.all), ("private_rate", self.private), ("group_rate", self.group)];
        for (field, rate) in fields {
            if let Some(Err(error)) = rate.map(|rate| rate.check(&format!("telegram.{field}"))) {
                return Err(ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, error.to_string()));
            }
        }
        Ok(())
    }
}
