#![doc = include_str!("../README.md")]

mod action;
mod address;
mod call;
mod client;
mod hook;
mod intake;
mod local;
mod poll;
mod presses;
mod rates;
mod refusal;
mod telegram;
mod token;
mod update;

pub use action::ChatAction;
pub use telegram::Telegram;
pub use update::{KINDS, Update, parse_update};
