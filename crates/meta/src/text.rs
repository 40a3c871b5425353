//! Lengths as Meta counts them.

use std::borrow::Cow;

pub(crate) fn utf16(text: &str) -> usize {
    text.encode_utf16().count()
}

/// At most `max` UTF-16 units of a text, the last one an ellipsis if something is left out.
pub(crate) fn clipped(text: &str, max: usize) -> Cow<'_, str> {
    if utf16(text) <= max {
        return text.into();
    }
    let mut length = 1;
    let fits = |c: &char| {
        length += c.len_utf16();
        length <= max
    };
    let kept: String = text.chars().take_while(fits).collect();
    format!("{}…", kept.trim_end()).into()
}
