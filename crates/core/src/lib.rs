#![doc = include_str!("../README.md")]

pub mod backoff;
pub mod content;
pub mod coordinator;
pub mod duration;
pub mod entropy;
pub mod error;
pub mod hash;
pub mod host;
pub mod id;
pub mod inbound;
pub mod journal;
pub mod kv;
pub mod media;
pub mod memory;
pub mod notice;
pub mod provider;
pub mod scope;
pub mod spawn;
pub mod split;
pub mod store;
pub mod time;
pub mod webhook;

pub use async_trait::async_trait;
pub use bytes::Bytes;
pub use tokio_util::sync::CancellationToken;
