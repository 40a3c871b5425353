use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::{Arrived, Ctx};
use crate::core::coordinator::{Fence, Turn, TurnHandle};
use crate::core::error::{LeaseLost, LeaseLostReason};
use crate::core::id::{ConversationKey, SessionId};
use crate::egress::{Egress, TurnScope};
use crate::flow::{Entry, own_event};
use crate::scheduler::Scheduler;
use crate::world::World;

/// What is kept of a message whose turn is over, by code that waits for the next one.
pub(crate) struct Past {
    pub(super) world: Arc<World>,
    pub(super) egress: Arc<Egress>,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) key: ConversationKey,
    /// What was entered, and begins when the code ends.
    pub(super) entry: Option<Box<Entry>>,
}

impl Past {
    /// For whoever acts beside the waiting code: without a text, and under no turn.
    pub(crate) fn ctx(&self) -> Ctx {
        let turn = Turn::new(Fence::default(), SessionId::from(""), None, Arc::new(Over));
        let world = Arc::clone(&self.world);
        let scope = Arc::new(TurnScope::new(Arc::clone(&world), turn, None, None, false));
        let inbound = Arc::new(own_event(self.key.clone(), "botmesh:waiting", "", Value::Null));
        let arrived = Arrived::by_itself(world.now());
        let (egress, scheduler) = (Arc::clone(&self.egress), Arc::clone(&self.scheduler));
        Ctx::new(world, egress, scheduler, scope, (inbound, None), arrived)
    }
}

/// A turn that is over.
struct Over;

const LOST: LeaseLost = LeaseLost { reason: LeaseLostReason::Released };

#[async_trait]
impl TurnHandle for Over {
    fn check(&self) -> Result<(), LeaseLost> {
        Err(LOST)
    }

    async fn lost(&self) -> LeaseLost {
        LOST
    }

    fn release(&self) {}
}
