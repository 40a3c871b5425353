//! Two replicas over the backend, and what they can talk about.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use botmesh::prelude::*;
use botmesh::{BotBuilder, HandoverConfig, HandoverFlows};
use botmesh_core::id::ConversationKey;
use botmesh_core::kv::DurableKv;
use botmesh_core::store::Checkpoint;
use botmesh_testing::{TestBot, TestUser};
use serde::{Deserialize, Serialize};

use crate::{Context, Failure};

pub(super) const NAME: &str = "What is your name?";
pub(super) const WHAT: &str = "What?";
/// How the built-in notice of a conversation that is lost begins.
pub(super) const SORRY: &str = "Sorry, our conversation was interrupted";

/// Where the replicas of a case have their data.
pub(super) struct Ground {
    kv: Option<Arc<dyn DurableKv>>,
    store: Arc<dyn Store>,
    scope: Scope,
}

impl Ground {
    /// With journals, if the backend holds them. A case may have several bots, of different names.
    pub(super) fn new(context: &Context, bot: &str) -> Result<Self, Failure> {
        let kv = if context.has_kv() { Some(context.unscoped_kv()?) } else { None };
        let store = context.unscoped_store().ok_or_else(|| Failure::new("the backend is no store"))?;
        Ok(Self { kv, store, scope: context.bot(bot) })
    }

    /// Without journals, so that answers are nowhere but in the checkpoints.
    pub(super) fn without_journals(self) -> Self {
        Self { kv: None, ..self }
    }

    pub(super) fn start(
        &self,
        handover: HandoverConfig,
        build: impl Fn(usize, BotBuilder) -> BotBuilder + Send + Sync + 'static,
    ) -> (TestBot, TestUser) {
        let options = TestBot::replicas(2).shared_store(Arc::clone(&self.store)).handover(handover);
        let options = match &self.kv {
            Some(kv) => options.backend(Arc::clone(kv)),
            None => options.without_durability(),
        };
        let scope = self.scope.clone();
        let bot = options.start_each(move |replica, bot| build(replica, bot.scope(scope.clone())));
        let ana = bot.user("ana");
        (bot, ana)
    }

    /// A bot that is alone, as one that is started again after the end of another.
    pub(super) fn start_alone(
        &self,
        build: impl Fn(BotBuilder) -> BotBuilder + Send + Sync + 'static,
    ) -> (TestBot, TestUser) {
        let options = TestBot::options().shared_store(Arc::clone(&self.store)).without_durability();
        let scope = self.scope.clone();
        let bot = options.start(move |bot| build(bot.scope(scope.clone())));
        let ana = bot.user("ana");
        (bot, ana)
    }

    /// The store as the bot has it.
    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.store.scoped(&self.scope)
    }

    /// Where Ana's conversation stands.
    pub(super) async fn row(&self) -> Result<Option<Checkpoint>, Failure> {
        Ok(self.store().checkpoint(&ana()).await?)
    }

    /// Where Ana's conversation stands; it must be going on.
    pub(super) async fn existing_row(&self) -> Result<Checkpoint, Failure> {
        self.row().await?.ok_or_else(|| Failure::new("there is no checkpoint of the conversation"))
    }
}

pub(super) fn ana() -> ConversationKey {
    ConversationKey::private("ana")
}

pub(super) fn forward() -> HandoverConfig {
    HandoverConfig::default().with_flows(HandoverFlows::Forward)
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Signup {
    pub(super) name: String,
}

impl FlowState for Signup {}

pub(super) fn signup() -> Flow<Signup> {
    flow::<Signup>("signup").ask("name", NAME, take_name).ask("age", how_old, |_, _| Ok(())).say(done)
}

pub(super) fn take_name(signup: &mut Signup, answer: &Answer) -> Result<(), botmesh::AskAgain> {
    signup.name = answer.text().to_owned();
    Ok(())
}

pub(super) fn how_old(signup: &Signup) -> String {
    format!("How old are you, {}?", signup.name)
}

pub(super) fn done(signup: &Signup) -> String {
    format!("Done, {}.", signup.name)
}

/// A bot that enters `signup` at "sign up", and knows nothing else.
pub(super) fn desk(bot: BotBuilder, signup: Flow<Signup>) -> BotBuilder {
    bot.when("sign up", |c: Ctx| async move { c.enter("signup") })
        .otherwise(|c: Ctx| async move { c.reply(WHAT).await })
        .flow(signup)
}

/// Ana says this to a replica, which then says just this.
pub(super) async fn talk(ana: &TestUser, replica: usize, says: &str, replies: &[&str]) {
    ana.through(replica).says(says).await;
    for reply in replies {
        ana.expect_reply((*reply).to_owned()).await;
    }
    ana.expect_silence().await;
}

/// Where a process that a case has started notes its effects.
pub(super) fn effects(folder: &Path) -> PathBuf {
    folder.join("effects")
}

/// What is there once a step is at work that never ends.
pub(super) fn at_work(folder: &Path) -> PathBuf {
    folder.join("at-work")
}
