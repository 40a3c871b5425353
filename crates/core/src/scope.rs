//! The namespace of one bot in a shared backend.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::push_escaped;

/// Which records are a bot's own. Bots with different scopes may share a backend: each claims, replays and
/// deduplicates only what is in its scope, and the same idempotency key in two scopes is two sends.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scope {
    /// The customer of a multi-tenant service. Default: `"default"`.
    pub tenant: String,
    /// For example `production` or `staging`. Default: `"default"`.
    pub environment: String,
    /// The bot. Default: `"bot"`.
    pub bot: String,
    /// The connection (a phone number, a token, an account) when one bot has several. Default: `"default"`.
    pub connection: String,
}

impl Default for Scope {
    fn default() -> Self {
        let default = || "default".to_owned();
        Self { tenant: default(), environment: default(), bot: "bot".to_owned(), connection: default() }
    }
}

impl Scope {
    /// A scope of its own for the bot of this name.
    pub fn bot(name: impl Into<String>) -> Self {
        Self { bot: name.into(), ..Self::default() }
    }

    /// The derived id: the four names joined by `/`, each with `%` and `/` percent-encoded, so that no two scopes share
    /// an id.
    pub fn id(&self) -> String {
        let mut id = String::from("s");
        for part in [&self.tenant, &self.environment, &self.bot, &self.connection] {
            push_escaped(&mut id, part);
        }
        id
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id())
    }
}
