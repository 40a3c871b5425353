//! A bot on the webhook of Telegram, with its journals in SQLite.

use std::path::PathBuf;

use botmesh::core::CancellationToken;
use botmesh::core::store::Store;
use botmesh::{Bot, Ctx, Durability, TurnsConfig};
use botmesh_sqlite_store::SqliteStore;
use botmesh_telegram::Telegram;
use botmesh_testing::FakeTelegram;
use botmesh_webhook::Server;

use crate::served::{SECRET, Served};

/// What the bot does with a message once it is journaled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handling {
    /// The first message keeps the only handler busy: everything behind it waits.
    Later,
    /// A handler that does nothing, and the commit that the message is done.
    Beside,
}

/// More messages than a round can bring.
const BACKLOG: usize = 10_000_000;

pub(crate) fn start(file: PathBuf, handling: Handling) -> Served {
    Served::start(async move |listener, stop| {
        let api = FakeTelegram::start().await;
        let telegram = Telegram::webhook(api.token(), SECRET).with_api_url(&api.url()).without_rates();
        let store = SqliteStore::open(&file).await.unwrap();
        let over = stop.clone();
        let turns = match handling {
            Handling::Later => {
                TurnsConfig { max_concurrent: 1, max_backlog: BACKLOG, ..TurnsConfig::default() }
            }
            Handling::Beside => TurnsConfig::default(),
        };
        let bot = Bot::builder()
            .provider(telegram.clone())
            .durability(Durability::new(store.durability()))
            .store(store.clone())
            .turns(turns)
            .otherwise(move |_: Ctx| handle(handling, over.clone()))
            .build()
            .unwrap();
        let served = Server::new().with_bot(bot.clone(), telegram.router()).serve_on(listener);
        let ended = async {
            stop.cancelled().await;
            bot.stop();
        };
        tokio::join!(served, ended).0.unwrap();
        store.close().await.unwrap();
    })
}

async fn handle(handling: Handling, over: CancellationToken) {
    if handling == Handling::Later {
        over.cancelled().await;
    }
}
