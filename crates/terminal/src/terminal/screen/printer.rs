//! The thread that writes.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use botmesh_core::error::{ChannelError, Phase as Written};

use super::{Job, Phase, Shared, State, failed};

/// How long the editor may take to show a text. It is at once, unless the person searches the history meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) fn run(shared: &Shared) {
    while let Some(job) = next(shared) {
        let Job { text, note, answer } = job;
        let outcome = print(shared, shared.printable(text), note);
        match answer {
            // Whoever sent it may have given up.
            Some(answer) => drop(answer.send(outcome)),
            None => {
                if let Err(error) = outcome {
                    tracing::warn!(%error, "a line cannot be shown");
                }
            }
        }
    }
}

fn next(shared: &Shared) -> Option<Job> {
    let mut state = shared.lock();
    loop {
        if let Some(job) = state.queue.pop_front() {
            return Some(job);
        }
        if state.closed {
            return None;
        }
        state = shared.wait(state);
    }
}

fn print(shared: &Shared, text: String, note: bool) -> Result<(), ChannelError> {
    let mut state = shared.lock();
    while state.phase == Phase::Between || state.writing {
        state = shared.wait(state);
    }
    if state.phase == Phase::Editing {
        state = wait_until_shown(shared, state);
    }
    match state.phase {
        Phase::Free => {
            state.writing = true;
            drop(state);
            let written = shared.write(&text, note);
            shared.lock().writing = false;
            shared.changed.notify_all();
            written
        }
        Phase::Between => {
            drop(state);
            print(shared, text, note)
        }
        Phase::Editing => hand_over(shared, state, text),
    }
}

fn wait_until_shown<'a>(shared: &Shared, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    let busy = |state: &mut State| state.phase == Phase::Editing && !state.handed.is_empty();
    let waited = shared.changed.wait_timeout_while(state, PATIENCE, busy);
    waited.unwrap_or_else(PoisonError::into_inner).0
}

/// Gives the text to the editor. It has room for one that it has not shown: then this does not block, and the lock keeps
/// the prompt from going meanwhile. Else it blocks until there is room, without the lock.
fn hand_over<'a>(
    shared: &'a Shared,
    mut state: MutexGuard<'a, State>,
    text: String,
) -> Result<(), ChannelError> {
    let Some(mut editor) = state.editor.take() else {
        return Err(failed(Written::NotWritten, "the line editor has gone"));
    };
    let has_room = state.handed.is_empty();
    state.handed.push_back(text.clone());
    let handed = if has_room {
        editor.print(text)
    } else {
        drop(state);
        let handed = editor.print(text);
        state = shared.lock();
        handed
    };
    if state.phase != Phase::Free {
        state.editor = Some(editor);
    }
    if state.phase == Phase::Free {
        // The input has ended, and what the editor had not shown was written.
        return Ok(());
    }
    handed.map_err(|error| {
        tracing::debug!(%error, "the line editor took no text");
        failed(Written::Unknown, "the line editor took no text")
    })
}
