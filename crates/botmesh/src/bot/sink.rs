use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;

use crate::core::id::{EventId, SendKey};
use crate::core::inbound::{Inbound, InboundBody};
use crate::core::notice::{Moved, Notice};
use crate::core::provider::{AdmitError, Admitted, InboundSink, SendReceipt};
use crate::egress::Egress;
use crate::events::BotEvent;
use crate::flow::OWN_EVENTS;
use crate::intake::{Intake, is_possible};
use crate::world::World;

/// Where the channel hands over what it received: events to the intake, echoes to the egress.
pub(super) struct Sink {
    pub(super) world: Arc<World>,
    pub(super) intake: Arc<Intake>,
    pub(super) egress: Arc<Egress>,
}

impl Sink {
    async fn take(&self, inbound: Arc<Inbound>) -> Result<Admitted, AdmitError> {
        if let InboundBody::System { event, .. } = &inbound.body
            && event.starts_with(OWN_EVENTS)
        {
            return Err(AdmitError::Invalid(format!("`{event}` is an event that only the bot itself makes")));
        }
        self.world.lead.check().map_err(|_| AdmitError::NotLeader)?;
        self.intake.admit(inbound).await
    }
}

#[async_trait]
impl InboundSink for Sink {
    fn admit<'life0, 'async_trait>(
        &'life0 self,
        inbound: Inbound,
    ) -> Pin<Box<dyn Future<Output = Result<Admitted, AdmitError>> + Send + 'async_trait>>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        // An event is large: from here on it is moved no more.
        let inbound = Arc::new(inbound);
        Box::pin(self.take(inbound))
    }

    async fn poison(&self, event: EventId, raw: &[u8], problem: &str) -> Result<Admitted, AdmitError> {
        self.world.lead.check().map_err(|_| AdmitError::NotLeader)?;
        self.intake.bury(event, raw, problem).await
    }

    async fn confirm_sent(&self, token: &SendKey, receipt: SendReceipt) -> Result<(), AdmitError> {
        self.world.lead.check().map_err(|_| AdmitError::NotLeader)?;
        Ok(self.egress.confirm(token, &receipt).await?)
    }

    async fn moved(&self, moved: Moved) -> Result<(), AdmitError> {
        self.world.lead.check().map_err(|_| AdmitError::NotLeader)?;
        if let Some(id) = [&moved.from, &moved.to].into_iter().find(|id| !is_possible(id)) {
            tracing::error!(%id, "a move from or to an impossible id is left out");
            return Ok(());
        }
        Ok(self.world.note_moved(&moved).await?)
    }

    fn notice(&self, notice: Notice) {
        self.world.events.emit(BotEvent::Notice(notice));
    }
}
