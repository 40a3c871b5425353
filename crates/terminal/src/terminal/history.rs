//! The typed lines, kept in a file: one a line, with `\n` and `\\` for the line ends and backslashes of pasted text.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::sys;

/// How many lines are remembered.
pub(super) const MAX_LINES: usize = 1000;

pub(super) struct History {
    path: PathBuf,
}

impl History {
    /// The lines of the file, oldest first. A file that grew much too long is made shorter.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Vec<String>)> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let text = String::from_utf8_lossy(&bytes);
        let all: Vec<&str> = text.lines().collect();
        let last = &all[all.len().saturating_sub(MAX_LINES)..];
        let history = Self { path: path.to_owned() };
        if all.len() > 2 * MAX_LINES {
            history.replace(last)?;
        }
        Ok((history, last.iter().map(|line| unescape(line)).collect()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn add(&self, line: &str) -> io::Result<()> {
        let line = line.replace('\\', "\\\\").replace('\n', "\\n") + "\n";
        sys::private().append(true).create(true).open(&self.path)?.write_all(line.as_bytes())
    }

    fn replace(&self, lines: &[&str]) -> io::Result<()> {
        let mut name = self.path.file_name().unwrap_or_default().to_owned();
        name.push(".tmp");
        let shorter = self.path.with_file_name(name);
        let mut file = sys::private().write(true).create(true).truncate(true).open(&shorter)?;
        file.write_all((lines.join("\n") + "\n").as_bytes())?;
        fs::rename(&shorter, &self.path)
    }
}

fn unescape(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                other => out.push(other.unwrap_or('\\')),
            },
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{History, MAX_LINES};

    #[test]
    fn lines_come_back_and_old_ones_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let (history, lines) = History::open(&path).unwrap();
        assert!(lines.is_empty());
        for line in ["hi", "two\nlines", "a\\nb\\"] {
            history.add(line).unwrap();
        }
        assert_eq!(History::open(&path).unwrap().1, ["hi", "two\nlines", "a\\nb\\"]);
        for n in 0..2 * MAX_LINES {
            history.add(&n.to_string()).unwrap();
        }
        let (_, lines) = History::open(&path).unwrap();
        assert_eq!((lines.len(), lines[0].as_str(), lines[999].as_str()), (MAX_LINES, "1000", "1999"));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), MAX_LINES);
    }
}
