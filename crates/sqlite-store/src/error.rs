//! From SQLite's errors to kinds: the one place that decides what a failure is called and whether to try again.

use std::path::Path;
use std::sync::Arc;

use botmesh_core::error::{Effect, StoreError, StoreErrorKind};
use rusqlite::ErrorCode;

/// What errors call this backend.
pub(crate) const BACKEND: &str = "sqlite";

/// `SQLITE_IOERR_SHMSIZE`: the shared memory file cannot grow, for want of space.
const IOERR_SHMSIZE: i32 = 4874;

/// A failure before it is told to a caller. Cloned when it is told to all callers of a group.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// SQLite's.
    Driver(Arc<rusqlite::Error>),
    /// Ours, with what is wrong and what to do; the path is added where it is not named.
    Own { kind: StoreErrorKind, message: String },
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Driver(Arc::new(error))
    }
}

impl Fault {
    pub(crate) fn own(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self::Own { kind, message: message.into() }
    }

    pub(crate) fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Driver(error) => error.sqlite_error_code(),
            Self::Own { .. } => None,
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
    }

    pub(crate) fn kind(&self) -> StoreErrorKind {
        match self {
            Self::Driver(error) => kind_of(error),
            Self::Own { kind, .. } => *kind,
        }
    }

    /// Whether every write would fail now, so that trying the others of a group one by one is of no use.
    pub(crate) fn concerns_all(&self) -> bool {
        use StoreErrorKind::{Denied, Full, Unavailable};
        matches!(self, Self::Driver(_)) && matches!(self.kind(), Unavailable | Full | Denied)
    }

    /// What a failed `COMMIT` that was rolled back may have left. Without space the mark that makes a group valid was
    /// not written; after another input or output error nobody knows what a restart will find.
    pub(crate) fn effect_of_commit(&self) -> Effect {
        match self.code() {
            Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy) => Effect::None,
            _ => Effect::Unknown,
        }
    }

    /// For the caller of `operation` on the database at `path`.
    pub(crate) fn error(&self, operation: &'static str, path: &Path, effect: Effect) -> StoreError {
        let error = match self {
            Self::Driver(driver) => {
                StoreError::new(self.kind(), BACKEND, operation, describe(driver, self.kind(), path))
                    .with_source(Arc::clone(driver))
            }
            Self::Own { kind, message } => {
                let path = path.display().to_string();
                let message =
                    if message.contains(&path) { message.clone() } else { format!("{path}: {message}") };
                StoreError::new(*kind, BACKEND, operation, message)
            }
        };
        match effect {
            Effect::None => error,
            Effect::Unknown => error.with_unknown_effect(),
        }
    }
}

fn kind_of(error: &rusqlite::Error) -> StoreErrorKind {
    use rusqlite::Error as E;
    match error {
        E::SqliteFailure(failure, _) => match failure.code {
            ErrorCode::DiskFull => StoreErrorKind::Full,
            ErrorCode::SystemIoFailure if failure.extended_code == IOERR_SHMSIZE => StoreErrorKind::Full,
            ErrorCode::ReadOnly
            | ErrorCode::PermissionDenied
            | ErrorCode::CannotOpen
            | ErrorCode::AuthorizationForStatementDenied => StoreErrorKind::Denied,
            ErrorCode::DatabaseCorrupt | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch => {
                StoreErrorKind::Corrupt
            }
            // A plain SQLITE_ERROR from our own statements: a table is missing or is not ours.
            ErrorCode::NotADatabase | ErrorCode::Unknown => StoreErrorKind::Incompatible,
            ErrorCode::TooBig => StoreErrorKind::TooLarge,
            ErrorCode::ApiMisuse | ErrorCode::ParameterOutOfRange => StoreErrorKind::Misuse,
            _ => StoreErrorKind::Unavailable,
        },
        E::FromSqlConversionFailure(..)
        | E::IntegralValueOutOfRange(..)
        | E::Utf8Error(..)
        | E::InvalidColumnType(..) => StoreErrorKind::Corrupt,
        E::SqlInputError { .. } | E::QueryReturnedNoRows => StoreErrorKind::Incompatible,
        _ => StoreErrorKind::Misuse,
    }
}

fn describe(error: &rusqlite::Error, kind: StoreErrorKind, path: &Path) -> String {
    let path = path.display();
    let busy = matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked));
    match kind {
        StoreErrorKind::Unavailable if busy => format!(
            "another program holds the write lock of {path}; try again, and close shells and backup tools that keep a \
             transaction open on it"
        ),
        StoreErrorKind::Unavailable => {
            format!("{path} cannot be read or written now; check its disk and try again")
        }
        StoreErrorKind::Full => format!("no space is left for {path}; free space on its disk and try again"),
        StoreErrorKind::Denied => format!(
            "{path} may not be written; give this user write access to the file, to its folder and to the files beside \
             it that end in -wal and -shm"
        ),
        StoreErrorKind::Corrupt => format!(
            "{path} is damaged; stop the program, keep a copy, and restore a backup or run \
             `sqlite3 FILE .recover` on the copy"
        ),
        StoreErrorKind::Incompatible => format!(
            "{path} is not a database of this program, or its tables were changed; choose another path or restore a \
             backup"
        ),
        StoreErrorKind::TooLarge => format!("a value is larger than {path} takes; split it"),
        _ => format!("a statement on {path} was refused; this is a defect of the program, please report it"),
    }
}

#[cfg(test)]
#[path = "error_tests.rs"]
mod tests;
