//! The thread that says which piped messages were taken over, so that no runtime thread waits for whoever listens.

use std::io::Write;
use std::path::Path;
use std::sync::mpsc;
use std::thread;

use botmesh_core::id::EventId;
use tokio::sync::oneshot;

use crate::error::TranscriptError;

enum Command {
    Tell(EventId),
    /// Everything before was told.
    Told(oneshot::Sender<()>),
}

/// The thread ends when this is dropped.
pub(super) struct Taken {
    commands: mpsc::Sender<Command>,
}

impl Taken {
    pub(super) fn start(output: impl Write + Send + 'static) -> Result<Self, TranscriptError> {
        let (commands, queue) = mpsc::channel();
        thread::Builder::new().name("transcript-taken".into()).spawn(move || serve(output, &queue)).map_err(
            |error| TranscriptError::io(Path::new("the piped messages"), "start a thread for", error),
        )?;
        Ok(Self { commands })
    }

    /// A thread that ended has said why.
    pub(super) fn tell(&self, event: EventId) {
        let _ = self.commands.send(Command::Tell(event));
    }

    /// Waits until everything was told, or cannot be.
    pub(super) async fn told(&self) {
        let (told, waiting) = oneshot::channel();
        let _ = self.commands.send(Command::Told(told));
        let _ = waiting.await;
    }
}

fn serve(mut output: impl Write, queue: &mpsc::Receiver<Command>) {
    while let Ok(command) = queue.recv() {
        match command {
            Command::Tell(event) => {
                if let Err(error) = writeln!(output, "{event}").and_then(|()| output.flush()) {
                    tracing::warn!(%error, "nobody hears any more which messages were taken over");
                    return;
                }
            }
            Command::Told(waiting) => drop(waiting.send(())),
        }
    }
}
