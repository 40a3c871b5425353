use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

/// What a flow knows about its user. Stored as JSON with its version, so that a later release can still read it.
///
/// Added fields with `#[serde(default)]` need nothing else. For other changes raise [`VERSION`](Self::VERSION) and
/// translate the old form in [`migrate`](Self::migrate).
pub trait FlowState: Serialize + DeserializeOwned + Default + Send + 'static {
    /// The version of the type. Default 1.
    const VERSION: u32 = 1;

    /// Translates state of an older (or newer) version.
    ///
    /// # Errors
    /// It cannot be translated; then the flow's [`OnIncompatible`](crate::OnIncompatible) decides.
    fn migrate(from: u32, state: Value) -> Result<Value, MigrateError> {
        let _ = state;
        Err(MigrateError(format!("no migration from version {from} to {}", Self::VERSION)))
    }
}

impl FlowState for () {}

/// State of another version cannot be translated.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct MigrateError(pub String);

/// Reads stored state of `version`.
pub(super) fn load<S: FlowState>(version: u32, stored: Value) -> Result<S, String> {
    let state = match version == S::VERSION {
        true => stored,
        false => S::migrate(version, stored).map_err(|error| error.to_string())?,
    };
    serde_json::from_value(state).map_err(|error| format!("the stored state does not load: {error}"))
}
