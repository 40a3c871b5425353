//! The faults, each with what goes on meanwhile.

use std::time::Duration;

use botmesh_core::coordinator::Coordinator as _;
use botmesh_test_servers::{Accept, Direction, Flow};
use tokio_util::sync::CancellationToken;

use super::Failure;
use super::actor::{Actor, PREFIX};
use super::leader::Leader;
use super::stage::{IDLE, LEASE, Stage};
use crate::history::Fault;

const MOMENT: Duration = Duration::from_millis(100);

async fn two(stage: &Stage) -> Result<(Actor, Actor), Failure> {
    Ok((Actor::start(stage, "a").await?, Actor::start(stage, "b").await?))
}

async fn take(actor: &Actor, chat: &'static str) -> Result<super::actor::Held, Failure> {
    actor.take(chat, LEASE * 5).await?.ok_or_else(|| format!("{} has no turn of {chat}", actor.name).into())
}

/// A replica does not reach the server.
fn cut(stage: &Stage, actor: &Actor) {
    stage.fault(Fault::Cut, Some(actor.name));
    actor.proxy.set_accept(Accept::Close);
    actor.proxy.cut();
}

fn heal(stage: &Stage, actor: &Actor) {
    actor.proxy.heal();
    stage.fault(Fault::Heal, Some(actor.name));
}

pub(super) async fn late_beat(stage: &Stage) -> Result<(), Failure> {
    // Nobody removes what the dead one leaves before it is asked for.
    stage.redis.command(&["ACL", "SETUSER", "default", "-scan"])?;
    let (a, b) = two(stage).await?;
    let held = take(&a, "x").await?;
    stage.fault(Fault::Hold, Some(a.name));
    a.proxy.set(Direction::ToServer, Flow::Hold);
    // A beat is on its way.
    stage.sleep(LEASE / 3 + MOMENT).await;
    stage.fault(Fault::Kill, Some(a.name));
    a.coordinator.crash();
    drop(held);
    stage.sleep(LEASE + MOMENT * 3).await;
    heal(stage, &a);
    stage.sleep(MOMENT).await;
    let held = take(&b, "x").await?;
    b.release(held);
    b.close().await;
    Ok(())
}

pub(super) async fn foreign_leave(stage: &Stage) -> Result<(), Failure> {
    let (a, b) = two(stage).await?;
    let c = Actor::start(stage, "c").await?;
    let held = take(&a, "x").await?;
    let enough = CancellationToken::new();
    let (b_held, ..) = tokio::join!(b.take("x", LEASE * 2), a.hold(held, &enough), async {
        stage.sleep(MOMENT).await;
        if let Ok(waiting) = c.enter("x").await {
            stage.sleep(MOMENT).await;
            c.cancel(waiting);
        }
        stage.sleep(MOMENT * 4).await;
        enough.cancel();
    });
    if let Some(held) = b_held? {
        b.release(held);
    }
    for actor in [a, b, c] {
        actor.close().await;
    }
    Ok(())
}

pub(super) async fn fences_after_data_loss(stage: &Stage) -> Result<(), Failure> {
    let (a, b) = two(stage).await?;
    for actor in [&a, &b, &b, &b, &b] {
        let held = take(actor, "x").await?;
        actor.release(held);
    }
    // The one that knows the largest fence cannot tell it.
    cut(stage, &b);
    stage.fault(Fault::Flushall, None);
    stage.redis.command(&["FLUSHALL"])?;
    let held = take(&a, "x").await?;
    a.release(held);
    heal(stage, &b);
    let held = take(&b, "x").await?;
    b.release(held);
    a.close().await;
    b.close().await;
    Ok(())
}

pub(super) async fn ghost(stage: &Stage) -> Result<(), Failure> {
    let (a, b) = two(stage).await?;
    // So that the queue is known.
    let held = take(&a, "x").await?;
    a.release(held);
    stage.sleep(MOMENT).await;
    a.abandon("x");
    // Its request arrives after what gave it back.
    let time = stage.redis.command(&["TIME"])?;
    let time: Vec<_> = time.items().iter().filter_map(|item| item.text()).collect();
    let [seconds, micros] = &time[..] else { return Err("no time".into()) };
    let queue = format!("{{{PREFIX}:turns:0}}:queue:x");
    let ticket = format!("{}:999999", a.coordinator.session());
    let previous = stage.redis.command(&["GET", &queue])?.text().unwrap_or_default();
    stage.redis.command(&["SET", &queue, &format!("0 {seconds}{micros:0>6} {ticket} {previous}")])?;
    if let Some(held) = b.take("x", LEASE * 2).await? {
        b.release(held);
    }
    a.close().await;
    b.close().await;
    Ok(())
}

pub(super) async fn data_loss(stage: &Stage) -> Result<(), Failure> {
    let (a, b) = two(stage).await?;
    let held = take(&a, "x").await?;
    let enough = CancellationToken::new();
    let ((), done) = tokio::join!(a.hold(held, &enough), async {
        cut(stage, &a);
        stage.fault(Fault::Flushall, None);
        stage.redis.command(&["FLUSHALL"])?;
        let held = take(&b, "x").await?;
        let hold = CancellationToken::new();
        tokio::join!(b.hold(held, &hold), async {
            stage.sleep(MOMENT * 2).await;
            hold.cancel();
        });
        enough.cancel();
        heal(stage, &a);
        Ok::<_, Failure>(())
    });
    done?;
    a.close().await;
    b.close().await;
    Ok(())
}

pub(super) async fn partition(stage: &Stage) -> Result<(), Failure> {
    let (a, b) = two(stage).await?;
    let held = take(&a, "x").await?;
    let enough = CancellationToken::new();
    let ((), done) = tokio::join!(a.hold(held, &enough), async {
        cut(stage, &a);
        let held = take(&b, "x").await?;
        stage.sleep(MOMENT * 2).await;
        b.release(held);
        enough.cancel();
        heal(stage, &a);
        Ok::<_, Failure>(())
    });
    done?;
    a.close().await;
    b.close().await;
    Ok(())
}

pub(super) async fn unknown_script(stage: &Stage) -> Result<(), Failure> {
    let a = Actor::start(stage, "a").await?;
    for _ in 0..8 {
        stage.fault(Fault::ScriptFlush, None);
        a.proxy.answer("queue:x", "-NOSCRIPT No matching script.\r\n", 1)?;
        let (first, second) = a.enter_twice("x").await?;
        let both = async |waiting| {
            let held = a.granted(waiting).await?;
            a.release(held);
            Ok::<_, Failure>(())
        };
        tokio::try_join!(both(first), both(second))?;
    }
    a.close().await;
    Ok(())
}

pub(super) async fn lost_push(stage: &Stage) -> Result<(), Failure> {
    let (a, b) = two(stage).await?;
    let held = take(&a, "x").await?;
    stage.fault(Fault::DropPushes, Some(b.name));
    b.proxy.drop_pushes(true)?;
    let (b_held, ()) = tokio::join!(b.take("x", LEASE + MOMENT), async {
        stage.sleep(MOMENT).await;
        a.release(held);
    });
    if let Some(held) = b_held? {
        b.release(held);
    }
    heal(stage, &b);
    a.close().await;
    b.close().await;
    Ok(())
}

pub(super) async fn given_up_head(stage: &Stage) -> Result<(), Failure> {
    let (a, b) = two(stage).await?;
    let held = take(&a, "x").await?;
    a.release(held);
    let held = take(&b, "x").await?;
    let (given_up, next) = a.enter_twice("x").await?;
    // It becomes the head and does not learn of it.
    stage.fault(Fault::DropPushes, Some(a.name));
    a.proxy.drop_pushes(true)?;
    b.release(held);
    stage.sleep(MOMENT).await;
    a.cancel(given_up);
    let held = a.granted(next).await?;
    a.release(held);
    heal(stage, &a);
    a.close().await;
    b.close().await;
    Ok(())
}

pub(super) async fn clock_jump(stage: &Stage) -> Result<(), Failure> {
    let (a, b) = two(stage).await?;
    let held = take(&a, "x").await?;
    let enough = CancellationToken::new();
    let (done, ..) = tokio::join!(
        async {
            stage.sleep(MOMENT).await;
            stage.fault(Fault::Clock, None);
            let ahead = format!("{{{PREFIX}:turns:0}}:ahead");
            stage.redis.command(&["SET", &ahead, "3600"])?;
            let held = take(&b, "x").await?;
            stage.sleep(MOMENT).await;
            b.release(held);
            Ok::<_, Failure>(())
        },
        a.hold(held, &enough),
        async {
            stage.sleep(LEASE / 2).await;
            enough.cancel();
        }
    );
    done?;
    a.close().await;
    b.close().await;
    Ok(())
}

pub(super) async fn late_write(stage: &Stage) -> Result<(), Failure> {
    let (a, b) = two(stage).await?;
    let (a_store, b_store) = (stage.store(&a.url).await?, stage.store(&b.url).await?);
    let late = take(&a, "x").await?;
    a.begin_write(&late)?;
    a.end_write(&late, &a_store).await?;
    a.begin_write(&late)?;
    // Nothing of it passes, and it does nothing.
    stage.fault(Fault::Stop, Some(a.name));
    a.proxy.set(Direction::ToServer, Flow::Hold);
    a.proxy.set(Direction::ToClient, Flow::Hold);
    let held = take(&b, "x").await?;
    b.begin_write(&held)?;
    b.end_write(&held, &b_store).await?;
    b.release(held);
    a.proxy.heal();
    stage.fault(Fault::Cont, Some(a.name));
    a.end_write(&late, &a_store).await?;
    a.release(late);
    a.close().await;
    b.close().await;
    Ok(())
}

pub(super) async fn given_up(stage: &Stage) -> Result<(), Failure> {
    let (a, b) = two(stage).await?;
    let held = take(&a, "x").await?;
    let waiting = b.enter("x").await?;
    b.cancel(waiting);
    a.release(held);
    stage.sleep(MOMENT * 3).await;
    stage.queues()?;
    a.close().await;
    b.close().await;
    Ok(())
}

pub(super) async fn next_session(stage: &Stage) -> Result<(), Failure> {
    let a = Actor::start(stage, "a").await?;
    let held = take(&a, "x").await?;
    stage.fault(Fault::Flushall, None);
    stage.redis.command(&["FLUSHALL"])?;
    a.hold(held, &CancellationToken::new()).await;
    let held = take(&a, "x").await?;
    a.release(held);
    a.close().await;
    Ok(())
}

pub(super) async fn leader(stage: &Stage) -> Result<(), Failure> {
    let (a, b) = two(stage).await?;
    let (first, second) = (Leader::new(stage, &a).await?, Leader::new(stage, &b).await?);
    let ends = async {
        first.connected().await;
        let runs = second.bot.run();
        let ends = async {
            stage.sleep(MOMENT).await;
            cut(stage, &a);
            second.connected().await;
            stage.sleep(MOMENT * 3).await;
            heal(stage, &a);
            first.bot.stop();
            second.bot.stop();
        };
        tokio::join!(runs, ends).0
    };
    let (first_ended, second_ended) = tokio::join!(first.bot.run(), ends);
    first_ended?;
    second_ended?;
    a.close().await;
    b.close().await;
    Ok(())
}

pub(super) async fn long_wait(stage: &Stage) -> Result<(), Failure> {
    let (a, b) = two(stage).await?;
    let held = take(&a, "x").await?;
    stage.usage()?;
    let enough = CancellationToken::new();
    let ((), held, ()) = tokio::join!(a.hold(held, &enough), take(&b, "x"), async {
        stage.sleep(LEASE).await;
        enough.cancel();
    });
    b.release(held?);
    stage.usage()?;
    a.close().await;
    b.close().await;
    Ok(())
}

pub(super) async fn idle_chats(stage: &Stage) -> Result<(), Failure> {
    const CHATS: &str = "abcdefghijklmnopqrstuvwxyz";
    let a = Actor::start(stage, "a").await?;
    stage.usage()?;
    for place in 0..CHATS.len() {
        let held = take(&a, &CHATS[place..=place]).await?;
        a.release(held);
    }
    // The server looks ten times a second for what is over.
    stage.sleep(IDLE + LEASE + MOMENT * 15).await;
    stage.usage()?;
    a.close().await;
    Ok(())
}

pub(super) async fn loss(stage: &Stage) -> Result<(), Failure> {
    let (a, b) = two(stage).await?;
    let held = take(&a, "x").await?;
    let enough = CancellationToken::new();
    let ((), done) = tokio::join!(a.listen(held, &enough), async {
        cut(stage, &a);
        let held = take(&b, "x").await?;
        stage.sleep(LEASE).await;
        b.release(held);
        enough.cancel();
        heal(stage, &a);
        Ok::<_, Failure>(())
    });
    done?;
    a.close().await;
    b.close().await;
    Ok(())
}
