//! As much of the Redis protocol as it takes to steer a server.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::{Error, Result, failed};

/// Far more than any command of a test takes; a frozen server is noticed by it.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Refuses what cannot be a reply to a test.
const LARGEST: usize = 64 << 20;

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// There is no value.
    Nil,
    /// A number.
    Int(i64),
    /// A short answer such as `OK`.
    Simple(String),
    /// A value.
    Bulk(Vec<u8>),
    /// An error within an array. On its own it is the [`Error`] of the call.
    Error(String),
    /// Several answers.
    Array(Vec<Reply>),
}

impl Reply {
    /// The text of a short answer or a value, else nothing. What is not UTF-8 is replaced.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Simple(text) => Some(text.clone()),
            Self::Bulk(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }

    /// The number, if it is one.
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }

    /// The answers of an array, else none.
    pub fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) => items,
            _ => &[],
        }
    }
}

/// A connection to one server, for commands one after another.
pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    /// Connects to `address`, within 10 s, without a password.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn open(address: SocketAddr) -> Result<Self> {
        Self::open_as(address, None, None)
    }

    pub(crate) fn open_as(address: SocketAddr, user: Option<&str>, password: Option<&str>) -> Result<Self> {
        let what = format!("no connection to {address}");
        let stream = TcpStream::connect_timeout(&address, TIMEOUT).map_err(failed(&what))?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(failed(&what))?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(failed(&what))?;
        stream.set_nodelay(true).map_err(failed(&what))?;
        let mut connection = Self { stream: BufReader::new(stream) };
        if let Some(password) = password {
            match user {
                Some(user) => connection.command(&["AUTH", user, password])?,
                None => connection.command(&["AUTH", password])?,
            };
        }
        Ok(connection)
    }

    /// Sends one command and waits up to 10 s for its reply.
    ///
    /// # Errors
    /// The server answers with an error, which the text begins with; or the connection fails, is closed or stays silent.
    pub fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Reply> {
        let name =
            args.first().map_or_else(String::new, |name| String::from_utf8_lossy(name.as_ref()).into_owned());
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            let arg = arg.as_ref();
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request).map_err(failed(&name))?;
        match self.reply().map_err(failed(&name))? {
            Reply::Error(text) => Err(Error(format!("{text} ({name})"))),
            reply => Ok(reply),
        }
    }

    fn reply(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed(&line))?;
        let number = || rest.parse::<i64>().map_err(|_| malformed(&line));
        Ok(match kind {
            "+" => Reply::Simple(rest.into()),
            "-" => Reply::Error(rest.into()),
            ":" => Reply::Int(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(length) => Reply::Bulk(self.bytes(length)?),
                Err(_) => Reply::Nil,
            },
            "*" => match usize::try_from(number()?) {
                Ok(length) => Reply::Array((0..length).map(|_| self.reply()).collect::<io::Result<_>>()?),
                Err(_) => Reply::Nil,
            },
            _ => return Err(malformed(&line)),
        })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.by_ref().take(LARGEST as u64).read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(text) => Ok(text.into()),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
        }
    }

    fn bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        if length > LARGEST {
            return Err(malformed(&format!("a value of {length} bytes")));
        }
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("this is not the Redis protocol: {line:?}"))
}
