//! Why there is no turn.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use botmesh_core::error::{
    CoordinationUnavailable, CoordinationUnavailableReason, LeaseLost, StoreError, StoreErrorKind,
};

/// Why something is being tried again.
#[derive(Default)]
pub(super) struct Failure(Mutex<Option<Arc<StoreError>>>);

impl Failure {
    pub(super) fn set(&self, error: Option<StoreError>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = error.map(Arc::new);
    }

    pub(super) fn get(&self) -> Option<Arc<StoreError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
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

/// There is no session.
pub(super) fn unopened(lost: Option<LeaseLost>) -> CoordinationUnavailable {
    let since = lost.map(|lost| format!(" since the last one ended ({lost})")).unwrap_or_default();
    down(format!("no session could be opened{since}").into())
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

pub(super) fn unavailable(error: impl Into<Arc<StoreError>>) -> CoordinationUnavailable {
    let error = error.into();
    let reason = match error.kind() {
        StoreErrorKind::Full => CoordinationUnavailableReason::Overloaded,
        _ => CoordinationUnavailableReason::Down,
    };
    because(reason, Box::new(error))
}
