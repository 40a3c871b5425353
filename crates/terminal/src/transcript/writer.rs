//! The thread that owns the written file, so that no runtime thread waits for the disk. What waits while one write is
//! made goes out together in the next.

use std::sync::mpsc;
use std::thread;

use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::provider::{Resolution, SendReceipt};
use tokio::sync::oneshot;

use super::output::Output;
use crate::error::TranscriptError;

/// The most that goes out in one write, unless a single line is longer.
const MAX_BATCH: usize = 1 << 20;

type Answer = oneshot::Sender<Result<u64, ChannelError>>;

enum Command {
    Append(Append),
    Find { key: String, answer: oneshot::Sender<Result<Option<u64>, ChannelError>> },
}

struct Append {
    key: Option<String>,
    line: String,
    answer: Answer,
}

/// The thread ends when this is dropped.
pub(super) struct Writer {
    commands: mpsc::Sender<Command>,
}

impl Writer {
    pub(super) fn start(output: Output) -> Result<Self, TranscriptError> {
        let (commands, queue) = mpsc::channel();
        let path = output.path().to_owned();
        thread::Builder::new()
            .name("transcript-out".into())
            .spawn(move || serve(output, &queue))
            .map_err(|error| TranscriptError::io(&path, "start a thread for", error))?;
        Ok(Self { commands })
    }

    pub(super) async fn append(&self, key: Option<&str>, line: String) -> Result<SendReceipt, ChannelError> {
        let (answer, answered) = oneshot::channel();
        let command = Append { key: key.map(str::to_owned), line, answer };
        if self.commands.send(Command::Append(command)).is_err() {
            return Err(gone(Phase::NotWritten));
        }
        let place = answered.await.unwrap_or_else(|_| Err(gone(Phase::Unknown)))?;
        Ok(receipt(place))
    }

    pub(super) async fn resolve(&self, key: &str) -> Resolution {
        let (answer, answered) = oneshot::channel();
        let asked = self.commands.send(Command::Find { key: key.to_owned(), answer });
        match answered.await {
            Ok(Ok(Some(place))) if asked.is_ok() => Resolution::Sent(receipt(place)),
            Ok(Ok(None)) => Resolution::NotSent,
            Ok(Err(error)) => {
                tracing::warn!(%error, key, "a send cannot be looked up");
                Resolution::Unknown
            }
            _ => Resolution::Unknown,
        }
    }
}

fn receipt(place: u64) -> SendReceipt {
    SendReceipt { message: place.to_string().into() }
}

fn gone(phase: Phase) -> ChannelError {
    ChannelError::new(
        ErrorClass::Transient,
        phase,
        "the thread that writes the transcript has ended; start again",
    )
}

fn serve(mut output: Output, queue: &mpsc::Receiver<Command>) {
    let mut next = queue.recv().ok();
    while let Some(command) = next.take() {
        match command {
            Command::Find { key, answer } => {
                // Whoever asked may have given up.
                let _ = answer.send(output.find(&key));
            }
            Command::Append(first) => {
                let mut size = first.line.len();
                let mut batch = vec![first];
                while size < MAX_BATCH {
                    match queue.try_recv() {
                        Ok(Command::Append(append)) => {
                            size += append.line.len();
                            batch.push(append);
                        }
                        Ok(other) => {
                            next = Some(other);
                            break;
                        }
                        Err(_) => break,
                    }
                }
                append(&mut output, batch);
            }
        }
        next = next.or_else(|| queue.recv().ok());
    }
}

fn append(output: &mut Output, batch: Vec<Append>) {
    let lines: Vec<_> = batch.iter().map(|append| (append.key.as_deref(), append.line.as_str())).collect();
    match output.append(&lines) {
        Ok(places) => {
            for (append, place) in batch.into_iter().zip(places) {
                let _ = append.answer.send(Ok(place));
            }
        }
        // On a nearly full disk, what is too much together may fit one by one.
        Err(error) if error.phase == Phase::NotWritten && batch.len() > 1 => {
            for append in batch {
                let alone = output.append(&[(append.key.as_deref(), &append.line)]);
                let _ = append.answer.send(alone.map(|places| places[0]));
            }
        }
        Err(error) => {
            for append in batch {
                let copy = ChannelError::new(error.class, error.phase, error.detail.clone());
                let _ = append.answer.send(Err(copy));
            }
        }
    }
}
