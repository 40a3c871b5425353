use std::sync::Arc;

use futures_util::FutureExt;

use super::Ctx;
use crate::Error;
use crate::egress::Boxed;

/// What a handler may return: nothing, or a result whose value is ignored. So `c.reply("hi").await` can be its last line.
pub trait IntoOutcome {
    /// The outcome.
    ///
    /// # Errors
    /// The handler's own.
    fn into_outcome(self) -> Result<(), Error>;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Result<(), Error> {
        Ok(())
    }
}

impl<T, E: Into<Error>> IntoOutcome for Result<T, E> {
    fn into_outcome(self) -> Result<(), Error> {
        self.map(|_| ()).map_err(Into::into)
    }
}

/// The code that answers a message: an `async fn(Ctx)`, or a closure that returns a future.
pub trait Handler: Send + Sync + 'static {
    /// Answers.
    fn call(&self, ctx: Ctx) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;
}

impl<F, Fut> Handler for F
where
    F: Fn(Ctx) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoOutcome,
{
    fn call(&self, ctx: Ctx) -> std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        // Not an `async` block: that would hold the future twice.
        Box::pin(self(ctx).map(IntoOutcome::into_outcome))
    }
}

pub(crate) type BoxedHandler = Arc<dyn Fn(Ctx) -> Boxed<Result<(), Error>> + Send + Sync>;

pub(crate) fn boxed(handler: impl Handler) -> BoxedHandler {
    Arc::new(move |ctx| handler.call(ctx))
}
