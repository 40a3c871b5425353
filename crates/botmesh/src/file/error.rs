//! From the log's errors to kinds.

use std::io;
use std::path::Path;

use botmesh_append_log::AppendLogError;

use super::entry::Unreadable;
use crate::core::error::{StoreError, StoreErrorKind};

/// What errors call this backend.
pub(super) const BACKEND: &str = "file";

/// The log's error, for the caller of `operation`.
pub(super) fn from_log(operation: &'static str, error: AppendLogError) -> StoreError {
    let message = match &error {
        AppendLogError::Corrupt { .. } => format!("AppendLogCorrupt: {error}"),
        _ => error.to_string(),
    };
    let new = StoreError::new(kind(operation, &error), BACKEND, operation, message);
    let new = if error.may_be_applied() && operation == "commit" { new.with_unknown_effect() } else { new };
    match error {
        AppendLogError::Io { source, .. } | AppendLogError::Full { source, .. } => new.with_source(source),
        _ => new,
    }
}

fn kind(operation: &str, error: &AppendLogError) -> StoreErrorKind {
    match error {
        // Nobody knows what the disk holds until the files are opened, and so checked, again.
        AppendLogError::Io { .. } | AppendLogError::Poisoned { .. } if operation != "open" => {
            StoreErrorKind::Corrupt
        }
        AppendLogError::Io { source, .. } => match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => StoreErrorKind::Denied,
            io::ErrorKind::IsADirectory
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidFilename => StoreErrorKind::Misuse,
            _ => StoreErrorKind::Unavailable,
        },
        AppendLogError::Locked { .. } => StoreErrorKind::Unavailable,
        AppendLogError::UnsupportedFilesystem { .. } => StoreErrorKind::UnsupportedFilesystem,
        AppendLogError::Corrupt { .. } | AppendLogError::DamagedSnapshot { .. } => StoreErrorKind::Corrupt,
        AppendLogError::NewerFormat { .. } | AppendLogError::NotAnAppendLog { .. } => {
            StoreErrorKind::Incompatible
        }
        AppendLogError::TooLarge { .. } => StoreErrorKind::TooLarge,
        AppendLogError::Full { .. } => StoreErrorKind::Full,
        _ => StoreErrorKind::Unavailable,
    }
}

/// A record or an entry is whole, but says nothing that is understood.
pub(super) fn unreadable(path: &Path, place: &str, why: &Unreadable) -> StoreError {
    let path = path.display();
    let (kind, message) = match why {
        Unreadable::Newer(format) => (
            StoreErrorKind::Incompatible,
            format!("{place} of {path} has the format {format} of a later version; upgrade the program"),
        ),
        Unreadable::Damaged => (
            StoreErrorKind::Corrupt,
            format!(
                "{place} of {path} was not written by this program; nothing was touched: restore the files from a \
                 backup, or choose another path"
            ),
        ),
    };
    StoreError::new(kind, BACKEND, "open", message)
}

pub(super) fn closed(operation: &'static str, path: &Path) -> StoreError {
    let message = format!("the journals in {} are closed; open them again", path.display());
    StoreError::new(StoreErrorKind::Misuse, BACKEND, operation, message)
}

pub(super) fn thread_ended(operation: &'static str, path: &Path) -> StoreError {
    let message = format!(
        "the thread that writes {} ended unexpectedly; open the journals again and report what it printed",
        path.display()
    );
    StoreError::new(StoreErrorKind::Corrupt, BACKEND, operation, message)
}

/// What every call is told after a write that failed half-way.
pub(super) fn poisoned(path: &Path, first: &StoreError) -> StoreError {
    let message = format!(
        "the journals in {} were closed when a write failed, since nobody knows what the disk holds; check the disk, then \
         open them again, which reads it back (the failure was: {first})",
        path.display()
    );
    StoreError::new(StoreErrorKind::Corrupt, BACKEND, "use", message)
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
