//! One thread that writes replies: plainly, or above the line that is being typed.
//!
//! While a line is edited, the terminal belongs to the line editor, and whatever is written past it garbles that line. So
//! a text is then handed to the editor, which shows it above the prompt. The editor takes one at a time and says nothing
//! when it did; its hooks (see `editor`) tell this module when the prompt is up, about to go, or drawn again after a text
//! was shown. With that, a text is written directly only while no prompt is up, texts keep their order, and a text that
//! the editor had not yet shown when the input ended is written after all.

mod printer;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use botmesh_core::error::{ChannelError, ErrorClass, Phase as Written};
use rustyline::ExternalPrinter;
use tokio::sync::oneshot;

use super::sys::{self, Settings};
use crate::render;

/// How long to wait for the line editor to begin, when the terminal is to be given back meanwhile.
const SOON: Duration = Duration::from_millis(200);

/// Ends bracketed paste, which the line editor switched on.
const BRACKETED_PASTE_OFF: &str = "\x1b[?2004l";

type Answer = oneshot::Sender<Result<(), ChannelError>>;
type Out = Box<dyn Write + Send>;
pub(super) type Editor = Box<dyn ExternalPrinter + Send>;

/// A text to show.
struct Job {
    text: String,
    /// For people, not part of the conversation: where lines are piped in, it goes to standard error.
    note: bool,
    answer: Option<Answer>,
}

/// Whose the terminal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Ours: nothing is edited.
    Free,
    /// The editor's, but its prompt is not up: for a moment, between two lines.
    Between,
    /// The editor's, and its prompt is up.
    Editing,
}

struct State {
    phase: Phase,
    queue: VecDeque<Job>,
    /// A text is being written directly.
    writing: bool,
    /// There is a line editor.
    attached: bool,
    /// Its way to show a text; taken while it is used.
    editor: Option<Editor>,
    /// Texts that were handed to the editor and that it has not shown, as far as is known.
    handed: VecDeque<String>,
    /// The terminal was given back although the editor still waits for a key.
    released: bool,
    settings: Option<Settings>,
    /// The screen was dropped.
    closed: bool,
}

pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Replies are shown on a terminal.
    interactive: bool,
    out: Mutex<Out>,
}

pub(super) struct Screen {
    shared: Arc<Shared>,
    thread: OnceLock<Result<(), String>>,
}

impl Screen {
    pub(super) fn terminal() -> Self {
        Self::new(sys::stdout(), true)
    }

    pub(super) fn plain(out: impl Write + Send + 'static) -> Self {
        Self::new(Box::new(out), false)
    }

    fn new(out: Out, interactive: bool) -> Self {
        let state = State {
            phase: Phase::Free,
            queue: VecDeque::new(),
            writing: false,
            attached: false,
            editor: None,
            handed: VecDeque::new(),
            released: false,
            settings: None,
            closed: false,
        };
        let shared =
            Shared { state: Mutex::new(state), changed: Condvar::new(), interactive, out: Mutex::new(out) };
        Self { shared: Arc::new(shared), thread: OnceLock::new() }
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// Shows a reply. Returns when it was written, or handed to the line editor.
    pub(super) async fn show(&self, text: String) -> Result<(), ChannelError> {
        self.show_and_wait(text, false).await
    }

    /// Tells the person at the keyboard, or whoever reads standard error.
    pub(super) async fn note(&self, text: String) {
        if let Err(error) = self.show_and_wait(text, true).await {
            tracing::warn!(%error, "a note cannot be shown");
        }
    }

    /// Shows a line when its turn comes.
    pub(super) fn say(&self, text: &str) {
        if let Err(error) = self.queue(Job { text: text.into(), note: true, answer: None }) {
            tracing::warn!(%error, "a line cannot be shown");
        }
    }

    async fn show_and_wait(&self, text: String, note: bool) -> Result<(), ChannelError> {
        let (answer, answered) = oneshot::channel();
        self.queue(Job { text, note, answer: Some(answer) })?;
        answered
            .await
            .unwrap_or_else(|_| Err(failed(Written::Unknown, "the thread that shows replies has ended")))
    }

    fn queue(&self, job: Job) -> Result<(), ChannelError> {
        let start = || {
            let shared = self.shared();
            let thread = thread::Builder::new().name("terminal-out".into());
            thread.spawn(move || printer::run(&shared)).map(drop).map_err(|error| error.to_string())
        };
        if let Err(problem) = self.thread.get_or_init(start) {
            return Err(failed(Written::NotWritten, format!("no thread to show replies with: {problem}")));
        }
        self.shared.lock().queue.push_back(job);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Gives the terminal back to the shell when the value is dropped.
    pub(super) fn release_on_drop(&self) -> Release<'_> {
        Release { screen: Some(self) }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

pub(super) struct Release<'a> {
    screen: Option<&'a Screen>,
}

impl Release<'_> {
    /// The terminal stays with the line editor.
    pub(super) fn keep(mut self) {
        self.screen = None;
    }
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        if let Some(screen) = self.screen {
            screen.shared.release();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The line editor is there and can show texts.
    pub(super) fn attach(&self, editor: Editor) {
        let mut state = self.lock();
        state.editor = Some(editor);
        state.settings = Settings::take_keys();
        state.attached = true;
    }

    /// The next line is about to be edited. `false` if it must not be.
    pub(super) fn enter(&self) -> bool {
        let mut state = self.lock();
        state.phase = Phase::Between;
        while state.writing {
            state = self.wait(state);
        }
        if state.released {
            state.phase = Phase::Free;
        }
        state.phase == Phase::Between
    }

    /// The prompt is up.
    pub(super) fn prompt_up(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Between {
            state.phase = Phase::Editing;
            self.changed.notify_all();
        }
    }

    /// The prompt is about to go.
    pub(super) fn prompt_goes(&self) {
        let mut state = self.lock();
        if state.phase == Phase::Editing {
            state.phase = Phase::Between;
        }
    }

    /// The editor has shown the oldest of the texts that it was handed.
    pub(super) fn shown(&self) {
        self.lock().handed.pop_front();
        self.changed.notify_all();
    }

    /// The last line was edited: what the editor did not show is written now.
    pub(super) fn leave(&self) {
        let mut state = self.lock();
        state.editor = None;
        if let Some(settings) = &state.settings {
            // Also if it was released before: the editor has just set it to what it found at the start of the line.
            settings.restore();
        }
        if !state.released {
            let rest = state.handed.drain(..).collect();
            self.free(state, rest);
        }
        self.lock().attached = false;
    }

    /// Gives the terminal back while the editor may still wait for a key, which nobody can interrupt.
    fn release(&self) {
        let mut state = self.lock();
        let released = std::mem::replace(&mut state.released, true);
        if !state.attached || released {
            return;
        }
        let busy = |state: &mut State| match state.phase {
            Phase::Free => false,
            Phase::Between => true,
            Phase::Editing => !state.handed.is_empty(),
        };
        let waited = self.changed.wait_timeout_while(state, SOON, busy);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        if let Some(settings) = &state.settings {
            settings.restore();
        }
        if state.phase == Phase::Editing {
            let rest = std::iter::once(BRACKETED_PASTE_OFF.into()).chain(state.handed.drain(..)).collect();
            self.free(state, rest);
        }
    }

    /// Writes these texts and takes the terminal.
    fn free(&self, mut state: MutexGuard<'_, State>, rest: Vec<String>) {
        state.writing = true;
        drop(state);
        for text in rest {
            // They were reported as handed over; a terminal cannot tell more.
            let _ = self.write(&text, false);
        }
        let mut state = self.lock();
        state.writing = false;
        state.phase = Phase::Free;
        drop(state);
        self.changed.notify_all();
    }

    /// Writes a text and a line end directly.
    fn write(&self, text: &str, note: bool) -> Result<(), ChannelError> {
        let mut bytes = Vec::with_capacity(text.len() + 1);
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(b'\n');
        if note && !self.interactive {
            return write_all(&mut io::stderr(), &bytes);
        }
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        write_all(&mut **out, &bytes)
    }

    fn printable(&self, text: String) -> String {
        if self.interactive { render::printable(&text).into_owned() } else { text }
    }
}

fn write_all(out: &mut dyn Write, bytes: &[u8]) -> Result<(), ChannelError> {
    let mut written = 0;
    let problem = loop {
        if written == bytes.len() {
            match out.flush() {
                Ok(()) => return Ok(()),
                Err(error) => break error,
            }
        }
        match out.write(&bytes[written..]) {
            Ok(0) => break io::ErrorKind::WriteZero.into(),
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break error,
        }
    };
    let phase = if written == 0 { Written::NotWritten } else { Written::Unknown };
    Err(failed(phase, "the output cannot be written; check where it goes").with_source(problem))
}

fn failed(phase: Written, detail: impl Into<String>) -> ChannelError {
    ChannelError::new(ErrorClass::Transient, phase, detail)
}
