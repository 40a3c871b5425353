use botmesh_webhook::Sender;
use botmesh_webhook::axum::http::{HeaderMap, HeaderValue};
use proptest::collection::vec;
use proptest::prelude::*;
use ring::hmac;

use super::{Hook, SIGNATURE};
use crate::secret::Secret;

#[path = "../tests/it/fuzzing.rs"]
mod fuzzing;

use fuzzing::{change, changed, fuzz};

const APP_SECRET: &str = "an-app-secret";

fn right(body: &[u8]) -> String {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, APP_SECRET.as_bytes()), body);
    let digits: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256={digits}")
}

/// Whoever is taken for a stranger by the headers does not sign with any body.
#[test]
fn no_signature_but_the_right_one_opens_the_door() {
    let hook = Hook::new(&Secret::new(APP_SECRET), Secret::new("a word"));
    let bodies = (vec(any::<u8>(), 0..50), vec(any::<u8>(), 0..80), vec(change(), 0..3));
    fuzz("signatures of Meta", &bodies, |(body, noise, changes)| {
        let right = right(&body);
        let near = changed(right.clone().into_bytes(), changes);
        let upper = right.to_uppercase().replace("SHA256", "sha256").into_bytes();
        for given in [noise.clone(), [b"sha256=", &*noise].concat(), near, upper, right.clone().into_bytes()]
        {
            let Ok(value) = HeaderValue::from_bytes(&given) else { continue };
            let headers = HeaderMap::from_iter([(SIGNATURE.parse().expect("a name"), value)]);
            let is_right = given.starts_with(b"sha256=") && given.eq_ignore_ascii_case(right.as_bytes());
            prop_assert_eq!(hook.verify(&headers, &body), is_right, "{:?}", given);
            prop_assert!(!is_right || Hook::sender(&headers) == Sender::Unknown, "{:?}", given);
        }
        Ok(())
    });
}
