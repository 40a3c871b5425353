//! A file in, a file out: a bot whose every word can be checked from outside.

mod escape;
mod input;
mod output;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use async_trait::async_trait;
use botmesh_core::CancellationToken;
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::{ChatId, SendKey};
use botmesh_core::inbound::Inbound;
use botmesh_core::provider::{
    Capabilities, ConnectionState, InboundSink, Provider, Resolution, Resolve, SendReceipt, SendRequest,
};
use tokio::sync::{mpsc, watch};

use self::input::{Input, Message};
use self::output::Output;
use self::writer::Writer;
use crate::error::TranscriptError;
use crate::intake::{AHEAD, Feed, Intake, Item, rejected};
use crate::render;

/// Feeds a bot the messages of one file and writes what it answers to another.
///
/// **In.** One message a line: the chat, a TAB, the text. The number of the line (from 1) is the event's id, so that
/// feeding the file again is a redelivery: a bot with a journal answers each line once, however often it is started.
/// The text is taken as it is, further TABs and NUL bytes included; there are no escapes. A `\r` before the line end is
/// dropped, an empty line is skipped (and counted), and the last line may end with the file.
///
/// The whole file is checked in [`Transcript::open`] and again when the bot starts to read it. A line without TAB,
/// without a chat or with a chat longer than 512 bytes, a line that is longer than 1 MiB or not UTF-8 is an error that
/// names it, and nothing of the file is then handed to the bot.
///
/// **Out.** Each send is one line, `key<TAB>chat<TAB>text`, written in one call and on disk (`fdatasync`) before the send
/// succeeds. TAB, line feed, carriage return, NUL and backslash are written as `\t`, `\n`, `\r`, `\0` and `\\`. The key
/// is the send's token, or `-` without one (a token that is really `-` is written as `\-`). Buttons are lines `1) Title`
/// at the end of the text; an inbound text that says `1` stays a text. The message id is the line's byte offset.
///
/// Several processes may append to the same file at the same time: each write is made under the file's lock (`flock`).
/// A last line that was torn by a crash is cut off, under the lock, as soon as anybody opens or writes the file. A write
/// that fails half way is taken back. A send whose answer was lost is looked up in the file ([`Resolve::Lookup`]).
pub struct Transcript {
    input: Arc<Input>,
    output: Writer,
    intake: Intake<Message>,
}

impl Transcript {
    /// Checks every line of `from`, and opens `to` (created if it does not exist) for appending.
    ///
    /// # Errors
    /// A file that cannot be used, or a bad line; see the type's documentation.
    pub fn open(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Self, TranscriptError> {
        let input = Input::new(from.as_ref());
        let messages = input.check()?;
        input.must_differ_from(to.as_ref())?;
        let output = Output::open(to.as_ref())?;
        tracing::info!(from = %from.as_ref().display(), to = %to.as_ref().display(), messages, "transcript opened");
        Ok(Self { input: Arc::new(input), output: Writer::start(output)?, intake: Intake::new() })
    }
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transcript").field("from", &self.input.path()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Provider for Transcript {
    fn id(&self) -> &str {
        "transcript"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::default();
        capabilities.resolve = Resolve::Lookup;
        capabilities
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.intake.connection()
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        let mut claim = self.intake.claim()?;
        if !claim.begun() {
            claim.begin(read_on_thread(&self.input)?);
        }
        let mut admitted = 0u64;
        let ended = claim
            .run(&sink, &stop, |message: Message| {
                admitted += 1;
                Some(Inbound::text(message.line.to_string(), message.chat, message.text))
            })
            .await;
        tracing::info!(from = %self.input.path().display(), messages = admitted, "transcript read");
        ended
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        let token = request.token.map(SendKey::as_str);
        let line = escape::line(token, request.chat.as_str(), &render::text(request.content));
        if token.is_some_and(|token| token.len() > output::MAX_KEY) {
            let detail = format!("the send's token is longer than {} bytes", output::MAX_KEY);
            return Err(ChannelError::new(ErrorClass::PayloadTooLarge, Phase::NotWritten, detail));
        }
        self.output.append(token, line).await
    }

    async fn resolve(&self, token: &SendKey, _chat: &ChatId) -> Resolution {
        self.output.resolve(token.as_str()).await
    }
}

/// Checks the file once more, since it may have changed after it was opened, and reads it on a thread of its own, which
/// ends with the file or with the bot.
fn read_on_thread(input: &Arc<Input>) -> Result<Feed<Message>, ChannelError> {
    let (items, feed) = mpsc::channel::<Item<Message>>(AHEAD);
    let input = Arc::clone(input);
    let read = move || {
        let mut messages = match input.check().and_then(|_| input.messages()) {
            Ok(messages) => messages,
            Err(error) => {
                let _ = items.blocking_send(Err(error.into()));
                return;
            }
        };
        while let Some(item) = messages.next().map_err(ChannelError::from).transpose() {
            let last = item.is_err();
            if items.blocking_send(item).is_err() || last {
                return;
            }
        }
    };
    thread::Builder::new().name("transcript-in".into()).spawn(read).map_err(|error| {
        rejected("no thread to read the transcript with; lower the machine's load").with_source(error)
    })?;
    Ok(Feed::Bounded(feed))
}
