//! What the operating system says, and what real time is.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark waits in real time")]
pub(crate) async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

#[expect(clippy::disallowed_methods, reason = "a benchmark has no bot whose spawner it could use")]
pub(crate) fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(task)
}

/// The runtime of the callers.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The time that the processors gave to the threads of this process so far.
pub(crate) fn cpu() -> Duration {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// Bytes of memory that belong to this process alone: no files, nothing shared.
pub(crate) fn anonymous_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Who else uses the machine, as the operating system puts it.
pub(crate) fn load() -> String {
    let load = fs::read_to_string(Path::new("/proc/loadavg")).unwrap_or_default();
    load.split(' ').take(3).collect::<Vec<_>>().join(" ")
}
