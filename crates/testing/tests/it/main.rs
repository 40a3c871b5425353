//! The test doubles do what their documentation says.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod albums;
mod bot;
mod clock;
mod graph;
mod lossy;
mod numbers;
mod provider;
mod rates;
mod replicas;
mod secrets;
mod spawner;
mod telegram;
