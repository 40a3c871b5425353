use serde::{Deserialize, Serialize};

use super::record::truncated;
use crate::time::Timestamp;

/// How many decisions about one record are remembered: the last ones.
const REMEMBERED: usize = 10;
/// The longest name of an operator, in bytes.
const MAX_NAME: usize = 200;

/// An operator gave a record a fresh budget of attempts: who, when, and what the attempts before it had come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revival<S> {
    /// The first of a record is 1.
    pub number: u32,
    /// When.
    pub at: Timestamp,
    /// Who, if the caller said so. At most about 200 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Where the record stood.
    pub state: S,
    /// The attempts of the series that ended with it.
    pub attempts: u32,
    /// Why the last of them failed, at most about 1,000 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Appends a revival, and forgets the oldest when there are too many.
pub(super) fn revived<S: Clone>(
    revivals: &[Revival<S>],
    (state, attempts, error): (S, u32, Option<&str>),
    by: Option<&str>,
    at: Timestamp,
) -> Vec<Revival<S>> {
    let number = revivals.last().map_or(0, |last| last.number).saturating_add(1);
    let by = by.map(|by| truncated(by, MAX_NAME));
    let kept = revivals.len().min(REMEMBERED - 1);
    let mut all = revivals[revivals.len() - kept..].to_vec();
    all.push(Revival { number, at, by, state, attempts, error: error.map(str::to_owned) });
    all
}
