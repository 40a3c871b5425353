use std::future::IntoFuture;
use std::time::Duration;

use super::talk::Talk;
use super::{Answer, AskAgain, AskError};
use crate::core::content::Content;
use crate::egress::Boxed;

type Accept<T> = Box<dyn Fn(&Answer) -> Result<T, AskAgain> + Send + Sync>;

/// A question that is asked when it is awaited: `c.ask("How old?").timeout(Duration::from_secs(300)).await?`.
///
/// # Errors
/// [`AskError`].
///
/// # Cancel safety
/// A dropped question waits for nothing any more; the next message goes to whatever is asked next.
#[must_use = "a question is asked when it is awaited"]
pub struct Ask<T = Answer> {
    talk: Talk,
    question: Box<Content>,
    timeout: Option<Duration>,
    accept: Accept<T>,
}

impl Ask {
    pub(super) fn new(talk: &Talk, question: Content) -> Self {
        let accept: Accept<Answer> = Box::new(|answer| Ok(answer.clone()));
        Self { talk: talk.clone(), question: Box::new(question), timeout: None, accept }
    }
}

impl<T> Ask<T> {
    /// How long each try waits for the answer. Then the question fails with [`AskError::TimedOut`]. Without it, it waits
    /// for ever.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Makes something of the answer, or tells the user what is wrong with it and waits for another one.
    pub fn check<U, F>(self, accept: F) -> Ask<U>
    where
        F: Fn(&Answer) -> Result<U, AskAgain> + Send + Sync + 'static,
    {
        let Self { talk, question, timeout, .. } = self;
        Ask { talk, question, timeout, accept: Box::new(accept) }
    }
}

impl<T: Send + 'static> IntoFuture for Ask<T> {
    type Output = Result<T, AskError>;
    type IntoFuture = Boxed<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { talk, question, timeout, accept } = self;
        Box::pin(async move { talk.ask(question, timeout, accept).await })
    }
}

impl<T> std::fmt::Debug for Ask<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ask").field("question", &self.question).finish_non_exhaustive()
    }
}
