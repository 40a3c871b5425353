//! Conversations that cannot go on.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;

use super::Entry;
use super::conversations::{Conversations, Resumed};
use super::definition::OnIncompatible;
use super::rows::{Keeping, Place, Rows, Stored};
use super::run::{AnyFlow, tell};
use super::saver::Saver;
use super::stopped::Stopped;
use crate::core::content::Content;
use crate::core::error::Cas;
use crate::core::store::{Checkpoint, CheckpointPhase};
use crate::dispatch::{Ctx, panic_text};
use crate::events::BotEvent;
use crate::handover::{Fallback, FallbackFunction, HandoverOutcome, Interrupted, InterruptedReason};
use crate::texts::Text;

/// What becomes of a conversation that cannot go on.
enum Policy<'a> {
    Drop,
    Restart,
    /// This is said.
    Say(&'a Content),
    /// The bot's own text for it is said.
    Notify,
    Function(&'a FallbackFunction),
}

impl<'a> From<&'a OnIncompatible> for Policy<'a> {
    fn from(policy: &'a OnIncompatible) -> Self {
        match policy {
            OnIncompatible::Drop => Self::Drop,
            OnIncompatible::Restart => Self::Restart,
            OnIncompatible::Notify(say) => Self::Say(say),
        }
    }
}

impl Conversations {
    /// Whether something is done about this flow when it is interrupted.
    pub(super) fn falls_back(&self, flow: &dyn AnyFlow) -> bool {
        !matches!(self.fallback(flow), Policy::Drop)
    }

    /// What becomes of a conversation that was interrupted by a hand-over.
    fn fallback<'a>(&'a self, flow: &'a dyn AnyFlow) -> Policy<'a> {
        if let Some(own) = flow.on_incompatible().filter(|_| flow.is_code()) {
            return own.into();
        }
        match self.handover().map(|handover| &handover.fallback) {
            None | Some(Fallback::Drop) => Policy::Drop,
            Some(Fallback::Restart) => Policy::Restart,
            Some(Fallback::Notify) => Policy::Notify,
            Some(Fallback::Function(function)) => Policy::Function(function),
        }
    }

    /// A message comes to a conversation that another replica had and that cannot go on here.
    pub(super) async fn fall_back(
        &self,
        ctx: &Ctx,
        rows: Rows,
        reason: InterruptedReason,
    ) -> Result<Resumed, Stopped> {
        let Some(row) = &rows.shared else { return Ok(Resumed::Free) };
        let Some(flow) = self.flows.get(&row.flow) else { return self.unknown(ctx, row).await };
        drop(self.live.take(&ctx.conversation()));
        let is_stub = row.phase == CheckpointPhase::Stub;
        let stored = Stored {
            keeping: Keeping::Persistent,
            vacancy: rows.vacancy(),
            has_stub: is_stub,
            earlier: self.unacknowledged(ctx, &rows).await?,
            ..Stored::default()
        };
        let (resumed, outcome) = self.apply(ctx, flow, self.fallback(&**flow), (row, reason), stored).await?;
        let (key, name) = (ctx.conversation(), row.flow.clone());
        ctx.world().events.emit(BotEvent::Handover { key, name, outcome });
        Ok(resumed)
    }

    /// No flow has the name that is stored. Another replica may know it: one of a newer version.
    pub(super) async fn unknown(&self, ctx: &Ctx, row: &Checkpoint) -> Result<Resumed, Stopped> {
        let (flow, own) = (&row.flow, row.session == *ctx.scope().turn().session());
        let known: Vec<_> = self.flows.keys().collect();
        self.tell_incompatible(ctx, flow, &format!("there is no flow `{flow}`; flows: {known:?}"));
        match self.handover().is_some() && !own {
            true => Ok(Resumed::Free),
            false => self.forget(ctx).await,
        }
    }

    /// The code does not fit what is stored.
    pub(super) async fn incompatible(
        &self,
        ctx: &Ctx,
        flow: &Arc<dyn AnyFlow>,
        why: &str,
        row: &Checkpoint,
        stored: Stored,
    ) -> Result<Resumed, Stopped> {
        self.tell_incompatible(ctx, flow.name(), why);
        ctx.scope().return_keys();
        let Stored { keeping, vacancy, has_stub, earlier, .. } = stored;
        let stored = Stored { keeping, vacancy, has_stub, earlier, ..Stored::default() };
        let policy = flow.on_incompatible().map_or_else(|| self.fallback(&**flow), Policy::from);
        let reason = match flow.is_persistent() {
            true => InterruptedReason::Changed,
            false => InterruptedReason::InMemory,
        };
        self.apply(ctx, flow, policy, (row, reason), stored).await.map(|(resumed, _)| resumed)
    }

    async fn apply(
        &self,
        ctx: &Ctx,
        flow: &Arc<dyn AnyFlow>,
        policy: Policy<'_>,
        (row, reason): (&Checkpoint, InterruptedReason),
        mut stored: Stored,
    ) -> Result<(Resumed, HandoverOutcome), Stopped> {
        let outcome = match policy {
            Policy::Drop => {
                return Ok((self.forget(ctx).await?, HandoverOutcome::Dropped));
            }
            Policy::Restart => {
                ctx.set_entry(Entry { flow: row.flow.clone(), state: row.begun_with.clone() });
                HandoverOutcome::Restarted
            }
            Policy::Say(say) => {
                tell(ctx, say.clone()).await?;
                HandoverOutcome::Notified
            }
            Policy::Notify => {
                let own = self.handover().and_then(|handover| handover.notify_message.clone());
                let say = match own {
                    Some(own) => own,
                    None => ctx.text_of(Text::Interrupted).await,
                };
                tell(ctx, say).await?;
                HandoverOutcome::Notified
            }
            Policy::Function(function) => {
                if !self.ask_function(ctx, function, interrupted(ctx, row, reason)).await? {
                    return Ok((self.forget(ctx).await?, HandoverOutcome::Dropped));
                }
                HandoverOutcome::Taken
            }
        };
        let ended = match ctx.take_entry() {
            Some(entry) => {
                let (flow, start) = self.beginning(entry, &mut stored)?;
                self.advance(ctx, flow, start, &mut stored).await?
            }
            None => Saver::new(self, ctx, flow, &mut stored).save_ended().await?,
        };
        Ok((Resumed::Consumed(ended), outcome))
    }

    /// Whether the function took the message. Nobody is stuck in one that fails: then the conversation is forgotten.
    async fn ask_function(
        &self,
        ctx: &Ctx,
        function: &FallbackFunction,
        interrupted: Interrupted,
    ) -> Result<bool, Stopped> {
        let name = interrupted.name.clone();
        let asking = AssertUnwindSafe(async { function(interrupted, ctx.clone()).await }).catch_unwind();
        let error = tokio::select! {
            biased;
            asked = asking => match asked {
                Ok(Ok(true)) => return Ok(true),
                Ok(Ok(false)) => {
                    drop(ctx.take_entry());
                    return Ok(false);
                }
                Ok(Err(error)) => error,
                Err(panic) => panic_text(&*panic).into(),
            },
            () = ctx.world().seams.clock.sleep(self.settle()) => {
                format!("the fallback of `{name}` ran for longer than turns.settle").into()
            }
        };
        if ctx.is_last_attempt() || !ctx.world().retries_handlers() {
            self.forget(ctx).await?;
        }
        Err(Stopped::Handler(error))
    }

    /// Forgets a conversation that does not go on. The message is free, also when it runs again.
    pub(super) async fn forget(&self, ctx: &Ctx) -> Result<Resumed, Stopped> {
        let (turn, key) = (ctx.scope().turn(), ctx.conversation());
        let Rows { local, shared } = self.load(&key).await?;
        for (place, row) in [(Place::Local, local), (Place::Shared, shared)] {
            if let Some(row) = row
                && self.remove((ctx.world(), turn, &key), (place, &row), ctx.record()).await? == Cas::Lost
            {
                return Err(Stopped::Superseded);
            }
        }
        Ok(Resumed::Free)
    }

    pub(super) fn tell_incompatible(&self, ctx: &Ctx, flow: &str, reason: &str) {
        let (key, flow, reason) = (ctx.conversation(), flow.to_owned(), reason.to_owned());
        ctx.world().events.emit(BotEvent::FlowIncompatible { key, flow, reason });
    }
}

/// What a fallback function is told.
fn interrupted(ctx: &Ctx, row: &Checkpoint, reason: InterruptedReason) -> Interrupted {
    let state = match row.phase {
        CheckpointPhase::Stub => row.begun_with.clone(),
        _ => Some(row.state.clone()),
    };
    Interrupted {
        conversation: ctx.conversation(),
        name: row.flow.clone(),
        reason,
        step: Some(row.step.clone()).filter(|step| !step.is_empty()),
        state,
    }
}
