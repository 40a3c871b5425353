#![doc = include_str!("../README.md")]

mod bot;
mod channel;
mod clock;
mod crash;
mod graph;
mod lossy;
mod media;
mod provider;
mod spawner;
mod store;
mod telegram;
mod transcript;

pub use botmesh_core::journal::WritePoint;

pub use bot::{
    Containing, CrashPoint, Expected, Matching, Replica, Span, Step, TestBot, TestBotOptions, TestUser,
    containing, matching,
};
pub use channel::CrashableProvider;
pub use clock::VirtualClock;
pub use crash::Crash;
pub use graph::{Echo as GraphEcho, FakeGraph, GraphFault, GraphMessage, GraphUser, Product as GraphProduct};
pub use lossy::{Fault, LossyKv, crashable};
pub use media::{Download, MEDIA_SECRET, image};
pub use provider::{MockProvider, SendFault};
pub use spawner::{TestSpawner, test_seams};
pub use store::CrashableStore;
pub use telegram::{FakeTelegram, TelegramCall, TelegramFault, TelegramGroup, TelegramUser, WebhookAnswer};
pub use transcript::{SendOutcome, Sent};
