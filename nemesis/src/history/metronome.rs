//! How late threads wake up.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Event, Recorder, now};

/// How often it wakes up.
const BEAT: Duration = Duration::from_millis(20);

/// What is less is not written down.
const LEAST: u64 = 40;

/// A thread that writes down how late it wakes up. It ends when this is dropped.
#[derive(Debug)]
pub struct Metronome {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Metronome {
    /// Starts the thread.
    ///
    /// # Errors
    /// There can be no further thread.
    #[expect(clippy::disallowed_methods, reason = "it measures how a real machine keeps real time")]
    pub fn start(recorder: Arc<Recorder>) -> io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ends);
        let thread = std::thread::Builder::new().name("metronome".into()).spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let began = now();
                std::thread::sleep(BEAT);
                let took = Duration::from_nanos(now() - began).saturating_sub(BEAT).as_millis();
                let ms = u64::try_from(took).unwrap_or(u64::MAX);
                if ms >= LEAST {
                    recorder.record(Event::Late { ms });
                }
            }
        })?;
        Ok(Self { ends, thread: Some(thread) })
    }
}

impl Drop for Metronome {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
