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

/// What is known of an id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    /// The first id of whoever got this one.
    pub(super) before: Option<Link>,
    /// The newest id of whoever had this one first.
    pub(super) now: Option<Link>,
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
}
