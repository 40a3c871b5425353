//! Which filesystems a journal may live on.
//!
//! A lock or a sync that only seems to work is worse than an error, so what goes over a network or through
//! another program is refused unless it is asked for.

use std::io;
use std::path::Path;

/// The name of the filesystem at `dir` when it is one to refuse.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn unsafe_filesystem(dir: &Path) -> io::Result<Option<String>> {
    let magic = rustix::fs::statfs(dir)?.f_type as u64 & 0xffff_ffff;
    Ok(by_magic(magic).map(|name| mounted_as(dir).unwrap_or_else(|| name.to_owned())))
}

#[cfg(any(target_os = "macos", target_os = "freebsd"))]
pub(crate) fn unsafe_filesystem(dir: &Path) -> io::Result<Option<String>> {
    let name = rustix::fs::statfs(dir)?.f_fstypename;
    let name: Vec<u8> = name.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
    let name = String::from_utf8_lossy(&name).into_owned();
    let refused =
        ["nfs", "smb", "cifs", "afp", "webdav", "9p", "p9", "virtiofs", "macfuse", "osxfuse", "fuse"];
    Ok(refused.iter().any(|prefix| name.starts_with(prefix)).then_some(name))
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "freebsd")))]
pub(crate) fn unsafe_filesystem(_dir: &Path) -> io::Result<Option<String>> {
    Ok(None)
}

/// The filesystems to refuse, by the number that `statfs` gives.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn by_magic(magic: u64) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "nfs",
        0x517b => "smb",
        0xff53_4d42 => "cifs",
        0xfe53_4d42 => "smb2",
        0x0102_1997 => "9p",
        0x6573_5546 => "fuse or virtiofs",
        0x5346_414f | 0x6b41_4653 => "afs",
        0x7375_7245 => "coda",
        0x564c => "ncp",
        0x00c3_6400 => "ceph",
        0x0bd0_0bd0 => "lustre",
        0x4750_4653 => "gpfs",
        0x1983_0326 => "beegfs",
        0x0116_1970 => "gfs2",
        0x7461_636f => "ocfs2",
        0x786f_4256 => "vboxsf",
        0xbacb_acbc => "vmhgfs",
        0x7c7c_6673 => "prl_fs",
        _ => return None,
    })
}

/// The name that the mount table has for the filesystem at `dir`: `fuse.sshfs` says more than a number.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn mounted_as(dir: &Path) -> Option<String> {
    let device = rustix::fs::stat(dir).ok()?.st_dev;
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    named_in(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, &device)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn named_in(mountinfo: &str, device: &str) -> Option<String> {
    let line = mountinfo.lines().find(|line| line.split(' ').nth(2) == Some(device))?;
    let (_, after) = line.split_once(" - ")?;
    after.split(' ').next().map(str::to_owned)
}

#[cfg(all(test, target_os = "linux"))]
#[path = "filesystem_tests.rs"]
mod tests;
