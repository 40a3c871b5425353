//! From an update to the bot: one way for polls and posts.

use botmesh_core::id::EventId;
use botmesh_core::inbound::{Inbound, InboundBody};
use botmesh_core::notice::{Moved, Notice};
use botmesh_core::provider::{AdmitError, InboundSink};
use serde_json::json;

use crate::telegram::Telegram;
use crate::update::{OUTGOING, Update, parse_update};

impl Telegram {
    /// The update, as this bot takes it.
    pub(crate) fn read(&self, raw: &[u8]) -> Box<Update> {
        let mut update = Box::new(parse_update(raw));
        if let Some((from, to)) = update.migrated {
            self.note_migration(from, to);
        }
        if let (Ok(inbound), true, false) =
            (&mut update.content, update.automatic_forward, self.settings.reads_forwards)
        {
            let detail = json!({ "text": inbound.readable_text(), "message": inbound.message_id() });
            inbound.body = InboundBody::System { event: "automatic_forward".to_owned(), detail };
        }
        update
    }

    /// Tells that a group has another id, if the update says so. What comes from the new one may be handed over after that.
    pub(crate) async fn tell_moved(&self, sink: &dyn InboundSink, update: &Update) -> Result<(), AdmitError> {
        let Some((from, to)) = update.migrated else { return Ok(()) };
        let at = update.content.as_ref().ok().and_then(|inbound| inbound.written_at);
        sink.moved(Moved { from: from.into(), to: to.into(), at }).await
    }

    /// Hands an update over. It is in the bot's hands when this returns `Ok`, if only as a dead letter.
    pub(crate) async fn hand_over(
        &self,
        sink: &dyn InboundSink,
        update: Box<Update>,
        raw: &[u8],
    ) -> Result<(), AdmitError> {
        if let Some(notice) = update.content.as_ref().ok().and_then(from_me) {
            sink.notice(notice);
            return Ok(());
        }
        let Update { event, content, callback_query, .. } = *update;
        let admitting = match content {
            Ok(inbound) => sink.admit(inbound),
            Err(problem) => return bury(sink, event, raw, &problem).await,
        };
        match admitting.await {
            Ok(admitted) => {
                tracing::trace!(%event, record = %admitted.record, duplicate = admitted.duplicate, "admitted");
                // Also where it was journaled before: that time nobody may have got so far.
                if let (Some(query), true) = (callback_query, self.settings.answers_presses) {
                    self.state.presses.push(&query);
                }
                Ok(())
            }
            Err(AdmitError::Invalid(problem)) => bury(sink, event, raw, &problem).await,
            Err(error) => Err(error),
        }
    }
}

/// The owner of a business account wrote to a customer, or a bot in their name: nothing to answer.
fn from_me(inbound: &Inbound) -> Option<Notice> {
    match &inbound.body {
        InboundBody::System { event, detail } if event == OUTGOING => {
            let text =
                detail["text"].as_str().or_else(|| detail["caption"].as_str()).unwrap_or("").to_owned();
            Some(Notice::FromMe { chat: inbound.chat.clone(), message: inbound.message_id(), text })
        }
        _ => None,
    }
}

/// Makes an update that nobody can handle a dead letter, so that it holds up nothing.
async fn bury(sink: &dyn InboundSink, event: EventId, raw: &[u8], problem: &str) -> Result<(), AdmitError> {
    match sink.poison(event.clone(), raw, problem).await {
        Ok(_) => Ok(()),
        Err(AdmitError::Invalid(nobody)) => {
            tracing::error!(%event, problem, nobody, "an update is dropped: it cannot be handled, and nobody keeps it");
            Ok(())
        }
        Err(error) => Err(error),
    }
}
