//! What the operating system does for us, and what differs between them.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// Options for a file that only its owner may read: a journal holds people's messages.
#[cfg(unix)]
pub(crate) fn private() -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

#[cfg(not(unix))]
pub(crate) fn private() -> OpenOptions {
    OpenOptions::new() // The folder's access list decides there.
}

#[cfg(unix)]
pub(crate) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    file.write_all_at(bytes, offset)
}

#[cfg(not(unix))]
pub(crate) fn write_all_at(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)
}

/// Makes the names in a folder durable: creations and renames.
#[cfg(unix)]
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    match File::open(dir)?.sync_all() {
        // Not every filesystem can sync a folder; those that cannot say so, and there is no more to do.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Ok(())
        }
        done => done,
    }
}

#[cfg(not(unix))]
pub(crate) fn sync_dir(_dir: &Path) -> io::Result<()> {
    Ok(())
}

/// Syncs a file that is open for reading.
#[cfg(unix)]
pub(crate) fn sync_read(file: &File) -> io::Result<()> {
    file.sync_all()
}

#[cfg(not(unix))]
pub(crate) fn sync_read(_file: &File) -> io::Result<()> {
    Ok(()) // Needs a handle for writing there, and it was synced before its rename.
}

/// Takes the exclusive lock of an open file, or says `false` when it is held through another open.
///
/// The lock belongs to the open file and not to the process, so a second open is refused in the same
/// process too, and it is gone when the process dies.
#[cfg(unix)]
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    use rustix::fs::{FlockOperation, flock};
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(unix))]
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(std::fs::TryLockError::WouldBlock) => Ok(false),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Gives the lock back at once, also when a child that is just being started still holds a copy of the
/// descriptor.
#[cfg(unix)]
pub(crate) fn unlock(file: &File) {
    // The descriptor is closed right after, which gives the lock back in any case.
    let _ = rustix::fs::flock(file, rustix::fs::FlockOperation::Unlock);
}

#[cfg(not(unix))]
pub(crate) fn unlock(file: &File) {
    // The handle is closed right after, which gives the lock back in any case.
    let _ = file.unlock();
}

/// Whether `path` still names the open file.
#[cfg(unix)]
pub(crate) fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let ours = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(theirs) => Ok(ours.ino() == theirs.ino() && ours.dev() == theirs.dev()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
pub(crate) fn is_same_file(_file: &File, _path: &Path) -> io::Result<bool> {
    Ok(true) // An open file cannot be deleted or renamed there.
}
