//! The escapes of the file that is written.

/// The key of a send without a token.
pub(super) const NO_KEY: &str = "-";

/// One line of the file.
pub(super) fn line(key: Option<&str>, chat: &str, text: &str) -> String {
    let mut out = String::with_capacity(key.map_or(1, str::len) + chat.len() + text.len() + 8);
    match key {
        None => out.push_str(NO_KEY),
        // Else it would read as a send without a key.
        Some(NO_KEY) => out.push_str("\\-"),
        Some(key) => push(&mut out, key),
    }
    out.push('\t');
    push(&mut out, chat);
    out.push('\t');
    push(&mut out, text);
    out.push('\n');
    out
}

fn push(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\0' => out.push_str("\\0"),
            '\\' => out.push_str("\\\\"),
            c => out.push(c),
        }
    }
}

/// The text of a field, or `None` where it is no escaped text.
pub(super) fn unescape(field: &[u8]) -> Option<String> {
    let field = std::str::from_utf8(field).ok()?;
    let mut out = String::with_capacity(field.len());
    let mut chars = field.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.push(match chars.next()? {
                't' => '\t',
                'n' => '\n',
                'r' => '\r',
                '0' => '\0',
                '\\' => '\\',
                '-' => '-',
                _ => return None,
            }),
            '\r' | '\0' => return None,
            c => out.push(c),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests;
