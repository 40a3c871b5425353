//! The webhook as a channel sees it: over HTTP.

mod admit;
mod http;
mod posts;
mod served;
mod support;
