#![doc = include_str!("../README.md")]

mod config;
mod event;
mod file;
mod graph;
mod hook;
mod instagram;
mod lenient;
mod limit;
mod messenger;
mod others;
mod page;
mod receipts;
mod secret;
mod text;
mod whatsapp;

pub use botmesh_webhook::{Limits, axum};
pub use config::MetaConfig;
pub use instagram::Instagram;
pub use messenger::Messenger;
pub use whatsapp::{Template, WhatsApp, WhatsAppFlow, WhatsAppList};
