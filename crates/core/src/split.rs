//! Cutting a text that is longer than a channel takes.
//!
//! The same text and limit give the same parts in every process and after every restart: what was journaled under the
//! keys of the parts must be found again. A change of the rules is a new [`SPLITTER`].

use unicode_segmentation::UnicodeSegmentation;

use crate::provider::TextLimit;

/// The version of the rules below, stored with each part.
pub const SPLITTER: u32 = 1;

/// Cuts `text` into parts of at most `limit`, counted in the channel's unit.
///
/// A part ends at the last empty line, else line break, else end of a sentence, that leaves it more than half full; else
/// at the last space, if that leaves it more than a quarter full; else between two characters as a reader sees them, so
/// that no emoji and no accent falls apart. The line breaks
/// or spaces at a cut are dropped, and parts of nothing but white space with them. Only a single character that is longer
/// than the whole limit is itself cut, between code points; a code point longer than the limit is a part of its own,
/// which the channel will refuse.
pub fn split(text: &str, limit: TextLimit) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let fits = prefix_that_fits(rest, limit);
        if fits == rest.len() {
            break;
        }
        let end = best_cut(rest, fits);
        push(&mut parts, rest[..end].trim_end());
        rest = after_cut(rest, end);
    }
    push(&mut parts, rest);
    if parts.is_empty() {
        parts.push(text);
    }
    parts
}

fn push<'a>(parts: &mut Vec<&'a str>, part: &'a str) {
    if !part.trim().is_empty() {
        parts.push(part);
    }
}

/// The length in bytes of the longest beginning of `text` that fits and ends between two characters. 0 only for no text.
fn prefix_that_fits(text: &str, limit: TextLimit) -> usize {
    let longest = |pieces: &mut dyn Iterator<Item = &str>| {
        let (mut bytes, mut units) = (0, 0);
        for piece in pieces {
            units += limit.measure(piece);
            if units > limit.max {
                break;
            }
            bytes += piece.len();
        }
        bytes
    };
    let by_character = longest(&mut text.graphemes(true));
    if by_character > 0 {
        return by_character;
    }
    let by_code_point = longest(&mut text.split_inclusive(|_| true));
    by_code_point.max(text.chars().next().map_or(0, char::len_utf8))
}

/// Where to cut within the first `fits` bytes.
fn best_cut(text: &str, fits: usize) -> usize {
    let window = &text[..fits];
    // What follows the window belongs to the search: a window that ends right before a space is well cut.
    let at_end = text[fits..].starts_with(char::is_whitespace);
    let after = |pattern: &str, least: usize| {
        window.rfind(pattern).map(|at| at + pattern.len()).filter(|&end| end > least)
    };
    let after_sentence = || {
        let mut ends =
            window.char_indices().filter(|&(at, c)| is_sentence_end(c) && followed_by_space(text, at, c));
        ends.next_back().map(|(at, c)| at + c.len_utf8()).filter(|&end| end > fits / 2)
    };
    after("\n\n", fits / 2)
        .or_else(|| after("\n", fits / 2))
        .or_else(after_sentence)
        .or_else(|| at_end.then_some(fits))
        .or_else(|| after(" ", fits / 4))
        .unwrap_or(fits)
}

fn is_sentence_end(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | '…' | '。' | '！' | '？' | '؟' | '।')
}

fn followed_by_space(text: &str, at: usize, c: char) -> bool {
    let wide = matches!(c, '。' | '！' | '？');
    wide || text[at + c.len_utf8()..].starts_with(char::is_whitespace)
}

/// What is left after a cut: without the spaces up to the next line, or the line breaks, but with the indentation of the
/// line that follows.
fn after_cut(text: &str, end: usize) -> &str {
    let broken_at_line = text[..end].ends_with('\n');
    let rest = &text[end..];
    let rest = if broken_at_line { rest } else { rest.trim_start_matches([' ', '\t', '\r']) };
    rest.trim_start_matches('\n')
}
