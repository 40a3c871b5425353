//! What the operating system says of this process.

use std::fs;
use std::time::Instant;

use crate::bare::WRITER;

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark waits in real time")]
pub(crate) async fn sleep(duration: std::time::Duration) {
    tokio::time::sleep(duration).await;
}

/// How often threads of this process went to sleep so far: for work from another thread, or for the disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sleeps {
    /// The thread that writes to the disk.
    pub(crate) writer: u64,
    pub(crate) others: u64,
}

impl Sleeps {
    pub(crate) fn so_far() -> Self {
        let mut sleeps = Self::default();
        let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        for thread in threads {
            // A thread may have ended meanwhile.
            let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
            let count = field(&status, "voluntary_ctxt_switches:");
            match field_text(&status, "Name:") {
                Some("sqlite-writer" | "file-journals" | WRITER) => sleeps.writer += count,
                _ => sleeps.others += count,
            }
        }
        sleeps
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            writer: self.writer.saturating_sub(earlier.writer),
            others: self.others.saturating_sub(earlier.others),
        }
    }
}

/// Bytes of memory that belong to this process alone: no files, nothing shared.
pub(crate) fn anonymous_memory() -> u64 {
    field(&fs::read_to_string("/proc/self/status").unwrap(), "RssAnon:") * 1024
}

fn field_text<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

fn field(status: &str, name: &str) -> u64 {
    let text = field_text(status, name).and_then(|text| text.split_whitespace().next());
    text.and_then(|number| number.parse().ok()).unwrap_or(0)
}
