//! Files of this host: those that are sent, and those of a Bot API server that runs here.

use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;

use botmesh_core::Bytes;
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use futures_util::stream::{self, Stream};
use tokio::fs::{self, File};
use tokio::io::AsyncReadExt;

use crate::client::too_large;

/// How much of a file is in memory while it is sent.
const CHUNK: usize = 64 << 10;

pub(crate) const ADVICE: &str =
    "; the server seems to run with `--local`: say where its files are with `Telegram::with_local_files`";

/// Also where the server runs on another system than this process.
pub(crate) fn is_absolute(path: &str) -> bool {
    path.starts_with('/') || Path::new(path).is_absolute()
}

/// The file and its size. What is no file has neither an end nor a size.
pub(crate) async fn open(path: impl AsRef<Path>) -> io::Result<(File, u64)> {
    let about = fs::metadata(&path).await?;
    if !about.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no file"));
    }
    Ok((File::open(path).await?, about.len()))
}

/// A file that was not there to its end while it was sent: nobody got the whole of the request.
#[derive(Debug)]
pub(crate) struct Unread(io::Error);

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the file cannot be read to its end")
    }
}

impl Error for Unread {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

impl Unread {
    /// Whether it is why a request failed.
    pub(crate) fn is_in(error: &reqwest::Error) -> bool {
        let mut cause: Option<&(dyn Error + 'static)> = error.source();
        while let Some(error) = cause.filter(|error| !error.is::<Self>()) {
            cause = error.source();
        }
        cause.is_some()
    }
}

/// So many bytes of the file, as they are asked for.
pub(crate) fn chunks(file: File, length: u64) -> impl Stream<Item = Result<Bytes, Unread>> + Send + 'static {
    stream::try_unfold(file.take(length), |mut file| async move {
        if file.limit() == 0 {
            return Ok(None);
        }
        let mut chunk = Vec::with_capacity(CHUNK);
        match file.read_buf(&mut chunk).await {
            Ok(0) => Err(Unread(ErrorKind::UnexpectedEof.into())),
            Ok(_) => Ok(Some((chunk.into(), file))),
            Err(error) => Err(Unread(error)),
        }
    })
}

/// Reads a file of the server. It must be in the server's folder, wherever links lead: a server is not believed that this process
/// may read what else is there.
pub(crate) async fn read(folder: &Path, path: &str, max: usize) -> Result<Bytes, ChannelError> {
    let unreadable = |error: io::Error| {
        let detail = format!("the file {path} of the Bot API server cannot be read on this host");
        let class = match error.kind() {
            ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::InvalidInput => {
                ErrorClass::Rejected
            }
            _ => ErrorClass::Transient,
        };
        ChannelError::new(class, Phase::Answered, format!("{detail}: {}", error.kind()))
    };
    let real = fs::canonicalize(path).await.map_err(unreadable)?;
    let folder = fs::canonicalize(folder).await.map_err(unreadable)?;
    if !real.starts_with(&folder) {
        let detail =
            format!("the file {path} is not in the folder of the Bot API server, {}", folder.display());
        return Err(ChannelError::new(ErrorClass::Rejected, Phase::Answered, detail));
    }
    let (file, size) = open(real).await.map_err(unreadable)?;
    if size > max as u64 {
        return Err(too_large(max));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    file.take(max as u64 + 1).read_to_end(&mut bytes).await.map_err(unreadable)?;
    match bytes.len() > max {
        true => Err(too_large(max)),
        false => Ok(bytes.into()),
    }
}
