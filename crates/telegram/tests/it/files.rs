//! Files of this host: those that are sent, and those of a Bot API server that runs here.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use botmesh_core::content::{Content, ContentBody, MediaSource, OutboundMedia};
use botmesh_core::error::{ChannelError, ErrorClass, Phase};
use botmesh_core::media::MediaRef;
use botmesh_core::provider::{Provider, SendReceipt, SendRequest};
use botmesh_telegram::Telegram;
use botmesh_testing::{FakeTelegram, TelegramFault};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{all_of, bot_of};

async fn load(bot: &Telegram, max: usize) -> Result<Vec<u8>, ChannelError> {
    let media = MediaRef { provider: "telegram".into(), token: json!({ "file_id": "AgAC" }) };
    Ok(bot.load_media(&media, max).await?.to_vec())
}

/// What the server says next of where the file is.
fn is_at(server: &FakeTelegram, path: &Path) {
    let body = json!({ "ok": true, "result": { "file_id": "AgAC", "file_path": path } }).to_string();
    server.fault_next("getFile", TelegramFault::Gateway { status: 200, body });
}

#[tokio::test]
async fn a_server_of_ones_own_gives_files_by_their_place() {
    let server = FakeTelegram::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    server.keep_files_in(folder.path());
    server.add_file("AgAC", b"a picture");
    let bot = bot_of(&server);
    let error = load(&bot, 100).await.expect_err("such a server has no downloads");
    assert!(!error.retryable && error.detail.contains("with_local_files"), "{error:?}");

    let bot = bot.with_local_files(folder.path());
    assert_eq!(load(&bot, 9).await.expect("a picture"), b"a picture");
    assert_eq!(load(&bot, 8).await.expect_err("too large").class, ErrorClass::PayloadTooLarge);
    is_at(&server, &folder.path().join(server.token()).join("gone"));
    let error = load(&bot, 9).await.expect_err("it is gone");
    assert!(!error.retryable && error.detail.contains("<token>/gone"), "{error:?}");
    assert!(!all_of(&error).contains("FAKE-token"), "{}", all_of(&error));
}

#[tokio::test]
async fn a_server_cannot_have_other_files_read() {
    let server = FakeTelegram::start().await;
    let (folder, elsewhere) =
        (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let secret = elsewhere.path().join("secret");
    fs::write(&secret, b"secret").expect("a file");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&secret, &link).expect("a link");
    let out = folder.path().join("..").join(elsewhere.path().file_name().expect("a name")).join("secret");
    // Its name begins as the folder's does.
    let beside = format!("{}-beside", folder.path().display());
    fs::write(&beside, b"secret").expect("a file");

    let bot = bot_of(&server).with_local_files(folder.path());
    for path in [&secret, &link, &out, Path::new(&beside), folder.path()] {
        is_at(&server, path);
        let error = load(&bot, 100).await.expect_err("no file of the server");
        assert_eq!((error.class, error.retryable), (ErrorClass::Rejected, false), "{error:?}");
    }
    fs::remove_file(&beside).expect("a file");
    // Nor does it without a word about files of this host.
    is_at(&server, &secret);
    load(&bot_of(&server), 100).await.expect_err("no such download");
}

/// A file that is to be sent, to a server that a test plays.
struct Sending {
    file: fs::File,
    listener: TcpListener,
    bot: Telegram,
    content: Content,
    _folder: TempDir,
}

impl Sending {
    async fn film(size: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("film.mp4");
        let file = fs::File::create(&path).expect("a file");
        file.set_len(size).expect("a size");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let bot = Telegram::polling("1:secret").with_api_url(&url);
        let source = MediaSource::Path(path.display().to_string());
        let film = OutboundMedia { source, caption: None, mime: None, file_name: None };
        Self { file, listener, bot, content: ContentBody::Video(film).into(), _folder: folder }
    }
}

async fn send(bot: &Telegram, content: &Content) -> Result<SendReceipt, ChannelError> {
    bot.send(SendRequest::new(&"1".into(), content)).await
}

/// The end of a file that is changed while its beginning is on its way arrives as it is then: no more of it is in memory than that.
#[tokio::test]
async fn a_file_is_read_while_it_is_sent() {
    const SIZE: u64 = 64 << 20;
    let Sending { mut file, listener, bot, content, _folder } = Sending::film(SIZE).await;
    let server = async {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let (mut chunk, mut read, mut end) = (vec![0; 1 << 16], 0, Vec::new());
        while !end.ends_with(b"--\r\n") {
            let length = stream.read(&mut chunk).await.expect("a part");
            if read == 0 {
                file.seek(SeekFrom::End(-7)).and_then(|_| file.write_all(b"the end")).expect("a change");
            }
            read += length as u64;
            end.extend_from_slice(&chunk[..length]);
            end.drain(..end.len().saturating_sub(1000));
        }
        let answer = include_str!("../payloads/sendMessage_ok.json");
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
        stream.write_all((head + answer).as_bytes()).await.expect("an answer");
        (read, end)
    };
    let (sent, (read, end)) = tokio::join!(send(&bot, &content), server);
    sent.expect("a message");
    assert!(read > SIZE, "{read} bytes");
    assert!(String::from_utf8_lossy(&end).contains("the end\r\n--"), "{}", end.escape_ascii());
}

/// Telegram gets no request without its end, so that the send can be made again.
#[tokio::test]
async fn a_file_that_becomes_shorter_while_it_is_sent_leaves_no_doubt() {
    let Sending { file, listener, bot, content, _folder } = Sending::film(40 << 20).await;
    let server = async {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut chunk = vec![0; 1 << 16];
        file.set_len(1 << 20).expect("a size");
        while matches!(stream.read(&mut chunk).await, Ok(read) if read > 0) {}
    };
    let (sent, ()) = tokio::join!(send(&bot, &content), server);
    let error = sent.expect_err("no message");
    assert_eq!((error.phase, error.retryable), (Phase::NotWritten, true), "{error:?}");
    assert!(error.detail.contains("while it was sent"), "{error:?}");
}
