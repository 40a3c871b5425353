use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::form::{Field, Filled, fill};
use super::{Answer, AskAgain, FlowCtx, FlowState, Prompt};
use crate::core::content::Content;
use crate::core::hash::stable_hash;
use crate::dispatch::fold;
use crate::egress::Boxed;
use crate::{Error, Result};

/// Where a flow goes after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To the next step; the flow ends after the last one.
    Next,
    /// To the same step again.
    Repeat,
    /// To the step after this label.
    Goto(&'static str),
    /// Nowhere: the flow ends.
    End,
}

/// What becomes of a stored flow that cannot go on, because its state does not load or its step is gone. A user is never
/// locked out: whatever happens, the next message is answered.
#[derive(Clone, Debug, PartialEq)]
pub enum OnIncompatible {
    /// It starts again: a forwarded flow, and a conversation of another replica, with what it was entered with, others with
    /// their default state or without input.
    Restart,
    /// It is forgotten and the message is handled as any other.
    Drop,
    /// It is forgotten and the user is told this.
    Notify(Box<Content>),
}

pub(super) type BoxedPrompt<S> = Box<dyn Fn(&S) -> Content + Send + Sync>;
pub(super) type Accept<S> = Box<dyn Fn(&mut S, &Answer) -> Result<(), AskAgain> + Send + Sync>;
pub(super) type Work<S> = Arc<dyn Fn(FlowCtx<S>) -> Boxed<Result<Step, Error>> + Send + Sync>;

pub(super) enum Action<S> {
    Ask { prompt: BoxedPrompt<S>, accept: Accept<S>, timeout: Option<Duration> },
    Say(BoxedPrompt<S>),
    Do(Work<S>),
    Goto(&'static str),
    Call(Call<S>),
}

/// Another flow in the middle of this one.
pub(super) struct Call<S> {
    pub(super) flow: String,
    pub(super) begin: Begin<S>,
    pub(super) accept: AcceptResult<S>,
}

pub(super) type Begin<S> = Box<dyn Fn(&S) -> Result<Value> + Send + Sync>;
pub(super) type AcceptResult<S> = Box<dyn Fn(&mut S, Value) -> Result + Send + Sync>;

/// Words that end a conversation, and what is said then.
#[derive(Default)]
pub(super) struct CancelWords(Option<(Vec<String>, Content)>);

impl CancelWords {
    pub(super) fn new(words: &[&str], say: Content) -> Self {
        Self(Some((words.iter().map(|word| fold(word)).collect(), say)))
    }

    pub(super) fn find(&self, answer: &Answer) -> Option<&Content> {
        let (words, say) = self.0.as_ref()?;
        words.contains(&fold(answer.text())).then_some(say)
    }
}

pub(super) struct NamedStep<S> {
    pub(super) id: String,
    pub(super) action: Action<S>,
}

/// A guided conversation. Build it with [`flow`], register it with
/// [`BotBuilder::flow`](crate::BotBuilder::flow), enter it with [`Ctx::enter`](crate::Ctx::enter).
///
/// Each step that asks or works has an id. The ids, not the wording, are what a stored flow is matched with: texts may
/// change at any time, and a renamed or removed step is where [`OnIncompatible`] applies.
#[must_use]
pub struct Flow<S> {
    pub(super) name: String,
    pub(super) steps: Vec<NamedStep<S>>,
    pub(super) labels: HashMap<&'static str, usize>,
    pub(super) persistent: bool,
    pub(super) on_incompatible: OnIncompatible,
    pub(super) cancel: CancelWords,
    pub(super) on_timeout: Option<Content>,
    pub(super) problems: Vec<String>,
}

/// A flow of this name, without steps.
pub fn flow<S: FlowState>(name: impl Into<String>) -> Flow<S> {
    Flow {
        name: name.into(),
        steps: Vec::new(),
        labels: HashMap::new(),
        persistent: false,
        on_incompatible: OnIncompatible::Restart,
        cancel: CancelWords::default(),
        on_timeout: None,
        problems: Vec::new(),
    }
}

impl<S: FlowState> Flow<S> {
    /// Asks and waits for the answer. `accept` takes the answer into the state, or returns what to tell the user, who
    /// then answers again.
    pub fn ask<K, A>(self, id: &'static str, prompt: impl Prompt<S, K>, accept: A) -> Self
    where
        A: Fn(&mut S, &Answer) -> Result<(), AskAgain> + Send + Sync + 'static,
    {
        let prompt: BoxedPrompt<S> = Box::new(move |state| prompt.content(state));
        self.step(id.to_owned(), Action::Ask { prompt, accept: Box::new(accept), timeout: None })
    }

    /// How long the question before this waits for its answer. Then the flow ends. Without it, it waits for ever.
    pub fn timeout(mut self, wait: Duration) -> Self {
        match self.steps.last_mut().map(|step| &mut step.action) {
            Some(Action::Ask { timeout, .. }) => *timeout = Some(wait),
            _ => self.problems.push("`timeout` must follow an `ask`".to_owned()),
        }
        self
    }

    /// Says something and goes on.
    pub fn say<K>(self, prompt: impl Prompt<S, K>) -> Self {
        let id = format!(
            "say-{}",
            self.steps.iter().filter(|step| matches!(step.action, Action::Say(_))).count() + 1
        );
        self.step(id, Action::Say(Box::new(move |state| prompt.content(state))))
    }

    /// Does some work and decides where to go. It may [ask](FlowCtx::ask) on its own, more than once.
    ///
    /// After a crash it may run again from its beginning, unless it had ended and a later step had begun. If it waited for
    /// the answer to its first question, the next message is taken for that answer; if it waited for a later one, it asks
    /// its first question again.
    pub fn do_<F, Fut>(self, id: &'static str, work: F) -> Self
    where
        F: Fn(FlowCtx<S>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Step, Error>> + Send + 'static,
    {
        self.step(id.to_owned(), Action::Do(Arc::new(move |ctx| Box::pin(work(ctx)))))
    }

    /// Asks for several things, one after the other. `accept` takes them into the state, or returns what to tell the
    /// user, who then begins with the first one again. After a crash it begins with the first one as well.
    pub fn form<A>(mut self, id: &'static str, fields: impl IntoIterator<Item = Field>, accept: A) -> Self
    where
        A: Fn(&mut S, &Filled) -> Result<(), AskAgain> + Send + Sync + 'static,
    {
        let fields: Arc<[Field]> = fields.into_iter().collect();
        for (n, field) in fields.iter().enumerate() {
            if fields[..n].iter().any(|other| other.id == field.id) {
                self.problems.push(format!("the form `{id}` has two fields `{}`", field.id));
            }
        }
        let accept = Arc::new(accept);
        let work = move |c: FlowCtx<S>| -> Boxed<Result<Step, Error>> {
            let (fields, accept) = (Arc::clone(&fields), Arc::clone(&accept));
            Box::pin(async move { fill(&c, &fields, |filled| c.update(|state| accept(state, filled))).await })
        };
        self.step(id.to_owned(), Action::Do(Arc::new(work)))
    }

    /// Runs another flow in the middle of this one: `begin` makes the state it begins with, and `accept` takes the state
    /// with which it ended. If the user cancels it or does not answer in time, this flow ends with it.
    ///
    /// It is stored where this flow is, and a word that cancels this flow cancels it too. A conversation cannot be called: it
    /// ends without a state.
    pub fn call<T: FlowState>(
        self,
        id: &'static str,
        flow: impl Into<String>,
        begin: impl Fn(&S) -> T + Send + Sync + 'static,
        accept: impl Fn(&mut S, T) + Send + Sync + 'static,
    ) -> Self {
        let begin = move |state: &S| Ok(serde_json::to_value(begin(state))?);
        let accept = move |state: &mut S, result| {
            accept(state, serde_json::from_value(result)?);
            Ok(())
        };
        let (begin, accept) = (Box::new(begin), Box::new(accept));
        self.step(id.to_owned(), Action::Call(Call { flow: flow.into(), begin, accept }))
    }

    /// Goes on at a label.
    pub fn goto(self, label: &'static str) -> Self {
        let id = format!("goto-{label}-{}", self.steps.len());
        self.step(id, Action::Goto(label))
    }

    /// Names the place before the next step, for [`Step::Goto`].
    pub fn label(mut self, label: &'static str) -> Self {
        if self.labels.insert(label, self.steps.len()).is_some() {
            self.problems.push(format!("the label `{label}` is there twice"));
        }
        self
    }

    /// Ends the flow.
    pub fn end(self) -> Self {
        let id = format!("end-{}", self.steps.len());
        self.step(id, Action::Do(Arc::new(|_| Box::pin(async { Ok(Step::End) }))))
    }

    /// Keeps the flow in the store, so that it survives a restart and goes on in other replicas. Its state must be plain data:
    /// one that does not load again from JSON is an error of the step that made it so.
    pub fn persistent(mut self) -> Self {
        self.persistent = true;
        self
    }

    /// What becomes of a stored flow whose step is gone here or whose state does not load. Default
    /// [`OnIncompatible::Restart`]. A forwarded flow that was changed, or a state that was in the memory of another replica, is
    /// for [`HandoverConfig::fallback`](crate::HandoverConfig::fallback).
    pub fn on_incompatible(mut self, policy: OnIncompatible) -> Self {
        self.on_incompatible = policy;
        self
    }

    /// Words that end the flow at any question, and what is said then. Case, accents and spaces do not matter.
    pub fn cancel_on<const N: usize>(mut self, words: [&str; N], say: impl Into<Content>) -> Self {
        self.cancel = CancelWords::new(&words, say.into());
        self
    }

    /// What is said when a question's time runs out. Default: nothing.
    pub fn on_timeout(mut self, say: impl Into<Content>) -> Self {
        self.on_timeout = Some(say.into());
        self
    }

    fn step(mut self, id: String, action: Action<S>) -> Self {
        if self.steps.iter().any(|step| step.id == id) {
            self.problems
                .push(format!("the step id `{id}` is there twice; stored flows could not tell them apart"));
        }
        self.steps.push(NamedStep { id, action });
        self
    }

    /// What `build()` refuses.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = self.problems.clone();
        if self.steps.is_empty() {
            problems.push("the flow has no steps".to_owned());
        }
        for step in &self.steps {
            if let Action::Goto(label) = step.action
                && !self.labels.contains_key(label)
            {
                let known: Vec<_> = self.labels.keys().collect();
                problems
                    .push(format!("`goto` names the label `{label}`, which is not there; labels: {known:?}"));
            }
        }
        problems
    }

    /// A hash of what a stored flow depends on: name, version and the kinds and ids of the steps.
    pub(super) fn fingerprint(&self) -> String {
        let mut text = format!("{}\0{}", self.name, S::VERSION);
        for step in &self.steps {
            let kind = match step.action {
                Action::Ask { .. } => 'a',
                Action::Say(_) => 's',
                Action::Do(_) => 'd',
                Action::Goto(_) => 'g',
                Action::Call(_) => 'c',
            };
            text.push('\0');
            text.push(kind);
            text.push_str(&step.id);
        }
        format!("{:016x}", stable_hash(text.bytes()))
    }
}

impl<S> std::fmt::Debug for Flow<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let steps: Vec<_> = self.steps.iter().map(|step| &step.id).collect();
        f.debug_struct("Flow").field("name", &self.name).field("steps", &steps).finish_non_exhaustive()
    }
}
