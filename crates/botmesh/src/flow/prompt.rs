use std::sync::Arc;

use crate::core::content::Content;
use crate::core::inbound::{Inbound, InboundBody, InboundMedia};
use crate::dispatch::Ctx;

/// What a step says: fixed content, or a function of the flow's state.
pub trait Prompt<S, Kind>: Send + Sync + 'static {
    /// The content for this state.
    fn content(&self, state: &S) -> Content;
}

/// Marks fixed prompts.
#[derive(Debug)]
pub enum Fixed {}

/// Marks prompts that depend on the state.
#[derive(Debug)]
pub struct Computed<C>(std::marker::PhantomData<C>);

impl<S> Prompt<S, Fixed> for &'static str {
    fn content(&self, _: &S) -> Content {
        Content::text(*self)
    }
}

impl<S> Prompt<S, Fixed> for String {
    fn content(&self, _: &S) -> Content {
        Content::text(self.as_str())
    }
}

impl<S> Prompt<S, Fixed> for Content {
    fn content(&self, _: &S) -> Content {
        self.clone()
    }
}

impl<S, F, C> Prompt<S, Computed<C>> for F
where
    F: Fn(&S) -> C + Send + Sync + 'static,
    C: Into<Content>,
{
    fn content(&self, state: &S) -> Content {
        self(state).into()
    }
}

/// What the user answered to a question.
#[derive(Clone, Debug)]
pub struct Answer {
    text: String,
    inbound: Arc<Inbound>,
}

impl Answer {
    /// The message as an answer.
    pub(super) fn of(ctx: &Ctx) -> Self {
        Self { text: ctx.text().to_owned(), inbound: ctx.shared_inbound() }
    }

    /// An answer that was given before.
    pub(super) fn recorded(text: String, inbound: Inbound) -> Self {
        Self { text, inbound: Arc::new(inbound) }
    }

    /// The text without spaces around it: of the message, its caption or the pressed button.
    pub fn text(&self) -> &str {
        self.text.trim()
    }

    /// The id of the pressed button.
    pub fn button(&self) -> Option<&str> {
        match &self.inbound.body {
            InboundBody::Interaction { id, .. } => Some(id),
            _ => None,
        }
    }

    /// Whether the text is one of these; case, accents and spaces do not matter.
    pub fn is(&self, texts: &[&str]) -> bool {
        let folded = crate::dispatch::fold(&self.text);
        texts.iter().any(|text| crate::dispatch::fold(text) == folded)
    }

    /// The media of a media message.
    pub fn media(&self) -> Option<&InboundMedia> {
        self.inbound.body.media()
    }

    /// The event as it arrived.
    pub fn inbound(&self) -> &Inbound {
        &self.inbound
    }
}

/// An answer was refused: this is what the user is told, who then answers again. Made from a text or any content:
/// `Err("Please type a name.".into())`.
#[derive(Clone, Debug, PartialEq)]
pub struct AskAgain(pub(super) Box<Content>);

impl<C: Into<Content>> From<C> for AskAgain {
    fn from(content: C) -> Self {
        Self(Box::new(content.into()))
    }
}
