//! The channel as a bot sees it.

mod payloads;
mod polling;
mod random;
mod sending;
mod shapes;
mod support;
mod webhook;
