//! One opener at a time.

use std::fs;
use std::os::unix::fs::symlink;

use botmesh_append_log::{AppendLog, AppendLogError, LockHolder, Options};

use crate::child::Process;
use crate::support::{Journal, assert_counts_to};

fn holder(opened: Result<AppendLog, AppendLogError>) -> LockHolder {
    match opened {
        Err(AppendLogError::Locked { path, holder }) => {
            assert!(path.ends_with("journal"));
            holder
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_second_open_in_the_same_process_is_refused_until_close() {
    let journal = Journal::of_twenty();
    let log = journal.open();
    let refused = journal.try_open();
    assert!(refused.as_ref().unwrap_err().to_string().contains("already open: in this process"));
    assert_eq!(holder(refused).pid, Some(std::process::id()));
    log.close(["state"]).unwrap();
    let log = journal.open();
    drop(log);
    journal.open();
}

#[test]
fn a_refused_open_leaves_lock_and_journal_to_their_holder() {
    let journal = Journal::of_twenty();
    let mut log = journal.open();
    let hint = fs::read(journal.file(".lock")).unwrap();
    holder(journal.try_open());
    holder(journal.try_open());
    assert_eq!(fs::read(journal.file(".lock")).unwrap(), hint);
    log.append(&crate::support::payload(21)).unwrap();
    drop(log);
    assert_counts_to(&journal.open(), 21);
}

#[test]
fn other_names_of_the_journal_share_its_lock() {
    let journal = Journal::of_twenty();
    let folder = journal.path.parent().unwrap();
    let other = tempfile::tempdir().unwrap();
    symlink(folder, other.path().join("folder")).unwrap();
    symlink(&journal.path, other.path().join("link")).unwrap(); // The snapshot is not there yet.

    let mut log = journal.open();
    for _ in 0..2 {
        for name in ["folder/journal", "link", "folder/./journal"] {
            holder(AppendLog::open(other.path().join(name), Options::default()));
        }
        log.compact(["state"]).unwrap();
    }
    drop(log);

    // A link stays a link when what it leads to is replaced.
    let link = other.path().join("link");
    AppendLog::open(&link, Options::default()).unwrap().compact(["newer"]).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(crate::support::records(&journal.open()), [b"newer".to_vec()]);
}

#[test]
fn deleting_the_lock_file_lets_nobody_in() {
    let journal = Journal::of_twenty();
    let log = journal.open();
    fs::remove_file(journal.file(".lock")).unwrap();
    holder(journal.try_open());
    drop(log);
    journal.open();
}

#[test]
fn a_stale_lock_file_never_blocks() {
    for hint in
        ["{pid:1,host:'old'}", "{\"pid\":1,\"host\":\"old\"}", "pid=1\nstart_time=1\nboot_id=x\n", "1", ""]
    {
        let journal = Journal::of_twenty();
        fs::write(journal.file(".lock"), hint).unwrap();
        assert_counts_to(&journal.open(), 20);
    }
}

#[test]
fn process_one_opens_what_process_one_left_locked() {
    let unshare = ["unshare", "--pid", "--fork", "--kill-child"];
    let mut probe = std::process::Command::new(unshare[0]);
    if !probe.args(&unshare[1..]).arg("true").status().is_ok_and(|status| status.success()) {
        println!("not run: needs the right to make a process namespace");
        return;
    }
    let journal = Journal::of_twenty();
    fs::write(journal.file(".lock"), "pid=1\n").unwrap();
    let mut process = Process::start_under(&unshare, "hold", &journal.path);
    assert_eq!(process.line(), "open");
    assert_eq!(holder(journal.try_open()).pid, Some(1));
}

#[test]
fn a_live_second_process_is_refused_and_a_dead_one_is_not() {
    let journal = Journal::of_twenty();
    let mut process = Process::start("hold", &journal.path);
    assert_eq!(process.line(), "open");
    let refused = journal.try_open();
    let text = refused.as_ref().unwrap_err().to_string();
    assert!(text.contains(&format!("by process {}", process.id())), "{text}");
    let holder = holder(refused);
    assert_eq!(holder.pid, Some(process.id()));
    #[cfg(target_os = "linux")]
    assert!(holder.start_time.is_some() && holder.boot_id.is_some());

    process.kill();
    let log = journal.open();
    assert_counts_to(&log, 20);
    assert_eq!(Process::start("hold", &journal.path).line(), "locked");
    drop(log);
    assert_eq!(Process::start("hold", &journal.path).line(), "open");
}
