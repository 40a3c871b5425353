//! What the operating system does for us, and what differs between them.

use std::fs::OpenOptions;
use std::io::{self, Write};

use rustyline::error::ReadlineError;

/// Standard output without a buffer, so that a failed write leaves nothing behind that would come out later.
#[cfg(unix)]
pub(super) fn stdout() -> Box<dyn Write + Send> {
    use std::os::fd::AsFd;
    match io::stdout().as_fd().try_clone_to_owned() {
        Ok(stdout) => Box::new(std::fs::File::from(stdout)),
        Err(_) => Box::new(io::stdout()),
    }
}

#[cfg(not(unix))]
pub(super) fn stdout() -> Box<dyn Write + Send> {
    Box::new(io::stdout())
}

/// Options for a file that only its owner may read.
pub(super) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Whether the terminal was closed.
#[cfg(unix)]
pub(super) fn hung_up(error: &ReadlineError) -> bool {
    let code = match error {
        ReadlineError::Io(error) => error.raw_os_error(),
        ReadlineError::Errno(error) => Some(*error as i32),
        _ => None,
    };
    code == Some(rustix::io::Errno::IO.raw_os_error())
}

#[cfg(not(unix))]
pub(super) fn hung_up(_error: &ReadlineError) -> bool {
    false
}

/// How the terminal was set before a line editor changed it.
#[cfg(unix)]
pub(super) struct Settings(rustix::termios::Termios);

#[cfg(unix)]
impl Settings {
    /// Lets every key through as it is, also while no line is edited: what is typed ahead, Ctrl-C and Ctrl-D included,
    /// then means the same as at the prompt. The line editor sets and restores the same around each line.
    pub(super) fn take_keys() -> Option<Self> {
        use rustix::termios::{InputModes, LocalModes, SpecialCodeIndex};
        let before = rustix::termios::tcgetattr(io::stdin()).ok()?;
        let mut keys = before.clone();
        keys.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::IEXTEN | LocalModes::ISIG;
        keys.input_modes -= InputModes::BRKINT
            | InputModes::ICRNL
            | InputModes::INPCK
            | InputModes::ISTRIP
            | InputModes::IXON;
        keys.special_codes[SpecialCodeIndex::VMIN] = 1;
        keys.special_codes[SpecialCodeIndex::VTIME] = 0;
        Self(keys).restore();
        Some(Self(before))
    }

    pub(super) fn restore(&self) {
        let restored =
            rustix::termios::tcsetattr(io::stdin(), rustix::termios::OptionalActions::Drain, &self.0);
        if let Err(error) = restored {
            tracing::warn!(%error, "the terminal's settings cannot be changed; if it behaves strangely, type `reset`");
        }
    }
}

#[cfg(not(unix))]
pub(super) struct Settings;

#[cfg(not(unix))]
impl Settings {
    pub(super) fn take_keys() -> Option<Self> {
        None
    }

    pub(super) fn restore(&self) {}
}
