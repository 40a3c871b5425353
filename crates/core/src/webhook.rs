//! Reading what a channel posts to us.

use std::borrow::Cow;

use memchr::memchr2;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// The largest body that [`parse`] reads, in bytes: 16 MiB.
pub const MAX_BODY: usize = 16 << 20;

/// Why a body could not be read. Answer it as a bad request: the same body will not be better the next time.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WebhookError {
    /// It is larger than [`MAX_BODY`].
    #[error("the body has {size} bytes, more than {MAX_BODY}")]
    TooLarge {
        /// How large.
        size: usize,
    },
    /// It is not the JSON that was expected, or nested deeper than 128 levels.
    #[error("the body is not the JSON that was expected")]
    Json(#[from] serde_json::Error),
}

/// Reads a body as JSON, also where a sender cut a text within a character.
///
/// JavaScript cuts texts by UTF-16 units and then posts half a character, as in `"\ud83d"`. JSON permits it, Rust texts do
/// not, and one such message would make a channel deliver its batch for ever. Each half becomes U+FFFD, whether it is
/// escaped or written as three bytes; everything else is read as it is. Ids are ids of the mended text. Whoever checks a
/// signature does it before, over the body itself.
///
/// # Errors
/// A body that is too large, too deep, or not a `T`.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, WebhookError> {
    Ok(serde_json::from_slice(&mended(body)?)?)
}

/// The body with U+FFFD in place of each half character, for those who read it so that it keeps the texts: what [`parse`]
/// reads. Both have the same length, so that positions in errors fit the body as it was posted.
///
/// # Errors
/// A body that is too large.
pub fn mended(body: &[u8]) -> Result<Cow<'_, [u8]>, WebhookError> {
    if body.len() > MAX_BODY {
        return Err(WebhookError::TooLarge { size: body.len() });
    }
    let mut body = Cow::Borrowed(body);
    let mut at = 0;
    while let Some(found) = body.get(at..).and_then(|rest| memchr2(b'\\', 0xED, rest)) {
        at += found;
        let rest = &body[at..];
        at += match rest {
            [b'\\', ..] => match (escaped_unit(rest), rest.get(6..).and_then(escaped_unit)) {
                (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
                (Some(0xD800..=0xDFFF), _) => {
                    body.to_mut()[at..at + 6].copy_from_slice(br"\ufffd");
                    6
                }
                // An escaped backslash begins no escape.
                _ => 2,
            },
            [0xED, 0xA0..=0xBF, 0x80..=0xBF, ..] => {
                body.to_mut()[at..at + 3].copy_from_slice("\u{fffd}".as_bytes());
                3
            }
            _ => 1,
        };
    }
    Ok(body)
}

/// The UTF-16 unit of the escape `\uXXXX` that the text begins with.
fn escaped_unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(br"\u")?.get(..4)?;
    digits.iter().try_fold(0, |unit, &digit| {
        let digit = char::from(digit).to_digit(16)?;
        Some(unit << 4 | u16::try_from(digit).ok()?)
    })
}
