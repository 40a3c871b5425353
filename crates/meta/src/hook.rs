//! What the webhooks of all of Meta's products share: the handshake and the signature.

use std::time::Duration;

use botmesh_webhook::axum::http::HeaderMap;
use botmesh_webhook::{Handshake, Sender, query_pairs, same_secret};
use ring::digest::SHA256_OUTPUT_LEN;
use ring::hmac;

use crate::secret::Secret;

/// For how long Meta posts again what was not answered with 200.
pub(crate) const REDELIVERY: Duration = Duration::from_secs(7 * 24 * 3600);

const SIGNATURE: &str = "x-hub-signature-256";

#[derive(Debug)]
pub(crate) struct Hook {
    verify_token: Secret,
    key: hmac::Key,
}

impl Hook {
    pub(crate) fn new(app_secret: &Secret, verify_token: Secret) -> Self {
        Self { verify_token, key: hmac::Key::new(hmac::HMAC_SHA256, app_secret.expose().as_bytes()) }
    }

    pub(crate) fn handshake(&self, query: &str) -> Handshake {
        let (mut mode, mut token, mut challenge) = (None, None, None);
        for (name, value) in query_pairs(query) {
            match &*name {
                "hub.mode" => mode = Some(value),
                "hub.verify_token" => token = Some(value),
                "hub.challenge" => challenge = Some(value),
                _ => {}
            }
        }
        match (mode, token, challenge) {
            (None, None, None) => Handshake::None,
            (Some(mode), Some(token), Some(challenge))
                if mode == "subscribe"
                    && same_secret(token.as_bytes(), self.verify_token.expose().as_bytes()) =>
            {
                Handshake::Challenge(challenge.into_owned())
            }
            _ => Handshake::Refused,
        }
    }

    /// Whoever does not sign is a stranger, whose body is not even read.
    pub(crate) fn sender(headers: &HeaderMap) -> Sender {
        if signature(headers).is_some() { Sender::Unknown } else { Sender::Stranger }
    }

    /// Whether the body is signed with the app's secret. Meta signs the bytes that it sends, escapes and all.
    pub(crate) fn verify(&self, headers: &HeaderMap, body: &[u8]) -> bool {
        signature(headers).is_some_and(|tag| hmac::verify(&self.key, body, &tag).is_ok())
    }
}

/// What the header says, if it has the form of a signature.
fn signature(headers: &HeaderMap) -> Option<Vec<u8>> {
    let digits = headers.get(SIGNATURE)?.as_bytes().strip_prefix(b"sha256=")?;
    from_hex(digits).filter(|tag| tag.len() == SHA256_OUTPUT_LEN)
}

fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |digit: u8| u8::try_from(char::from(digit).to_digit(16)?).ok();
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

#[cfg(test)]
#[path = "hook_tests.rs"]
mod fuzz;
