//! Meta's servers, as far as a bot sees them.

mod answer;
mod http;
mod media;
mod post;
mod strict;
mod thread;
mod user;

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use botmesh::TokioSpawner;
use botmesh_core::spawn::Spawner;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;

pub use user::GraphUser;

/// How long a test may wait for something that should happen soon, in real time.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the server does with one call that sends a message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphFault {
    /// Nothing is delivered; Graph says so with this code and subcode (0 for none) under this HTTP status.
    Refuse {
        /// The HTTP status.
        status: u16,
        /// The code.
        code: i64,
        /// The subcode.
        subcode: i64,
    },
    /// Nothing is delivered; something in front of Graph answers with this HTTP status and a page of HTML.
    Broken(u16),
    /// Nothing is delivered, whatever the answer says: this status, these headers and this body.
    Answer {
        /// The HTTP status.
        status: u16,
        /// Headers beside the type of the body, which is JSON.
        headers: Vec<(String, String)>,
        /// The body.
        body: String,
    },
    /// The message is delivered, and the connection is cut before the answer.
    LoseAnswer,
    /// The connection is cut, and nothing is delivered.
    LoseMessage,
    /// The message is delivered, and the answer comes after this time.
    Slow(Duration),
}

/// What the server posts about messages of the bot: statuses of WhatsApp, echoes of Messenger and Instagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Echo {
    /// In their order, beside the answer of the call.
    #[default]
    InOrder,
    /// The last one first.
    Reversed,
    /// In their order, and the call is answered only when the bot has taken the first of them, or 2 s later.
    BeforeAnswer,
    /// Nothing.
    None,
}

/// A message that the bot sent.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GraphMessage {
    /// Meta's id of it.
    pub id: String,
    /// The phone number id, page or account that sent it, as the bot named it.
    pub from: String,
    /// The user's id, as the bot named it.
    pub to: String,
    /// What the bot wants back with the echoes: its key of the send.
    pub token: Option<String>,
    /// Whether the user sees it. Meta takes some messages and then drops them without a word.
    pub delivered: bool,
    /// The call's body.
    pub body: Value,
}

impl GraphMessage {
    /// What the user reads: the text, the text above the buttons, the caption, the name of the template.
    pub fn text(&self) -> &str {
        let at = |path: &str| self.body.pointer(path).and_then(Value::as_str);
        let texts = ["/text/body", "/interactive/body/text", "/template/name", "/image/caption"];
        let of_page = ["/message/text", "/message/attachment/payload/text"];
        texts.into_iter().chain(of_page).find_map(at).unwrap_or("")
    }
}

/// A strict stand-in for `graph.facebook.com`: it refuses what Meta refuses, posts what users write to the bot's webhook until
/// the bot has taken it, and fails when told to. Clones are the same server; it ends with its runtime.
///
/// Give the bot [`url`](Self::url) as its base URL and the constants here as its credentials, and tell the server with
/// [`set_webhook`](Self::set_webhook) where the bot listens.
#[derive(Clone)]
pub struct FakeGraph {
    shared: Arc<Shared>,
}

struct Shared {
    address: SocketAddr,
    webhooks: Mutex<HashMap<Product, String>>,
    state: Mutex<State>,
    /// How many messages were delivered.
    delivered: watch::Sender<usize>,
}

/// What becomes of a call, by its body.
type Rule = Box<dyn Fn(&Value) -> Option<GraphFault> + Send>;

#[derive(Default)]
struct State {
    sent: Vec<GraphMessage>,
    faults: VecDeque<GraphFault>,
    rule: Option<Rule>,
    /// How many calls wanted to send a message.
    attempts: usize,
    echo: Echo,
    next_id: u64,
    media: HashMap<String, (String, Vec<u8>)>,
    posts: Vec<(Product, Value)>,
    blocked: HashSet<String>,
    out_of_window: HashSet<String>,
    /// With whom another app has the thread.
    elsewhere: HashSet<String>,
    /// The server's time since it began.
    now: Duration,
    calls: Vec<Value>,
}

/// One of Meta's products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Product {
    /// The WhatsApp Cloud API.
    WhatsApp,
    /// Messenger.
    Messenger,
    /// Instagram.
    Instagram,
}

impl FakeGraph {
    /// An access token for everything. As `me`, it is the account on Instagram.
    pub const ACCESS_TOKEN: &str = "EAAB-access-token";
    /// An access token for everything. As `me`, it is the page on Messenger. There is no third token.
    pub const PAGE_TOKEN: &str = "EAAB-page-token";
    /// The secret with which it signs its posts.
    pub const APP_SECRET: &str = "an-app-secret";
    /// The token with which it asks for the handshake.
    pub const VERIFY_TOKEN: &str = "a verify+token";
    /// The id of its app.
    pub const APP_ID: &str = "1517776481860111";
    /// The phone number id of the bot on WhatsApp.
    pub const PHONE_NUMBER_ID: &str = "106540352242922";
    /// Another phone number of the same app, for a second bot. The server's users write to the first one.
    pub const OTHER_PHONE_NUMBER_ID: &str = "106540352242923";
    /// The bot's page on Messenger.
    pub const PAGE_ID: &str = "100000000000001";
    /// The bot's account on Instagram.
    pub const ACCOUNT_ID: &str = "17841400000000001";

    /// A server on a free port of this host.
    ///
    /// # Panics
    /// Outside of a Tokio runtime, or if nobody can listen on this host.
    pub async fn start() -> Self {
        let listener =
            TcpListener::bind("127.0.0.1:0").await.unwrap_or_else(|error| panic!("no port: {error}"));
        let address = listener.local_addr().unwrap_or_else(|error| panic!("no address: {error}"));
        let shared = Shared {
            address,
            webhooks: Mutex::default(),
            state: Mutex::default(),
            delivered: watch::Sender::new(0),
        };
        let server = Self { shared: Arc::new(shared) };
        let routes = server.routes();
        TokioSpawner.spawn("graph", Box::pin(async move { drop(axum::serve(listener, routes).await) }));
        server
    }

    /// What the bot is told in place of `https://graph.facebook.com`.
    pub fn url(&self) -> String {
        format!("http://{}", self.shared.address)
    }

    /// Where the bot takes posts of a product: `http://127.0.0.1:8080/webhooks/whatsapp`. Posts that wait go there too.
    pub fn set_webhook(&self, product: Product, url: impl Into<String>) {
        self.shared.webhooks.lock().unwrap_or_else(PoisonError::into_inner).insert(product, url.into());
    }

    /// Somebody on WhatsApp, with this name and phone number. Their id in the scope of the business is made of the number.
    pub fn whatsapp_user(&self, name: &str, phone: &str) -> GraphUser {
        GraphUser::new(self.clone(), Product::WhatsApp, name, &format!("US.{phone}"), Some(phone))
    }

    /// Somebody on Messenger or Instagram, with this name and id.
    pub fn user(&self, product: Product, name: &str, id: &str) -> GraphUser {
        GraphUser::new(self.clone(), product, name, id, None)
    }

    /// Gives the next message that the bot sends, and that has no fault yet, this fault.
    pub fn fault_next(&self, fault: GraphFault) {
        self.state().faults.push_back(fault);
    }

    /// Asks `rule` about the body of every call that sends a message and has no fault of its own.
    pub fn fault_when(&self, rule: impl Fn(&Value) -> Option<GraphFault> + Send + 'static) {
        self.state().rule = Some(Box::new(rule));
    }

    /// How many calls wanted to send a message, also those that were refused or lost.
    pub fn attempts(&self) -> usize {
        self.state().attempts
    }

    /// What is posted about messages of the bot from now on.
    pub fn set_echo(&self, echo: Echo) {
        self.state().echo = echo;
    }

    /// Everything that the bot sent and that Meta took, in order.
    pub fn sent(&self) -> Vec<GraphMessage> {
        self.state().sent.clone()
    }

    /// How many these are.
    pub fn sent_count(&self) -> usize {
        self.state().sent.len()
    }

    /// What users see, in order.
    pub fn delivered(&self) -> Vec<GraphMessage> {
        self.state().sent.iter().filter(|message| message.delivered).cloned().collect()
    }

    /// All calls but those that sent messages: read marks, typing.
    pub fn other_calls(&self) -> Vec<Value> {
        self.state().calls.clone()
    }

    /// Waits until users see `count` messages in all, and returns them.
    ///
    /// # Panics
    /// If they are not delivered within 60 s.
    pub async fn wait_for_deliveries(&self, count: usize) -> Vec<GraphMessage> {
        let mut delivered = self.shared.delivered.subscribe();
        let enough = delivered.wait_for(|delivered| *delivered >= count);
        if within(PATIENCE, enough).await.is_none() {
            let texts: Vec<_> = self.delivered().iter().map(|message| message.text().to_owned()).collect();
            panic!("not {count} messages within {PATIENCE:?}, but {}: {texts:?}", texts.len());
        }
        self.delivered()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_id(&self, prefix: &str) -> String {
        let mut state = self.state();
        state.next_id += 1;
        format!("{prefix}{}", state.next_id)
    }
}

#[expect(clippy::disallowed_methods, reason = "bounds a test's patience in real time")]
async fn within<F: Future>(limit: Duration, work: F) -> Option<F::Output> {
    tokio::time::timeout(limit, work).await.ok()
}

#[expect(clippy::disallowed_methods, reason = "a server of its own waits in real time")]
async fn pause(wait: Duration) {
    tokio::time::sleep(wait).await;
}
