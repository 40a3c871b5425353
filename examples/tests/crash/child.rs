//! The example as a child process.

use std::collections::HashMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use botmesh::core::time::{Clock, SystemClock};

/// How long a child may take for anything before a test gives up on it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The example's binary. Cargo builds it before the package's tests, but not if only some of the tests are asked for.
pub(crate) fn example() -> PathBuf {
    built("appointments")
}

/// The binary of an example of this package.
pub(crate) fn built(name: &str) -> PathBuf {
    let features = if cfg!(feature = "redis") { " --features redis" } else { "" };
    let build = format!("build it with `cargo build -p botmesh-examples --example {name}{features}`");
    let test = std::env::current_exe().expect("the test has a path");
    let profile =
        test.parent().and_then(Path::parent).expect("the test lies in `deps` of the profile's folder");
    let example = profile.join("examples").join(name);
    assert!(example.exists(), "the example is missing; {build}");
    if let Some(source) = newer_source(&example, &test) {
        panic!("the example is older than {source}; {build}");
    }
    example
}

/// A source that was changed after the example was built, and before these tests were.
fn newer_source(example: &Path, test: &Path) -> Option<String> {
    let modified = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let (example_built, test_built) = (modified(example)?, modified(test)?);
    let sources = fs::read_to_string(example.with_extension("d")).ok()?;
    let is_newer = |source: &&str| {
        modified(Path::new(source)).is_some_and(|changed| changed > example_built && changed < test_built)
    };
    sources.split_whitespace().skip(1).find(is_newer).map(str::to_owned)
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
        let mut command = self.bare_command();
        command.arg("--data").arg(self.path("data"));
        command
    }

    /// The command for a desk whose data is elsewhere.
    pub(crate) fn bare_command(&self) -> Command {
        let mut command = Command::new(example());
        command.current_dir(self.folder.path()).stdout(Stdio::piped()).stderr(self.errors());
        command
    }

    pub(crate) fn errors(&self) -> File {
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

    /// The bytes of a file, none if it is missing.
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_default()
    }

    /// Writes a transcript to read.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).expect("the transcript can be written");
    }

    /// Runs a child until it ends well.
    pub(crate) fn succeed(&self, command: &mut Command) {
        let mut child = command.spawn().expect("the example starts");
        let status = self.wait(&mut child);
        assert!(status.success(), "{status}\n{}", self.complaints());
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
        self.bytes(to).iter().filter(|&&byte| byte == b'\n').count()
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

/// What is left of a failure can be looked at.
impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.folder.disable_cleanup(true);
            println!("its files are kept in {}", self.folder.path().display());
        }
    }
}

pub(crate) fn kill(child: &mut Child) {
    child.kill().expect("the desk can be killed");
    child.wait().expect("the desk can be waited for");
}

/// Asks the desk to stop, and waits until it has ended well.
pub(crate) fn terminate(place: &Place, child: &mut Child) {
    let stopped = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
    assert!(stopped.is_ok_and(|status| status.success()), "the signal cannot be sent");
    assert!(place.wait(child).success(), "{}", place.complaints());
}

/// A port of this host that nobody has.
pub(crate) fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
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
