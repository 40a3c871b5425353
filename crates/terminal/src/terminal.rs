//! A conversation in the shell.

mod choices;
mod editor;
mod history;
mod reader;
mod screen;
mod sys;

use std::fmt;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use botmesh_core::CancellationToken;
use botmesh_core::entropy::{Entropy, OsEntropy, random_hex};
use botmesh_core::error::ChannelError;
use botmesh_core::inbound::{Inbound, InboundBody};
use botmesh_core::provider::{
    Capabilities, ConnectionState, InboundSink, Provider, SendReceipt, SendRequest,
};
use tokio::sync::watch;

use self::choices::Choices;
use self::screen::Screen;
use crate::intake::{Feed, Intake, rejected};
use crate::render;

/// The longest id that a bot takes.
const MAX_CHAT: usize = 512;

/// Talks to a bot in the shell.
///
/// **In a terminal**, there is a prompt with line editing and history. Replies appear above the line that is being
/// typed. Ctrl-C, and Ctrl-D on an empty line, end the input: [`Provider::run`] returns `Ok`, so that the bot finishes
/// what it has and stops; its last replies are still shown. So does closing the terminal, if that does not end the process. Control characters in replies are shown as symbols, so that
/// no reply can change the screen.
///
/// **When standard input is not a terminal** (or standard output is not, or `TERM` is `dumb`), lines are read as they
/// come, replies go to standard output as they are, and `run` returns at the end of the input. A line that is longer than
/// 1 MiB or not UTF-8 ends `run` with an error that names it and is not retryable; nothing of that line is handed to the
/// bot, and everything before it is.
///
/// Blank lines are ignored. Everybody's private chat has their own name: what is typed comes from the chat `you`, or
/// from [`Terminal::with_chat`]. A message to another chat is shown with that chat's name before it.
///
/// **Buttons** are shown as numbered choices. Typing a title (in any case) or else a number presses the button. The
/// choices are those of the last message of the chat: any later message without buttons withdraws them, since a number is
/// then more likely to answer that one. A reaction does not. Lines that are piped in are read ahead of the replies, so a
/// program that wants to press a button waits until it has read the choices.
///
/// The ids of events are new at each start, `<random>-<number>`, so that a journal never takes a new line for an old one.
/// A terminal cannot tell whether a line was seen: an ambiguous send is left to the bot's policy
/// ([`Resolve::Never`](botmesh_core::provider::Resolve::Never)).
pub struct Terminal {
    chat: String,
    hint: Option<String>,
    history: Option<PathBuf>,
    entropy: Arc<dyn Entropy>,
    boot: OnceLock<String>,
    received: AtomicU64,
    sent: AtomicU64,
    choices: Mutex<Choices>,
    /// Taken by the first run.
    input: Mutex<Option<Input>>,
    screen: Screen,
    intake: Intake<String>,
}

enum Input {
    Keyboard,
    Lines(Box<dyn BufRead + Send>),
}

impl Terminal {
    /// Standard input and output.
    pub fn new() -> Self {
        if io::stdin().is_terminal() && io::stdout().is_terminal() {
            Self::build(Input::Keyboard, Screen::terminal())
        } else {
            Self::build(Input::Lines(Box::new(io::BufReader::new(io::stdin()))), Screen::plain(sys::stdout()))
        }
    }

    /// Reads lines from `input` and writes replies to `output`, as when standard input is not a terminal.
    ///
    /// Both are used on threads of their own and may block.
    pub fn over(input: impl BufRead + Send + 'static, output: impl Write + Send + 'static) -> Self {
        Self::build(Input::Lines(Box::new(input)), Screen::plain(output))
    }

    fn build(input: Input, screen: Screen) -> Self {
        Self {
            chat: "you".into(),
            hint: None,
            history: None,
            entropy: Arc::new(OsEntropy::new()),
            boot: OnceLock::new(),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            choices: Mutex::default(),
            input: Mutex::new(Some(input)),
            screen,
            intake: Intake::new(),
        }
    }

    /// Is somebody else: the chat and its only participant. `you` by default.
    #[must_use]
    pub fn with_chat(mut self, name: impl Into<String>) -> Self {
        self.chat = name.into();
        self
    }

    /// A line that is shown when a terminal opens, such as what to type first. It is not shown when lines are piped in.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Keeps the last 1,000 lines that were typed in this file (created if it does not exist, readable by its owner
    /// only). Without it they are kept in memory.
    #[must_use]
    pub fn with_history(mut self, path: impl Into<PathBuf>) -> Self {
        self.history = Some(path.into());
        self
    }

    /// Where the random part of ids comes from. The operating system by default. A seed repeats the ids, and a journal
    /// that has seen them before drops the lines as redeliveries.
    #[must_use]
    pub fn with_entropy(mut self, entropy: Arc<dyn Entropy>) -> Self {
        self.entropy = entropy;
        self
    }

    fn next_id(&self, counter: &AtomicU64, kind: &str) -> String {
        let boot = self.boot.get_or_init(|| random_hex(&*self.entropy));
        format!("{boot}{kind}{}", counter.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn inbound(&self, line: String) -> Option<Inbound> {
        if line.trim().is_empty() {
            return None;
        }
        let event = self.next_id(&self.received, "-");
        let pressed = self.choices.lock().unwrap_or_else(PoisonError::into_inner).pressed(&line);
        let body = match pressed {
            Some(button) => InboundBody::Interaction { id: button.id, title: button.title },
            None => InboundBody::Text { text: line },
        };
        Some(Inbound::private(event, self.chat.as_str(), body))
    }

    fn start_reading(&self) -> Result<Feed<String>, ChannelError> {
        let input = self.input.lock().unwrap_or_else(PoisonError::into_inner).take();
        match input {
            Some(Input::Keyboard) => {
                if let Some(hint) = &self.hint {
                    self.screen.say(hint);
                }
                editor::start(&self.screen, format!("{}> ", self.chat), self.history.clone())
            }
            Some(Input::Lines(input)) => reader::start(input),
            None => Err(rejected("the input was already read; make another terminal")),
        }
    }
}

impl Default for Terminal {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Terminal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terminal")
            .field("chat", &self.chat)
            .field("intake", &self.intake)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Provider for Terminal {
    fn id(&self) -> &str {
        "terminal"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.intake.connection()
    }

    async fn run(&self, sink: Arc<dyn InboundSink>, stop: CancellationToken) -> Result<(), ChannelError> {
        if self.chat.is_empty() || self.chat.len() > MAX_CHAT {
            return Err(rejected(format!(
                "the chat's name must have 1 to {MAX_CHAT} bytes; give another one"
            )));
        }
        let mut claim = self.intake.claim()?;
        let released = self.screen.release_on_drop();
        if !claim.begun() {
            claim.begin(self.start_reading()?);
        }
        let ended = claim.run(&sink, &stop, |line| self.inbound(line), drop).await;
        if ended.as_ref().is_err_and(|error| error.retryable) {
            // The bot will run this again: the prompt stays.
            released.keep();
            return ended;
        }
        drop(released);
        let left = claim.left();
        if left > 0 {
            self.screen
                .note(format!("(the bot stopped; lines that were read and that it did not take: {left})"))
                .await;
        }
        ended
    }

    async fn send(&self, request: SendRequest<'_>) -> Result<SendReceipt, ChannelError> {
        let mut text = render::text(request.content);
        if request.chat.as_str() == self.chat {
            self.choices.lock().unwrap_or_else(PoisonError::into_inner).shown(request.content);
        } else {
            text = format!("{}: {text}", request.chat);
        }
        let message = self.next_id(&self.sent, "-r");
        self.screen.show(text).await?;
        Ok(SendReceipt { message: message.into() })
    }
}
