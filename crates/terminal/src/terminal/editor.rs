//! Lines that are typed.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use botmesh_core::error::ChannelError;
use rustyline::completion::Completer;
use rustyline::config::{Behavior, BellStyle, ColorMode, Config};
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Editor, Helper};
use tokio::sync::mpsc;

use super::history::{History, MAX_LINES};
use super::reader::{self, no_thread};
use super::screen::{Screen, Shared};
use super::sys;
use crate::intake::{Feed, Item, rejected};
use crate::lines::MAX_LINE;

type Lines = mpsc::UnboundedSender<Item<String>>;

/// Edits lines on a thread of its own. It is never waited for: it may be blocked until a key is pressed.
///
/// The channel has no bound, so that the prompt is always back at once: somebody types, and replies are shown only while
/// the prompt is up.
pub(super) fn start(
    screen: &Screen,
    prompt: String,
    history: Option<PathBuf>,
) -> Result<Feed<String>, ChannelError> {
    let (lines, feed) = mpsc::unbounded_channel();
    let shared = screen.shared();
    thread::Builder::new()
        .name("terminal-in".into())
        .spawn(move || match Session::new(&shared, history.as_deref()) {
            Ok(session) => session.run(&prompt, &lines),
            Err(error) => {
                tracing::debug!(%error, "the terminal cannot edit lines; reading them as they come");
                reader::read(io::stdin().lock(), |item| lines.send(item).is_ok());
            }
        })
        .map_err(no_thread)?;
    Ok(Feed::Unbounded(feed))
}

struct Session {
    shared: Arc<Shared>,
    editor: Editor<Hooks, MemHistory>,
    history: Option<History>,
}

impl Session {
    fn new(shared: &Arc<Shared>, history: Option<&Path>) -> rustyline::Result<Self> {
        let config = Config::builder()
            .behavior(Behavior::Stdio)
            .bell_style(BellStyle::None)
            // Only with colours are all hooks called; none are used.
            .color_mode(ColorMode::Forced)
            .history_ignore_dups(true)?
            .max_history_size(MAX_LINES)?
            .build();
        let memory = MemHistory::with_config(&config);
        let mut editor = Editor::with_history(config, memory)?;
        let printer = editor.create_external_printer()?;
        editor.set_helper(Some(Hooks { shared: Arc::clone(shared), redraws: Cell::new(false) }));
        let mut session = Self { shared: Arc::clone(shared), editor, history: None };
        if let Some(path) = history {
            session.remember(path);
        }
        session.shared.attach(Box::new(printer));
        Ok(session)
    }

    fn remember(&mut self, path: &Path) {
        match History::open(path) {
            Ok((history, lines)) => {
                self.history = Some(history);
                for line in lines {
                    // Only the newest count, and memory does not fail.
                    let _ = self.editor.add_history_entry(line);
                }
            }
            Err(error) => forget(path, &error),
        }
    }

    fn run(mut self, prompt: &str, lines: &Lines) {
        while self.shared.enter() {
            let item = match self.editor.readline(prompt) {
                Ok(line) if line.trim().is_empty() => continue,
                Ok(line) => self.typed(line),
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => break,
                Err(error) if sys::hung_up(&error) => break,
                Err(error) => {
                    Err(rejected("the terminal cannot be read; open another one").with_source(error))
                }
            };
            let last = item.is_err();
            if lines.send(item).is_err() || last {
                break;
            }
        }
        self.shared.leave();
    }

    fn typed(&mut self, line: String) -> Item<String> {
        if line.len() > MAX_LINE {
            let limit = MAX_LINE >> 20;
            return Err(rejected(format!(
                "a line is longer than {limit} MiB; split it into shorter messages"
            )));
        }
        // Memory does not fail; a repeated line is not added again.
        let added = self.editor.add_history_entry(line.as_str()).unwrap_or(false);
        if let Some(history) = self.history.as_ref().filter(|_| added)
            && let Err(error) = history.add(&line)
        {
            forget(history.path(), &error);
            self.history = None;
        }
        Ok(line)
    }
}

fn forget(path: &Path, error: &io::Error) {
    tracing::warn!(path = %path.display(), %error, "the history file cannot be used; lines are kept in memory only");
}

/// Tells the screen what the editor does.
///
/// The editor calls `hint` or `highlight_char` before each redraw that a key causes, but only `highlight_prompt` when it
/// draws the prompt again below a text it was handed: so it is known that the text was shown.
struct Hooks {
    shared: Arc<Shared>,
    /// A redraw that has another reason is about to come.
    redraws: Cell<bool>,
}

impl Helper for Hooks {}

impl Completer for Hooks {
    type Candidate = String;
}

impl Hinter for Hooks {
    type Hint = String;

    fn hint(&self, _line: &str, _pos: usize, _ctx: &Context<'_>) -> Option<String> {
        self.redraws.set(true);
        self.shared.prompt_up();
        None
    }
}

impl Highlighter for Hooks {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(
        &'s self,
        prompt: &'p str,
        _default: bool,
    ) -> std::borrow::Cow<'b, str> {
        if !self.redraws.replace(false) {
            self.shared.shown();
        }
        prompt.into()
    }

    /// `true` has every key redraw the whole line, so that each call is followed by `highlight_prompt`.
    fn highlight_char(&self, line: &str, _pos: usize, kind: CmdKind) -> bool {
        self.redraws.set(true);
        if kind == CmdKind::ForcedRefresh && line.is_empty() {
            // Ctrl-D, or Enter without a text.
            self.shared.prompt_goes();
        }
        true
    }
}

impl Validator for Hooks {
    /// Enter was pressed.
    fn validate(&self, _line: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        self.shared.prompt_goes();
        Ok(ValidationResult::Valid(None))
    }
}
