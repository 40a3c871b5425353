//! The channel as a bot sees it.

mod payloads;
mod random;
mod shapes;
