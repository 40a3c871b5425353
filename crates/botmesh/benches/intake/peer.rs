//! teloxide-core, which is no dependency of this workspace: a program of its own, built when it is measured.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/intake/teloxide");

pub(crate) struct Teloxide(PathBuf);

impl Teloxide {
    /// Or why it cannot be had.
    pub(crate) fn build() -> Result<Self, String> {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("teloxide");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--quiet", "--release", "--locked", "--manifest-path"]);
        command.arg(Path::new(FOLDER).join("Cargo.toml")).arg("--target-dir").arg(&target);
        let output = command.output().map_err(|error| format!("cargo cannot be started: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        Ok(Self(target.join("release/botmesh-bench-teloxide")))
    }

    /// Nanoseconds for each update, or `None` where it cannot be read.
    pub(crate) fn nanos(&self, updates: &[&str], time: Duration) -> Vec<Option<f64>> {
        let mut command = Command::new(&self.0);
        command.arg(time.as_millis().to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(updates.join("\n").as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "the peer fails");
        String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().ok()).collect()
    }
}
