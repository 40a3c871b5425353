//! Files that Meta has.

use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::{FakeGraph, Product};

/// For how long the URL of a file is good.
const GOOD: Duration = Duration::from_secs(5 * 60);

impl FakeGraph {
    /// The type and bytes of a file that the bot gave to Meta.
    pub fn media(&self, id: &str) -> Option<(String, Vec<u8>)> {
        self.state().media.get(id).cloned()
    }

    /// How many files Meta has, of the bot and of users.
    pub fn media_count(&self) -> usize {
        self.state().media.len()
    }

    /// Keeps a file of a user's, and returns the id to send it with.
    pub fn keep_media(&self, mime: &str, bytes: &[u8]) -> String {
        let id = self.next_id("55");
        self.state().media.insert(id.clone(), (mime.to_owned(), bytes.to_vec()));
        id
    }

    /// Where a file is. The URL is good for five minutes of the server's [time](Self::advance), and then refused. On WhatsApp it
    /// takes the bot's token as well; on Messenger and Instagram it is all that is needed.
    pub fn media_url(&self, product: Product, id: &str) -> String {
        let folder = if product == Product::WhatsApp { "media" } else { "cdn" };
        format!("{}/{folder}/{id}?oe={}", self.url(), (self.state().now + GOOD).as_secs())
    }

    /// Lets time go by for the server: URLs of files run out. Nothing else looks at its time, which stands still otherwise.
    pub fn advance(&self, time: Duration) {
        self.state().now += time;
    }

    pub(super) fn download(&self, id: &str, query: &str) -> Response {
        let good_until = query.split('&').find_map(|pair| pair.strip_prefix("oe=")?.parse().ok());
        let now = self.state().now;
        if good_until.is_none_or(|until| now >= Duration::from_secs(until)) {
            return (StatusCode::FORBIDDEN, "URL signature expired").into_response();
        }
        match self.media(id) {
            Some((mime, bytes)) => ([(CONTENT_TYPE, mime)], bytes).into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        }
    }
}
