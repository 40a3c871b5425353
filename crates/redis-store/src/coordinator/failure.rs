//! Why there is no turn.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use botmesh_core::error::{
    CoordinationUnavailable, CoordinationUnavailableReason, StoreError, StoreErrorKind,
};

/// Why a call is being tried again.
#[derive(Default)]
pub(super) struct Failure(Mutex<Option<StoreError>>);

impl Failure {
    pub(super) fn set(&self, error: StoreError) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    pub(super) fn take(&self) -> Option<StoreError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

type Source = Box<dyn std::error::Error + Send + Sync>;

fn because(reason: CoordinationUnavailableReason, source: Source) -> CoordinationUnavailable {
    CoordinationUnavailable { reason, source: Some(source) }
}

pub(super) fn overloaded(source: Source) -> CoordinationUnavailable {
    because(CoordinationUnavailableReason::Overloaded, source)
}

fn down(source: Source) -> CoordinationUnavailable {
    because(CoordinationUnavailableReason::Down, source)
}

pub(super) fn unreachable() -> CoordinationUnavailable {
    down("the server cannot be reached".into())
}

pub(super) fn closed() -> CoordinationUnavailable {
    down("the coordinator is closed".into())
}

pub(super) fn ended() -> CoordinationUnavailable {
    down("the session of the ticket has ended; take another one".into())
}

pub(super) fn timeout(wait: Duration) -> CoordinationUnavailable {
    let what = format!("the turn did not come within {}", botmesh_core::duration::format(wait));
    because(CoordinationUnavailableReason::Timeout, what.into())
}

pub(super) fn unavailable(error: StoreError) -> CoordinationUnavailable {
    let reason = match error.kind() {
        StoreErrorKind::Full => CoordinationUnavailableReason::Overloaded,
        _ => CoordinationUnavailableReason::Down,
    };
    because(reason, error.into())
}
