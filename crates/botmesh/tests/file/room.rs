//! Disks that are full, and disks that fail.

use std::process::Command;

use botmesh::FileDurability;
use botmesh::core::error::{Effect, StoreErrorKind};
use botmesh::core::kv::DurableKv;

use crate::tools::{Place, block_on, child, close, commit, create, get};

/// A small file system in memory, unmounted at the end.
struct Disk(tempfile::TempDir);

impl Disk {
    /// `None`, with a word about it, where this process may not mount.
    fn new(test: &str, size: &str) -> Option<Self> {
        let disk = Self(tempfile::tempdir().unwrap());
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(disk.0.path());
        if mount.output().is_ok_and(|done| done.status.success()) {
            return Some(disk);
        }
        println!("not run: {test} (a tmpfs cannot be mounted here; it needs root)");
        None
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[test]
fn a_full_disk_fails_commits_as_a_whole_and_the_journals_go_on_when_there_is_room() {
    let name = "a_full_disk_fails_commits_as_a_whole_and_the_journals_go_on_when_there_is_room";
    let Some(disk) = Disk::new(name, "4m") else { return };
    let ballast = disk.0.path().join("ballast");
    std::fs::write(&ballast, vec![1; 2 << 20]).unwrap();
    let path = disk.0.path().join("journals");
    let file = block_on(FileDurability::open(&path)).unwrap();
    let both =
        |n: usize| vec![create(format!("{n}a"), vec![7; 9_000]), create(format!("{n}b"), vec![7; 9_000])];
    let mut stored = 0;
    let error = loop {
        match block_on(file.commit(both(stored))) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), error.effect()), (StoreErrorKind::Full, Effect::None), "{error}");
    assert!(error.retry() && error.to_string().contains("free some space"), "{error}");
    assert!(stored > 20, "{stored}");
    let there =
        |file: &FileDurability, n: usize| ["a", "b"].map(|half| get(file, format!("{n}{half}")).is_some());
    assert_eq!([there(&file, stored - 1), there(&file, stored)], [[true; 2], [false; 2]]);
    std::fs::remove_file(&ballast).unwrap();
    block_on(file.commit(both(stored))).unwrap();
    // There is no room for a snapshot beside all of it: closing leaves the log.
    std::fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    close(&file);
    let file = block_on(FileDurability::open(&path)).unwrap();
    assert!((0..=stored).all(|n| there(&file, n) == [true; 2]));
    assert_eq!(there(&file, stored + 1), [false; 2]);
}

/// The file of a log may also be full at a size limit, which needs no right to mount.
#[test]
fn a_log_at_the_limit_of_file_sizes_is_full_and_not_broken() {
    let place = Place::new();
    let file = place.open().unwrap();
    commit(&file, create("k0", "value"));
    close(&file);
    // 4 KiB, in the unit of the shell.
    let limited = ["sh", "-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""];
    let output = child(&limited, "fail", &place.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("Full None"), "{said}");
}

/// A disk that fails to sync: the kernel forgets what it could not write, so that a second sync would lie.
#[test]
fn the_first_failed_sync_closes_everything_until_the_files_are_opened_again() {
    let name = "the_first_failed_sync_closes_everything_until_the_files_are_opened_again";
    let inject = |syscall: &str| format!("inject={syscall}:error=EIO:when=4");
    for syscall in ["fdatasync", "pwrite64"] {
        let place = Place::new();
        let traced = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", &inject(syscall)];
        let Ok(output) = child(&traced, "fail", &place.path()).output() else {
            println!("not run: {name} (there is no strace here to make a sync fail)");
            return;
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if said.is_empty() {
            println!("not run: {name} (strace may not trace here)");
            return;
        }
        assert!(output.status.success(), "{said}");
        let line = |start: &str| {
            let lines = said.lines().map(|line| line.trim_start_matches("test processes::child ... "));
            let found = lines.filter_map(|line| line.strip_prefix(start)).next();
            found.unwrap_or_else(|| panic!("no `{start}` in: {said}"))
        };
        let failed = line("failed after ");
        assert!(failed.contains(": Corrupt Unknown "), "{failed}");
        let log = place.file(".log").display().to_string();
        assert!(failed.contains(&log), "{failed}");
        for refused in [line("commit: "), line("get: ")] {
            assert!(refused.contains("check the disk") && refused.starts_with("Corrupt"), "{refused}");
        }
        assert!(line("commit: ").starts_with("Corrupt None retry false"), "{said}");
        assert_eq!(line("close: "), "Err(Corrupt)");
        let (found, expected) = line("reopened: ").split_once(" of ").unwrap();
        assert!(expected.split(" or ").any(|count| count == found), "{said}");
        assert!(get(&place.open().unwrap(), "works").is_some());
    }
}
