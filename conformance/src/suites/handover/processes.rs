//! Processes of their own that take a conversation over one after the other, over data that several may open.

use std::process::Stdio;
use std::time::Duration;

use botmesh_core::store::{Checkpoint, CheckpointPhase};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::tools::{Ground, NAME, SORRY, WHAT, at_work, effects};
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, Failure, NOT_CLAIMED, NOT_RUN, PASSED, Sharing};

/// What the program is told to do.
pub(crate) const WORK: &str = "handover";
pub(super) const BOT: &str = "processes";

/// How often the store is asked how far a process is.
const LOOK: Duration = Duration::from_millis(5);

pub(super) fn cases() -> Vec<Case> {
    cases![
        a_process_goes_on_with_a_persistent_flow: "a process is killed, and one stops, at a question: the next one goes on there",
        a_process_goes_on_with_a_forwarded_flow: "so it is with a flow that is only forwarded",
        a_process_tells_of_a_conversation_in_memory: "the next process tells the user of a conversation whose process was killed or stopped",
        a_process_goes_on_with_a_replayable_conversation: "its answers and effects are there in the next process, and no effect happens twice",
        a_process_goes_on_with_a_step_cut_short: "a process is killed in a step, and the next one gives the step its answer again",
    ]
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It is killed.
    Killed,
    /// It has nothing more to read, and stops in good order.
    Stopped,
}

/// A process that runs a bot over the case's data.
struct Process {
    child: Child,
    input: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
    messages: u64,
}

impl Process {
    fn start(context: &mut Context) -> Result<Self, Failure> {
        context.tally().runs += 1;
        let Some(child) = &context.child else { return Err(Failure::new("there is no program to start")) };
        let command = child.command(context.backend_name(), context.place(), context.folder()?, WORK);
        let mut command = Command::from(command);
        let mut child = command
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| Failure::new(format!("the process cannot be started: {error}")))?;
        let (Some(input), Some(out)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::new("the process has no input or output"));
        };
        Ok(Self { child, input, said: BufReader::new(out).lines(), messages: context.tally().runs * 100 })
    }

    /// Ana says this to it, and it says just this, or what begins so.
    async fn talk(&mut self, says: &str, replies: &[&str]) -> Result<(), Failure> {
        self.messages += 1;
        let line = format!("{}\t{says}\n", self.messages);
        let written = self.input.write_all(line.as_bytes()).await;
        written.map_err(|error| Failure::new(format!("the process does not listen: {error}")))?;
        for reply in replies {
            let Ok(Some(said)) = self.said.next_line().await else {
                let complaints = self.complaints().await;
                return Err(Failure::new(format!("the process ends where {reply:?} is due: {complaints}")));
            };
            ensure!(said.starts_with(reply), "it says {said:?} to {says:?}, where {reply:?} is due");
        }
        Ok(())
    }

    async fn end(mut self, end: End) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::new(format!("the process does not end: {error}"));
        if end == End::Killed {
            return self.child.kill().await.map_err(failed);
        }
        drop(self.input);
        let said = self.said.next_line().await.map_err(failed)?;
        ensure_eq!(said, None, "what a process says that stops");
        let output = self.child.wait_with_output().await.map_err(failed)?;
        let complaints = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the process fails with {}: {complaints}", output.status);
        Ok(())
    }

    async fn complaints(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            drop(errors.read_to_string(&mut text).await);
        }
        text
    }
}

/// Why a case has nothing to show here.
fn excuse(context: &Context) -> Option<CaseResult> {
    let claims = context.claims();
    if claims.sharing < Sharing::Host || !claims.survives_reopen() {
        return Some(NOT_CLAIMED);
    }
    context.child.is_none().then_some(NOT_RUN)
}

/// Waits until the store has a row of Ana's conversation of which this is true.
#[expect(clippy::disallowed_methods, reason = "another process takes real time")]
async fn until(ground: &Ground, reached: impl Fn(&Checkpoint) -> bool) -> Result<(), Failure> {
    while !ground.row().await?.is_some_and(|row| reached(&row)) {
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Waits until Ana's conversation waits for her at a step, as another process may find it.
async fn until_waiting(ground: &Ground, step: &str) -> Result<(), Failure> {
    until(ground, |row| row.phase == CheckpointPhase::Waiting && row.step == step).await
}

/// A sign-up that is begun with these words, and that three processes have one after the other.
async fn sign_up(context: &mut Context, words: &str) -> CaseResult {
    let ground = Ground::new(context, BOT)?;
    let mut first = Process::start(context)?;
    first.talk(words, &[NAME]).await?;
    until_waiting(&ground, "name").await?;
    first.end(End::Killed).await?;
    let mut second = Process::start(context)?;
    second.talk("Ana", &["How old are you, Ana?"]).await?;
    until_waiting(&ground, "age").await?;
    second.end(End::Stopped).await?;
    let mut third = Process::start(context)?;
    third.talk("30", &["Done, Ana."]).await?;
    third.talk("hello", &[WHAT]).await?;
    third.end(End::Stopped).await?;
    PASSED
}

async fn a_process_goes_on_with_a_persistent_flow(context: &mut Context) -> CaseResult {
    match excuse(context) {
        Some(excuse) => excuse,
        None => sign_up(context, "sign up").await,
    }
}

async fn a_process_goes_on_with_a_forwarded_flow(context: &mut Context) -> CaseResult {
    match excuse(context) {
        Some(excuse) => excuse,
        None => sign_up(context, "join").await,
    }
}

async fn a_process_tells_of_a_conversation_in_memory(context: &mut Context) -> CaseResult {
    if let Some(excuse) = excuse(context) {
        return excuse;
    }
    let ground = Ground::new(context, BOT)?;
    for end in [End::Killed, End::Stopped] {
        let mut first = Process::start(context)?;
        first.talk("talk", &[NAME]).await?;
        until(&ground, |row| row.phase == CheckpointPhase::Stub).await?;
        first.end(end).await?;
        let mut second = Process::start(context)?;
        second.talk("Ana", &[SORRY]).await?;
        second.talk("Ana", &[WHAT]).await?;
        second.end(End::Stopped).await?;
    }
    PASSED
}

async fn a_process_goes_on_with_a_replayable_conversation(context: &mut Context) -> CaseResult {
    if let Some(excuse) = excuse(context) {
        return excuse;
    }
    let ground = Ground::new(context, BOT)?;
    let mut first = Process::start(context)?;
    first.talk("order", &["Which dish?"]).await?;
    until(&ground, |row| row.phase == CheckpointPhase::Waiting).await?;
    first.end(End::Stopped).await?;
    let mut second = Process::start(context)?;
    let begun = ground.existing_row().await?.revision;
    second.talk("soup", &["How many of soup?"]).await?;
    until(&ground, |row| row.phase == CheckpointPhase::Waiting && row.revision > begun).await?;
    second.end(End::Killed).await?;
    let mut third = Process::start(context)?;
    third.talk("2", &["2 of soup."]).await?;
    third.talk("2", &[WHAT]).await?;
    third.end(End::Stopped).await?;
    let seen = std::fs::read_to_string(effects(context.folder()?)).unwrap_or_default();
    ensure_eq!(seen, "soup\n", "the effects of the conversation");
    PASSED
}

async fn a_process_goes_on_with_a_step_cut_short(context: &mut Context) -> CaseResult {
    if let Some(excuse) = excuse(context) {
        return excuse;
    }
    let ground = Ground::new(context, BOT)?;
    let mut first = Process::start(context)?;
    first.talk("search", &[NAME]).await?;
    until_waiting(&ground, "find").await?;
    first.talk("Ana", &[]).await?;
    let started = at_work(context.folder()?);
    until(&ground, |row| row.answer.is_some() && started.exists()).await?;
    first.end(End::Killed).await?;
    let mut second = Process::start(context)?;
    second.talk("30", &["How old are you, Ana?", "Done, Ana."]).await?;
    second.talk("hello", &[WHAT]).await?;
    second.end(End::Stopped).await?;
    PASSED
}
