//! The limits: the same driver on one connection, with nothing around it.

use std::pin::Pin;

use botmesh_core::Bytes;
use fred::clients::Client;
use fred::interfaces::ClientLike as _;
use fred::types::config::Config;
use fred::types::{CustomCommand, RespVersion, Value};
use futures_util::future::join;

use botmesh_redis_store::fred;

use crate::load::Caller;

/// Two scripts of one write each, with as many keys, arguments and answers as those of a turn have.
const ENTER: &str = "redis.call('ZADD', KEYS[2], ARGV[7], ARGV[2] .. ':' .. ARGV[3])
return {ARGV[8], 'granted', ARGV[7], ''}";
const LEAVE: &str = "redis.call('ZREM', KEYS[2], ARGV[2] .. ':' .. ARGV[3])
return {ARGV[5], 'left'}";

const STATE: &str = "{bare:turns:0}:state";
const SESSION: &str = "0123456789abcdef.0";
const EPOCH: &str = "1700000000000000-0123456789abcdef.0";

/// A connection.
#[derive(Clone)]
pub(crate) struct Bare {
    client: Client,
    enter: Bytes,
    leave: Bytes,
}

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Bare {
    pub(crate) async fn connect(url: &str) -> Self {
        let mut config = Config::from_url(url).unwrap();
        config.version = RespVersion::RESP3;
        let client = Client::new(config, None, None, None);
        client.init().await.unwrap();
        let mut bare = Self { client, enter: Bytes::new(), leave: Bytes::new() };
        bare.enter = bare.script(ENTER).await;
        bare.leave = bare.script(LEAVE).await;
        bare
    }

    pub(crate) async fn command(&self, name: &'static str, args: Vec<Bytes>) -> Value {
        let args: Vec<Value> = args.into_iter().map(Value::Bytes).collect();
        self.client.custom(CustomCommand::new_static(name, None, false), args).await.unwrap()
    }

    /// Its SHA-1, once the server knows it.
    pub(crate) async fn script(&self, text: &'static str) -> Bytes {
        let sha = self.command("SCRIPT", vec!["LOAD".into(), text.into()]).await;
        sha.into_bytes().unwrap()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) async fn close(&self) {
        self.client.quit().await.unwrap();
    }
}

/// Sends the two scripts for each message. As for a turn, nobody waits for the second one before the next message.
pub(crate) struct Scripts {
    bare: Bare,
    number: u64,
    leaving: Option<Call>,
}

impl Scripts {
    pub(crate) fn new(bare: &Bare) -> Self {
        Self { bare: bare.clone(), number: 0, leaving: None }
    }

    fn call(&self, sha: &Bytes, chat: &str, more: [&str; 5]) -> Call {
        let queue = format!("{{bare:turns:0}}:queue:{chat}");
        let (elapsed, number) = ("2000123", self.number.to_string());
        let mut args: Vec<Bytes> = vec![sha.clone(), "2".into(), STATE.into(), queue.into()];
        args.extend([elapsed, SESSION].map(|arg| Bytes::from_static(arg.as_bytes())));
        args.push(number.into());
        args.extend(more.into_iter().filter(|arg| !arg.is_empty()).map(|arg| arg.to_owned().into()));
        let bare = self.bare.clone();
        Box::pin(async move { drop(bare.command("EVALSHA", args).await) })
    }
}

impl Caller for Scripts {
    async fn message(&mut self, chat: &str) {
        self.number += 1;
        let fence = (1_700_000_000_000_000 + self.number).to_string();
        let enter = self.call(&self.bare.enter, chat, ["1000", "wait", "600000", &fence, EPOCH]);
        match self.leaving.take() {
            Some(leave) => drop(join(leave, enter).await),
            None => enter.await,
        }
        self.leaving = Some(self.call(&self.bare.leave, chat, ["600000", EPOCH, "", "", ""]));
    }

    async fn finish(&mut self) {
        if let Some(leave) = self.leaving.take() {
            leave.await;
        }
    }
}
