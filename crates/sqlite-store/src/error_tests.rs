use std::error::Error;

use super::*;

fn sqlite(code: i32) -> Fault {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), Some("words of the driver".into())).into()
}

#[test]
fn each_code_has_its_kind() {
    use StoreErrorKind::*;
    let table = [
        (5, Unavailable),    // SQLITE_BUSY
        (261, Unavailable),  // SQLITE_BUSY_RECOVERY
        (6, Unavailable),    // SQLITE_LOCKED
        (7, Unavailable),    // SQLITE_NOMEM
        (1034, Unavailable), // SQLITE_IOERR_FSYNC
        (778, Unavailable),  // SQLITE_IOERR_WRITE
        (4874, Full),        // SQLITE_IOERR_SHMSIZE
        (13, Full),          // SQLITE_FULL
        (8, Denied),         // SQLITE_READONLY
        (14, Denied),        // SQLITE_CANTOPEN
        (3, Denied),         // SQLITE_PERM
        (11, Corrupt),       // SQLITE_CORRUPT
        (26, Incompatible),  // SQLITE_NOTADB
        (1, Incompatible),   // SQLITE_ERROR
        (18, TooLarge),      // SQLITE_TOOBIG
        (21, Misuse),        // SQLITE_MISUSE
    ];
    for (code, kind) in table {
        let error = sqlite(code).error("commit", Path::new("some/bot.db"), Effect::None);
        assert_eq!(error.kind(), kind, "{code}");
        assert_eq!(error.retry(), matches!(kind, Unavailable | Full), "{code}");
        assert!(error.to_string().contains("some/bot.db") || kind == Misuse, "{error}");
        assert!(!error.to_string().contains("words of the driver"), "{error}");
        assert!(error.source().is_some_and(|source| source.to_string().contains("words of the driver")));
    }
}

#[test]
fn a_failed_commit_is_unknown_unless_it_surely_left_nothing() {
    assert_eq!(sqlite(13).effect_of_commit(), Effect::None);
    assert_eq!(sqlite(5).effect_of_commit(), Effect::None);
    assert_eq!(sqlite(1034).effect_of_commit(), Effect::Unknown);
    assert_eq!(sqlite(10).effect_of_commit(), Effect::Unknown);
}

#[test]
fn only_troubles_of_one_write_are_tried_again_alone() {
    assert!(sqlite(13).concerns_all());
    assert!(sqlite(5).concerns_all());
    assert!(!sqlite(18).concerns_all());
    assert!(!sqlite(11).concerns_all());
    assert!(!Fault::own(StoreErrorKind::Denied, "own").concerns_all());
}
