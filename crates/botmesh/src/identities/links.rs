use serde::{Deserialize, Serialize};

use crate::core::id::ChatId;
use crate::core::time::Timestamp;

/// One move, seen from one of its ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Link {
    /// The other end.
    pub(super) id: ChatId,
    /// When it was.
    pub(super) at: Timestamp,
}

/// Who has an id that somebody else may get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Holder {
    /// The user, by an id of their own.
    pub(super) id: ChatId,
    /// When it was theirs.
    pub(super) at: Timestamp,
    /// When they had another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) left: Option<Timestamp>,
}

/// What is known of an id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    /// The first id of whoever got this one.
    pub(super) before: Option<Link>,
    /// The newest id of whoever had this one first.
    pub(super) now: Option<Link>,
    /// Who has it, if it is an alias.
    pub(super) holder: Option<Holder>,
}

impl Link {
    /// Whether it is to be written in place of what is stored.
    pub(super) fn replaces(&self, stored: &Self) -> bool {
        self.at > stored.at && self.id != stored.id
    }
}

impl Links {
    /// Who came to the id before `until`: whoever got it later is somebody else than who left it then. So the way back leads
    /// ever further into the past, and not round in circles.
    pub(super) fn owner_until(&self, until: Option<Timestamp>) -> Option<&Link> {
        self.before.as_ref().filter(|before| until.is_none_or(|until| before.at < until))
    }

    /// Who had the alias last of those who had it `until` then, unless somebody got it later of whom no id of their own is known.
    pub(super) fn holder_until(&self, until: Option<Timestamp>) -> Option<&Holder> {
        let before = self.owner_until(until);
        self.holder.as_ref().filter(|holder| {
            until.is_none_or(|until| holder.at <= until) && before.is_none_or(|before| holder.at >= before.at)
        })
    }
}
