//! The bot that is simulated. Whatever a message leads to ends with `|` and the message's own text, so that it can be told
//! what became of each message.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use botmesh::prelude::*;
use botmesh::{BotBuilder, Error};
use serde::{Deserialize, Serialize};

/// What a conversation heard, in order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Heard(pub(crate) Vec<String>);

impl FlowState for Heard {}

impl Heard {
    fn last(&self) -> &str {
        self.0.last().map_or("nothing", String::as_str)
    }

    fn after(&self, what: &str) -> String {
        format!("{what}|{}", self.last())
    }

    fn all(&self, what: &str) -> String {
        self.after(&format!("{what} {}", self.0.join(" ")))
    }

    fn take(&mut self, answer: &Answer) {
        self.0.push(answer.text().to_owned());
    }
}

/// The tickets that were drawn. No two conversations have the same one.
#[derive(Clone, Default)]
pub(crate) struct Tickets(Arc<AtomicU32>);

/// How long a step works the first time that it hears something.
#[derive(Clone, Default)]
pub(crate) struct Slowness(Arc<Mutex<HashMap<String, Duration>>>);

impl Slowness {
    pub(crate) fn set(&self, heard: &str, work: Duration) {
        self.0.lock().expect("no panic holds it").insert(heard.to_owned(), work);
    }

    fn take(&self, heard: &str) -> Option<Duration> {
        self.0.lock().expect("no panic holds it").remove(heard)
    }
}

/// The versions of the bot: the second one has a step more in the flows.
pub(crate) fn shop(
    version: u32,
    slowness: Slowness,
    tickets: Tickets,
) -> impl Fn(BotBuilder) -> BotBuilder + Send + Sync + 'static {
    move |bot| {
        let tickets = tickets.clone();
        bot.when(regex("^order"), |c: Ctx| async move { begin(&c, "order") })
            .when(regex("^quick"), |c: Ctx| async move { begin(&c, "quick") })
            .when(regex("^desk"), |c: Ctx| async move { begin(&c, "desk") })
            .when(regex("^talk"), |c: Ctx| async move { begin(&c, "talk") })
            .otherwise(|c: Ctx| async move { c.reply(format!("echo|{}", c.text())).await })
            .flow(steps("order", version, &slowness).persistent())
            .flow(steps("quick", version, &slowness))
            .add_conversation(
                conversation("desk", move |c| desk(c, tickets.clone())).on_timeout("late|").replayable(),
            )
            .add_conversation(conversation("talk", talk).on_timeout("late|"))
    }
}

fn begin(c: &Ctx, name: &str) -> Result<()> {
    c.enter_with(name, &Heard(vec![c.text().to_owned()]))
}

const WAIT: Duration = Duration::from_secs(240);

fn steps(name: &'static str, version: u32, slowness: &Slowness) -> Flow<Heard> {
    let slowness = slowness.clone();
    let flow = flow::<Heard>(name)
        .ask(
            "first",
            |s: &Heard| s.after("first?"),
            |s, answer| {
                s.take(answer);
                Ok(())
            },
        )
        .timeout(WAIT)
        .do_("second", move |c: FlowCtx<Heard>| {
            let slowness = slowness.clone();
            async move {
                let question = c.get(|s| s.after("second?"));
                let answer = c.ask(question).timeout(WAIT).await?;
                if let Some(work) = slowness.take(answer.text()) {
                    c.sleep(work).await?;
                }
                c.update(|s| s.take(&answer));
                Ok(Step::Next)
            }
        });
    let flow = match version {
        1 => flow,
        _ => flow.do_("more", |_| async { Ok(Step::Next) }),
    };
    flow.ask(
        "third",
        |s: &Heard| s.after("third?"),
        |s, answer| {
            if answer.text().contains("no") {
                return Err(format!("not that|{}", answer.text()).into());
            }
            s.take(answer);
            Ok(())
        },
    )
    .timeout(WAIT)
    .say(move |s: &Heard| s.all(&format!("{name} done:")))
    .on_timeout("late|")
}

async fn desk(c: Conv, tickets: Tickets) -> Result<(), Error> {
    let mut heard: Heard = c.input()?;
    let ticket: u32 = c.run("ticket", || async { Ok(tickets.0.fetch_add(1, Ordering::Relaxed)) }).await?;
    for n in 1..=3 {
        let answer = c.ask(heard.after(&format!("desk {ticket}, {n}?"))).timeout(WAIT).await?;
        heard.take(&answer);
    }
    c.say(heard.all("desk done:")).await?;
    Ok(())
}

async fn talk(c: Conv) -> Result<(), Error> {
    let mut heard: Heard = c.input()?;
    for n in 1..=2 {
        let answer = c.ask(heard.after(&format!("talk {n}?"))).timeout(WAIT).await?;
        heard.take(&answer);
    }
    c.say(heard.all("talk done:")).await?;
    Ok(())
}
