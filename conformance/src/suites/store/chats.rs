//! What is known of chats.

use botmesh_core::id::ChatId;
use botmesh_core::store::ChatState;

use super::tools::LOOK_ALIKES;
use crate::case::{cases, ensure, ensure_eq};
use crate::{Case, CaseResult, Context, PASSED};

pub(super) fn cases() -> Vec<Case> {
    cases![
        a_chat_is_replaced_whole: "what is known of a chat is replaced, and nothing is known of others",
        chats_are_separate: "chats whose ids look alike have states of their own",
    ]
}

fn state(language: Option<&str>) -> ChatState {
    ChatState { language: language.map(Into::into) }
}

async fn a_chat_is_replaced_whole(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    let chat = ChatId::from("-1001557912345");
    ensure!(store.chat(&chat).await?.is_none(), "the case does not start empty");
    let states =
        [state(Some("es")), state(None), state(Some("a\0b")), state(Some("pt-BR")), ChatState::default()];
    for state in states {
        store.set_chat(&chat, &state).await?;
        ensure_eq!(store.chat(&chat).await?, Some(state), "the state");
    }
    ensure!(store.chat(&ChatId::from("1001557912345")).await?.is_none(), "another chat is known");
    PASSED
}

async fn chats_are_separate(context: &mut Context) -> CaseResult {
    let store = context.store()?;
    for chat in LOOK_ALIKES {
        store.set_chat(&ChatId::from(*chat), &state(Some(chat))).await?;
    }
    for chat in LOOK_ALIKES {
        let found = store.chat(&ChatId::from(*chat)).await?;
        ensure_eq!(found, Some(state(Some(chat))), "the state of {chat:?}");
    }
    PASSED
}
