//! The prompt, on a terminal of its own.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use botmesh_core::content::Content;
use botmesh_core::inbound::Inbound;
use botmesh_core::provider::{AdmitError, Admitted, InboundSink, Provider, SendRequest};
use botmesh_core::{CancellationToken, async_trait};
use botmesh_terminal::Terminal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};
use tempfile::TempDir;

use crate::support::block_on;

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

const SOCKET: &str = "BOTMESH_TEST_SOCKET";

/// Tells the test what was typed.
struct Tell(Mutex<UnixStream>);

#[async_trait]
impl InboundSink for Tell {
    async fn admit(&self, inbound: Inbound) -> Result<Admitted, AdmitError> {
        writeln!(self.0.lock().unwrap(), "{}", inbound.readable_text()).unwrap();
        Ok(Admitted { record: inbound.record_id(), duplicate: false })
    }
}

/// The program of the other tests: says what the test tells it to say. Does nothing by itself.
#[test]
fn child_with_a_prompt() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let stream = UnixStream::connect(socket).unwrap();
    let terminal = Arc::new(Terminal::new().with_chat("ana").with_hint("Type `help`."));
    let stop = CancellationToken::new();
    let commands = BufReader::new(stream.try_clone().unwrap());
    let (replies, end) = (Arc::clone(&terminal), stop.clone());
    let answering = thread::Builder::new();
    let answering = answering.spawn(move || {
        for command in commands.lines() {
            match command.unwrap().as_str() {
                "stop" => end.cancel(),
                text => {
                    let content = Content::text(text);
                    block_on(replies.send(SendRequest::new(&"ana".into(), &content))).unwrap();
                }
            }
        }
    });
    let ended = block_on(terminal.run(Arc::new(Tell(Mutex::new(stream.try_clone().unwrap()))), stop));
    let mut stream = stream;
    writeln!(stream, "{}", if ended.is_ok() { "ended" } else { "failed" }).unwrap();
    // Whatever is still to be said, until the test closes the connection.
    answering.unwrap().join().unwrap();
}

/// The test's side of the child.
struct Talk {
    keyboard: File,
    screen: String,
    child: Child,
    commands: UnixStream,
    typed: BufReader<UnixStream>,
    _folder: TempDir,
}

impl Talk {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        // No other child shall keep it open.
        fcntl_setfd(&master, FdFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = || OpenOptions::new().read(true).write(true).open(&name).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "pty::child_with_a_prompt", "--nocapture"]);
        command.env(SOCKET, &socket).env("TERM", "xterm");
        let child = command.stdin(slave()).stdout(slave()).spawn().unwrap();
        let (commands, _) = listener.accept().unwrap();
        commands.set_read_timeout(Some(PATIENCE)).unwrap();
        let typed = BufReader::new(commands.try_clone().unwrap());
        let mut talk = Self {
            keyboard: File::from(master),
            screen: String::new(),
            child,
            commands,
            typed,
            _folder: folder,
        };
        talk.wait_for("ana> ");
        talk
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn say(&mut self, text: &str) {
        writeln!(self.commands, "{text}").unwrap();
    }

    /// The next line that the child's sink was given.
    fn next_typed(&mut self) -> String {
        let mut line = String::new();
        self.typed.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Reads the screen until it shows `text` (control sequences left out), and forgets it up to there.
    fn wait_for(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.screen.find(text) {
                let rest = self.screen.split_off(at + text.len());
                return std::mem::replace(&mut self.screen, rest);
            }
            assert!(self.read(), "the terminal closed; waiting for {text:?} after {:?}", self.screen);
        }
    }

    /// Reads what there is. `false` at the end.
    fn read(&mut self) -> bool {
        let patience = PATIENCE.try_into().unwrap();
        let ready = poll(&mut [PollFd::new(&self.keyboard, PollFlags::IN)], Some(&patience)).unwrap();
        assert!(ready > 0, "nothing comes any more after {:?}", self.screen);
        let mut bytes = [0; 4096];
        // Once the child has gone, reading is an error.
        let read = self.keyboard.read(&mut bytes).unwrap_or(0);
        self.screen.push_str(&without_sequences(&String::from_utf8_lossy(&bytes[..read])));
        read > 0
    }

    fn settings(&self) -> Termios {
        tcgetattr(&self.keyboard).unwrap()
    }

    /// Lets the child go and reads the rest of the screen.
    fn finish(mut self) -> (ExitStatus, String) {
        self.commands.shutdown(std::net::Shutdown::Write).unwrap();
        while self.read() {}
        (self.child.wait().unwrap(), std::mem::take(&mut self.screen))
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // After a test that failed.
        let _ = self.child.kill();
    }
}

/// Without what moves the cursor or changes the terminal: `ESC [ … letter`.
fn without_sequences(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let mut out = parts.next().unwrap_or("").to_owned();
    for part in parts {
        out.push_str(part.split_once(|c: char| c.is_ascii_alphabetic()).map_or("", |(_, rest)| rest));
    }
    out
}

#[test]
fn a_reply_appears_above_the_line_that_is_being_typed() {
    let mut talk = Talk::start();
    talk.press("hel");
    talk.wait_for("ana> hel");
    talk.say("A reply\twith\x07 a bell");
    talk.wait_for("A reply\twith␇ a bell\r\nana> hel");
    talk.say("another");
    talk.wait_for("another\r\nana> hel");
    talk.press("lo\r");
    assert_eq!(talk.next_typed(), "hello");
    talk.wait_for("ana> ");
    talk.press("\x04");
    assert_eq!(talk.next_typed(), "ended");
    talk.say("the last words");
    talk.wait_for("the last words\r\n");
    assert!(talk.finish().0.success());
}

#[test]
fn what_is_typed_ahead_is_kept_and_the_last_replies_are_shown_once() {
    for _ in 0..20 {
        let mut talk = Talk::start();
        talk.press("one\rtwo\r\rthree\r\x04");
        for n in 0..5 {
            talk.say(&format!("<{n}>"));
        }
        for expected in ["one", "two", "three", "ended"] {
            assert_eq!(talk.next_typed(), expected);
        }
        let (status, screen) = talk.finish();
        assert!(status.success());
        let shown: Vec<_> = screen.split('<').skip(1).map(|part| &part[..2]).collect();
        assert_eq!(shown, ["0>", "1>", "2>", "3>", "4>"], "{screen:?}");
    }
}

#[test]
fn many_replies_while_typing_keep_their_order() {
    let mut talk = Talk::start();
    let typist = talk.keyboard.try_clone().unwrap();
    let typing = thread::Builder::new();
    let typing = typing.spawn(move || {
        for n in 0..60 {
            // Searching the history now and then: meanwhile the editor shows nothing.
            let search = if n % 20 == 7 { "\x12lin\x07" } else { "" };
            (&typist).write_all(format!("{search}line {n}\r").as_bytes()).unwrap();
        }
    });
    let mut commands = talk.commands.try_clone().unwrap();
    let saying = thread::Builder::new();
    let saying = saying.spawn(move || {
        for n in 0..300 {
            writeln!(commands, "<{n}>").unwrap();
        }
    });
    let mut screen = String::new();
    for n in 0..300 {
        screen.push_str(&talk.wait_for(&format!("<{n}>\r\n")));
    }
    assert_eq!(screen.matches('<').count(), 300, "each once");
    typing.unwrap().join().unwrap();
    saying.unwrap().join().unwrap();
    for n in 0..60 {
        assert_eq!(talk.next_typed(), format!("line {n}"));
    }
    talk.press("\x03");
    assert_eq!(talk.next_typed(), "ended");
    assert!(talk.finish().0.success());
}

#[test]
fn a_bot_that_stops_by_itself_gives_the_terminal_back() {
    let mut talk = Talk::start();
    assert!(!talk.settings().local_modes.contains(LocalModes::ICANON), "the editor has it");
    talk.press("half a line");
    talk.wait_for("half a line");
    talk.say("stop");
    assert_eq!(talk.next_typed(), "ended");
    assert!(talk.settings().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO));
    talk.say("the last words");
    talk.wait_for("the last words\r\n");
    assert!(talk.finish().0.success());
}

#[test]
fn closing_the_terminal_ends_the_run() {
    let mut talk = Talk::start();
    talk.press("one\r");
    assert_eq!(talk.next_typed(), "one");
    talk.wait_for("ana> ");
    talk.keyboard = File::open("/dev/null").unwrap();
    assert_eq!(talk.next_typed(), "ended");
}
