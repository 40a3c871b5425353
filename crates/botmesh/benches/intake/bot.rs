//! A bot on the webhook of Telegram, with its journals in SQLite.

use std::path::PathBuf;

use botmesh::core::store::Store;
use botmesh::{Bot, Ctx, Durability};
use botmesh_sqlite_store::SqliteStore;
use botmesh_telegram::Telegram;
use botmesh_testing::FakeTelegram;
use botmesh_webhook::Server;

use crate::served::{SECRET, Served};

pub(crate) fn start(file: PathBuf) -> Served {
    Served::start(async move |listener, stop| {
        let api = FakeTelegram::start().await;
        let telegram = Telegram::webhook(api.token(), SECRET).with_api_url(&api.url()).without_rates();
        let store = SqliteStore::open(&file).await.unwrap();
        let bot = Bot::builder()
            .provider(telegram.clone())
            .durability(Durability::new(store.durability()))
            .store(store.clone())
            .otherwise(async |_: Ctx| {})
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
