//! `kv`: every rule of [`DurableKv`](botmesh_core::kv::DurableKv).

mod batches;
mod bytes;
mod concurrency;
mod indexes;
mod lifetime;
mod reads;
mod scopes;
mod tools;
mod versions;

use crate::Suite;
use crate::case::Needs;

pub(crate) fn suite() -> Suite {
    let tables = [
        versions::cases(),
        batches::cases(),
        reads::cases(),
        indexes::cases(),
        bytes::cases(),
        scopes::cases(),
        concurrency::cases(),
        lifetime::cases(),
    ];
    Suite {
        name: "kv",
        meaning: "compare-and-set, batches, indexes, scopes and bytes of a key-value store",
        needs: Needs::Journals,
        cases: tables.into_iter().flatten().collect(),
    }
}
