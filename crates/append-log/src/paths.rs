//! The files of one journal, and the folder they are in.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::AppendLogError;
use crate::sys;

/// Links that are followed before a path is given up as a loop, as in the kernel.
const MAX_LINKS: usize = 40;

#[derive(Clone, Debug)]
pub(crate) struct Paths {
    pub(crate) dir: PathBuf,
    pub(crate) snapshot: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) lock: PathBuf,
    pub(crate) tmp: PathBuf,
}

impl Paths {
    /// The files that belong to `path`, with links followed: two names of one journal share one lock.
    pub(crate) fn resolve(path: &Path) -> io::Result<Self> {
        let mut path = path.to_path_buf();
        for _ in 0..MAX_LINKS {
            let (dir, name) = split(&path)?;
            match fs::read_link(&path) {
                Ok(target) => path = dir.join(target),
                Err(_) => return Ok(Self::new(real(&dir)?, &name)),
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "too many levels of symbolic links"))
    }

    fn new(dir: PathBuf, name: &OsString) -> Self {
        let with = |suffix: &str| {
            let mut name = name.clone();
            name.push(suffix);
            dir.join(name)
        };
        Self { snapshot: with(""), log: with(".log"), lock: with(".lock"), tmp: with(".tmp"), dir }
    }

    /// Creates what is missing of the folder, and makes its name durable.
    pub(crate) fn create_dir(&self) -> Result<(), AppendLogError> {
        let missing: Vec<&Path> = self.dir.ancestors().take_while(|dir| !dir.is_dir()).collect();
        for dir in missing.into_iter().rev() {
            match fs::create_dir(dir) {
                Ok(()) => {}
                Err(_) if dir.is_dir() => {} // Somebody else was faster.
                Err(error) => return Err(AppendLogError::full_or_io(dir, "create", error)),
            }
            if let Some(parent) = dir.parent() {
                sys::sync_dir(parent).map_err(|error| AppendLogError::io(parent, "sync", error))?;
            }
        }
        Ok(())
    }

    /// The nearest folder that is there already.
    pub(crate) fn existing_dir(&self) -> &Path {
        self.dir.ancestors().find(|dir| dir.is_dir()).unwrap_or(&self.dir)
    }

    pub(crate) fn sync_dir(&self) -> Result<(), AppendLogError> {
        sys::sync_dir(&self.dir).map_err(|error| AppendLogError::io(&self.dir, "sync", error))
    }
}

/// A path's folder and file name.
fn split(path: &Path) -> io::Result<(PathBuf, OsString)> {
    let name = path.file_name().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "a journal needs the path of a file, not of a folder")
    })?;
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    Ok((dir.to_path_buf(), name.to_owned()))
}

/// The folder without links, as far as it exists.
fn real(dir: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(dir) {
        Ok(dir) => Ok(dir),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match (dir.parent(), dir.file_name()) {
            (Some(parent), Some(name)) if parent.as_os_str().is_empty() => {
                Ok(fs::canonicalize(".")?.join(name))
            }
            (Some(parent), Some(name)) => Ok(real(parent)?.join(name)),
            _ => Err(error),
        },
        Err(error) => Err(error),
    }
}
