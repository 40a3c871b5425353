//! One connection of a replica to the world.

use std::io;
use std::net::SocketAddr;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::link::Hello;

/// Lines of JSON in both directions.
pub(super) struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr, hello: &Hello) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut connection = Self { stream: BufReader::new(stream) };
        connection.write(hello).await?;
        Ok(connection)
    }

    pub(super) async fn write(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).await
    }

    /// The next message; `None` at the end of the connection.
    pub(super) async fn read<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line)?))
    }

    /// Sends a message and waits for its answer.
    pub(super) async fn ask<T: DeserializeOwned>(&mut self, message: &impl Serialize) -> io::Result<T> {
        self.write(message).await?;
        self.read().await?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}
