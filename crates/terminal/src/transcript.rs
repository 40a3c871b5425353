//! A file in, a file out: a bot whose every word can be checked from outside.

mod escape;
mod input;
mod output;
mod taken;
mod writer;

use std::fmt;
use std::io::BufRead;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use async_trait::async_trait;
use botmesh_core::CancellationToken;
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::{ChatId, EventId, SendKey};
use botmesh_core::inbound::Inbound;
use botmesh_core::provider::{
    Capabilities, ConnectionState, InboundSink, Provider, Resolution, Resolve, SendReceipt, SendRequest,
};
use tokio::sync::{mpsc, watch};

use self::input::{Input, Message, Piped};
use self::output::Output;
use self::taken::Taken;
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
/// **Over a pipe.** [`Transcript::piped`] takes messages as they come, each with its own id, and tells which were taken over.
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
    input: Source,
    output: Writer,
    intake: Intake<Message>,
}

enum Source {
    File(Arc<Input>),
    Pipe {
        /// Taken by the first run.
        input: Mutex<Option<Box<dyn BufRead + Send>>>,
        taken: Taken,
    },
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
        let input = Source::File(Arc::new(input));
        Ok(Self { input, output: Writer::start(output)?, intake: Intake::new() })
    }

    /// Takes messages from `input` as they come, one a line: the id of the event, a TAB, the chat, a TAB, the text. The id of
    /// each message that the bot has, with a journal durably, is written to `taken` as a line. Both may block.
    ///
    /// So a feeder that gives a message again, here or to another replica of the bot, until one of them says that it has it,
    /// loses none; and since it is known by its id, none is answered twice.
    ///
    /// An empty line is skipped. A bad line ends the run with an error that names it and is not retryable; what came before it is
    /// handed over. The run ends with the input. What is written to `to` is the same as in [`open`](Self::open).
    ///
    /// # Errors
    /// `to` cannot be used.
    pub fn piped(
        input: impl BufRead + Send + 'static,
        taken: impl std::io::Write + Send + 'static,
        to: impl AsRef<Path>,
    ) -> Result<Self, TranscriptError> {
        let output = Writer::start(Output::open(to.as_ref())?)?;
        let input: Box<dyn BufRead + Send> = Box::new(input);
        let input = Source::Pipe { input: Mutex::new(Some(input)), taken: Taken::start(taken)? };
        Ok(Self { input, output, intake: Intake::new() })
    }
}

impl fmt::Debug for Transcript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transcript").field("from", &self.input.name()).finish_non_exhaustive()
    }
}

impl Source {
    fn name(&self) -> &Path {
        match self {
            Self::File(input) => input.path(),
            Self::Pipe { .. } => Path::new("-"),
        }
    }

    fn start_reading(&self) -> Result<Feed<Message>, ChannelError> {
        match self {
            Self::File(input) => read_file(input),
            Self::Pipe { input, .. } => {
                let input = input.lock().unwrap_or_else(PoisonError::into_inner).take();
                let input =
                    input.ok_or_else(|| rejected("the pipe was already read; make another transcript"))?;
                read_pipe(Piped::new(input))
            }
        }
    }

    fn tell_taken(&self, event: EventId) {
        if let Self::Pipe { taken, .. } = self {
            taken.tell(event);
        }
    }

    async fn told(&self) {
        if let Self::Pipe { taken, .. } = self {
            taken.told().await;
        }
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
            claim.begin(self.input.start_reading()?);
        }
        let mut admitted = 0u64;
        let read = |message: Message| Some(Inbound::text(message.event, message.chat, message.text));
        let taken = |event| {
            admitted += 1;
            self.input.tell_taken(event);
        };
        let ended = claim.run(&sink, &stop, read, taken).await;
        // When the bot stops, whoever feeds it may have stopped to listen: what it does not hear it gives again.
        stop.run_until_cancelled(self.input.told()).await;
        tracing::info!(from = %self.input.name().display(), messages = admitted, "transcript read");
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

/// Checks the file once more, since it may have changed after it was opened, and reads it.
fn read_file(input: &Arc<Input>) -> Result<Feed<Message>, ChannelError> {
    let input = Arc::clone(input);
    read_on_thread(move |items| {
        let mut messages = match input.check().and_then(|_| input.messages()) {
            Ok(messages) => messages,
            Err(error) => return drop(items.blocking_send(Err(error.into()))),
        };
        give(items, || messages.next());
    })
}

fn read_pipe(mut messages: Piped<Box<dyn BufRead + Send>>) -> Result<Feed<Message>, ChannelError> {
    read_on_thread(move |items| give(items, || messages.next()))
}

/// Reads on a thread of its own, which ends with the input or with the bot.
fn read_on_thread(
    read: impl FnOnce(&mpsc::Sender<Item<Message>>) + Send + 'static,
) -> Result<Feed<Message>, ChannelError> {
    let (items, feed) = mpsc::channel(AHEAD);
    thread::Builder::new().name("transcript-in".into()).spawn(move || read(&items)).map_err(|error| {
        rejected("no thread to read the transcript with; lower the machine's load").with_source(error)
    })?;
    Ok(Feed::Bounded(feed))
}

fn give(
    items: &mpsc::Sender<Item<Message>>,
    mut next: impl FnMut() -> Result<Option<Message>, TranscriptError>,
) {
    while let Some(item) = next().map_err(ChannelError::from).transpose() {
        let last = item.is_err();
        if items.blocking_send(item).is_err() || last {
            return;
        }
    }
}
