#![doc = include_str!("../README.md")]

mod clock;
mod lossy;
mod media;
mod provider;
mod spawner;
mod transcript;

pub use clock::VirtualClock;
pub use lossy::{Fault, LossyKv};
pub use media::{Download, MEDIA_SECRET, image};
pub use provider::{MockProvider, SendFault};
pub use spawner::{TestSpawner, test_seams};
pub use transcript::{SendOutcome, Sent};
