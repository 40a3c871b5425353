#![doc = include_str!("../README.md")]

mod admit;
mod connections;
mod door;
mod endpoint;
mod server;

pub use admit::admit_all;
pub use axum;
pub use door::{Door, Limits};
pub use endpoint::{Handshake, NotReceived, Sender, Webhook, query_pairs, router, same_secret};
pub use server::{ServeError, Server, serve};
