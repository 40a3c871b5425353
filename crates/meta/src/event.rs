//! What a post of Meta's says, and how it comes to the bot.

use botmesh_core::id::{EventId, MessageId, SendKey};
use botmesh_core::inbound::Inbound;
use botmesh_core::notice::{Moved, Notice};
use botmesh_core::provider::{AdmitError, InboundSink, SendReceipt};
use botmesh_core::webhook::{WebhookError, parse};
use botmesh_webhook::admit_all;
use futures_util::future::{join, join_all};
use ring::digest::{SHA256, digest};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::receipts::Receipts;

/// How many sends are confirmed at the same time.
const TOGETHER: usize = 30;

/// One item of a post.
#[derive(Debug)]
pub(crate) enum Event {
    Inbound(Box<Inbound>),
    Moved(Moved),
    /// Meta has the message of this token.
    Sent {
        token: SendKey,
        message: MessageId,
    },
    Notice(Notice),
    Unreadable {
        event: EventId,
        raw: String,
        problem: String,
    },
}

impl Event {
    pub(crate) fn inbound(inbound: Inbound) -> Self {
        Self::Inbound(Box::new(inbound))
    }

    /// It has no id that could be trusted: the same text is the same event.
    pub(crate) fn unreadable(raw: &str, problem: impl Into<String>) -> Self {
        let hash = digest(&SHA256, raw.as_bytes());
        let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Self::Unreadable {
            event: format!("unreadable:{hex}").into(),
            raw: raw.to_owned(),
            problem: problem.into(),
        }
    }
}

/// A list whose elements are read one by one, so that a bad one does not lose the others.
pub(crate) type Items = Option<Vec<Box<RawValue>>>;

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    entry: Items,
}

/// The entries of a post.
///
/// # Errors
/// It is no post of Meta's.
pub(crate) fn entries(body: &[u8]) -> Result<Vec<Box<RawValue>>, WebhookError> {
    Ok(parse::<Body>(body)?.entry.unwrap_or_default())
}

/// Reads each item alone.
pub(crate) fn each<T: serde::de::DeserializeOwned>(
    items: Items,
    events: &mut Vec<Event>,
    mut read: impl FnMut(T, &mut Vec<Event>),
) {
    for raw in items.unwrap_or_default() {
        match serde_json::from_str(raw.get()) {
            Ok(item) => read(item, events),
            Err(error) => events.push(Event::unreadable(raw.get(), error.to_string())),
        }
    }
}

/// Reads each item alone; what it is about says `read`, or why it says nothing.
pub(crate) fn each_item(
    items: Items,
    events: &mut Vec<Event>,
    mut read: impl FnMut(&Value, &mut Vec<Event>) -> Result<(), String>,
) {
    for raw in items.unwrap_or_default() {
        let item = serde_json::from_str::<Value>(raw.get()).map_err(|error| error.to_string());
        if let Err(problem) = item.and_then(|item| read(&item, events)) {
            events.push(Event::unreadable(raw.get(), problem));
        }
    }
}

/// Hands over everything that a post says: the events and moves in their order, and beside the last events what became of
/// sends, so that neither waits for the other.
pub(crate) async fn deliver(
    events: Vec<Event>,
    sink: &dyn InboundSink,
    receipts: &Receipts,
) -> Result<(), AdmitError> {
    let (mut inbounds, mut sent, mut notices, mut bad) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for event in events {
        match event {
            Event::Inbound(inbound) => inbounds.push(*inbound),
            Event::Moved(moved) => {
                // What came before has its place under the first id.
                admit_all(sink, std::mem::take(&mut inbounds)).await?;
                sink.moved(moved).await?;
            }
            Event::Sent { token, message } if !receipts.is_confirmed(&message) => sent.push((token, message)),
            Event::Sent { .. } => {}
            Event::Notice(notice) => notices.push(notice),
            Event::Unreadable { event, raw, problem } => bad.push((event, raw, problem)),
        }
    }
    let (admitted, settled) = join(admit_all(sink, inbounds), async {
        for sent in sent.chunks(TOGETHER) {
            let calls = sent
                .iter()
                .map(|(token, message)| sink.confirm_sent(token, SendReceipt { message: message.clone() }));
            join_all(calls).await.into_iter().collect::<Result<(), _>>()?;
            sent.iter().for_each(|(_, message)| receipts.confirm(message));
        }
        for (event, raw, problem) in &bad {
            bury(sink, event, raw, problem).await?;
        }
        Ok(())
    })
    .await;
    admitted.and(settled)?;
    for notice in notices {
        let news = match &notice {
            Notice::Receipt(receipt) => receipts.advances(receipt),
            Notice::FromMe { message, .. } => !receipts.is_own(message),
            _ => true,
        };
        if news {
            sink.notice(notice);
        }
    }
    Ok(())
}

async fn bury(sink: &dyn InboundSink, event: &EventId, raw: &str, problem: &str) -> Result<(), AdmitError> {
    match sink.poison(event.clone(), raw.as_bytes(), problem).await {
        Ok(_) => Ok(()),
        Err(AdmitError::Invalid(why)) => {
            tracing::error!(%event, problem, why, "an item of a post cannot be read and is dropped");
            Ok(())
        }
        Err(error) => Err(error),
    }
}
