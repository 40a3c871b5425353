//! The file that is written: the channel itself, which can be asked what it got.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use botmesh_core::error::{ChannelError, ErrorClass, Phase};

use super::escape::{self, NO_KEY};
use super::input::must_be_regular;
use crate::error::TranscriptError;

/// The longest key, so that reading the file needs little memory.
pub(super) const MAX_KEY: usize = 1 << 15;

/// Of a torn line, what the log shows.
const SHOWN: usize = 200;

const NOT_OURS: &str = "give a file that was written as a transcript, or a new one";

pub(super) struct Output {
    path: PathBuf,
    file: File,
    /// Up to here the file was read; always after a line's end.
    end: u64,
    lines: u64,
    /// Where the line of each key begins.
    keys: HashMap<Box<str>, u64>,
    /// A sync failed: what is on disk is unknown until the file is opened again.
    broken: bool,
}

/// The file's lock, given back when dropped.
struct Locked<'a>(&'a mut Output);

impl<'a> Locked<'a> {
    fn new(output: &'a mut Output) -> io::Result<Self> {
        output.file.lock()?;
        Ok(Self(output))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // It can only fail for a lock that is not held.
        let _ = self.0.file.unlock();
    }
}

/// What a look into the file can fail with.
enum Trouble {
    Io(io::Error),
    NotOurs { line: u64, problem: &'static str },
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Output {
    pub(super) fn open(path: &Path) -> Result<Self, TranscriptError> {
        let fail = |doing| move |error| TranscriptError::io(path, doing, error);
        if path.exists() {
            must_be_regular(path)?;
        }
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                TranscriptError::new(path, "its folder does not exist", "create the folder first")
            }
            _ => TranscriptError::io(path, "write", error),
        })?;
        sync_folder(path).map_err(fail("sync the folder of"))?;
        let mut output =
            Self { path: path.to_owned(), file, end: 0, lines: 0, keys: HashMap::new(), broken: false };
        let caught_up = Locked::new(&mut output).map_err(fail("lock"))?.catch_up();
        match caught_up {
            Ok(()) => Ok(output),
            Err(Trouble::Io(error)) => Err(TranscriptError::io(path, "read", error)),
            Err(Trouble::NotOurs { line, problem }) => {
                Err(TranscriptError::new(path, problem, NOT_OURS).at(line))
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends these lines in one write and makes them durable. All or none, and each result is where its line begins.
    pub(super) fn append(&mut self, batch: &[(Option<&str>, &str)]) -> Result<Vec<u64>, ChannelError> {
        self.must_be_whole()?;
        let path = self.path.clone();
        let before = |error| failed(&path, Phase::NotWritten, "nothing was written", error);
        let mut locked = Locked::new(self).map_err(before)?;
        locked.0.must_be_in_place()?;
        locked.catch_up_or_refuse()?;
        let bytes: Vec<u8> = batch.iter().flat_map(|(_, line)| line.as_bytes()).copied().collect();
        let start = locked.0.end;
        if let Err(error) = write_once(&locked.0.file, &bytes) {
            return Err(locked.take_back(start, error));
        }
        if let Err(error) = locked.0.file.sync_data() {
            locked.0.broken = true;
            return Err(failed(&path, Phase::Unknown, "it was written, but may not be on disk", error));
        }
        let mut at = start;
        let mut places = Vec::with_capacity(batch.len());
        for (key, line) in batch {
            places.push(at);
            if let Some(key) = key {
                locked.0.keys.entry((*key).into()).or_insert(at);
            }
            at += line.len() as u64;
        }
        locked.0.end = at;
        locked.0.lines += batch.len() as u64;
        Ok(places)
    }

    /// Where the line with this key begins, what other processes appended included.
    pub(super) fn find(&mut self, key: &str) -> Result<Option<u64>, ChannelError> {
        self.must_be_whole()?;
        let path = self.path.clone();
        let unread = |error| failed(&path, Phase::NotWritten, "it cannot be read back", error);
        let mut locked = Locked::new(self).map_err(unread)?;
        locked.0.must_be_in_place()?;
        locked.catch_up_or_refuse()?;
        let found = locked.0.keys.get(key).copied();
        // Its writer may have died between the write and the sync.
        locked.0.file.sync_data().map_err(unread)?;
        Ok(found)
    }

    fn must_be_whole(&self) -> Result<(), ChannelError> {
        if self.broken {
            let detail = format!("{}: the disk failed before; check it and start again", self.path.display());
            return Err(ChannelError::new(ErrorClass::Transient, Phase::NotWritten, detail));
        }
        Ok(())
    }

    /// Whether the path still names the open file: what is written to a removed file is lost.
    #[cfg(unix)]
    fn must_be_in_place(&self) -> Result<(), ChannelError> {
        use std::os::unix::fs::MetadataExt;
        let id = |found: io::Result<std::fs::Metadata>| found.map(|found| (found.dev(), found.ino()));
        let same = matches!(
            (id(std::fs::metadata(&self.path)), id(self.file.metadata())),
            (Ok(named), Ok(open)) if named == open
        );
        if same {
            return Ok(());
        }
        let detail = format!("{}: it was moved or removed; put it back and start again", self.path.display());
        Err(ChannelError::new(ErrorClass::Transient, Phase::NotWritten, detail))
    }

    #[cfg(not(unix))]
    fn must_be_in_place(&self) -> Result<(), ChannelError> {
        Ok(())
    }
}

impl Locked<'_> {
    /// Reads what others appended, and cuts off what a crash left of a last line.
    fn catch_up(&mut self) -> Result<(), Trouble> {
        let output = &mut *self.0;
        let size = output.file.metadata()?.len();
        if size < output.end {
            tracing::warn!(path = %output.path.display(), "the transcript became shorter; reading it from its start");
            (output.end, output.lines) = (0, 0);
            output.keys.clear();
        }
        if size == output.end {
            return Ok(());
        }
        scan(output, size)?;
        if output.end < size {
            let torn = size - output.end;
            let mut text = Vec::new();
            (&output.file).seek(SeekFrom::Start(output.end))?;
            (&output.file).take(SHOWN as u64).read_to_end(&mut text)?;
            let text = String::from_utf8_lossy(&text);
            tracing::warn!(path = %output.path.display(), bytes = torn, ?text, "a torn last line is cut off");
            output.file.set_len(output.end)?;
            output.file.sync_data()?;
        }
        Ok(())
    }

    fn catch_up_or_refuse(&mut self) -> Result<(), ChannelError> {
        self.catch_up().map_err(|trouble| match trouble {
            Trouble::Io(error) => failed(&self.0.path, Phase::NotWritten, "it cannot be read", error),
            Trouble::NotOurs { line, problem } => {
                let error = TranscriptError::new(&self.0.path, problem, NOT_OURS).at(line);
                ChannelError::new(ErrorClass::Transient, Phase::NotWritten, error.to_string())
            }
        })
    }

    /// Removes what a failed write left behind, so that it is as if never tried.
    fn take_back(&mut self, start: u64, error: io::Error) -> ChannelError {
        let file = &self.0.file;
        match file.set_len(start).and_then(|()| file.sync_data()) {
            Ok(()) => failed(&self.0.path, Phase::NotWritten, "nothing was written", error),
            Err(_) => failed(&self.0.path, Phase::Unknown, "it was written in part", error),
        }
    }
}

/// Reads the lines from `output.end` up to `size`, holding no more of them than their keys.
fn scan(output: &mut Output, size: u64) -> Result<(), Trouble> {
    (&output.file).seek(SeekFrom::Start(output.end))?;
    let mut reader = BufReader::with_capacity(1 << 16, (&output.file).take(size - output.end));
    let not_ours = |lines: u64, problem| Trouble::NotOurs { line: lines + 1, problem };
    let (mut key, mut tabs, mut at) = (Vec::new(), 0u8, output.end);
    loop {
        let chunk = reader.fill_buf()?;
        if chunk.is_empty() {
            return Ok(());
        }
        for &byte in chunk {
            at += 1;
            match byte {
                b'\n' if tabs == 2 => {
                    if key != NO_KEY.as_bytes() {
                        let key =
                            escape::unescape(&key).ok_or(not_ours(output.lines, "its key cannot be read"))?;
                        output.keys.entry(key.into()).or_insert(output.end);
                    }
                    output.end = at;
                    output.lines += 1;
                    (tabs, key) = (0, Vec::new());
                }
                b'\n' => return Err(not_ours(output.lines, "it is not `key<TAB>chat<TAB>text`")),
                b'\t' if tabs < 2 => tabs += 1,
                b'\t' => return Err(not_ours(output.lines, "it has more than two TABs")),
                // Escaping at most doubles a key.
                _ if tabs == 0 && key.len() == 2 * MAX_KEY => {
                    return Err(not_ours(output.lines, "its key is too long"));
                }
                byte if tabs == 0 => key.push(byte),
                _ => {}
            }
        }
        let read = chunk.len();
        reader.consume(read);
    }
}

fn write_once(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    loop {
        match file.write(bytes) {
            Ok(written) if written == bytes.len() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::StorageFull.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn failed(path: &Path, phase: Phase, what: &str, error: io::Error) -> ChannelError {
    let reason = match error.kind() {
        io::ErrorKind::StorageFull => "no space is left; free some",
        io::ErrorKind::QuotaExceeded => "the quota is used up; free some space",
        io::ErrorKind::ReadOnlyFilesystem => "the file system is read-only; make it writable",
        _ => "check the file and its disk",
    };
    ChannelError::new(ErrorClass::Transient, phase, format!("{}: {what}: {reason}", path.display()))
        .with_source(error)
}

/// Makes the file's name durable.
#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(folder)?.sync_all() {
        // Some file systems cannot sync a folder, and say so.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Ok(())
        }
        done => done,
    }
}

#[cfg(not(unix))]
fn sync_folder(_path: &Path) -> io::Result<()> {
    Ok(())
}
