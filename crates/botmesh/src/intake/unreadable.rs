//! Events that the channel could not read.

use std::sync::Arc;

use super::Intake;
use crate::core::error::Cas;
use crate::core::id::EventId;
use crate::core::inbound::{Inbound, InboundBody};
use crate::core::journal::{Change, InboxRecord};
use crate::core::provider::{AdmitError, Admitted};

/// The chat and the kind of such an event: what it says of itself cannot be trusted.
const UNREADABLE: &str = "botmesh:unreadable";

/// How much of the event is kept, in bytes.
const KEPT: usize = 64 << 10;

impl Intake {
    /// Keeps an unreadable event as a dead letter; see [`InboundSink::poison`](crate::core::provider::InboundSink::poison).
    /// Without an inbox it is only told.
    pub(crate) async fn bury(
        &self,
        event: EventId,
        raw: &[u8],
        problem: &str,
    ) -> Result<Admitted, AdmitError> {
        let raw = String::from_utf8_lossy(&raw[..raw.len().min(KEPT)]).into_owned();
        let body = InboundBody::System { event: UNREADABLE.to_owned(), detail: raw.into() };
        let inbound = Arc::new(Inbound { sender: None, ..Inbound::private(event, UNREADABLE, body) });
        super::check(&inbound)?;
        let now = self.world.now();
        let order = self.world.journal.as_ref().map_or(0, |open| open.journal.next_order(now));
        let record = InboxRecord::unreadable(inbound, order, problem, now);
        let id = record.id.clone();
        if let Some(open) = &self.world.journal {
            let outcome = open.journal.commit_one(Change::insert(&record)).await.inspect_err(|error| {
                self.world.trouble(super::JOURNALING, error);
            });
            if outcome? == Cas::Lost {
                return Ok(Admitted { record: id, duplicate: true });
            }
        }
        self.world.tell_dead_message(record);
        Ok(Admitted { record: id, duplicate: false })
    }
}
