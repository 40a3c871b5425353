//! Tasks that run at the same time.

use std::future::Future;

use tokio::task::JoinSet;

use crate::Failure;

/// Runs all of them on the runtime's threads and returns what they return, in their order.
pub(crate) async fn parallel<T, F>(tasks: impl IntoIterator<Item = F>) -> Result<Vec<T>, Failure>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Failure>> + Send + 'static,
{
    let mut running = JoinSet::new();
    for (number, task) in tasks.into_iter().enumerate() {
        start(&mut running, async move { (number, task.await) });
    }
    let mut ended = Vec::new();
    while let Some(task) = running.join_next().await {
        let (number, result) = task.map_err(|error| Failure::new(format!("a task panicked: {error}")))?;
        ended.push((number, result?));
    }
    ended.sort_by_key(|(number, _)| *number);
    Ok(ended.into_iter().map(|(_, value)| value).collect())
}

#[expect(clippy::disallowed_methods, reason = "the tasks are the callers of what is under test")]
fn start<T: Send + 'static>(running: &mut JoinSet<T>, task: impl Future<Output = T> + Send + 'static) {
    running.spawn(task);
}
