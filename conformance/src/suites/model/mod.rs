//! `model`: random operations, side by side on the backend and on the reference in memory.

mod kv;
mod random;
mod store;

use crate::case::{Needs, cases};
use crate::{CaseResult, Context, NOT_CLAIMED, PASSED, Suite};

const STEPS: usize = 600;

pub(crate) fn suite() -> Suite {
    Suite {
        name: "model",
        meaning: "random operations give the same answers as the reference in memory; repeated by --seed",
        needs: Needs::Anything,
        cases: cases![
            kv_follows_the_reference: "random batches, reads and pages over few keys in two scopes",
            kv_follows_the_reference_through_reopens: "the same, while the data is closed and opened again",
            store_follows_the_reference: "random users, chats, checkpoints under several turns, deadlines and logs",
            store_follows_the_reference_through_reopens: "the same, while the store is closed and opened again",
        ],
    }
}

async fn kv_follows_the_reference(context: &mut Context) -> CaseResult {
    if !context.has_kv() {
        return NOT_CLAIMED;
    }
    kv::run(context, STEPS, false).await?;
    PASSED
}

async fn kv_follows_the_reference_through_reopens(context: &mut Context) -> CaseResult {
    if !context.has_kv() || !context.claims().survives_reopen() {
        return NOT_CLAIMED;
    }
    kv::run(context, STEPS, true).await?;
    PASSED
}

async fn store_follows_the_reference(context: &mut Context) -> CaseResult {
    if !context.has_store() {
        return NOT_CLAIMED;
    }
    store::run(context, STEPS, false).await?;
    PASSED
}

async fn store_follows_the_reference_through_reopens(context: &mut Context) -> CaseResult {
    if !context.has_store() || !context.claims().survives_reopen() {
        return NOT_CLAIMED;
    }
    store::run(context, STEPS, true).await?;
    PASSED
}
