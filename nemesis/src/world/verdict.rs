//! What a run showed.

use std::fs;

use super::{Failure, Progress, World};
use crate::check::{Limits, Summary, check, draw};
use crate::history;
use crate::replica::Mode;

impl World {
    /// How far a run is, as a line.
    pub fn shown(&self, progress: Progress) -> String {
        let Progress { seconds, faults, revived } = progress;
        let mut line = format!("{seconds:>4} s: {faults} faults");
        if self.options.mode == Mode::Bot {
            let (said, taken, replies) = self.provider.messages();
            line += &format!(", {said} messages, {taken} taken over, {replies} replies");
        } else {
            let (accepted, refused) = self.provider.writes();
            line += &format!(", {accepted} writes taken, {refused} refused");
        }
        if revived > 0 {
            line += &format!(", {revived} replicas had ended by themselves");
        }
        line
    }

    /// Checks the history of a run that is over, and draws what is wrong.
    ///
    /// # Errors
    /// A promise was broken.
    pub fn verdict(&self) -> Result<Summary, Failure> {
        let records = history::read(self.folder())?;
        let report = check(&records, Limits::default())?;
        if report.is_clean() {
            return Ok(report.summary);
        }
        for invariant in report.broken() {
            let first = report.violations.iter().find(|violation| violation.invariant == invariant);
            if let Some(drawing) = first.and_then(|violation| draw(&records, violation)) {
                fs::write(self.folder().join(format!("{invariant:?}.svg").to_lowercase()), drawing)?;
            }
        }
        Err(format!("a promise is broken\n{report}").into())
    }
}
