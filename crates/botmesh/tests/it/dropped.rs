//! Calls that are dropped halfway lose nothing and double nothing.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use botmesh::BotBuilder;
use botmesh::core::Bytes;
use botmesh::core::error::StoreError;
use botmesh::core::inbound::Inbound;
use botmesh::core::kv::{Caps, Cursor, DurableKv, Entry, Op, Outcome, Range};
use botmesh::core::memory::MemoryKv;
use botmesh::core::provider::Resolve;
use botmesh::core::time::Timestamp;
use botmesh::prelude::*;
use futures_util::FutureExt;

use crate::support::Stage;

/// A backend with a thread of its own: a commit whose caller went away lands later.
#[derive(Clone)]
struct LateKv {
    inner: Arc<dyn DurableKv>,
    late: Arc<Mutex<Late>>,
}

#[derive(Default)]
struct Late {
    next: bool,
    commits: Vec<(Arc<dyn DurableKv>, Vec<Op>)>,
}

impl LateKv {
    fn new() -> Self {
        Self { inner: Arc::new(MemoryKv::new()), late: Arc::default() }
    }

    fn delay_next(&self) {
        self.late.lock().expect("no panic").next = true;
    }

    async fn land(&self) {
        let commits = std::mem::take(&mut self.late.lock().expect("no panic").commits);
        assert!(!commits.is_empty(), "no commit was delayed");
        for (kv, ops) in commits {
            kv.commit(ops).await.expect("a commit");
        }
    }
}

#[async_trait]
impl DurableKv for LateKv {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        Arc::new(Self { inner: self.inner.scoped(scope), late: Arc::clone(&self.late) })
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        let delayed = {
            let mut late = self.late.lock().expect("no panic");
            let delayed = std::mem::take(&mut late.next);
            if delayed {
                late.commits.push((Arc::clone(&self.inner), ops.clone()));
            }
            delayed
        };
        if delayed { std::future::pending().await } else { self.inner.commit(ops).await }
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        self.inner.get(keys).await
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.inner.scan(range, after, limit).await
    }

    async fn now(&self) -> Result<Option<Timestamp>, StoreError> {
        self.inner.now().await
    }

    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.inner.close().await
    }
}

fn echo(bot: BotBuilder) -> BotBuilder {
    bot.otherwise(|c: Ctx| async move { c.reply(c.text()).await })
}

#[tokio::test]
async fn a_delivery_that_was_cut_off_before_its_write_landed_is_handled_once() {
    let kv = LateKv::new();
    let stage = Stage::with_kv(Resolve::Never, Arc::new(kv.clone()));
    let life = stage.start(echo);
    life.say("m0", "0", 1).await;
    life.settled().await;
    kv.delay_next();
    let cut_off = stage.channel.deliver(Inbound::text("m1", "ana", "1")).now_or_never();
    assert!(cut_off.is_none(), "it was taken over at once");
    stage.clock.advance(std::time::Duration::from_secs(1)).await;
    kv.land().await;
    assert!(life.deliver(Inbound::text("m1", "ana", "1")).await);
    life.until("the reply", || stage.channel.texts_to("ana") == ["0", "1"]).await;
    life.settled().await;
    assert_eq!(life.bot.metrics().inbound_journaled, 2);
    life.stop().await;
}
