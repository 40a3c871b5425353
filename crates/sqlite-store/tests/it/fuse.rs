//! A database in a user-space filesystem, where locks and shared memory may not work.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use botmesh_core::error::StoreErrorKind;
use botmesh_sqlite_store::{SqliteConfig, SqliteStore};

use crate::tools::{Mount, block_on};

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const STATFS: u32 = 17;
const INIT: u32 = 26;

/// Answers a filesystem that is one empty folder, until it is unmounted.
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
        let (error, body) = match u32::from_le_bytes(request[4..8].try_into().unwrap()) {
            FORGET => continue,
            LOOKUP => (-2_i32, vec![]),
            INIT => (0, init()),
            GETATTR => (0, folder()),
            STATFS => (0, vec![0; 80]),
            _ => (-38, vec![]),
        };
        let mut reply = u32::try_from(16 + body.len()).unwrap().to_le_bytes().to_vec();
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
        let Some(mount) = Mount::new("a user-space filesystem", "fuse", &options) else {
            stop.store(true, Ordering::Relaxed);
            return;
        };
        let path = mount.path().join("bot.db");
        let error = block_on(SqliteStore::open(&path)).expect_err("it was opened");
        assert_eq!(error.kind(), StoreErrorKind::UnsupportedFilesystem);
        for part in [path.display().to_string().as_str(), "fuse", "local disk", "allow_network_filesystem"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        // Allowed, it is only this filesystem's own poverty that stops it.
        let allowed = SqliteConfig::default().with_allow_network_filesystem(true);
        let error = block_on(SqliteStore::open_with(&path, allowed)).expect_err("there are no files in it");
        assert_ne!(error.kind(), StoreErrorKind::UnsupportedFilesystem, "{error}");
    });
}
