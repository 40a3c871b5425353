//! The channel as a bot sees it.

mod albums;
mod described;
mod files;
mod fuzz;
mod moved;
mod payloads;
mod polling;
mod random;
mod sending;
mod shapes;
mod support;
mod webhook;
