use std::ops::Range;

use super::{Formatted, Span, Style};

/// The longest target of a link, in bytes.
const MAX_URL: usize = 2048;

const BULLET: &str = "• ";

pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '\\' | '`' | '*' | '_' | '~' | '[' | ']' | '-' | '+') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

pub(super) fn parse(source: &str) -> Formatted {
    let mut reader = Reader { source, at: 0, pieces: Vec::new(), open: Vec::new(), counts: [0; 6] };
    while reader.at < source.len() {
        reader.step();
    }
    written(source, &reader.pieces)
}

/// What may begin and end a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Stars,
    Star,
    Lines,
    Line,
    Tildes,
    Bracket,
}

/// A piece of the source, and what it means.
enum Piece {
    Text(Range<usize>),
    Bullet,
    Code(Range<usize>),
    Pre(Option<Range<usize>>, Range<usize>),
    /// The beginning of a span, or text if nothing ends it.
    Begin {
        literal: Range<usize>,
        is_matched: bool,
    },
    End(Style),
}

struct Reader<'a> {
    source: &'a str,
    at: usize,
    pieces: Vec<Piece>,
    /// The beginnings that nothing has ended yet, by their place in the pieces.
    open: Vec<(Mark, usize)>,
    /// How many of each there are.
    counts: [usize; 6],
}

impl Reader<'_> {
    fn step(&mut self) {
        let rest = &self.source[self.at..];
        if self.at_line_start() && (self.fence() || self.bullet()) {
            return;
        }
        match rest.as_bytes()[0] {
            b'\\' if rest[1..].starts_with(|c: char| c.is_ascii_punctuation()) => {
                self.pieces.push(Piece::Text(self.at + 1..self.at + 2));
                self.at += 2;
            }
            b'`' => self.code(),
            b'[' => self.begin(Mark::Bracket, 1),
            b']' => self.link_end(),
            b'*' | b'_' => self.emphasis(),
            b'~' if rest.starts_with("~~") => self.mark(Mark::Tildes, 2),
            b'\n' => self.line_end(),
            _ => {
                let special = |c: char| matches!(c, '\\' | '`' | '[' | ']' | '*' | '_' | '~' | '\n');
                let first = rest.chars().next().map_or(1, char::len_utf8);
                let length = rest[first..].find(special).map_or(rest.len(), |end| first + end);
                self.text(length);
            }
        }
    }

    fn at_line_start(&self) -> bool {
        self.at == 0 || self.source[..self.at].ends_with('\n')
    }

    fn text(&mut self, length: usize) {
        self.pieces.push(Piece::Text(self.at..self.at + length));
        self.at += length;
    }

    fn line_end(&mut self) {
        self.text(1);
        let rest = &self.source[self.at..];
        let line = rest.split('\n').next().unwrap_or(rest);
        if line.trim().is_empty() {
            self.forget_open();
        }
    }

    fn forget_open(&mut self) {
        self.open.clear();
        self.counts = [0; 6];
    }

    /// Lines of code.
    fn fence(&mut self) -> bool {
        let rest = &self.source[self.at..];
        let Some((info, body)) = rest.strip_prefix("```").and_then(|rest| rest.split_once('\n')) else {
            return false;
        };
        if info.contains('`') {
            return false;
        }
        let from = self.source.len() - body.len();
        let mut end = from;
        for line in body.split_inclusive('\n') {
            if line.trim_end() == "```" {
                let code = from..end.saturating_sub(1).max(from);
                if code.is_empty() {
                    return false;
                }
                let word = info.split_whitespace().next();
                let language = word.map(|word| {
                    let start = self.at + 3 + (info.len() - info.trim_start().len());
                    start..start + word.len()
                });
                self.forget_open();
                self.pieces.push(Piece::Pre(language, code));
                self.at = end + 3;
                return true;
            }
            end += line.len();
        }
        false
    }

    fn bullet(&mut self) -> bool {
        let rest = &self.source[self.at..];
        let item = rest.trim_start_matches(' ');
        let indent = rest.len() - item.len();
        if !["- ", "* ", "+ "].iter().any(|bullet| item.starts_with(bullet)) {
            return false;
        }
        self.forget_open();
        self.text(indent);
        self.pieces.push(Piece::Bullet);
        self.at += 2;
        true
    }

    fn code(&mut self) {
        let rest = &self.source[self.at..];
        let ticks = run(rest, '`');
        let mut from = ticks;
        while let Some(found) = rest[from..].find('`').map(|found| from + found) {
            let closing = run(&rest[found..], '`');
            if rest[from..found].contains("\n\n") {
                break;
            }
            if closing == ticks {
                let mut code = ticks..found;
                let inner = &rest[code.clone()];
                if inner.trim().is_empty() {
                    break;
                }
                if inner.starts_with(' ') && inner.ends_with(' ') {
                    code = code.start + 1..code.end - 1;
                }
                self.pieces.push(Piece::Code(self.at + code.start..self.at + code.end));
                self.at += found + ticks;
                return;
            }
            from = found + closing;
        }
        self.text(ticks);
    }

    fn emphasis(&mut self) {
        let rest = &self.source[self.at..];
        let (c, double, single) = match rest.starts_with('*') {
            true => ('*', Mark::Stars, Mark::Star),
            false => ('_', Mark::Lines, Mark::Line),
        };
        let run = run(rest, c);
        let innermost =
            self.open.iter().rev().map(|(mark, _)| *mark).find(|mark| [double, single].contains(mark));
        match run {
            1 => self.mark(single, 1),
            3.. if innermost == Some(single) => self.mark(single, 1),
            _ => self.mark(double, 2),
        }
    }

    /// A mark that may end a span, begin one, or be text.
    fn mark(&mut self, mark: Mark, length: usize) {
        let before = self.source[..self.at].chars().next_back();
        let after = self.source[self.at + length..].chars().next();
        // So that neither `2*3*4` nor `snake_case_name` is markup.
        let within_word = |c: Option<char>| {
            matches!(mark, Mark::Star | Mark::Line | Mark::Lines) && c.is_some_and(char::is_alphanumeric)
        };
        let ends = before.is_some_and(|c| !c.is_whitespace()) && !within_word(after);
        let begins = after.is_some_and(|c| !c.is_whitespace()) && !within_word(before);
        let style = match mark {
            Mark::Stars | Mark::Lines => Style::Bold,
            Mark::Star | Mark::Line => Style::Italic,
            Mark::Tildes | Mark::Bracket => Style::Strikethrough,
        };
        if ends && self.end(mark, style) {
            self.at += length;
        } else if begins {
            self.begin(mark, length);
        } else {
            self.text(length);
        }
    }

    fn begin(&mut self, mark: Mark, length: usize) {
        self.open.push((mark, self.pieces.len()));
        self.counts[mark as usize] += 1;
        self.pieces.push(Piece::Begin { literal: self.at..self.at + length, is_matched: false });
        self.at += length;
    }

    /// Ends the last span that begins with `mark`, if there is one with something in it. What began within it is text.
    fn end(&mut self, mark: Mark, style: Style) -> bool {
        if self.counts[mark as usize] == 0 {
            return false;
        }
        let Some(depth) = self.open.iter().rposition(|(open, _)| *open == mark) else { return false };
        let (_, place) = self.open[depth];
        if place + 1 == self.pieces.len() {
            return false;
        }
        for (mark, _) in self.open.drain(depth..) {
            self.counts[mark as usize] -= 1;
        }
        if let Some(Piece::Begin { is_matched, .. }) = self.pieces.get_mut(place) {
            *is_matched = true;
        }
        self.pieces.push(Piece::End(style));
        true
    }

    fn link_end(&mut self) {
        let rest = &self.source[self.at + 1..];
        if self.counts[Mark::Bracket as usize] > 0
            && let Some((url, length)) = target(rest)
            && self.end(Mark::Bracket, Style::Link { url })
        {
            self.at += 1 + length;
        } else {
            self.text(1);
        }
    }
}

/// How often `c` stands at the beginning.
fn run(text: &str, c: char) -> usize {
    text.len() - text.trim_start_matches(c).len()
}

/// The target of a link in parentheses, and how long that is with them.
fn target(text: &str) -> Option<(String, usize)> {
    let (mut url, mut depth, mut escaped) = (String::new(), 0, false);
    for (at, c) in text.char_indices().take(MAX_URL) {
        match c {
            _ if escaped => {
                if !c.is_ascii_punctuation() {
                    url.push('\\');
                }
                escaped = false;
            }
            '(' if at == 0 => {
                depth = 1;
                continue;
            }
            _ if at == 0 || c.is_whitespace() || c.is_control() => return None,
            '\\' => {
                escaped = true;
                continue;
            }
            '(' => depth += 1,
            ')' if depth == 1 => return (!url.is_empty()).then_some((url, at + 1)),
            ')' => depth -= 1,
            _ => {}
        }
        url.push(c);
    }
    None
}

/// The text and the spans that the pieces mean.
fn written(source: &str, pieces: &[Piece]) -> Formatted {
    let (mut text, mut spans, mut begun) = (String::with_capacity(source.len()), Vec::new(), Vec::new());
    for piece in pieces {
        let start = text.len();
        match piece {
            Piece::Text(range) | Piece::Begin { literal: range, is_matched: false } => {
                text.push_str(&source[range.clone()]);
            }
            Piece::Bullet => text.push_str(BULLET),
            Piece::Code(range) => {
                text.push_str(&source[range.clone()]);
                spans.push(Span::new(start..text.len(), Style::Code));
            }
            Piece::Pre(language, range) => {
                text.push_str(&source[range.clone()]);
                let language = language.clone().map(|range| source[range].to_owned());
                spans.push(Span::new(start..text.len(), Style::Pre { language }));
            }
            Piece::Begin { .. } => begun.push(start),
            Piece::End(style) => {
                let from = begun.pop().unwrap_or(start);
                spans.push(Span::new(from..start, style.clone()));
            }
        }
    }
    Formatted::new(text, spans)
}
