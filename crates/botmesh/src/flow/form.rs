use std::time::Duration;

use super::{Answer, AskAgain, FlowCtx, Step};
use crate::Result;
use crate::core::content::Content;
use crate::core::error::SendError;

type Check = Box<dyn Fn(&Answer) -> Result<(), AskAgain> + Send + Sync>;

/// One question of a [form](crate::Flow::form).
#[must_use]
pub struct Field {
    pub(super) id: &'static str,
    question: Content,
    timeout: Option<Duration>,
    check: Check,
}

/// A field of this id.
pub fn field(id: &'static str, question: impl Into<Content>) -> Field {
    Field { id, question: question.into(), timeout: None, check: Box::new(|_| Ok(())) }
}

impl Field {
    /// Refuses an answer and says why; the user answers again.
    pub fn check(mut self, check: impl Fn(&Answer) -> Result<(), AskAgain> + Send + Sync + 'static) -> Self {
        self.check = Box::new(check);
        self
    }

    /// How long the field waits for its answer. Then the flow ends. Without it, it waits for ever.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl std::fmt::Debug for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Field").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The answers to a form.
#[derive(Clone, Debug, Default)]
pub struct Filled(Vec<(&'static str, Answer)>);

impl Filled {
    /// The answer to a field.
    pub fn answer(&self, id: &str) -> Option<&Answer> {
        self.0.iter().find(|(field, _)| *field == id).map(|(_, answer)| answer)
    }

    /// The text of the answer to a field; empty if there is no such field.
    pub fn text(&self, id: &str) -> &str {
        self.answer(id).map_or("", Answer::text)
    }
}

/// Asks for all fields until what they make together is accepted.
pub(super) async fn fill<S>(
    c: &FlowCtx<S>,
    fields: &[Field],
    accept: impl Fn(&Filled) -> Result<(), AskAgain>,
) -> Result<Step> {
    loop {
        let mut filled = Filled::default();
        for Field { id, question, timeout, check } in fields {
            let accept = |answer: &Answer| check(answer).map(|()| answer.clone());
            filled.0.push((id, c.talk().ask(Box::new(question.clone()), *timeout, accept).await?));
        }
        let Err(AskAgain(say)) = accept(&filled) else { return Ok(Step::Next) };
        match c.say(*say).await {
            Ok(_) | Err(SendError::Deferred { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
