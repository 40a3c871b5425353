//! The test doubles do what their documentation says.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod albums;
mod bot;
mod clock;
mod graph;
mod graph_users;
mod lossy;
mod numbers;
mod only_telegram;
mod provider;
mod rates;
mod replicas;
mod secrets;
mod spawner;
mod telegram;
mod user_ids;
