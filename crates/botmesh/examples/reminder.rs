//! Daily reminders, each in its user's time zone, that come however often the bot is killed.
//!
//! `cargo run --example reminder`, then type `remind me at 8:30 to water the plants`, or `remind me in 10s to stretch`. Kill it
//! at any moment and start it again.

use std::path::PathBuf;
use std::process::ExitCode;

use botmesh::core::journal::InboxState;
use botmesh::core::time::Timestamp;
use botmesh::prelude::*;
use botmesh::{BotBuilder, Cancel, OnAmbiguous};
use botmesh_sqlite_store::SqliteStore;
use botmesh_terminal::Terminal;
use clap::Parser;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

const HELP: &str = "Write `remind me at 8:30 to water the plants` to hear it every day, or `remind me in 10 minutes to \
                    stretch` to hear it once. `zone Madrid` tells me where you live, `list` shows your reminders, \
                    `cancel 1` ends the first one, and `help` shows this again.";
const DAILY: &str = r"(?is)^\s*/?remind(?: me)?(?: every day| daily)?(?: at)? ([0-9]{1,2})(?:[:.]([0-9]{2}))? ?([ap]m)?,? (?:to )?(\S.*)$";
const ONCE: &str =
    r"(?is)^\s*/?remind(?: me)? in ([0-9]+) ?(s|m|h|d|seconds?|minutes?|hours?|days?),? (?:to )?(\S.*)$";

const MOST: usize = 20;
const LONGEST_TEXT: usize = 500;
const YEAR: u64 = 365 * 24 * 3600;

/// Reminders that survive everything.
#[derive(Parser)]
#[command(after_help = HELP)]
struct Args {
    /// Where reminders are kept
    #[arg(long, value_name = "FILE", default_value = "data/reminder.db")]
    data: PathBuf,
}

/// What a user asked for. The task has the same as its payload.
#[derive(Clone, Serialize, Deserialize)]
struct Reminder {
    number: i64,
    chat: String,
    text: String,
    zone: String,
    daily: bool,
}

impl Reminder {
    /// The user's own number makes it unique.
    fn id(&self, c: &Ctx) -> String {
        format!("{}/{}", c.user().id(), self.number)
    }

    /// An instant as the user's clock shows it.
    fn show(&self, at: Timestamp, format: &str) -> Result<String> {
        let at = jiff::Timestamp::from_millisecond(at.as_millis())?;
        Ok(at.to_zoned(TimeZone::get(&self.zone)?).strftime(format).to_string())
    }
}

async fn remind_daily(c: Ctx) -> Result {
    let (hour, minute) = (c.arg(1).parse::<u8>()?, c.arg(2).parse::<u8>().unwrap_or(0));
    let Some(hour) = hour_of_day(hour, c.arg(3)).filter(|_| minute < 60) else {
        c.reply("No clock shows that. Write a time such as `8:30`, `20:30` or `8:30 pm`.").await?;
        return Ok(());
    };
    let Some(reminder) = new_reminder(&c, c.arg(4), true).await? else { return Ok(()) };
    let schedule = Schedule::cron(format!("{minute} {hour} * * *"), &reminder.zone);
    let put = c.tasks().repeat(&schedule, "reminder", &reminder.id(&c), &reminder).await?;
    remember(&c, &reminder).await?;
    let (number, text) = (reminder.number, &reminder.text);
    let first = reminder.show(put.at, "%H:%M, first on %A, %-d %B")?;
    let zone = match c.user().get::<String>("zone").await? {
        Some(zone) => zone,
        None => "UTC; write for example `zone Madrid` and set it again, if that is not yours".to_owned(),
    };
    c.reply(format!("{number}. Every day at {first} ({zone}): {text}")).await?;
    Ok(())
}

fn hour_of_day(hour: u8, half: &str) -> Option<u8> {
    match half.to_lowercase().as_str() {
        "" => Some(hour).filter(|hour| *hour < 24),
        half => (1..=12).contains(&hour).then_some(hour % 12 + if half == "pm" { 12 } else { 0 }),
    }
}

async fn remind_once(c: Ctx) -> Result {
    let unit = match c.arg(2).to_lowercase().chars().next() {
        Some('d') => 24 * 3600,
        Some('h') => 3600,
        Some('m') => 60,
        _ => 1,
    };
    let seconds = c.arg(1).parse::<u64>().ok().and_then(|count| count.checked_mul(unit));
    let Some(seconds) = seconds.filter(|seconds| (1..=YEAR).contains(seconds)) else {
        c.reply("I look ahead from one second to one year. Try `10 minutes`.").await?;
        return Ok(());
    };
    let Some(reminder) = new_reminder(&c, c.arg(3), false).await? else { return Ok(()) };
    let delay = Duration::from_secs(seconds);
    let put = c.tasks().after(delay, "reminder", &reminder.id(&c), &reminder).await?;
    remember(&c, &reminder).await?;
    let at = reminder.show(put.at, "%A, %-d %B, %H:%M:%S")?;
    c.reply(format!("{}. On {at} ({}): {}", reminder.number, reminder.zone, reminder.text)).await?;
    Ok(())
}

/// `None` if the user was told why not.
async fn new_reminder(c: &Ctx, text: &str, daily: bool) -> Result<Option<Reminder>> {
    let no = if text.chars().count() > LONGEST_TEXT {
        Some(format!("That is too long to remember: {LONGEST_TEXT} letters at most."))
    } else if waiting(c).await?.len() >= MOST {
        Some(format!("You have {MOST} reminders. Cancel one with `cancel` and its number in the `list`."))
    } else {
        None
    };
    if let Some(no) = no {
        c.reply(no).await?;
        return Ok(None);
    }
    let zone = c.user().get("zone").await?.unwrap_or_else(|| "UTC".to_owned());
    let number = c.user().increment("reminders set", 1).await?;
    Ok(Some(Reminder { number, chat: c.chat().to_string(), text: text.trim().to_owned(), zone, daily }))
}

async fn remember(c: &Ctx, reminder: &Reminder) -> Result {
    let mut reminders: Vec<Reminder> = waiting(c).await?.into_iter().map(|(reminder, _)| reminder).collect();
    reminders.retain(|known| known.number != reminder.number);
    reminders.push(reminder.clone());
    c.user().set("reminders", &reminders).await
}

/// The user's reminders that are still to come, and when.
async fn waiting(c: &Ctx) -> Result<Vec<(Reminder, Timestamp)>> {
    let mut waiting = Vec::new();
    for reminder in c.user().get::<Vec<Reminder>>("reminders").await?.unwrap_or_default() {
        let info = c.tasks().get("reminder", Some(&reminder.id(c))).await?;
        if let Some(info) = info.filter(|info| !matches!(info.state, InboxState::Done | InboxState::Dead)) {
            waiting.push((reminder, info.scheduled));
        }
    }
    Ok(waiting)
}

async fn list(c: Ctx) -> Result {
    let mut lines = Vec::new();
    for (reminder, next) in waiting(&c).await? {
        let format =
            if reminder.daily { "every day at %H:%M, next on %A" } else { "on %A, %-d %B, %H:%M:%S" };
        let when = reminder.show(next, format)?;
        lines.push(format!("{}. {when} ({}): {}", reminder.number, reminder.zone, reminder.text));
    }
    let none = "You have no reminders. Write for example `remind me at 8:30 to water the plants`.";
    c.reply(if lines.is_empty() { none.to_owned() } else { lines.join("\n") }).await?;
    Ok(())
}

async fn cancel(c: Ctx) -> Result {
    let mut reminders: Vec<Reminder> = c.user().get("reminders").await?.unwrap_or_default();
    let number = c.arg(1).parse::<i64>().ok();
    let found = reminders.iter().position(|reminder| Some(reminder.number) == number);
    let Some(index) = found else {
        c.reply("There is no reminder of that number. Write `list` to see yours.").await?;
        return Ok(());
    };
    let reminder = reminders.remove(index);
    if c.tasks().cancel("reminder", &reminder.id(&c)).await? == Cancel::Running {
        c.reply("It is on its way to you. Write that again in a moment to hear no more of it.").await?;
        return Ok(());
    }
    c.user().set("reminders", &reminders).await?;
    c.reply(format!("Cancelled: {}", reminder.text)).await?;
    Ok(())
}

async fn zone(c: Ctx) -> Result {
    let found = find_zones(c.arg(1));
    let [zone] = &found[..] else {
        let example =
            "Name a large city in it, such as `zone Madrid`, or the zone, such as `zone Europe/Madrid`.";
        c.reply(match found.is_empty() {
            true => format!("I know no such time zone. {example}"),
            false => format!("Which one? Write `zone {}`.", found.join("` or `zone ")),
        })
        .await?;
        return Ok(());
    };
    c.user().set("zone", zone).await?;
    c.reply(format!("New reminders follow the clocks of {zone}. Those you have stay as they are.")).await?;
    Ok(())
}

/// The zones of this name, or of a city of this name.
fn find_zones(name: &str) -> Vec<String> {
    let name = name.trim().replace(' ', "_").to_lowercase();
    let known: Vec<String> = jiff::tz::db().available().map(|zone| zone.to_string()).collect();
    let named = known.iter().find(|zone| zone.to_lowercase() == name);
    let of_city = |zone: &&String| zone.to_lowercase().rsplit('/').next() == Some(&name);
    named.map_or_else(|| known.iter().filter(of_city).cloned().collect(), |zone| vec![zone.clone()])
}

/// The task: says one reminder.
async fn remind(c: TaskCtx) -> Result {
    let reminder: Reminder = c.payload()?;
    let at = reminder.show(c.scheduled(), "%H:%M")?;
    let missed = match c.missed() {
        0 => String::new(),
        days => format!(" (and {days} before, while I was away)"),
    };
    c.send(reminder.chat.as_str(), format!("Reminder of {at}{missed}: {}", reminder.text)).await?;
    Ok(())
}

fn reminders(bot: BotBuilder) -> BotBuilder {
    let how = "I did not get the time. Write `remind me at 8:30 to water the plants` or `remind me in 10 minutes to \
               stretch`.";
    bot.task("reminder", Schedule::on_demand(), remind)
        .when(regex(ONCE), remind_once)
        .when(regex(DAILY), remind_daily)
        .when(regex(r"(?i)^\s*/?remind\b"), move |c: Ctx| async move { c.reply(how).await })
        .when(["list", "/list"], list)
        .when(regex(r"(?i)^\s*/?cancel\b\s*(.*?)\s*$"), cancel)
        .when(regex(r"(?i)^\s*/?zone\b\s*(.*?)\s*$"), zone)
        .otherwise(|c: Ctx| async move { c.reply(HELP).await })
}

async fn run(args: Args) -> Result {
    let store = SqliteStore::open(&args.data).await?;
    let mut durability = Durability::new(store.durability()).with_instance_id("reminder");
    // Killed while it sends, it cannot know whether anybody saw it: rather twice than not at all.
    durability.outbox.on_ambiguous = OnAmbiguous::Resend;
    let provider = Terminal::new().with_hint(HELP);
    let bot = Bot::builder().provider(provider).durability(durability).store(store.clone());
    reminders(bot).build()?.run().await?;
    Ok(store.close().await?)
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reminder: {}", botmesh::describe(&*error));
            ExitCode::FAILURE
        }
    }
}
