//! The example as a child process.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use botmesh::core::time::{Clock, SystemClock};

/// How long a child may take for anything before a test gives up on it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The example's binary, which cargo builds before the package's tests.
pub(crate) fn example() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let profile =
        test.parent().and_then(Path::parent).expect("the test lies in `deps` of the profile's folder");
    let example = profile.join("examples/appointments");
    assert!(
        example.exists(),
        "the example is missing; build it with `cargo build -p botmesh --example appointments`"
    );
    example
}

/// A folder with the files of one desk.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    clock: SystemClock,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder"), clock: SystemClock::new() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.monotonic()
    }

    /// The command for a desk that reads `from` and writes `to`.
    pub(crate) fn transcript(&self, from: &str, to: &str) -> Command {
        let mut command = self.command();
        command.arg("--from").arg(self.path(from)).arg("--to").arg(self.path(to)).stdin(Stdio::null());
        command
    }

    /// The command for a desk with its data in this place.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(example());
        command.arg("--data").arg(self.path("data")).current_dir(self.folder.path());
        command.stdout(Stdio::piped()).stderr(self.errors());
        command
    }

    fn errors(&self) -> File {
        let mut options = File::options();
        options
            .create(true)
            .append(true)
            .open(self.path("stderr"))
            .expect("a file for what the child complains of")
    }

    /// What children complained of so far.
    pub(crate) fn complaints(&self) -> String {
        fs::read_to_string(self.path("stderr")).unwrap_or_default()
    }

    /// The replies so far: key, chat and text. A line that is still being written is not among them.
    pub(crate) fn replies(&self, to: &str) -> Vec<(String, String, String)> {
        let written = fs::read_to_string(self.path(to)).unwrap_or_default();
        let whole = &written[..written.rfind('\n').map_or(0, |end| end + 1)];
        whole
            .lines()
            .map(|line| {
                let mut fields = line.splitn(3, '\t').map(unescape);
                let mut next = || fields.next().unwrap_or_else(|| panic!("not a reply: {line}"));
                (next(), next(), next())
            })
            .collect()
    }

    pub(crate) fn reply_count(&self, to: &str) -> usize {
        fs::read(self.path(to)).unwrap_or_default().iter().filter(|&&byte| byte == b'\n').count()
    }

    /// Polls until `condition` gives something.
    pub(crate) fn wait_for<T>(&self, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
        let start = self.elapsed();
        loop {
            if let Some(value) = condition() {
                return value;
            }
            assert!(
                self.elapsed() - start < PATIENCE,
                "{what}: not within {PATIENCE:?}\n{}",
                self.complaints()
            );
            pause();
        }
    }

    /// Waits until the child ends.
    pub(crate) fn wait(&self, child: &mut Child) -> ExitStatus {
        self.wait_for("the end of the child", || child.try_wait().expect("the child can be waited for"))
    }
}

/// Between two looks at a condition.
#[expect(clippy::disallowed_methods, reason = "polling what another process does has nothing to wait on")]
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_micros(200));
}

/// Replies by chat, in order.
pub(crate) fn by_chat(replies: &[(String, String, String)]) -> HashMap<&str, Vec<&str>> {
    let mut chats: HashMap<&str, Vec<&str>> = HashMap::new();
    for (_, chat, text) in replies {
        chats.entry(chat).or_default().push(text);
    }
    chats
}

fn unescape(field: &str) -> String {
    let mut text = String::new();
    let mut chars = field.chars();
    while let Some(c) = chars.next() {
        match (c, (c == '\\').then(|| chars.next()).flatten()) {
            ('\\', Some('n')) => text.push('\n'),
            ('\\', Some('t')) => text.push('\t'),
            ('\\', Some('r')) => text.push('\r'),
            ('\\', Some('0')) => text.push('\0'),
            ('\\', Some(other)) => text.push(other),
            (c, _) => text.push(c),
        }
    }
    text
}
