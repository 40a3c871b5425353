use botmesh_core::Bytes;
use botmesh_core::content::{Button, Content};
use botmesh_core::id::{ChatId, ConversationKey, MessageId, ParticipantId};
use botmesh_core::inbound::{Inbound, InboundBody, InboundMedia, Participant};
use std::sync::Arc;

use super::Stage;
use super::expect::Expected;
use super::step::Step;
use crate::{SendOutcome, Sent};

/// A user of a [`TestBot`](super::TestBot), in one chat. What users say reaches the bot in the order of the calls, and
/// again if it dies before it has taken it over.
#[derive(Clone)]
pub struct TestUser {
    stage: Arc<Stage>,
    name: String,
    group: Option<String>,
    /// The replica that gets what the user says.
    replica: Option<usize>,
}

impl TestUser {
    pub(super) fn new(stage: Arc<Stage>, name: String) -> Self {
        Self { stage, name, group: None, replica: None }
    }

    /// The same user in a group.
    #[must_use]
    pub fn in_group(&self, group: impl Into<String>) -> Self {
        Self { group: Some(group.into()), ..self.clone() }
    }

    /// The same user, whose messages a load balancer gives to the replica of this number, counted from 1. If that one does
    /// not run, or dies or stands still before it has taken a message over, the message goes to the first one that runs, or
    /// waits until one does.
    ///
    /// # Panics
    /// If there is no such replica.
    #[must_use]
    #[track_caller]
    pub fn through(&self, replica: usize) -> Self {
        let replicas = self.stage.replicas();
        assert!(
            (1..=replicas).contains(&replica),
            "there is no replica {replica}; there are 1 to {replicas}"
        );
        Self { replica: Some(replica), ..self.clone() }
    }

    pub(super) fn key(&self) -> ConversationKey {
        match &self.group {
            Some(group) => ConversationKey::in_group(group.as_str(), self.name.as_str()),
            None => ConversationKey::private(self.name.as_str()),
        }
    }

    /// The id of the chat.
    pub fn chat(&self) -> ChatId {
        ChatId::from(self.group.as_deref().unwrap_or(&self.name))
    }

    /// The user writes `text`, and the bot does what it can do without waiting for time to pass.
    pub fn says(&self, text: impl Into<String>) -> Step<'_> {
        self.sends(InboundBody::Text { text: text.into() })
    }

    /// The user presses a button of the last message in the chat that has one of this id, or else of this title.
    ///
    /// # Panics
    /// The step panics if no message has such a button.
    pub fn presses(&self, button: impl Into<String>) -> Step<'_> {
        let button = button.into();
        Step::new(async move {
            let (Button { id, title }, message) = self.find_button(&button)?;
            self.send(InboundBody::Interaction { id, title }, Some(message)).await
        })
    }

    /// The user sends a picture; handlers get these bytes from `Ctx::load_media`.
    pub fn sends_image(&self, bytes: impl Into<Bytes>) -> Step<'_> {
        let media = self.upload(bytes, "image/jpeg");
        self.sends(InboundBody::Image(media))
    }

    /// The user sends a file of this name; handlers get these bytes from `Ctx::load_media`.
    pub fn sends_document(&self, name: impl Into<String>, bytes: impl Into<Bytes>) -> Step<'_> {
        let media = self.upload(bytes, "application/octet-stream");
        self.sends(InboundBody::Document(InboundMedia { file_name: Some(name.into()), ..media }))
    }

    /// The user sends anything else.
    pub fn sends(&self, body: InboundBody) -> Step<'_> {
        Step::new(self.send(body, None))
    }

    /// A reference to media that the user uploads, for [`sends`](Self::sends).
    pub fn upload(&self, bytes: impl Into<Bytes>, mime: impl Into<String>) -> InboundMedia {
        let media = self.stage.mock.add_media(self.stage.next_event().as_str(), bytes);
        InboundMedia { mime: Some(mime.into()), ..InboundMedia::new(media) }
    }

    async fn send(&self, body: InboundBody, reply_to: Option<MessageId>) -> Result<(), String> {
        let event = self.stage.next_event();
        let inbound = Inbound { reply_to, ..Inbound::private(event, self.chat(), body) };
        let sender = Some(Participant::new(ParticipantId::from(self.name.as_str())));
        self.stage.deliver(Inbound { sender, group: self.group.is_some(), ..inbound }, self.replica);
        self.stage.settle().await
    }

    /// The bot's next message in this chat is `expected`. If there is none yet, virtual time passes, up to a minute.
    /// Returns the message.
    ///
    /// # Panics
    /// The step panics if the next message is another one, or if none comes.
    pub fn expect_reply(&self, expected: impl Expected + 'static) -> Step<'_, Content> {
        Step::new(async move {
            let wanted = expected.describe();
            let Some(reply) = self.stage.next_reply(&self.chat()).await? else {
                return Err(self.failure(&format!("expected {wanted}, but the bot says nothing")));
            };
            match expected.is_met_by(reply.text()) {
                true => Ok(reply.content),
                false => {
                    Err(self.failure(&format!("expected {wanted}, but the bot says {:?}", reply.text())))
                }
            }
        })
    }

    /// The bot has nothing more to say in this chat before time passes or somebody says something.
    ///
    /// # Panics
    /// The step panics if there is a message that was not expected yet.
    pub fn expect_silence(&self) -> Step<'_> {
        Step::new(async move {
            self.stage.settle().await?;
            match self.stage.take_reply(&self.chat()) {
                None => Ok(()),
                Some(reply) => {
                    Err(self.failure(&format!("expected silence, but the bot says {:?}", reply.text())))
                }
            }
        })
    }

    fn failure(&self, what: &str) -> String {
        self.stage.failure(&format!("{}: {what}", self.chat()))
    }

    /// The button that has this id or title, and the message it is on.
    fn find_button(&self, wanted: &str) -> Result<(Button, MessageId), String> {
        let (chat, delivered) = (self.chat(), self.stage.mock().delivered());
        let in_chat = || delivered.iter().rev().filter(|sent| sent.chat == chat);
        let by_id = |button: &&Button| button.id == wanted;
        let by_title = |button: &&Button| button.title == wanted;
        let on = |sent: &Sent, is_it: &dyn Fn(&&Button) -> bool| {
            Some((sent.content.buttons.iter().find(is_it)?.clone(), message_id(sent)?))
        };
        let found = in_chat().find_map(|sent| on(sent, &by_id).or_else(|| on(sent, &by_title)));
        found.ok_or_else(|| {
            let all = in_chat().flat_map(|sent| &sent.content.buttons);
            let ids: Vec<_> = all.map(|button| format!("{:?} ({})", button.id, button.title)).collect();
            let shown = if ids.is_empty() { "no button".to_owned() } else { ids.join(", ") };
            self.failure(&format!("there is no button {wanted:?}; the chat shows {shown}"))
        })
    }
}

fn message_id(sent: &Sent) -> Option<MessageId> {
    match &sent.outcome {
        SendOutcome::Delivered(receipt) | SendOutcome::AnswerLost(receipt) => Some(receipt.message.clone()),
        _ => None,
    }
}

impl std::fmt::Debug for TestUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestUser")
            .field("name", &self.name)
            .field("group", &self.group)
            .field("replica", &self.replica)
            .finish_non_exhaustive()
    }
}
