//! Waiting for a condition.

use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Long enough for a slow machine; what takes longer is broken.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// Asks again and again until `probe` gives a value, an error that ends it, or [`BOUND`] has passed.
///
/// `probe` gives `Ok(Err(why))` while the condition does not hold yet.
#[expect(clippy::disallowed_methods, reason = "it waits for real processes")]
pub(crate) fn until<T>(
    what: impl std::fmt::Display,
    mut probe: impl FnMut() -> Result<std::result::Result<T, String>>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        match probe()? {
            Ok(value) => return Ok(value),
            Err(why) if start.elapsed() > BOUND => {
                return Err(Error(format!("{what} did not happen within {} s: {why}", BOUND.as_secs())));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}
