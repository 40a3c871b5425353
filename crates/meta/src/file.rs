//! Files of this host that are sent.

use std::io;
use std::path::Path;

use botmesh_core::content::{MediaSource, OutboundMedia};
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use reqwest::multipart::Part;
use tokio::io::AsyncReadExt;

/// Where the flags of a WebP with more than a picture are, and the one that says that it moves.
const FLAGS: usize = 20;
const MOVES: u8 = 0b10;

/// A file that Meta is to have, before it is read.
pub(crate) struct File<'a> {
    source: &'a MediaSource,
    pub(crate) name: Option<String>,
    pub(crate) mime: String,
    pub(crate) size: u64,
}

impl<'a> File<'a> {
    /// The file of a media that is on this host; `None` if it is elsewhere.
    pub(crate) async fn of(media: &'a OutboundMedia) -> Result<Option<Self>, ChannelError> {
        let (size, path) = match &media.source {
            MediaSource::Path(path) => {
                let about = tokio::fs::metadata(path).await.map_err(|error| unreadable(path, error))?;
                (about.len(), Some(path))
            }
            MediaSource::Bytes(bytes) => (bytes.len() as u64, None),
            _ => return Ok(None),
        };
        let name = media.file_name.clone().or_else(|| path.and_then(|path| name_of(path)));
        let mime = media.mime.clone().unwrap_or_else(|| mime_of(name.as_deref().unwrap_or("")).to_owned());
        Ok(Some(Self { source: &media.source, name, mime, size }))
    }

    /// Whether it is a WebP that moves, by its flags.
    pub(crate) async fn moves(&self) -> Result<bool, ChannelError> {
        let mut head = [0; FLAGS + 1];
        let read = match self.source {
            MediaSource::Path(path) => {
                read_head(path, &mut head).await.map_err(|error| unreadable(path, error))?
            }
            MediaSource::Bytes(bytes) => {
                let read = bytes.len().min(head.len());
                head[..read].copy_from_slice(&bytes[..read]);
                read
            }
            _ => 0,
        };
        Ok(read > FLAGS
            && head.starts_with(b"RIFF")
            && head[8..].starts_with(b"WEBPVP8X")
            && head[FLAGS] & MOVES != 0)
    }

    /// Its bytes, at once: Meta takes at most 100 MB.
    pub(crate) async fn part(&self) -> Result<Part, ChannelError> {
        let bytes = match self.source {
            MediaSource::Path(path) => {
                tokio::fs::read(path).await.map_err(|error| unreadable(path, error))?
            }
            MediaSource::Bytes(bytes) => bytes.to_vec(),
            _ => Vec::new(),
        };
        let name = self.name.clone().unwrap_or_else(|| "file".to_owned());
        Part::bytes(bytes).file_name(name).mime_str(&self.mime).map_err(|_| {
            let problem = format!("`{}` is no media type", self.mime);
            ChannelError::new(ErrorClass::UnsupportedContent, Phase::NotWritten, problem)
        })
    }
}

async fn read_head(path: &str, head: &mut [u8]) -> io::Result<usize> {
    let mut file = tokio::fs::File::open(path).await?;
    match file.read_exact(head).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
        read => read,
    }
}

fn name_of(path: &str) -> Option<String> {
    Some(Path::new(path).file_name()?.to_str()?.to_owned())
}

fn unreadable(path: &str, error: io::Error) -> ChannelError {
    // It will not appear by itself.
    let class = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => ErrorClass::UnsupportedContent,
        _ => ErrorClass::Transient,
    };
    let problem = format!("the file `{path}` cannot be read");
    ChannelError::new(class, Phase::NotWritten, problem).with_source(error)
}

/// A call that may be made again whatever became of it: one that came before the message, or one that changes nothing the
/// second time.
pub(crate) fn not_sent(mut error: ChannelError) -> ChannelError {
    if error.phase == Phase::Unknown {
        error.phase = Phase::NotWritten;
    }
    error
}

/// The media type by the end of the name.
fn mime_of(path: &str) -> &'static str {
    let ending = Path::new(path).extension().and_then(|ending| ending.to_str()).unwrap_or("");
    match &*ending.to_ascii_lowercase() {
        "jpg" | "jpeg" => "image/jpeg",
        "png" => "image/png",
        "webp" => "image/webp",
        "gif" => "image/gif",
        "mp4" => "video/mp4",
        "3gp" => "video/3gpp",
        "mov" => "video/quicktime",
        "avi" => "video/x-msvideo",
        "webm" => "video/webm",
        "aac" => "audio/aac",
        "amr" => "audio/amr",
        "mp3" => "audio/mpeg",
        "m4a" => "audio/mp4",
        "wav" => "audio/wav",
        // WhatsApp plays it as a voice note only with its codec.
        "ogg" | "oga" | "opus" => "audio/ogg; codecs=opus",
        "ogv" => "video/ogg",
        "pdf" => "application/pdf",
        "txt" => "text/plain",
        "csv" => "text/csv",
        "doc" => "application/msword",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xls" => "application/vnd.ms-excel",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "zip" => "application/zip",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
