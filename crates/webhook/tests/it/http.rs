//! A client that sends exactly what a test says.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn has_header(&self, line: &str) -> bool {
        self.head.lines().any(|header| header.eq_ignore_ascii_case(line))
    }
}

/// A request that is on its way.
pub(crate) struct Call(TcpStream);

impl Call {
    pub(crate) async fn write(to: SocketAddr, request: &[u8]) -> Self {
        let mut stream = TcpStream::connect(to).await.expect("the server listens");
        stream.write_all(request).await.expect("the server reads");
        Self(stream)
    }

    /// Says that no more comes.
    pub(crate) async fn closed_on_this_side(mut self) -> Self {
        self.0.shutdown().await.expect("the connection is open");
        self
    }

    /// Waits until the server ends the connection, which it does not thank for.
    pub(crate) async fn until_cut(mut self) {
        let mut bytes = Vec::new();
        let _ = self.0.read_to_end(&mut bytes).await;
        assert!(!bytes.starts_with(b"HTTP/1.1 200"), "{bytes:?}");
    }

    pub(crate) async fn answer(mut self) -> Answer {
        let mut bytes = Vec::new();
        // A server that refuses a body may reset the connection after its answer.
        let _ = self.0.read_to_end(&mut bytes).await;
        let text = String::from_utf8(bytes).expect("an answer in UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }
}

pub(crate) async fn get(to: SocketAddr, method: &str, path: &str) -> Answer {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: bot\r\nconnection: close\r\n\r\n");
    Call::write(to, request.as_bytes()).await.answer().await
}

pub(crate) async fn begin_post(to: SocketAddr, headers: &str, body: &[u8]) -> Call {
    let length = body.len();
    let head = format!(
        "POST /hook HTTP/1.1\r\nhost: bot\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    Call::write(to, &[head.as_bytes(), body].concat()).await
}

pub(crate) async fn post(to: SocketAddr, headers: &str, body: &[u8]) -> Answer {
    begin_post(to, headers, body).await.answer().await
}
