//! WhatsApp's marks.
//!
//! A mark begins a style after the beginning of a line, a space or punctuation and before anything but a space, and ends it
//! the other way round, on the same line.

use std::borrow::Cow;
use std::ops::Range;

use super::{Formatted, Span, Style};

const MARKS: [(char, char); 4] = [('*', '∗'), ('_', '＿'), ('~', '∼'), ('`', '‵')];

const FENCE: &str = "```";

/// The text with the marks of its spans. It has no links.
pub(super) fn render(formatted: &Formatted) -> String {
    let text = &formatted.text;
    let shown = shown(formatted);
    let (mut replaced, mut spans) = (literals(text, &shown).into_iter().peekable(), shown.iter().peekable());
    let mut out = String::with_capacity(text.len() + 2 * shown.len());
    let mut open: Vec<&Span> = Vec::new();
    let mut at = 0;
    loop {
        while let Some(ended) = open.pop_if(|span| span.end <= at) {
            out.push_str(mark(&ended.style, ""));
        }
        if let Some(span) = spans.next_if(|span| span.start <= at) {
            let code = &text[span.start..span.end];
            out.push_str(mark(&span.style, code));
            if is_code(&span.style) {
                out.push_str(&code_text(code));
                out.push_str(mark(&span.style, code));
                at = span.end;
            } else {
                open.push(span);
            }
            continue;
        }
        let Some(c) = text[at..].chars().next() else { return out };
        let look_alike = replaced.next_if_eq(&at).and_then(|_| MARKS.iter().find(|(mark, _)| *mark == c));
        out.push(look_alike.map_or(c, |(_, look_alike)| *look_alike));
        at += c.len_utf8();
    }
}

/// Where marks of the text would be read as such, in order.
fn literals(text: &str, shown: &[Span]) -> Vec<usize> {
    let is_mark = |c: char| MARKS.iter().any(|(mark, _)| *mark == c);
    let code: Vec<&Span> = shown.iter().filter(|span| is_code(&span.style)).collect();
    let in_code = |at: usize| {
        code.get(code.partition_point(|span| span.end <= at)).is_some_and(|span| span.start <= at)
    };
    let mut edges: Vec<usize> = shown.iter().flat_map(|span| [span.start, span.end]).collect();
    edges.sort_unstable();
    let touches = |at: usize| [at, at + 1].iter().any(|edge| edges.binary_search(edge).is_ok());
    let (mut literals, mut from) = (Vec::new(), 0);
    for line in text.split_inclusive('\n') {
        let to = from + line.len();
        let first = shown.partition_point(|span| span.start < from);
        let of_line = shown[first..].iter().take_while(|span| span.start < to);
        let mut used: Vec<char> = of_line.filter_map(|span| mark(&span.style, "").chars().next()).collect();
        if !code.is_empty() {
            used.push('`');
        }
        let addresses = addresses(line);
        let in_address = |at: usize| {
            addresses
                .get(addresses.partition_point(|word| word.end <= at))
                .is_some_and(|word| word.start <= at)
        };
        let mut found: Vec<(usize, char)> = Vec::new();
        for (at, c) in line.char_indices().map(|(at, c)| (from + at, c)).filter(|&(_, c)| is_mark(c)) {
            let (before, after) = (text[..at].chars().next_back(), text[at + 1..].chars().next());
            // What WhatsApp makes of a backtick beside a space is not told.
            let is_harmless =
                c != '`' && !touches(at) && (both(before, after, is_word) || both(before, after, is_space));
            if !is_harmless && !in_code(at) && !in_address(at - from) {
                found.push((at, c));
            }
        }
        let pairs = |mark: char| found.iter().filter(|(_, c)| *c == mark).count() > 1;
        let dangerous: Vec<char> =
            MARKS.iter().map(|(mark, _)| *mark).filter(|&mark| used.contains(&mark) || pairs(mark)).collect();
        literals.extend(found.iter().filter(|(_, c)| dangerous.contains(c)).map(|(at, _)| *at));
        from = to;
    }
    literals
}

fn both(before: Option<char>, after: Option<char>, are: impl Fn(Option<char>) -> bool) -> bool {
    are(before) && are(after)
}

fn is_word(c: Option<char>) -> bool {
    c.is_some_and(char::is_alphanumeric)
}

/// A space, or the end of the text.
fn is_space(c: Option<char>) -> bool {
    c.is_none_or(char::is_whitespace)
}

/// Where a line has addresses of pages, which must stay as they are.
fn addresses(line: &str) -> Vec<Range<usize>> {
    let mut addresses: Vec<Range<usize>> = Vec::new();
    for (at, _) in line.match_indices("://") {
        let scheme = line[..at].trim_end_matches(|c: char| c.is_ascii_alphanumeric()).len();
        let end = line[at..].find(char::is_whitespace).map_or(line.len(), |length| at + length);
        match addresses.last_mut() {
            Some(last) if scheme < last.end => {}
            _ => addresses.push(scheme..end),
        }
    }
    addresses
}

/// The spans that WhatsApp would show: within one line but for lines of code, without spaces at their ends, and not within a word.
fn shown(formatted: &Formatted) -> Vec<Span> {
    let text = &formatted.text;
    let mut shown = Vec::new();
    for span in &formatted.spans {
        if matches!(span.style, Style::Pre { .. }) {
            shown.push(span.clone());
            continue;
        }
        let mut from = span.start;
        for line in text[span.start..span.end].split_inclusive('\n') {
            let start = from + (line.len() - line.trim_start().len());
            let end = from + line.trim_end().len();
            from += line.len();
            if start >= end {
                continue;
            }
            let (before, after) = (text[..start].chars().next_back(), text[end..].chars().next());
            if !is_word(before) && !is_word(after) {
                shown.push(Span::new(start..end, span.style.clone()));
            }
        }
    }
    shown.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
    shown
}

fn mark(style: &Style, code: &str) -> &'static str {
    match style {
        Style::Bold => "*",
        Style::Italic => "_",
        Style::Strikethrough => "~",
        Style::Code if !code.contains('`') => "`",
        Style::Code | Style::Pre { .. } => FENCE,
        Style::Link { .. } => "",
    }
}

fn is_code(style: &Style) -> bool {
    matches!(style, Style::Code | Style::Pre { .. })
}

/// Code as it can stand between backticks.
fn code_text(code: &str) -> Cow<'_, str> {
    match code.contains(FENCE) || code.starts_with('`') || code.ends_with('`') {
        true => Cow::Owned(code.replace('`', "‵")),
        false => Cow::Borrowed(code),
    }
}
