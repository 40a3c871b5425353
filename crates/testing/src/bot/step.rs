use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// One step of a test; await it. If what it expects does not happen, it panics where it is awaited, with the conversation
/// so far.
#[must_use = "a step does nothing until it is awaited"]
pub struct Step<'a, T = ()> {
    work: Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>,
}

impl<'a, T> Step<'a, T> {
    pub(super) fn new(work: impl Future<Output = Result<T, String>> + Send + 'a) -> Self {
        // The bot's tasks share this one's budget.
        Self { work: Box::pin(tokio::task::unconstrained(work)) }
    }
}

impl<T> Future for Step<'_, T> {
    type Output = T;

    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match self.work.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(value)) => Poll::Ready(value),
            Poll::Ready(Err(message)) => panic!("{message}"),
        }
    }
}

impl<T> fmt::Debug for Step<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Step")
    }
}
