use botmesh_core::content::{Content, ContentBody};
use serde_json::{Value, json};

use super::ID;

/// A message template that Meta has approved: the only thing that may be sent to a user who has not written for 24 hours.
///
/// ```
/// use botmesh_core::content::Content;
/// use botmesh_meta::Template;
///
/// let ready = Template::new("order_ready", "es").with_body(["Ana", "42"]).with_button_payload(0, "order:42");
/// let content: Content = ready.into();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    name: String,
    language: String,
    components: Vec<Value>,
    text: String,
}

impl Template {
    /// A template by its name and the code of its language, such as `es` or `pt_BR`.
    pub fn new(name: impl Into<String>, language: impl Into<String>) -> Self {
        let name = name.into();
        Self { text: format!("[{name}]"), name, language: language.into(), components: Vec::new() }
    }

    /// With the texts for the placeholders of its body, in their order. Line breaks, tabs and runs of spaces, which WhatsApp
    /// refuses there, become one space each.
    #[must_use]
    pub fn with_body<T: AsRef<str>>(mut self, texts: impl IntoIterator<Item = T>) -> Self {
        let texts: Vec<_> = texts.into_iter().map(|text| on_one_line(text.as_ref())).collect();
        self.text = format!("{} {}", self.text, texts.join(" ")).trim_end().to_owned();
        let parameters: Vec<_> = texts.iter().map(|text| json!({ "type": "text", "text": text })).collect();
        self.with_component(json!({ "type": "body", "parameters": parameters }))
    }

    /// With what comes back as the id of the [`Interaction`](botmesh_core::inbound::InboundBody::Interaction) when the quick
    /// reply of this index, from 0, is pressed.
    #[must_use]
    pub fn with_button_payload(self, index: u8, payload: impl Into<String>) -> Self {
        let parameters = json!([{ "type": "payload", "payload": payload.into() }]);
        let index = index.to_string();
        self.with_component(json!({
            "type": "button", "sub_type": "quick_reply", "index": index, "parameters": parameters,
        }))
    }

    /// With a component in Graph's own form: a header with media, a button with a URL.
    #[must_use]
    pub fn with_component(mut self, component: Value) -> Self {
        self.components.push(component);
        self
    }
}

fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl From<Template> for Content {
    fn from(template: Template) -> Self {
        let Template { name, language, components, text } = template;
        let language = json!({ "policy": "deterministic", "code": language });
        let template = json!({ "name": name, "language": language, "components": components });
        let payload = json!({ "type": "template", "template": template });
        ContentBody::Native { channel: ID.to_owned(), payload, text }.into()
    }
}
