use std::path::PathBuf;

use super::*;
use crate::core::error::Effect;

fn io(kind: io::ErrorKind) -> AppendLogError {
    AppendLogError::Io { file: PathBuf::from("data/journals.log"), operation: "sync", source: kind.into() }
}

#[test]
fn errors_of_an_opening_are_named_by_what_to_do() {
    let path = PathBuf::from("data/journals");
    let unsupported = AppendLogError::UnsupportedFilesystem { path, filesystem: "nfs4".into() };
    for (error, expected) in [
        (unsupported, StoreErrorKind::UnsupportedFilesystem),
        (io(io::ErrorKind::PermissionDenied), StoreErrorKind::Denied),
        (io(io::ErrorKind::ReadOnlyFilesystem), StoreErrorKind::Denied),
        (io(io::ErrorKind::NotADirectory), StoreErrorKind::Misuse),
        (io(io::ErrorKind::Other), StoreErrorKind::Unavailable),
    ] {
        let error = from_log("open", error);
        assert_eq!((error.kind(), error.effect()), (expected, Effect::None), "{error}");
        assert!(error.to_string().contains("data/journals"), "{error}");
    }
}

#[test]
fn a_commit_that_failed_half_way_says_that_nobody_knows() {
    let error = from_log("commit", io(io::ErrorKind::Other));
    assert_eq!(
        (error.kind(), error.effect(), error.retry()),
        (StoreErrorKind::Corrupt, Effect::Unknown, false)
    );
    let file = PathBuf::from("data/journals.log");
    let full = AppendLogError::Full { file, source: io::ErrorKind::StorageFull.into() };
    let error = from_log("commit", full);
    assert_eq!((error.kind(), error.effect(), error.retry()), (StoreErrorKind::Full, Effect::None, true));
}
