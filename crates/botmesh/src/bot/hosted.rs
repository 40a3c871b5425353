use async_trait::async_trait;

use super::Bot;
use crate::Error;
use crate::core::host::{Health, Hosted};
use crate::core::provider::ConnectionState;

impl Bot {
    /// How the bot is, for the probes of an orchestrator. It is ready when it runs, is not stopping, and its channel is open;
    /// with a channel that one replica uses alone, the others are ready as well.
    pub fn health(&self) -> Health {
        if self.shared.ended.is_cancelled() {
            return Health::ENDED;
        }
        let Some(running) = self.shared.running.get() else { return Health::NOT_READY };
        let world = &running.world;
        let open = || *world.provider.connection().borrow() == ConnectionState::Open;
        let ready = !world.stopping.is_cancelled() && (world.lead.is_exclusive() || open());
        if ready { Health::READY } else { Health::NOT_READY }
    }
}

#[async_trait]
impl Hosted for Bot {
    async fn run(&self) -> Result<(), Error> {
        Bot::run(self).await
    }

    fn health(&self) -> Health {
        Bot::health(self)
    }
}
