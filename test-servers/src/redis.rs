//! One Redis server.

mod given;
mod options;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

pub use self::options::{Options, Persistence};
use crate::port::Port;
use crate::process::{Process, find_program};
use crate::resp::{Connection, Reply};
use crate::watchdog::Watchdog;
use crate::{Error, Result, failed, wait};

/// The environment variable that names a server to use instead of starting one.
pub const REDIS_URL: &str = "BOTMESH_REDIS_URL";

const PROGRAM: &str = "redis-server";
/// A port that was free a moment ago is seldom taken twice.
const TRIES: usize = 5;

/// A Redis server on the loopback interface. It ends when this is dropped.
pub struct Redis {
    address: SocketAddr,
    /// What its owner may do: everything.
    user: Option<String>,
    password: Option<String>,
    url: String,
    /// Absent if it was given.
    own: Option<Own>,
}

/// What belongs to a server that was started here.
struct Own {
    program: PathBuf,
    args: Vec<OsString>,
    folder: TempDir,
    process: Mutex<Option<Process>>,
    _port: Port,
}

/// The files of a server as they were once; see [`Redis::files`].
pub struct Files(TempDir);

impl Redis {
    /// Whether [`start`](Self::start) finds the program.
    ///
    /// # Errors
    /// It does not; the text says how to provide it.
    pub fn available() -> Result {
        program().map(drop)
    }

    /// Starts a server and waits until it answers; 30 s at most.
    ///
    /// # Errors
    /// There is no `redis-server` on the `PATH`, or it does not start; with the end of its log.
    pub fn start(options: &Options) -> Result<Self> {
        let program = program()?;
        let mut tries = 1;
        loop {
            match Self::try_start(program.clone(), options) {
                Err(error) if tries < TRIES && error.0.contains("Address already in use") => tries += 1,
                outcome => return outcome,
            }
        }
    }

    /// Uses the server at the URL in `BOTMESH_REDIS_URL` if there is one, else starts one with the default options. For
    /// tests that keep to keys of their own and do the server no harm.
    ///
    /// # Errors
    /// The URL cannot be read, its server does not answer, or as [`start`](Self::start).
    pub fn from_env_or_start() -> Result<Self> {
        match std::env::var(REDIS_URL) {
            Ok(url) if !url.is_empty() => Self::given(&url),
            _ => Self::start(&Options::new()),
        }
    }

    fn try_start(program: PathBuf, options: &Options) -> Result<Self> {
        let root = Watchdog::get()?.root();
        let folder = TempDir::new_in(root).map_err(failed("no folder for the server"))?;
        let port = Port::reserve()?;
        let number = port.number();
        let mut config = options.config(number);
        fs::create_dir(folder.path().join("data")).map_err(failed("no folder for the server's data"))?;
        config += &format!("dir {}\n", folder.path().join("data").display());
        fs::write(folder.path().join("server.conf"), config)
            .map_err(failed("no file for the server's settings"))?;
        let mut args = vec![folder.path().join("server.conf").into_os_string()];
        if options.is_sentinel() {
            args.push("--sentinel".into());
        }
        let redis = Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, number)),
            user: None,
            password: options.owner_password().map(str::to_owned),
            url: options.url(number),
            own: Some(Own { program, args, folder, process: Mutex::new(None), _port: port }),
        };
        redis.run("start a server")?;
        Ok(redis)
    }

    /// Where it is, with the credentials of the [user](Options::with_user) if there is one.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// [`url`](Self::url) with another address, such as that of a [`Proxy`](crate::Proxy).
    pub fn url_at(&self, address: SocketAddr) -> String {
        let at = self.url.find('@').map_or("redis://".len(), |at| at + 1);
        let tail = self.url[at..].find(['/', '?']).map_or("", |length| &self.url[at + length..]);
        format!("{}{address}{tail}", &self.url[..at])
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The last lines of its log; empty for a given server.
    pub fn log(&self) -> String {
        self.own
            .as_ref()
            .map(|own| own.process().as_ref().map(Process::log).unwrap_or_default())
            .unwrap_or_default()
    }

    /// Opens a connection with all rights.
    ///
    /// # Errors
    /// It cannot be reached within 10 s, or refuses the password.
    pub fn connection(&self) -> Result<Connection> {
        Connection::open_as(self.address, self.user.as_deref(), self.password.as_deref())
    }

    /// Sends one command on a connection of its own, with all rights.
    ///
    /// # Errors
    /// As [`connection`](Self::connection) and [`Connection::command`].
    pub fn command<A: AsRef<[u8]>>(&self, args: &[A]) -> Result<Reply> {
        self.connection()?.command(args)
    }

    /// Kills it with SIGKILL. What it has not written to its files is lost. If it is not running, nothing happens.
    ///
    /// # Errors
    /// It is not ours.
    pub fn kill(&self) -> Result {
        drop(self.own("kill")?.process().take());
        Ok(())
    }

    /// Kills it if it runs, and starts it from its files on the same port.
    ///
    /// # Errors
    /// It is not ours, or does not start; with the end of its log.
    pub fn restart(&self) -> Result {
        self.run("restart")
    }

    /// Kills it if it runs, removes its data, and starts it on the same port. A node of a cluster remembers who it is.
    ///
    /// # Errors
    /// As [`restart`](Self::restart).
    pub fn restart_empty(&self) -> Result {
        let own = self.own("empty")?;
        self.kill()?;
        let data = own.folder.path().join("data");
        fs::remove_dir_all(&data)
            .and_then(|()| fs::create_dir(&data))
            .map_err(failed("the server's data cannot be removed"))?;
        self.run("restart")
    }

    /// A copy of its files as they are now.
    ///
    /// # Errors
    /// It is not ours, or the copy fails.
    pub fn files(&self) -> Result<Files> {
        let own = self.own("copy")?;
        let copy = TempDir::new_in(Watchdog::get()?.root()).map_err(failed("no folder for the copy"))?;
        copy_all(&own.folder.path().join("data"), copy.path())
            .map_err(failed("the files cannot be copied"))?;
        Ok(Files(copy))
    }

    /// Kills it if it runs, and starts it from a copy of its files on the same port: what was written since is lost, as when
    /// the power fails before the disk has it.
    ///
    /// # Errors
    /// As [`restart`](Self::restart).
    pub fn restart_from(&self, files: &Files) -> Result {
        let own = self.own("restart")?;
        self.kill()?;
        let data = own.folder.path().join("data");
        fs::remove_dir_all(&data)
            .and_then(|()| copy_all(files.0.path(), &data))
            .map_err(failed("the server's files cannot be replaced"))?;
        self.run("restart")
    }

    /// Stops it where it stands, with SIGSTOP: connections stay open and are accepted, and nothing is answered.
    ///
    /// # Errors
    /// It is not ours, or does not run.
    pub fn freeze(&self) -> Result {
        self.running("freeze", Process::freeze)
    }

    /// Lets it go on after [`freeze`](Self::freeze).
    ///
    /// # Errors
    /// It is not ours, or does not run.
    pub fn thaw(&self) -> Result {
        self.running("thaw", Process::thaw)
    }

    /// Ends the replication from this server to its replicas, and refuses it from now on, while all else goes on: what is
    /// written from here on is lost when a replica takes its place. A restart of this server ends it.
    ///
    /// # Errors
    /// It does not answer or forbids `ACL`.
    pub fn cut_replication(&self) -> Result {
        let mut connection = self.connection()?;
        connection.command(&["ACL", "SETUSER", "default", "-psync", "-sync"])?;
        connection.command(&["CLIENT", "KILL", "TYPE", "replica"])?;
        Ok(())
    }

    /// Allows replication again after [`cut_replication`](Self::cut_replication).
    ///
    /// # Errors
    /// It does not answer or forbids `ACL`.
    pub fn resume_replication(&self) -> Result {
        self.command(&["ACL", "SETUSER", "default", "+psync", "+sync"]).map(drop)
    }

    /// The value of a line of `INFO`, such as `role` or `used_memory`; `None` if there is no such line.
    ///
    /// # Errors
    /// It does not answer.
    pub fn info(&self, name: &str) -> Result<Option<String>> {
        let text = self.command(&["INFO"])?.text().unwrap_or_default();
        Ok(text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned)))
    }

    /// Whether it can be expected to answer: it was not killed or frozen here.
    pub(crate) fn runs(&self) -> bool {
        self.own.as_ref().is_none_or(|own| own.process().as_ref().is_some_and(|process| !process.is_frozen()))
    }

    pub(crate) fn owner_password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    fn running(&self, what: &str, act: fn(&mut Process) -> Result) -> Result {
        match &mut *self.own(what)?.process() {
            Some(process) => act(process),
            None => Err(Error(format!("cannot {what} the server at {}: it does not run", self.address))),
        }
    }

    fn own(&self, what: &str) -> Result<&Own> {
        self.own.as_ref().ok_or_else(|| {
            Error(format!(
                "cannot {what} the server at {}: it was given by {REDIS_URL}, and only servers that were started here may \
                 be harmed",
                self.address
            ))
        })
    }

    fn run(&self, what: &str) -> Result {
        let own = self.own(what)?;
        let mut process = own.process();
        drop(process.take());
        let folder = own.folder.path();
        let process = process.insert(Process::start(&own.program, &own.args, &folder.join("server.log"))?);
        wait::until(format_args!("the start of the server at {}", self.address), || {
            process.check()?;
            Ok(self.command(&["PING"]).map_err(|error| error.0))
        })?;
        Ok(())
    }
}

impl Own {
    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn program() -> Result<PathBuf> {
    find_program(PROGRAM).ok_or_else(|| {
        Error(format!(
            "there is no {PROGRAM} on the PATH. Install it (Debian and Ubuntu: apt-get install redis-server), or add the \
             folder that has it to PATH. What does no harm to its server can also use one that runs: set {REDIS_URL} to \
             its URL, such as redis://127.0.0.1:6379. To go on without: cargo xtask test --allow-missing redis"
        ))
    })
}
