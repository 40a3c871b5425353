//! Where a journal may live, and the folders that it makes.

use std::fs;

use botmesh_append_log::{AppendLog, AppendLogError, Options};

use crate::support::Journal;

#[test]
fn missing_folders_are_created() {
    let journal = Journal::new();
    let path = journal.path.join("a/b/journal");
    let mut log = AppendLog::open(&path, Options::default()).unwrap();
    log.append(b"x").unwrap();
    assert_eq!(log.path(), fs::canonicalize(path.parent().unwrap()).unwrap().join("journal"));
}

#[test]
fn a_path_without_a_file_name_is_refused() {
    for path in ["/", "..", ""] {
        let error = AppendLog::open(path, Options::default()).unwrap_err();
        assert!(matches!(error, AppendLogError::Io { operation: "resolve", .. }), "{path:?}: {error:?}");
    }
}

#[test]
fn links_that_go_round_are_refused() {
    let journal = Journal::new();
    std::os::unix::fs::symlink(&journal.path, &journal.path).unwrap();
    assert!(matches!(journal.try_open(), Err(AppendLogError::Io { operation: "resolve", .. })));
}

#[cfg(target_os = "linux")]
mod fuse {
    use std::fs::File;
    use std::io::{ErrorKind, Read, Write};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::room::Mount;

    const LOOKUP: u32 = 1;
    const FORGET: u32 = 2;
    const GETATTR: u32 = 3;
    const STATFS: u32 = 17;
    const INIT: u32 = 26;

    /// Answers a user-space filesystem that is one empty folder, until it is unmounted.
    fn serve(mut device: &File, stop: &AtomicBool) {
        let mut request = vec![0; 256 * 1024];
        while !stop.load(Ordering::Relaxed) {
            match device.read(&mut request) {
                Ok(_) => {}
                // Not mounted yet.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    std::thread::yield_now();
                    continue;
                }
                Err(error) if matches!(error.raw_os_error(), Some(2 | 4)) => continue,
                Err(_) => return,
            }
            let opcode = u32::from_le_bytes(request[4..8].try_into().unwrap());
            let (error, body) = match opcode {
                FORGET => continue,
                LOOKUP => (-2_i32, vec![]),
                INIT => (0, init()),
                GETATTR => (0, folder()),
                STATFS => (0, vec![0; 80]),
                _ => (-38, vec![]),
            };
            let mut reply = ((16 + body.len()) as u32).to_le_bytes().to_vec();
            reply.extend(error.to_le_bytes());
            reply.extend(&request[8..16]);
            reply.extend(body);
            // The asker may be gone.
            let _ = device.write(&reply);
        }
    }

    fn init() -> Vec<u8> {
        let mut body = vec![0; 64];
        body[0] = 7; // Version 7.31.
        body[4] = 31;
        body[20..24].copy_from_slice(&4096_u32.to_le_bytes()); // The largest write.
        body
    }

    fn folder() -> Vec<u8> {
        let mut body = vec![0; 104];
        body[16] = 1; // Its number.
        body[76..80].copy_from_slice(&0o40_755_u32.to_le_bytes());
        body[80] = 2; // Its links.
        body
    }

    /// Case G04.
    #[test]
    fn a_user_space_filesystem_is_refused_by_name_unless_allowed() {
        let Ok(device) = File::options().read(true).write(true).open("/dev/fuse") else {
            println!("not run: needs /dev/fuse");
            return;
        };
        rustix::io::fcntl_setfd(&device, rustix::io::FdFlags::empty()).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&device, &stop));
            let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
            let Some(mount) = Mount::new("fuse", &options) else {
                stop.store(true, Ordering::Relaxed);
                println!("not run: needs the right to mount a user-space filesystem");
                return;
            };
            for name in ["journal", "folder/that/is/missing/journal"] {
                let path = mount.path().join(name);
                match AppendLog::open(&path, Options::default()) {
                    Err(AppendLogError::UnsupportedFilesystem { path: refused, filesystem }) => {
                        assert_eq!((refused, filesystem.as_str()), (path, "fuse"));
                    }
                    other => panic!("{other:?}"),
                }
            }
            // Allowed, it is only this filesystem's own poverty that stops it.
            let allowed = Options::default().with_allow_unsupported_filesystem(true);
            let tried = AppendLog::open(mount.path().join("journal"), allowed);
            assert!(matches!(tried, Err(AppendLogError::Io { .. })), "{tried:?}");
        });
    }
}
