//! The paths that a file names, `use` trees written out and `self` and `super` resolved.

use crate::tidy::scan::Code;

pub(super) struct NamedPath {
    pub(super) at: usize,
    pub(super) line: usize,
    pub(super) segments: Vec<String>,
}

impl NamedPath {
    pub(super) fn starts_with(&self, prefix: &[&str]) -> bool {
        self.segments.iter().map(String::as_str).take(prefix.len()).eq(prefix.iter().copied())
    }

    pub(super) fn contains(&self, part: &[&str]) -> bool {
        self.segments.windows(part.len()).any(|window| window == part)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Token<'a> {
    Word(&'a str),
    Separator,
    Mark(char),
}

/// The paths of two segments or more, and all that is imported, in a file that holds the module `module`.
pub(super) fn named_paths(code: &Code, module: &[&str]) -> Vec<NamedPath> {
    let tokens = tokens(code.text());
    let mut raw = Vec::new();
    let mut next = 0;
    while let Some((at, token)) = tokens.get(next) {
        next = match token {
            Token::Word("use") => use_tree(&tokens, next + 1, &[], &mut raw),
            Token::Word(_) => plain_path(&tokens, next, *at, &mut raw),
            _ => next + 1,
        };
    }
    let named = |(at, segments): (usize, Vec<&str>)| NamedPath {
        at,
        line: code.line(at),
        segments: resolve(&segments, module).into_iter().map(str::to_owned).collect(),
    };
    raw.into_iter().map(named).collect()
}

type Raw<'a> = Vec<(usize, Vec<&'a str>)>;

fn plain_path<'a>(tokens: &[(usize, Token<'a>)], start: usize, at: usize, found: &mut Raw<'a>) -> usize {
    let mut segments = Vec::new();
    let mut next = start;
    while let Some((_, Token::Word(word))) = tokens.get(next) {
        segments.push(*word);
        next += 1;
        if !matches!(tokens.get(next..next + 2), Some([(_, Token::Separator), (_, Token::Word(_))])) {
            break;
        }
        next += 1;
    }
    if segments.len() > 1 {
        found.push((at, segments));
    }
    next
}

/// Reads one branch of a `use` tree and returns where it ends.
fn use_tree<'a>(
    tokens: &[(usize, Token<'a>)],
    start: usize,
    prefix: &[&'a str],
    found: &mut Raw<'a>,
) -> usize {
    let mut segments = prefix.to_vec();
    let mut next = start;
    while let Some((_, token)) = tokens.get(next) {
        match token {
            Token::Word("as") => next += 1,
            Token::Word(word) => segments.push(word),
            Token::Separator => {}
            Token::Mark('*') => segments.push("*"),
            Token::Mark('{') => {
                next += 1;
                while !matches!(tokens.get(next), None | Some((_, Token::Mark('}')))) {
                    next = use_tree(tokens, next, &segments, found);
                    next += usize::from(!matches!(tokens.get(next), Some((_, Token::Mark('}')))));
                }
                return next + 1;
            }
            Token::Mark(_) => break,
        }
        next += 1;
    }
    if let Some((at, _)) = tokens.get(start).filter(|_| segments.len() > prefix.len()) {
        found.push((*at, segments));
    }
    next
}

fn resolve<'a>(segments: &[&'a str], module: &[&'a str]) -> Vec<&'a str> {
    let supers = segments.iter().skip_while(|s| **s == "self").take_while(|s| **s == "super").count();
    let selfs = segments.iter().take_while(|s| **s == "self").count();
    if supers + selfs == 0 {
        return segments.to_vec();
    }
    let above = &module[..module.len().saturating_sub(supers)];
    let rest = &segments[selfs + supers..];
    std::iter::once("crate").chain(above.iter().copied()).chain(rest.iter().copied()).collect()
}

fn tokens(text: &str) -> Vec<(usize, Token<'_>)> {
    let mut found = Vec::new();
    let mut words = crate::tidy::scan::words(text).peekable();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        if let Some((_, word)) = words.next_if(|(start, _)| *start == at) {
            found.push((at, Token::Word(word)));
            at += word.len();
        } else if text[at..].starts_with("::") {
            found.push((at, Token::Separator));
            at += 2;
        } else {
            if !c.is_whitespace() {
                found.push((at, Token::Mark(c)));
            }
            at += c.len_utf8();
        }
    }
    found
}
