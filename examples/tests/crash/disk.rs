//! Disks that are full or may not be written, as small file systems of their own.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::child::Place;
use crate::inputs::{place_with_messages, refused, works_afterwards};

/// A small file system; `None`, told, where this user may not mount one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf, options: &str) -> Option<Self> {
        fs::create_dir_all(&path).expect("a folder");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&path).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(path));
        }
        println!("not run: mounting a tmpfs is not permitted here; run the tests as root");
        None
    }

    fn remount(&self, options: &str) {
        let status = Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.0).status();
        assert!(status.is_ok_and(|status| status.success()), "the file system cannot be mounted again");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn messages(lines: usize) -> String {
    (0..lines).map(|n| format!("chat-{}\thi\n", n % 20)).collect()
}

fn check(place: &Place, to: &str, lines: usize) {
    let replies = place.replies(to);
    let keys: HashSet<_> = replies.iter().map(|(key, ..)| key).collect();
    assert_eq!((keys.len(), replies.len()), (lines, lines), "{}", place.complaints());
}

#[test]
fn a_read_only_folder_is_named() {
    let place = place_with_messages(b"ana\thi\n");
    let data = place.path("data");
    let Some(disk) = SmallDisk::mount(data.clone(), "size=4m,ro") else { return };
    let folder = data.display().to_string();
    refused(&place, &mut place.transcript("in", "out"), &[&folder, "give this user write access"]);
    disk.remount("rw");
    works_afterwards(&place, 1);
}

#[test]
fn a_database_in_a_folder_that_became_read_only_is_left_alone() {
    let place = place_with_messages(b"ana\thi\n");
    let data = place.path("data");
    let Some(disk) = SmallDisk::mount(data.clone(), "size=4m") else { return };
    works_afterwards(&place, 1);
    place.write("in", "ana\thi\nana\tlist\n");
    disk.remount("ro");
    let folder = data.display().to_string();
    refused(&place, &mut place.transcript("in", "out"), &[&folder, "give this user write access"]);
    disk.remount("rw");
    works_afterwards(&place, 2);
}

#[test]
fn a_full_disk_of_the_database_loses_nothing() {
    const LINES: usize = 400;
    let place = place_with_messages(messages(LINES).as_bytes());
    let Some(disk) = SmallDisk::mount(place.path("data"), "size=400k") else { return };
    let mut child = place.transcript("in", "out").spawn().expect("the example starts");
    let ended = place.wait_for("a complaint of the full disk", || {
        let ended = child.try_wait().expect("the child can be waited for");
        (place.complaints().contains("no space is left") || ended.is_some()).then_some(ended)
    });
    assert!(ended.is_none_or(|status| !status.success()), "it ended well\n{}", place.complaints());
    child.kill().expect("the child can be killed");
    child.wait().expect("the child can be waited for");
    assert!(place.complaints().contains("appointments.db"), "{}", place.complaints());
    assert!(place.reply_count("out") < LINES, "the disk was not full");
    disk.remount("size=64m");
    works_afterwards(&place, LINES);
    check(&place, "out", LINES);
}

/// Space comes back while the process runs: it needs no restart.
#[test]
fn a_full_disk_of_the_database_is_waited_for() {
    const LINES: usize = 400;
    let place = place_with_messages(messages(LINES).as_bytes());
    let Some(disk) = SmallDisk::mount(place.path("data"), "size=400k") else { return };
    let mut child = place.transcript("in", "out").spawn().expect("the example starts");
    place.wait_for("a complaint of the full disk", || {
        place.complaints().contains("no space is left").then_some(())
    });
    disk.remount("size=64m");
    let status = place.wait(&mut child);
    assert!(status.success(), "it did not wait: {status}\n{}", place.complaints());
    check(&place, "out", LINES);
}

/// The channel's own disk: what could not be said is said when there is space again, by this process or the next.
#[test]
fn a_full_disk_of_the_channel_loses_nothing() {
    const LINES: usize = 200;
    let place = place_with_messages(messages(LINES).as_bytes());
    let Some(disk) = SmallDisk::mount(place.path("channel"), "size=16k") else { return };
    let mut child = place.transcript("in", "channel/out").spawn().expect("the example starts");
    place.wait_for("the channel to be full", || {
        let ended = child.try_wait().expect("the child can be waited for");
        assert!(ended.is_none(), "{ended:?}\n{}", place.complaints());
        (place.bytes("channel/out").len() > 12_000).then_some(())
    });
    place.wait_for("a send of each chat that is left to the background", || {
        (place.complaints().matches("is deferred").count() >= 20).then_some(())
    });
    child.kill().expect("the child can be killed");
    child.wait().expect("the child can be waited for");
    assert!(place.reply_count("channel/out") < LINES, "the disk was not full");
    disk.remount("size=1m");
    place.succeed(&mut place.transcript("in", "channel/out"));
    check(&place, "channel/out", LINES);
}

/// What is given up is told by the exit code as well.
#[test]
fn a_channel_that_stays_full_ends_in_failure() {
    const LINES: usize = 40;
    let messages: String = (0..LINES).map(|n| format!("chat-{n}\thi\n")).collect();
    let place = place_with_messages(messages.as_bytes());
    let Some(_disk) = SmallDisk::mount(place.path("channel"), "size=4k") else { return };
    let mut child = place.transcript("in", "channel/out").spawn().expect("the example starts");
    let status = place.wait(&mut child);
    let complaints = place.complaints();
    assert!(place.reply_count("channel/out") < LINES, "the disk was not full");
    assert!(complaints.contains("no space is left"), "{complaints}");
    assert!(!status.success(), "replies are missing, and it ended well\n{complaints}");
}
