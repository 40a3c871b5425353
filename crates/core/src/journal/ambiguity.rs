//! What becomes of a send whose answer was lost, after a crash as in a living process.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::provider::Resolve;

/// What becomes of a send whose outcome nobody can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnAmbiguous {
    /// It is marked unknown: never a duplicate, possibly lost.
    Skip,
    /// It is sent again: never lost, possibly a duplicate. Where the channel echoes what it delivered, only after the echo
    /// did not come.
    Resend,
    /// What the channel permits without a duplicate: sent again where the channel recognises the token, left until the
    /// echo comes where it echoes; else marked unknown, as with [`Skip`](Self::Skip).
    Auto,
}

/// What to do with a send whose answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ambiguity {
    /// Ask the channel what became of it.
    LookUp,
    /// Send it again: the channel drops the second one.
    Repeat,
    /// Wait this long for the channel's echo.
    AwaitEcho(Duration),
    /// Send it again, at the risk of a duplicate.
    Resend,
    /// Mark it unknown.
    GiveUp,
}

impl OnAmbiguous {
    /// What to do with a send that was journaled `age` ago on a channel that resolves lost answers like this.
    /// `in_vain` says that the channel was asked already, or its echo waited for.
    pub fn decide(self, resolve: Resolve, age: Duration, in_vain: bool) -> Ambiguity {
        match resolve {
            Resolve::Lookup if !in_vain => Ambiguity::LookUp,
            Resolve::Dedupe { window } if age < window => Ambiguity::Repeat,
            Resolve::Echo { wait } if !in_vain && self != Self::Skip => Ambiguity::AwaitEcho(wait),
            _ if self == Self::Resend => Ambiguity::Resend,
            _ => Ambiguity::GiveUp,
        }
    }
}
