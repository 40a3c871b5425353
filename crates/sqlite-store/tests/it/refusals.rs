//! What cannot be opened: each refusal names the file and what to do, and leaves the file as it was.

use std::path::Path;

use botmesh_core::error::{StoreError, StoreErrorKind};
use botmesh_sqlite_store::{SqliteConfig, SqliteStore};
use rusqlite::Connection;

use crate::tools::{Mount, block_on, create};

/// Refused with this kind, in words that name `named` and say `advice`.
fn refused(path: &Path, kind: StoreErrorKind, named: &Path, advice: &str) -> StoreError {
    let error = block_on(SqliteStore::open(path)).expect_err("it was opened");
    println!("{error}");
    assert_eq!(error.kind(), kind, "{error}");
    assert_eq!((error.backend(), error.operation()), ("sqlite", "open"));
    let text = error.to_string();
    assert!(text.contains(&named.display().to_string()), "{text}");
    assert!(text.contains(advice), "{text}");
    error
}

fn unchanged(path: &Path, act: impl FnOnce()) {
    let before = std::fs::read(path).unwrap();
    act();
    assert!(std::fs::read(path).unwrap() == before, "the file was changed");
}

#[test]
fn a_newer_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    block_on(async {
        let store = SqliteStore::open(&path).await.unwrap();
        botmesh_core::store::Store::close(&store).await.unwrap();
    });
    Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 9000").unwrap();
    unchanged(&path, || {
        let error = refused(&path, StoreErrorKind::Incompatible, &path, "upgrade the program");
        assert!(
            error.to_string().contains("version 9000") && error.to_string().contains("up to 2"),
            "{error}"
        );
    });
}

#[test]
fn another_programs_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wallet.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE coins (id)").unwrap();
    unchanged(&path, || {
        refused(&path, StoreErrorKind::Incompatible, &path, "choose another path");
    });
    let marked = folder.path().join("marked.db");
    Connection::open(&marked).unwrap().execute_batch("PRAGMA application_id = 7").unwrap();
    refused(&marked, StoreErrorKind::Incompatible, &marked, "choose another path");
}

#[test]
fn a_file_that_is_no_database() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in
        [("short", b"hello\n".to_vec()), ("text", b"not a database\n".repeat(500)), ("zeros", vec![0; 8192])]
    {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        unchanged(&path, || {
            refused(&path, StoreErrorKind::Incompatible, &path, "not an SQLite database");
        });
    }
}

#[test]
fn a_database_with_its_second_half_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    block_on(async {
        let store = SqliteStore::open(&path).await.unwrap();
        let kv = store.durability();
        for n in 0..100 {
            kv.commit(vec![create(format!("{n}"), [7; 4000])]).await.unwrap();
        }
        botmesh_core::store::Store::close(&store).await.unwrap();
    });
    let length = std::fs::metadata(&path).unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(length / 2).unwrap();
    drop(file);
    unchanged(&path, || {
        refused(&path, StoreErrorKind::Corrupt, &path, "restore a backup");
    });
}

#[test]
fn a_directory() {
    let folder = tempfile::tempdir().unwrap();
    refused(folder.path(), StoreErrorKind::Misuse, folder.path(), "give the path of a file");
}

#[test]
fn a_file_in_place_of_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    refused(&file.join("data/bot.db"), StoreErrorKind::Misuse, &file, "choose a path");
}

#[test]
fn a_configuration_that_cannot_work() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    let config = SqliteConfig::default().with_journal_size_limit(0);
    let error = block_on(SqliteStore::open_with(&path, config)).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misuse);
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("sqlite.journal_size_limit"), "{source}");
    assert!(!path.exists());
}

#[test]
fn a_read_only_folder() {
    let Some(mount) = Mount::tmpfs("a_read_only_folder", "8m") else { return };
    let path = mount.path().join("bot.db");
    block_on(async {
        let store = SqliteStore::open(&path).await.unwrap();
        botmesh_core::store::Store::close(&store).await.unwrap();
    });
    if !mount.make_read_only() {
        println!("not run: a_read_only_folder (the tmpfs cannot be made read-only)");
        return;
    }
    refused(&path, StoreErrorKind::Denied, mount.path(), "give this user write access");
    let new = mount.path().join("new.db");
    refused(&new, StoreErrorKind::Denied, &new, "choose another path");
    let deep = mount.path().join("data");
    refused(&deep.join("bot.db"), StoreErrorKind::Denied, &deep, "choose another path");
}

#[test]
fn a_file_that_may_not_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bot.db");
    block_on(async {
        let store = SqliteStore::open(&path).await.unwrap();
        botmesh_core::store::Store::close(&store).await.unwrap();
    });
    // Permissions do not bind the superuser, the immutable flag does.
    let chattr = |flag: &str| {
        let output = std::process::Command::new("chattr").arg(flag).arg(&path).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !chattr("+i") {
        let mut permissions = std::fs::metadata(&path).unwrap().permissions();
        permissions.set_readonly(true);
        std::fs::set_permissions(&path, permissions).unwrap();
        if std::fs::OpenOptions::new().write(true).open(&path).is_ok() {
            println!("not run: a_file_that_may_not_be_written (nothing binds this user here)");
            return;
        }
    }
    let refusal = std::panic::catch_unwind(|| {
        unchanged(&path, || {
            refused(&path, StoreErrorKind::Denied, &path, "give this user write access");
        });
    });
    chattr("-i");
    refusal.unwrap();
}
