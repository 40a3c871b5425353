//! `store`: every method of [`Store`](botmesh_core::store::Store).

mod chats;
mod checkpoints;
mod deadlines;
mod fences;
mod lifetime;
mod log;
mod tools;
mod users;

use crate::Suite;
use crate::case::Needs;

pub(crate) use tools::{plain_checkpoint, turn};

pub(crate) fn suite() -> Suite {
    let tables = [
        users::cases(),
        chats::cases(),
        checkpoints::cases(),
        fences::cases(),
        deadlines::cases(),
        log::cases(),
        lifetime::cases(),
    ];
    Suite {
        name: "store",
        meaning: "user values, chats, checkpoints, deadlines and the message log of a store",
        needs: Needs::Store,
        cases: tables.into_iter().flatten().collect(),
    }
}
