//! Rust text with its comments and literals blanked, so that what is left is code.

use std::ops::Range;

/// The code of a file: the same bytes, line by line, with comments, strings and chars replaced by blanks.
pub(super) struct Code {
    text: String,
    tests: Vec<Range<usize>>,
}

/// A function from its `fn` to the brace that closes it, in bytes.
pub(super) struct Function {
    pub(super) name: String,
    pub(super) range: Range<usize>,
}

impl Code {
    pub(super) fn new(source: &str) -> Self {
        let text = blank(source);
        let tests = test_items(&text);
        Self { text, tests }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn line(&self, at: usize) -> usize {
        line_of(&self.text, at)
    }

    pub(super) fn is_test(&self, at: usize) -> bool {
        self.tests.iter().any(|range| range.contains(&at))
    }

    pub(super) fn functions(&self) -> Vec<Function> {
        let found = words(&self.text).filter(|(_, word)| *word == "fn");
        found.filter_map(|(start, _)| function_at(&self.text, start)).collect()
    }
}

/// The line, counted from 1, of a byte offset.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The identifiers and numbers of a code text with their offsets.
pub(super) fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + text[at..].find(is_word)?;
        let length = text[start..].find(|c| !is_word(c)).unwrap_or(text.len() - start);
        at = start + length;
        Some((start, &text[start..at]))
    })
}

fn function_at(text: &str, start: usize) -> Option<Function> {
    let rest = &text[start + 2..];
    let signature = rest.trim_start();
    let (offset, name) = words(signature).next()?;
    if offset != 0 {
        return None;
    }
    let end = item_end(text, start)?;
    text[..end].ends_with('}').then(|| Function { name: name.into(), range: start..end })
}

/// The end of the item that starts here: after its closing brace, or after its semicolon when it has no body.
fn item_end(text: &str, start: usize) -> Option<usize> {
    let (mut braces, mut nested) = (0usize, 0usize);
    for (offset, byte) in text[start..].bytes().enumerate() {
        let end = start + offset + 1;
        match byte {
            b'(' | b'[' => nested += 1,
            b')' | b']' => nested = nested.saturating_sub(1),
            b'{' => braces += 1,
            b'}' => {
                braces = braces.saturating_sub(1);
                if braces == 0 && nested == 0 {
                    return Some(end);
                }
            }
            b';' if braces == 0 && nested == 0 => return Some(end),
            _ => {}
        }
    }
    None
}

/// The items under a `cfg` that asks for `test`.
fn test_items(text: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    for (start, _) in text.match_indices("#[cfg(") {
        let Some(length) = text[start..].find(']') else { continue };
        let attribute = &text[start..start + length];
        let asks = words(attribute).any(|(_, word)| word == "test") && !attribute.contains("not(test)");
        if asks && let Some(end) = item_end(text, start + length + 1) {
            ranges.push(start..end);
        }
    }
    ranges
}

fn blank(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    let mut in_word = false;
    while let Some(first) = rest.chars().next() {
        let skipped = comment(rest).or_else(|| if in_word { plain_literal(rest) } else { literal(rest) });
        let length = skipped.unwrap_or(first.len_utf8());
        let (piece, after) = rest.split_at(length);
        if skipped.is_some() {
            text.extend(piece.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
        } else {
            text.push(first);
        }
        in_word = skipped.is_none() && (first.is_alphanumeric() || first == '_');
        rest = after;
    }
    text
}

fn comment(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let (mut depth, mut at) = (0usize, 0);
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
        } else {
            at += 1;
        }
        if depth == 0 {
            return Some(at);
        }
    }
    Some(text.len())
}

/// The length of a string or char literal with its prefix, if one starts here.
fn literal(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|prefix| {
        let after = text.strip_prefix(prefix).unwrap_or("");
        after.starts_with('"')
            || (prefix.ends_with('r') && raw_hashes(after).is_some())
            || is_byte(prefix, after)
    })?;
    let body = &text[prefix.len()..];
    let length = if prefix.ends_with('r') { raw(body) } else { plain_literal(body)? };
    Some(prefix.len() + length)
}

fn is_byte(prefix: &str, after: &str) -> bool {
    matches!(prefix, "b" | "") && after.starts_with('\'')
}

/// How many `#` open a raw string here.
fn raw_hashes(text: &str) -> Option<usize> {
    let hashes = text.bytes().take_while(|byte| *byte == b'#').count();
    text[hashes..].starts_with('"').then_some(hashes)
}

fn raw(text: &str) -> usize {
    let hashes = raw_hashes(text).unwrap_or(0);
    let close = format!("\"{}", "#".repeat(hashes));
    let start = hashes + 1;
    text[start..].find(&close).map_or(text.len(), |at| start + at + close.len())
}

/// The length of a string or char literal without prefix; a lifetime is none.
fn plain_literal(text: &str) -> Option<usize> {
    let quote = text.chars().next()?;
    if quote == '\'' {
        let mut chars = text[1..].chars();
        let (inside, after) = (chars.next()?, chars.next()?);
        if inside != '\\' {
            return (after == '\'').then(|| 2 + inside.len_utf8());
        }
    } else if quote != '"' {
        return None;
    }
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if !escaped && c == quote {
            return Some(at + 1);
        }
        escaped = !escaped && c == '\\';
    }
    Some(text.len())
}

#[cfg(test)]
mod tests;
