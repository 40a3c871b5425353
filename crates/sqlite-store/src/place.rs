//! Where the file lies: its folder, its permissions and its file system.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use botmesh_core::error::StoreErrorKind;
use rustix::fs::Access;

use crate::client::beside;
use crate::config::SqliteConfig;
use crate::error::Fault;

/// Held while a file is made. Closing any descriptor of a file gives up all locks that this process has on it, so no
/// other open may find the file before the descriptor that made it is closed.
static MAKING: Mutex<()> = Mutex::new(());

/// Makes the folder and an empty file if they are missing, and refuses places where a database cannot live.
pub(crate) fn prepare(path: &Path, config: &SqliteConfig) -> Result<(), Fault> {
    if path.as_os_str().is_empty() || path.file_name().is_none_or(|name| name == ":memory:") {
        return Err(Fault::own(
            StoreErrorKind::Misuse,
            format!("`{}` is not the name of a file; give a path such as data/bot.db", path.display()),
        ));
    }
    if path.is_dir() {
        return Err(Fault::own(
            StoreErrorKind::Misuse,
            format!("{0} is a directory; give the path of a file, such as {0}/bot.db", path.display()),
        ));
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    make_folder(folder)?;
    if !config.allow_network_filesystem
        && let Some(filesystem) = unsafe_filesystem(if path.exists() { path } else { folder })
    {
        return Err(Fault::own(
            StoreErrorKind::UnsupportedFilesystem,
            format!(
                "{} is on {filesystem}, where SQLite's locks and shared memory may not work and the file can be \
                 damaged; move it to a local disk, or set allow_network_filesystem if only one host ever opens it",
                path.display()
            ),
        ));
    }
    make_file(path, folder)?;
    let emptied = |length: io::Result<fs::Metadata>| length.is_ok_and(|meta| meta.len() == 0);
    let log = beside(path, "-wal");
    if emptied(fs::metadata(path)) && fs::metadata(&log).is_ok_and(|meta| meta.len() > 0) {
        return Err(Fault::own(
            StoreErrorKind::Corrupt,
            format!(
                "{} is empty, but its write-ahead log {} is not; nothing was touched: restore both from a backup, or \
                 move both aside to start anew",
                path.display(),
                log.display()
            ),
        ));
    }
    Ok(())
}

/// Makes `folder` and its missing parents, each durable in its own parent.
fn make_folder(folder: &Path) -> Result<(), Fault> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().unwrap_or(Path::new("/"));
    make_folder(parent)?;
    match fs::create_dir(folder) {
        Ok(()) => sync(parent),
        Err(_) if folder.is_dir() => Ok(()),
        Err(error) => Err(refused(&error, "the folder", folder)),
    }
}

fn make_file(path: &Path, folder: &Path) -> Result<(), Fault> {
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(file) => {
            drop(file);
            sync(folder)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(refused(&error, "the file", path)),
    }
}

/// Makes the names in `folder` durable.
fn sync(folder: &Path) -> Result<(), Fault> {
    fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| {
        Fault::own(StoreErrorKind::Unavailable, format!("{} cannot be synced: {error}", folder.display()))
    })
}

fn refused(error: &io::Error, what: &str, path: &Path) -> Fault {
    let (kind, advice) = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            (StoreErrorKind::Denied, "give this user write access there, or choose another path")
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            (StoreErrorKind::Full, "free space on its disk and try again")
        }
        ErrorKind::NotADirectory | ErrorKind::InvalidFilename | ErrorKind::AlreadyExists => {
            (StoreErrorKind::Misuse, "choose a path whose parents are folders")
        }
        _ => (StoreErrorKind::Unavailable, "check its disk and try again"),
    };
    Fault::own(kind, format!("{what} {} cannot be made ({error}); {advice}", path.display()))
}

/// Why SQLite may not write at `path`, in words that name the very file or folder.
pub(crate) fn denied(path: &Path) -> Option<Fault> {
    let says_no = |path: &Path, access| match rustix::fs::access(path, access) {
        Err(error) => {
            let kind = io::Error::from(error).kind();
            matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
        }
        Ok(()) => false,
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    if says_no(folder, Access::WRITE_OK | Access::EXEC_OK) {
        return Some(Fault::own(
            StoreErrorKind::Denied,
            format!(
                "the folder {} may not be written, and SQLite keeps two files beside {}; give this user write access \
                 to the folder, or choose another path",
                folder.display(),
                path.display()
            ),
        ));
    }
    let files = [path.to_path_buf(), beside(path, "-wal"), beside(path, "-shm")];
    let file = files.iter().find(|file| says_no(file, Access::READ_OK | Access::WRITE_OK))?;
    Some(Fault::own(
        StoreErrorKind::Denied,
        format!(
            "the file {} may not be read and written; give this user write access to it (it may belong to another \
             user or be marked read-only)",
            file.display()
        ),
    ))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn unsafe_filesystem(path: &Path) -> Option<&'static str> {
    let magic = rustix::fs::statfs(path).ok()?.f_type;
    // Negative where the type is a 32-bit one.
    by_magic(magic as u64 & 0xffff_ffff)
}

/// The file systems where SQLite's write-ahead log is not safe, by the number that `statfs` gives.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn by_magic(magic: u64) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "nfs",
        0x517b => "smb",
        0xff53_4d42 => "cifs",
        0xfe53_4d42 => "smb2",
        0x0102_1997 => "9p",
        0x6573_5546 => "fuse or virtiofs",
        0x00c3_6400 => "ceph",
        0x5346_414f | 0x6b41_4653 => "afs",
        0x7375_7245 => "coda",
        0x564c => "ncp",
        0x786f_4256 => "vboxsf",
        0xbacb_acbc => "vmhgfs",
        0x7c7c_6673 => "prl_fs",
        _ => return None,
    })
}

#[cfg(any(target_os = "macos", target_os = "freebsd"))]
fn unsafe_filesystem(path: &Path) -> Option<String> {
    let name = rustix::fs::statfs(path).ok()?.f_fstypename;
    let name: Vec<u8> = name.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    let name = String::from_utf8_lossy(&name).into_owned();
    let refused =
        ["nfs", "smb", "cifs", "afp", "webdav", "9p", "p9", "virtiofs", "macfuse", "osxfuse", "fuse"];
    refused.iter().any(|prefix| name.starts_with(prefix)).then_some(name)
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "freebsd")))]
fn unsafe_filesystem(_path: &Path) -> Option<&'static str> {
    None
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
