#![doc = include_str!("../README.md")]

mod error;
mod intake;
mod lines;
mod render;
mod terminal;
mod transcript;

pub use error::TranscriptError;
pub use terminal::Terminal;
pub use transcript::Transcript;
