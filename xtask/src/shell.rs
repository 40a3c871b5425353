//! Commands that are shown before they run, so that each can be repeated by hand.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A program with its arguments and the environment it needs.
pub(crate) struct Invocation {
    program: OsString,
    shown: String,
    args: Vec<OsString>,
    env: Vec<(&'static str, String)>,
}

impl Invocation {
    pub(crate) fn cargo<A: Into<OsString>>(args: impl IntoIterator<Item = A>) -> Self {
        let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Self {
            program,
            shown: "cargo".into(),
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
        }
    }

    pub(crate) fn program<A: Into<OsString>>(program: &str, args: impl IntoIterator<Item = A>) -> Self {
        let args = args.into_iter().map(Into::into).collect();
        Self { program: program.into(), shown: program.into(), args, env: Vec::new() }
    }

    /// Runs the binary at `program` while showing the name a person would type.
    pub(crate) fn with_program(mut self, program: &Path) -> Self {
        self.program = program.into();
        self
    }

    pub(crate) fn with_arg(mut self, arg: &Path) -> Self {
        self.args.push(arg.into());
        self
    }

    pub(crate) fn with_env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Runs it with the terminal's own input and output.
    pub(crate) fn run(&self, folder: &Path) -> Result<(), String> {
        let status = self.command(folder).status().map_err(|error| self.not_started(&error))?;
        if status.success() { Ok(()) } else { Err(format!("`{self}` failed ({status})")) }
    }

    /// Runs it and returns what it wrote to its standard output.
    pub(crate) fn output(&self, folder: &Path) -> Result<String, String> {
        let output = self
            .command(folder)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| self.not_started(&error))?;
        if !output.status.success() {
            return Err(format!("`{self}` failed ({})", output.status));
        }
        String::from_utf8(output.stdout).map_err(|_| format!("`{self}` wrote something that is not UTF-8"))
    }

    fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.program);
        let env = self.env.iter().map(|(name, value)| (name, value));
        command.args(&self.args).envs(env).current_dir(folder);
        command
    }

    fn not_started(&self, error: &std::io::Error) -> String {
        format!("could not start `{self}`: {error}; is `{}` installed and on PATH?", self.shown)
    }
}

impl fmt::Display for Invocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(&self.shown)?;
        for arg in &self.args {
            write!(f, " {}", quoted(&arg.to_string_lossy()))?;
        }
        Ok(())
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests;
