//! What a transcript writes, and how it is asked what it got.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use botmesh_core::content::{Button, Content, ContentBody, MediaSource, OutboundMedia};
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::id::{ChatId, SendKey};
use botmesh_core::provider::{Provider, Resolution, SendRequest};
use botmesh_terminal::Transcript;
use tempfile::TempDir;

use crate::support::block_on;

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in"), "ana\thi\n").unwrap();
    let to = folder.path().join("out");
    (folder, to)
}

fn open(to: &Path) -> Transcript {
    Transcript::open(to.with_file_name("in"), to).unwrap()
}

async fn send_content(
    to: &Transcript,
    key: Option<&str>,
    chat: &str,
    content: &Content,
) -> Result<String, ChannelError> {
    let (chat, key) = (ChatId::from(chat), key.map(SendKey::from));
    let mut request = SendRequest::new(&chat, content);
    if let Some(key) = &key {
        request = request.with_token(key);
    }
    to.send(request).await.map(|receipt| receipt.message.to_string())
}

fn send(to: &Transcript, key: &str, chat: &str, text: &str) -> Result<String, ChannelError> {
    block_on(send_content(to, Some(key), chat, &Content::text(text)))
}

fn resolve(to: &Transcript, key: &str) -> Option<String> {
    match block_on(to.resolve(&key.into(), &"ana".into())) {
        Resolution::Sent(receipt) => Some(receipt.message.to_string()),
        Resolution::NotSent => None,
        Resolution::Unknown => panic!("the file can be read"),
    }
}

#[test]
fn each_send_is_one_escaped_line() {
    let (_folder, to) = folder();
    let transcript = open(&to);
    let ids = [
        send(&transcript, "k\t1", "ana", "a\tb\nc\r\\d\0 ñ").unwrap(),
        send(&transcript, "-", "b\nen", "").unwrap(),
        block_on(send_content(&transcript, None, "ana", &Content::text("-"))).unwrap(),
    ];
    let choices = Content::text("Sure?").with_buttons([Button::new("y", "Yes"), Button::new("n", "No")]);
    block_on(send_content(&transcript, Some("k2"), "ana", &choices)).unwrap();
    let image = OutboundMedia {
        source: MediaSource::Url("https://example.org/a.png".into()),
        caption: Some("a cat".into()),
        mime: None,
        file_name: None,
    };
    block_on(send_content(&transcript, Some("k3"), "ana", &ContentBody::Image(image).into())).unwrap();
    let lines = [
        "k\\t1\tana\ta\\tb\\nc\\r\\\\d\\0 ñ\n",
        "\\-\tb\\nen\t\n",
        "-\tana\t-\n",
        "k2\tana\tSure?\\n1) Yes\\n2) No\n",
        "k3\tana\t[image] https://example.org/a.png a cat\n",
    ];
    assert_eq!(fs::read_to_string(&to).unwrap(), lines.concat());
    assert_eq!(
        ids,
        ["0".to_owned(), lines[0].len().to_string(), (lines[0].len() + lines[1].len()).to_string()]
    );
    // After a restart the same keys are there.
    for transcript in [transcript, open(&to)] {
        assert_eq!(resolve(&transcript, "k\t1"), Some(ids[0].clone()));
        assert_eq!(resolve(&transcript, "-"), Some(ids[1].clone()));
        assert_eq!(resolve(&transcript, "k\\t1"), None);
        assert!(resolve(&transcript, "k3").is_some());
    }
}

#[test]
fn a_torn_last_line_is_cut_off() {
    for torn in ["k2\tana\tlost in the mid", "k2", "k2\tana\tthe line end is miss\\", "\0\0\0\0"] {
        let (_folder, to) = folder();
        fs::write(&to, format!("k1\tana\twhole\n{torn}")).unwrap();
        let transcript = open(&to);
        assert_eq!(fs::read_to_string(&to).unwrap(), "k1\tana\twhole\n");
        assert_eq!((resolve(&transcript, "k1"), resolve(&transcript, "k2")), (Some("0".into()), None));
        // Another process may die, too, while this one has the file open.
        OpenOptions::new().append(true).open(&to).unwrap().write_all(torn.as_bytes()).unwrap();
        assert_eq!(resolve(&transcript, "k2"), None);
        OpenOptions::new().append(true).open(&to).unwrap().write_all(torn.as_bytes()).unwrap();
        assert_eq!(send(&transcript, "k2", "ana", "again").unwrap(), "13");
        assert_eq!(fs::read_to_string(&to).unwrap(), "k1\tana\twhole\nk2\tana\tagain\n");
    }
}

#[test]
fn what_another_handle_appends_is_found() {
    let (_folder, to) = folder();
    let (one, two) = (open(&to), open(&to));
    let place = send(&one, "k1", "ana", "from one").unwrap();
    assert_eq!(resolve(&two, "k1"), Some(place));
    let place = send(&two, "k2", "ana", "from two").unwrap();
    assert_eq!(resolve(&one, "k2"), Some(place));
    assert_eq!((resolve(&one, "k3"), resolve(&two, "k3")), (None, None));
}

#[test]
fn a_file_that_was_not_written_as_a_transcript_is_left_alone() {
    let cases = [
        ("hello\nworld", 1, "it is not `key<TAB>chat<TAB>text`"),
        ("k\tana\tok\n\n", 2, "it is not `key<TAB>chat<TAB>text`"),
        ("k\tana\tok\nk\tana\ta\tb\n", 2, "it has more than two TABs"),
        ("k\\x\tana\tb\n", 1, "its key cannot be read"),
    ];
    for (text, line, problem) in cases {
        let (_folder, to) = folder();
        fs::write(&to, text).unwrap();
        let error = Transcript::open(to.with_file_name("in"), &to).unwrap_err().to_string();
        let fix = "give a file that was written as a transcript, or a new one";
        assert_eq!(error, format!("{}: line {line}: {problem}; {fix}", to.display()));
        assert_eq!(fs::read_to_string(&to).unwrap(), text);
    }
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let (folder, to) = folder();
    let says = |path: PathBuf, problem: &str| {
        let error = Transcript::open(to.with_file_name("in"), &path).unwrap_err().to_string();
        assert_eq!(error, format!("{}: {problem}", path.display()));
    };
    says(folder.path().join("missing/out"), "its folder does not exist; create the folder first");
    says(folder.path().to_owned(), "it is a folder; give a file");
    if cfg!(unix) {
        says("/dev/null".into(), "it is a pipe or a device; give a regular file");
    }
}

#[cfg(unix)]
#[test]
fn a_file_that_was_removed_takes_no_more_sends() {
    let (_folder, to) = folder();
    let transcript = open(&to);
    fs::remove_file(&to).unwrap();
    let error = send(&transcript, "k1", "ana", "hi").unwrap_err();
    assert_eq!((error.class, error.phase), (ErrorClass::Transient, Phase::NotWritten));
    assert!(error.detail.contains("moved or removed"), "{error}");
    assert!(matches!(block_on(transcript.resolve(&"k1".into(), &"ana".into())), Resolution::Unknown));
}

/// Sends that wait together go out together; each gets its own place.
#[test]
fn sends_at_the_same_time_are_all_written() {
    let (_folder, to) = folder();
    let transcript = open(&to);
    let big = "x".repeat(30_000);
    let sends = (0..100).map(|n| (format!("k{n}"), Content::text(format!("{n} {big}")))).collect::<Vec<_>>();
    let places = block_on(async {
        let mut waiting: Vec<_> = sends
            .iter()
            .map(|(key, content)| (Box::pin(send_content(&transcript, Some(key), "ana", content)), None))
            .collect();
        // All are on their way before the first is waited for; some may be done by then.
        for (send, place) in &mut waiting {
            *place =
                tokio::select! { biased; done = send => Some(done), () = std::future::ready(()) => None };
        }
        let mut places = Vec::new();
        for (send, place) in waiting {
            places.push(match place {
                Some(done) => done.unwrap(),
                None => send.await.unwrap(),
            });
        }
        places
    });
    let text = fs::read_to_string(&to).unwrap();
    assert_eq!(text.lines().count(), 100);
    for ((key, _), place) in sends.iter().zip(&places) {
        assert!(text[place.parse().unwrap()..].starts_with(&format!("{key}\tana\t")));
        assert_eq!(resolve(&transcript, key).as_ref(), Some(place));
    }
}

/// A part of `processes_append_to_the_same_file`: does nothing by itself.
#[test]
fn child_that_appends() {
    let Some(to) = std::env::var_os("BOTMESH_TEST_APPEND_TO") else { return };
    let name = std::env::var("BOTMESH_TEST_NAME").unwrap();
    let transcript = open(Path::new(&to));
    for n in 0..200 {
        send(&transcript, &format!("{name}:{n}"), &name, &"y".repeat(n * 7)).unwrap();
    }
}

#[test]
fn processes_append_to_the_same_file() {
    let (_folder, to) = folder();
    let start = |name: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "transcript_out::child_that_appends"]);
        command.env("BOTMESH_TEST_APPEND_TO", &to).env("BOTMESH_TEST_NAME", name);
        command.stdout(std::process::Stdio::null()).spawn().unwrap()
    };
    let names = ["a", "b", "c"];
    let children: Vec<_> = names.iter().map(|name| start(name)).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let text = fs::read_to_string(&to).unwrap();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for line in text.lines() {
        let fields: Vec<_> = line.split('\t').collect();
        let [key, chat, text] = fields[..] else { panic!("{line}") };
        let next = seen.entry(chat).or_default();
        assert_eq!(
            (key, text.len()),
            (format!("{chat}:{next}").as_str(), *next * 7),
            "in each process's order"
        );
        *next += 1;
    }
    assert_eq!(seen, names.iter().map(|name| (*name, 200)).collect());
    let transcript = open(&to);
    assert!(names.iter().all(|name| resolve(&transcript, &format!("{name}:199")).is_some()));
}

/// A small file system of its own, gone when dropped.
#[cfg(target_os = "linux")]
struct Small(TempDir);

#[cfg(target_os = "linux")]
impl Small {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(folder.path());
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then_some(Self(folder))
    }
}

#[cfg(target_os = "linux")]
impl Drop for Small {
    fn drop(&mut self) {
        // Lazily: the thread that writes closes its file a little after its transcript is dropped.
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn on_a_full_disk_nothing_of_a_send_remains() {
    let Some(small) = Small::mount() else {
        println!("not run: this user may not mount a small file system");
        return;
    };
    let to = small.0.path().join("out");
    fs::write(to.with_file_name("in"), "ana\thi\n").unwrap();
    let transcript = open(&to);
    send(&transcript, "k1", "ana", "small").unwrap();
    let before = fs::read(&to).unwrap();
    let error = send(&transcript, "k2", "ana", &"x".repeat(100_000)).unwrap_err();
    assert_eq!((error.class, error.phase), (ErrorClass::Transient, Phase::NotWritten));
    assert!(error.detail.contains("out: nothing was written: no space is left; free some"), "{error}");
    assert_eq!(fs::read(&to).unwrap(), before);
    assert_eq!((resolve(&transcript, "k1"), resolve(&transcript, "k2")), (Some("0".into()), None));
    // What is too much together fits one by one, until it does not.
    let half = Content::text("y".repeat(25_000));
    let (first, second, third) = block_on(async {
        tokio::join!(
            send_content(&transcript, Some("k3"), "ana", &half),
            send_content(&transcript, Some("k4"), "ana", &half),
            send_content(&transcript, Some("k5"), "ana", &half),
        )
    });
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    assert_eq!(third.unwrap_err().phase, Phase::NotWritten);
    assert!(resolve(&open(&to), "k4").is_some() && resolve(&open(&to), "k5").is_none());
}
