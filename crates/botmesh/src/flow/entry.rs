use serde_json::{Value, json};

use crate::core::id::ConversationKey;
use crate::core::inbound::{Inbound, InboundBody, Participant};

/// The system events that the bot makes itself. No channel may.
pub(crate) const OWN_EVENTS: &str = "botmesh:";
const ENTER: &str = "botmesh:enter";

/// A flow or a conversation that is to begin.
pub(crate) struct Entry {
    pub(crate) flow: String,
    pub(crate) state: Option<Value>,
}

impl Entry {
    /// The event that enters the flow.
    pub(crate) fn into_inbound(self, key: ConversationKey, id: &str) -> Inbound {
        let detail = json!({ "flow": self.flow, "state": self.state });
        own_event(key, ENTER, id, detail)
    }

    /// The flow that an event enters.
    pub(crate) fn of(inbound: &Inbound) -> Option<Self> {
        let InboundBody::System { event, detail } = &inbound.body else { return None };
        let flow = detail.get("flow").filter(|_| event == ENTER)?.as_str()?.to_owned();
        Some(Self { flow, state: detail.get("state").filter(|state| !state.is_null()).cloned() })
    }
}

/// An event of the bot itself.
pub(crate) fn own_event(key: ConversationKey, event: &str, id: &str, detail: Value) -> Inbound {
    let group = key.participant.is_some();
    let sender = key.participant.unwrap_or_else(|| key.chat.as_str().into());
    let body = InboundBody::System { event: event.to_owned(), detail };
    let inbound = Inbound::private(format!("{event}/{id}"), key.chat, body);
    Inbound { group, sender: Some(Participant::new(sender)), ..inbound }
}
