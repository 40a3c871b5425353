//! What a process that runs bots asks of them.

use std::error::Error;

use async_trait::async_trait;

/// A bot, as a server that hosts it sees it. The runtime's `Bot` is one.
#[async_trait]
pub trait Hosted: Send + Sync + 'static {
    /// Runs until it ends by itself or the process is asked to end.
    ///
    /// # Errors
    /// It failed for good.
    async fn run(&self) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// How it is. Returns at once.
    fn health(&self) -> Health;
}

/// What the probes of an orchestrator and of a load balancer ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// It has not ended. If it has, only a new start helps.
    pub live: bool,
    /// It takes messages. Not before it runs, and not while it stops. A backend that is away does not change it: all
    /// replicas would stop being ready at once.
    pub ready: bool,
}

impl Health {
    /// Does not take messages now.
    pub const NOT_READY: Self = Self { live: true, ready: false };
    /// Takes messages.
    pub const READY: Self = Self { live: true, ready: true };
    /// Has ended.
    pub const ENDED: Self = Self { live: false, ready: false };
}
