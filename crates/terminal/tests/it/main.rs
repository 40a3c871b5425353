//! The two providers, driven by a sink that records.

mod lines;
#[cfg(unix)]
mod pty;
mod support;
mod transcript_in;
mod transcript_out;
mod transcript_piped;
