//! What WhatsApp alone has to choose from and to fill in.

use botmesh_core::content::{Button, Content, ContentBody};
use serde_json::{Map, Value, json};

use super::ID;
use super::send::{BUTTON_TITLE, ROW_TITLE, row};
use crate::text::clipped;

/// A form that the user fills in without leaving the chat: a WhatsApp Flow, which was made and published at Meta.
///
/// Its answers come as an [`Interaction`](botmesh_core::inbound::InboundBody::Interaction) with the id `flow`: they are in the
/// event's `extra["form"]`, with the token as `flow_token`, and its `reply_to` is the message that showed the form. Like every
/// content but a [`Template`](super::Template), a form reaches only users who wrote within 24 hours.
///
/// ```
/// use botmesh_core::content::Content;
/// use botmesh_meta::WhatsAppFlow;
/// use serde_json::json;
///
/// let visit = WhatsAppFlow::by_name("visit", "When do you want to come?", "Choose")
///     .with_token("visit:42")
///     .with_screen("DAYS")
///     .with_data(json!({ "days": ["Monday", "Friday"] }));
/// let content: Content = visit.into();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct WhatsAppFlow {
    text: String,
    parameters: Map<String, Value>,
    screen: Option<String>,
    data: Option<Value>,
}

impl WhatsAppFlow {
    /// The form with this id, the text above its button (1,024 characters at most), and what is written on the button: at most
    /// 20 characters of it are shown, and Meta takes no emoji there.
    pub fn by_id(id: impl AsRef<str>, text: impl Into<String>, button: impl AsRef<str>) -> Self {
        Self::new("flow_id", id.as_ref(), text.into(), button.as_ref())
    }

    /// The form with this name in the account of the number. The rest is as in [`by_id`](Self::by_id).
    pub fn by_name(name: impl AsRef<str>, text: impl Into<String>, button: impl AsRef<str>) -> Self {
        Self::new("flow_name", name.as_ref(), text.into(), button.as_ref())
    }

    fn new(key: &str, flow: &str, text: String, button: &str) -> Self {
        let mut parameters = Map::new();
        parameters.insert("flow_message_version".to_owned(), json!("3"));
        parameters.insert(key.to_owned(), json!(flow));
        parameters.insert("flow_cta".to_owned(), json!(clipped(button, BUTTON_TITLE)));
        Self { text, parameters, screen: None, data: None }
    }

    /// With a word of yours that comes back with the answers. It is no secret: whoever fills in the form has it. Without one,
    /// Meta's own word comes back.
    #[must_use]
    pub fn with_token(self, token: impl Into<String>) -> Self {
        self.with("flow_token", json!(token.into()))
    }

    /// With the screen that is shown first. Without one, it is `FIRST_SCREEN`, which few forms have.
    #[must_use]
    pub fn with_screen(mut self, screen: impl Into<String>) -> Self {
        self.screen = Some(screen.into());
        self
    }

    /// With what the first screen is to show: an object with something in it.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }

    /// As it is before it is published: for tests with people who have a role in the app.
    #[must_use]
    pub fn with_draft(self) -> Self {
        self.with("mode", json!("draft"))
    }

    /// The form asks its own endpoint what to show first. Then there is neither a screen nor data of yours.
    #[must_use]
    pub fn with_endpoint(self) -> Self {
        self.with("flow_action", json!("data_exchange"))
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        self.parameters.insert(key.to_owned(), value);
        self
    }
}

impl From<WhatsAppFlow> for Content {
    fn from(flow: WhatsAppFlow) -> Self {
        let WhatsAppFlow { text, mut parameters, screen, data } = flow;
        if screen.is_some() || data.is_some() {
            let mut first = json!({ "screen": screen.as_deref().unwrap_or("FIRST_SCREEN") });
            if let Some(data) = data {
                first["data"] = data;
            }
            parameters.insert("flow_action_payload".to_owned(), first);
        }
        interactive(text, "flow", &json!({ "name": "flow", "parameters": parameters }))
    }
}

/// Choices in groups. [`Content::with_buttons`] makes a list of one group by itself.
///
/// What is chosen comes as an [`Interaction`](botmesh_core::inbound::InboundBody::Interaction) with the id of the choice.
///
/// ```
/// use botmesh_core::content::{Button, Content};
/// use botmesh_meta::WhatsAppList;
///
/// let times = WhatsAppList::new("When?", "Choose")
///     .with_section("Morning", [Button::new("at:9", "9:00"), Button::new("at:10", "10:00")])
///     .with_section("Afternoon", [Button::new("at:15", "15:00")]);
/// let content: Content = times.into();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct WhatsAppList {
    text: String,
    button: String,
    sections: Vec<Value>,
}

impl WhatsAppList {
    /// The text above the list (4,096 characters at most), and what is written on the button that opens it, of which at most 20
    /// characters are shown.
    pub fn new(text: impl Into<String>, button: impl AsRef<str>) -> Self {
        Self {
            text: text.into(),
            button: clipped(button.as_ref(), BUTTON_TITLE).into_owned(),
            sections: Vec::new(),
        }
    }

    /// With a group of choices below a title, of which at most 24 characters are shown. All groups together have ten choices at
    /// most. A title of a choice that is longer than 24 characters is cut and shown in full below.
    #[must_use]
    pub fn with_section(mut self, title: &str, choices: impl IntoIterator<Item = Button>) -> Self {
        let rows: Vec<_> = choices.into_iter().map(|choice| row(&choice)).collect();
        self.sections.push(json!({ "title": clipped(title, ROW_TITLE), "rows": rows }));
        self
    }
}

impl From<WhatsAppList> for Content {
    fn from(list: WhatsAppList) -> Self {
        interactive(list.text, "list", &json!({ "button": list.button, "sections": list.sections }))
    }
}

fn interactive(text: String, kind: &str, action: &Value) -> Content {
    let interactive = json!({ "type": kind, "body": { "text": text }, "action": action });
    let payload = json!({ "type": "interactive", "interactive": interactive });
    ContentBody::Native { channel: ID.to_owned(), payload, text }.into()
}
