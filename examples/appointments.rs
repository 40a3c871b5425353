//! A clinic's desk: books, lists and cancels appointments, and forgets nothing when it is killed.
//!
//! `cargo run --example appointments`, then type `book`. Kill it at any moment and start it again.
//!
//! With `--telegram-polling` or `--telegram-webhook ADDR` it is a bot of Telegram, and with `--whatsapp-webhook ADDR`,
//! `--messenger-webhook ADDR` or `--instagram-webhook ADDR` one of these.
//!
//! With `--features redis` and `--redis URL`, any number of processes are one desk.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use botmesh::core::provider::Provider;
use botmesh::prelude::*;
use botmesh::{BotBuilder, FileDurability, OnAmbiguous};
use botmesh_meta::axum::Router;
use botmesh_meta::{Instagram, Messenger, MetaConfig, WhatsApp};
use botmesh_sqlite_store::SqliteStore;
use botmesh_telegram::Telegram;
use botmesh_terminal::{Terminal, Transcript};
use clap::Parser;
use clap::builder::ArgPredicate;
use serde::{Deserialize, Serialize};

const HELP: &str = "I am the clinic's desk. Write `book` to make an appointment, `list` to see yours, \
                    `cancel 1` to cancel the first one, or `help` to read this again.";
const DAYS: [&str; 5] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"];

/// The desk of a clinic, as a bot that survives being killed.
#[derive(Parser)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Where appointments and unfinished conversations are kept
    #[arg(long, value_name = "DIR", default_value = "data")]
    data: PathBuf,
    /// Keep the journals in this file instead of the database beside the appointments; for one process only
    #[arg(long, value_name = "FILE")]
    journals: Option<PathBuf>,
    /// Keep everything on this Redis server, which other processes of the desk share (needs `--features redis`)
    #[arg(long, value_name = "URL", conflicts_with_all = ["data", "journals"])]
    redis: Option<String>,
    /// With --redis: how long the chats of a process that is gone wait for another one; the same for all processes
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = humantime::parse_duration)]
    lease: Duration,
    /// Read messages from this file instead of the terminal: `chat<TAB>text`, one a line. With `-`, from standard input as
    /// they come: `id<TAB>chat<TAB>text`; the id of each one that was taken over is written to standard output
    #[arg(long, value_name = "FILE", requires = "to", group = "channel")]
    from: Option<PathBuf>,
    /// Append replies to this file: `key<TAB>chat<TAB>text`, one a line
    #[arg(long, value_name = "FILE", requires = "from")]
    to: Option<PathBuf>,
    /// The name of this process, when several share the data; with --redis a random one unless given
    #[arg(
        long,
        value_name = "NAME",
        default_value = "desk",
        default_value_if("redis", ArgPredicate::IsPresent, None)
    )]
    instance: Option<String>,
    /// Talk on Telegram: ask it for messages, with the token in TELEGRAM_TOKEN
    #[arg(long, group = "channel")]
    telegram_polling: bool,
    /// Talk on Telegram: let it post messages to this address and the path `/telegram`, with the token in TELEGRAM_TOKEN and the
    /// webhook's secret in TELEGRAM_SECRET
    #[arg(long, value_name = "ADDR", group = "channel")]
    telegram_webhook: Option<SocketAddr>,
    /// With --telegram-webhook: tell Telegram that this is where it can post to, such as `https://bot.example.org/telegram`
    #[arg(long, value_name = "URL", requires = "telegram_webhook")]
    telegram_url: Option<String>,
    /// A Bot API server for tests, such as `http://localhost:8081`, to which is sent without a limit
    #[arg(long, value_name = "URL")]
    telegram_api: Option<String>,
    #[command(flatten)]
    meta: MetaArgs,
    /// Whose messages are typed
    #[arg(long, value_name = "NAME", default_value = "you", allow_hyphen_values = true)]
    pub(crate) chat: String,
}

/// The desk on one of Meta's products.
#[derive(clap::Args)]
struct MetaArgs {
    /// Talk on WhatsApp: let Meta post messages to this address and the path `/webhooks/whatsapp`, with WHATSAPP_TOKEN,
    /// WHATSAPP_APP_SECRET and WHATSAPP_VERIFY_TOKEN
    #[arg(long, value_name = "ADDR", requires = "whatsapp_number", group = "channel")]
    whatsapp_webhook: Option<SocketAddr>,
    /// With --whatsapp-webhook: the id of the phone number, which is not the number itself
    #[arg(long, value_name = "ID", requires = "whatsapp_webhook")]
    whatsapp_number: Option<String>,
    /// Talk on Messenger: let Meta post messages to this address and the path `/webhooks/messenger`, with MESSENGER_TOKEN,
    /// MESSENGER_APP_SECRET and MESSENGER_VERIFY_TOKEN
    #[arg(long, value_name = "ADDR", requires = "messenger_page", group = "channel")]
    messenger_webhook: Option<SocketAddr>,
    /// With --messenger-webhook: the id of the page
    #[arg(long, value_name = "ID", requires = "messenger_webhook")]
    messenger_page: Option<String>,
    /// Talk on Instagram: let Meta post messages to this address and the path `/webhooks/instagram`, with INSTAGRAM_TOKEN,
    /// INSTAGRAM_APP_SECRET and INSTAGRAM_VERIFY_TOKEN
    #[arg(long, value_name = "ADDR", requires = "instagram_account", group = "channel")]
    instagram_webhook: Option<SocketAddr>,
    /// With --instagram-webhook: the id of the professional account
    #[arg(long, value_name = "ID", requires = "instagram_webhook")]
    instagram_account: Option<String>,
    /// With one of Meta's products: a server for tests in place of Meta's, to which is sent without a limit
    #[arg(long, value_name = "URL")]
    meta_api: Option<String>,
    /// With one of Meta's products: how long Meta may take to say that it has a message whose answer was lost
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    meta_echo: Duration,
}

impl MetaArgs {
    /// What the environment and the arguments say of a product.
    fn config(&self, product: &str) -> Result<MetaConfig> {
        let [token, app_secret, verify_token] =
            ["TOKEN", "APP_SECRET", "VERIFY_TOKEN"].map(|name| secret(&format!("{product}_{name}")));
        let config = MetaConfig::new(token?, app_secret?, verify_token?).with_echo_wait(self.meta_echo);
        Ok(match &self.meta_api {
            Some(url) => config.with_base_url(url).without_rates(),
            None => config,
        })
    }

    /// Meta says of each message whether it has it: what it does not have after a while can be sent again. On Instagram it does
    /// not say which message it is, so that one may be lost, but none comes twice.
    fn on_ambiguous(&self) -> Option<OnAmbiguous> {
        let tells = self.whatsapp_webhook.or(self.messenger_webhook).map(|_| OnAmbiguous::Resend);
        tells.or(self.instagram_webhook.map(|_| OnAmbiguous::Auto))
    }
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct Appointment {
    name: String,
    day: String,
    hour: u8,
}

impl std::fmt::Display for Appointment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {} at {}:00", self.name, self.day, self.hour)
    }
}

impl FlowState for Appointment {}

fn booking() -> Flow<Appointment> {
    flow("booking")
        .ask("name", "What is your name?", |booking: &mut Appointment, answer| {
            booking.name = answer.text().to_owned();
            if booking.name.is_empty() { Err("Please type your name.".into()) } else { Ok(()) }
        })
        .ask("day", "Which day suits you, Monday to Friday?", |booking: &mut Appointment, answer| {
            let day = DAYS.iter().find(|day| answer.is(&[day, &day[..3]]));
            booking.day = day.ok_or("We are open Monday to Friday. Try `Tuesday`.")?.to_string();
            Ok(())
        })
        .ask("hour", "At what hour, from 9 to 17?", |booking: &mut Appointment, answer| {
            let hour = answer.text().trim_end_matches(":00").parse().ok();
            let open = hour.filter(|hour| (9..=17).contains(hour));
            booking.hour = open.ok_or("We see patients on the hour, from 9 to 17. Try `10`.")?;
            Ok(())
        })
        .ask("confirm", confirmation, |_, answer| {
            if answer.is(&["yes", "y"]) { Ok(()) } else { Err("Yes or no?".into()) }
        })
        .do_("save", |c| async move {
            let mut appointments = appointments(&c.ctx()).await?;
            let new = c.get(Appointment::clone);
            appointments.push(new.clone());
            c.user().set("appointments", &appointments).await?;
            c.say(format!("Booked: {new}. Number {} in your list.", appointments.len())).await?;
            Ok(Step::End)
        })
        .cancel_on(["no", "stop", "cancel"], "All right, nothing was booked.")
        .persistent()
}

fn confirmation(booking: &Appointment) -> Content {
    let buttons = [Button::new("yes", "Yes"), Button::new("no", "No")];
    Content::text(format!("{booking}. Shall I book it?")).with_buttons(buttons)
}

async fn appointments(c: &Ctx) -> Result<Vec<Appointment>> {
    Ok(c.user().get("appointments").await?.unwrap_or_default())
}

async fn list(c: Ctx) -> Result {
    let appointments = appointments(&c).await?;
    let list: Vec<_> = appointments.iter().zip(1..).map(|(one, n)| format!("{n}. {one}")).collect();
    let none = "You have no appointments. Write `book` to make one.";
    c.reply(if list.is_empty() { none.to_owned() } else { list.join("\n") }).await?;
    Ok(())
}

async fn cancel(c: Ctx) -> Result {
    let mut appointments = appointments(&c).await?;
    let index =
        c.arg(1).parse::<usize>().ok().and_then(|n| n.checked_sub(1)).filter(|&i| i < appointments.len());
    let Some(index) = index else {
        c.reply("I have no appointment of that number. Write `list` to see yours.").await?;
        return Ok(());
    };
    let cancelled = appointments.remove(index);
    c.user().set("appointments", &appointments).await?;
    c.reply(format!("Cancelled: {cancelled}.")).await?;
    Ok(())
}

/// What the desk answers, on whatever it runs.
pub(crate) fn desk(bot: BotBuilder) -> BotBuilder {
    bot.when(["hi", "hello", "hola"], |c: Ctx| async move { c.reply(format!("Hello! {HELP}")).await })
        .when("book", |c: Ctx| async move { c.enter("booking") })
        .when("list", list)
        .when(regex(r"(?i)^\s*cancel\s+(\S+)\s*$"), cancel)
        .otherwise(|c: Ctx| async move { c.reply(HELP).await })
        .flow(booking())
}

fn at_api(telegram: Telegram, args: &Args) -> Telegram {
    match &args.telegram_api {
        Some(url) => telegram.with_api_url(url).without_rates(),
        None => telegram,
    }
}

/// A secret is no argument: those of a process are seen by everybody on its host.
fn secret(name: &str) -> Result<String> {
    std::env::var(name).map_err(|_| format!("put it into the environment variable {name}").into())
}

/// The desk at a webhook, until it ends.
async fn listen(bot: BotBuilder, channel: impl Provider, router: Router, at: SocketAddr) -> Result {
    Ok(botmesh_webhook::serve(desk(bot.provider(channel)).build()?, router, at).await?)
}

/// The desk at its channel, until it ends.
async fn serve(bot: BotBuilder, args: Args) -> Result {
    if let Some(at) = args.telegram_webhook {
        let telegram =
            at_api(Telegram::webhook(secret("TELEGRAM_TOKEN")?, secret("TELEGRAM_SECRET")?), &args);
        if let Some(url) = &args.telegram_url {
            telegram.set_webhook(url).await?;
        }
        let router = telegram.router();
        return listen(bot, telegram, router, at).await;
    }
    let meta = &args.meta;
    if let (Some(at), Some(number)) = (meta.whatsapp_webhook, &meta.whatsapp_number) {
        let whatsapp = WhatsApp::new(number, meta.config("WHATSAPP")?)?;
        let router = whatsapp.router();
        return listen(bot, whatsapp, router, at).await;
    }
    if let (Some(at), Some(page)) = (meta.messenger_webhook, &meta.messenger_page) {
        let messenger = Messenger::new(page, meta.config("MESSENGER")?)?;
        let router = messenger.router();
        return listen(bot, messenger, router, at).await;
    }
    if let (Some(at), Some(account)) = (meta.instagram_webhook, &meta.instagram_account) {
        let instagram = Instagram::new(account, meta.config("INSTAGRAM")?)?;
        let router = instagram.router();
        return listen(bot, instagram, router, at).await;
    }
    let bot = match (&args.from, &args.to) {
        (Some(from), Some(to)) if from == Path::new("-") => {
            bot.provider(Transcript::piped(io::BufReader::new(io::stdin()), io::stdout(), to)?)
        }
        (Some(from), Some(to)) => bot.provider(Transcript::open(from, to)?),
        _ if args.telegram_polling => {
            bot.provider(at_api(Telegram::polling(secret("TELEGRAM_TOKEN")?), &args).deleting_webhook())
        }
        _ => bot.provider(Terminal::new().with_chat(args.chat).with_hint(HELP)),
    };
    desk(bot).build()?.run().await
}

async fn run(args: Args) -> Result {
    if let Some(url) = args.redis.clone() {
        return run_replica(&url, args).await;
    }
    let store = SqliteStore::open(args.data.join("appointments.db")).await?;
    let file = match &args.journals {
        Some(path) => Some(FileDurability::open(path).await?),
        None => None,
    };
    let mut durability = match &file {
        Some(file) => Durability::new(file.clone()),
        None => Durability::new(store.durability()),
    };
    durability.instance_id = args.instance.as_deref().map(Into::into);
    if let Some(policy) = args.meta.on_ambiguous() {
        durability.outbox.on_ambiguous = policy;
    }
    serve(Bot::builder().durability(durability).store(store.clone()), args).await?;
    if let Some(file) = file {
        file.close().await?;
    }
    Ok(store.close().await?)
}

/// One of the processes that share a Redis server: appointments, journals and the turns of the chats are there.
#[cfg(feature = "redis")]
async fn run_replica(url: &str, args: Args) -> Result {
    use botmesh::Coordination;
    use botmesh_redis_store::{RedisCoordinatorConfig, RedisStore};

    let store = RedisStore::open(url).await?;
    let turns = store.coordinator_with(RedisCoordinatorConfig::default().with_lease(args.lease)).await?;
    let mut durability = Durability::new(store.durability());
    durability.instance_id = args.instance.as_deref().map(Into::into);
    (durability.inbox.lease, durability.outbox.lease) = (args.lease, args.lease);
    let mut coordination = Coordination::new(turns);
    coordination.config.replica_id.clone_from(&args.instance);
    let bot = Bot::builder().durability(durability).store(store.clone()).coordination(coordination);
    serve(bot, args).await?;
    Ok(store.close().await?)
}

#[cfg(not(feature = "redis"))]
async fn run_replica(url: &str, _: Args) -> Result {
    let command = format!("cargo run --example appointments --features redis -- --redis {url}");
    Err(format!("this desk was built without Redis; start it with `{command}`").into())
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("appointments: {}", botmesh::describe(&*error));
            ExitCode::FAILURE
        }
    }
}
