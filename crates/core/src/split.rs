//! Cutting a text that is longer than a channel takes.
//!
//! The same text and limit give the same parts in every process and after every restart: what was journaled under the
//! keys of the parts must be found again. A change of the rules is a new [`SPLITTER`].

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;

use crate::markup::Formatted;
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
    let ranges = ranges(text, |rest, _| end_of_part(rest, limit));
    ranges.into_iter().map(|range| &text[range]).collect()
}

/// Cuts a text with its formatting. A span that is cut goes on in the next part. `measure` says how long a part becomes for
/// the channel, with all that it adds to the text; a part that is too long whatever is cut loses its formatting.
pub fn split_formatted(
    formatted: &Formatted,
    limit: TextLimit,
    measure: impl Fn(&Formatted) -> usize,
) -> Vec<Formatted> {
    let text = formatted.text();
    let fitting = |rest: &str, from: usize| {
        let mut budget = limit;
        loop {
            let end = end_of_part(rest, budget);
            let added = measure(&formatted.slice(from..from + end)).saturating_sub(limit.max);
            match budget.max.checked_sub(added) {
                _ if added == 0 => return Some(end),
                None | Some(0) => return None,
                Some(max) => budget.max = max,
            }
        }
    };
    let ranges = ranges(text, |rest, from| fitting(rest, from).unwrap_or_else(|| end_of_part(rest, limit)));
    let part = |range: Range<usize>| {
        let part = formatted.slice(range);
        match measure(&part) > limit.max.max(limit.measure(part.text())) {
            true => Formatted::from(part.text()),
            false => part,
        }
    };
    ranges.into_iter().map(part).collect()
}

/// The parts, if `end` says where the first one of a rest ends that begins at a place.
fn ranges(text: &str, end: impl Fn(&str, usize) -> usize) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut from = 0;
    while from < text.len() {
        let rest = &text[from..];
        let end = end(rest, from);
        let is_last = end == rest.len();
        let part = if is_last { rest } else { rest[..end].trim_end() };
        if !part.trim().is_empty() {
            parts.push(from..from + part.len());
        }
        from = if is_last { text.len() } else { text.len() - after_cut(rest, end).len() };
    }
    if parts.is_empty() {
        parts.push(0..text.len());
    }
    parts
}

/// Where the first part ends: at the end of the text, if that fits.
fn end_of_part(text: &str, limit: TextLimit) -> usize {
    let fits = prefix_that_fits(text, limit);
    if fits == text.len() { fits } else { best_cut(text, fits) }
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
