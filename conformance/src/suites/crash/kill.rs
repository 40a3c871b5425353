//! A real process, killed in the middle of its handlers.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{self, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use botmesh::{OnAmbiguous, TokioSpawner};
use botmesh_core::entropy::Entropy;
use botmesh_core::id::InstanceId;
use botmesh_core::journal::{InboxState, KvDurability, OutboxState};
use botmesh_core::spawn::Seams;

use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, Failure, NOT_CLAIMED, NOT_RUN, PASSED};

/// How often the process is killed, and what it has to do.
pub(super) const KILLS: u64 = 4;
pub(super) const CHATS: usize = 3;
pub(super) const MESSAGES: usize = 6;
pub(super) const BOT: &str = "killed";

pub(super) fn cases() -> Vec<Case> {
    cases![
        a_process_killed_in_a_handler_under_skip: "a process is killed in its handlers again and again: no reply comes twice",
        a_process_killed_in_a_handler_under_resend: "a process is killed in its handlers again and again: no reply is lost",
    ]
}

async fn a_process_killed_in_a_handler_under_skip(context: &mut Context) -> CaseResult {
    kill_and_verify(context, OnAmbiguous::Skip).await
}

async fn a_process_killed_in_a_handler_under_resend(context: &mut Context) -> CaseResult {
    kill_and_verify(context, OnAmbiguous::Resend).await
}

pub(super) fn name(policy: OnAmbiguous) -> &'static str {
    match policy {
        OnAmbiguous::Resend => "resend",
        OnAmbiguous::Skip | OnAmbiguous::Auto => "skip",
    }
}

async fn kill_and_verify(context: &mut Context, policy: OnAmbiguous) -> CaseResult {
    if !context.claims().survives_reopen() {
        return NOT_CLAIMED;
    }
    if context.child.is_none() {
        return NOT_RUN;
    }
    let seen = context.folder()?.join("delivered");
    context.close().await?;
    for round in 0..KILLS * u64::from(context.rounds()) {
        context.tally().runs += 1;
        let handlers = 1 + context.entropy().next_u64().wrapping_add(round * 7) % 5;
        let mut child = start(context, policy)?;
        let killed = blocking(move || {
            let killed = child.kill_after(handlers);
            (child, killed)
        });
        let (_, killed) = killed.await?;
        killed?;
    }
    context.tally().runs += 1;
    let child = start(context, policy)?;
    let (status, complaints) = blocking(move || child.end()).await??;
    ensure!(status.success(), "the last process failed with {status}: {complaints}");
    context.reopen().await?;
    verify(context, policy, &seen).await
}

async fn verify(context: &Context, policy: OnAmbiguous, seen: &Path) -> CaseResult {
    let seams = Seams::system(Arc::new(TokioSpawner));
    let journals = KvDurability::new(context.unscoped_kv()?);
    let instance = InstanceId::from("judge");
    let journal = journals.open(&context.bot(BOT), instance, Duration::from_secs(60), seams).await?;
    let done = journal.inbox().list(InboxState::Done, None, 1000).await?.records.len();
    ensure_eq!(done, CHATS * MESSAGES, "the messages that are done");
    let mut unknown = Vec::new();
    for state in [OutboxState::InFlight, OutboxState::Waiting, OutboxState::Dead, OutboxState::Unknown] {
        for stored in journal.outbox().list(state, None, 1000).await?.records {
            let text = stored.record.content.readable_text().to_owned();
            ensure!(state == OutboxState::Unknown, "the send of {text:?} ends as {state:?}");
            unknown.push(text);
        }
    }
    let told = std::fs::read_to_string(seen).unwrap_or_default();
    let mut chats: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (chat, text) in told.lines().filter_map(|line| line.split_once('\t')) {
        chats.entry(chat).or_default().push(text);
    }
    for chat in 0..CHATS {
        let chat = format!("chat-{chat}");
        let texts = chats.remove(chat.as_str()).unwrap_or_default();
        verify_chat(policy, &chat, &texts, &unknown)?;
    }
    PASSED
}

fn verify_chat(policy: OnAmbiguous, chat: &str, seen: &[&str], unknown: &[String]) -> Result<(), Failure> {
    let expected: Vec<String> =
        (0..MESSAGES).flat_map(|n| ["first", "second"].map(|part| format!("{chat} {n} {part}"))).collect();
    for text in &expected {
        let times = seen.iter().filter(|seen| *seen == text).count();
        let fine = match policy {
            OnAmbiguous::Resend => times >= 1,
            OnAmbiguous::Skip | OnAmbiguous::Auto => times == 1 || (times == 0 && unknown.contains(text)),
        };
        ensure!(fine, "{text:?} is said {times} times; seen: {seen:?}, unknown: {unknown:?}");
    }
    let places: Vec<_> = seen.iter().map(|seen| expected.iter().position(|text| text == seen)).collect();
    ensure!(places.is_sorted(), "the order of {chat} is not kept: {seen:?}");
    Ok(())
}

/// Waits for a child where it holds up nothing else.
#[expect(
    clippy::disallowed_methods,
    reason = "another process is waited for on a thread where that holds up nothing"
)]
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Failure::new(format!("a task panicked: {error}")))
}

struct Process(process::Child);

fn start(context: &Context, policy: OnAmbiguous) -> Result<Process, Failure> {
    let Some(child) = &context.child else { return Err(Failure::new("there is no program to start")) };
    let mut command = child.command(context.backend_name(), context.place(), context.folder()?, name(policy));
    let started = command.spawn();
    started.map(Process).map_err(|error| Failure::new(format!("the process cannot be started: {error}")))
}

impl Process {
    /// Kills it in the middle of a handler, after so many have begun. It may end before.
    fn kill_after(&mut self, handlers: u64) -> Result<(), Failure> {
        let Some(out) = self.0.stdout.take() else { return Err(Failure::new("the process has no output")) };
        let began = BufReader::new(out).lines().map_while(Result::ok).filter(|line| line == BEGAN);
        let begun = began.take(usize::try_from(handlers).unwrap_or(1)).count();
        let killed = self.0.kill().and_then(|()| self.0.wait());
        killed.map_err(|error| Failure::new(format!("the process cannot be killed: {error}")))?;
        let complaints = self.complaints();
        ensure!(begun > 0 || complaints.is_empty(), "the process handles nothing: {complaints}");
        Ok(())
    }

    fn end(mut self) -> Result<(ExitStatus, String), Failure> {
        // Its output must not hold it up.
        let mut out = self.0.stdout.take();
        let read = out.as_mut().map(|out| std::io::copy(out, &mut std::io::sink()));
        drop(read);
        let status =
            self.0.wait().map_err(|error| Failure::new(format!("waiting for the process: {error}")))?;
        Ok((status, self.complaints()))
    }

    fn complaints(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut errors) = self.0.stderr.take() {
            drop(errors.read_to_string(&mut text));
        }
        text
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// What the process prints when a handler begins.
pub(super) const BEGAN: &str = "began";
