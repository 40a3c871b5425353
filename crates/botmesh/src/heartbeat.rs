//! The heartbeat of the session: on a thread of its own, and the last thing to stop.

use std::sync::Arc;
use std::time::Duration;

use crate::core::error::StoreError;
use crate::core::journal::{Beat, Leased};
use crate::world::{OpenJournal, World};

/// Renews the session until everything is done or given up, or another process took it over. Then it ends the session.
pub(crate) async fn keep_session(world: Arc<World>) {
    let _stopped = world.heart_stopped.clone().drop_guard();
    let Some(open) = &world.journal else { return };
    beat_until_ended(&world, open).await;
    if let Err(error) = open.journal.end_session().await {
        world.events.error("ending the session", &error);
    }
}

async fn beat_until_ended(world: &World, open: &OpenJournal) {
    let lease = open.config.leases().shorter();
    let period = lease / 3;
    let (mut rest, mut failing) = (period, false);
    loop {
        open.journal.lease().rest(rest);
        tokio::select! {
            biased;
            () = world.ended.cancelled() => return,
            () = world.seams.clock.sleep(rest) => {}
        }
        // Whoever stood still finds out here, if not before.
        let _ = world.check_lease(Leased::Messages).and(world.check_lease(Leased::Sends));
        let beat = tokio::select! {
            biased;
            () = world.ended.cancelled() => return,
            beat = beat_within(world, open, lease) => beat,
        };
        match beat {
            Ok(Some(Beat::Alive)) => {
                world.note_renewed();
                (rest, failing) = (period, false);
                continue;
            }
            Ok(Some(Beat::Superseded | Beat::Expired)) => return world.note_superseded(),
            Ok(None) if !failing => {
                let error = format!("the backend did not answer within {lease:?}");
                world.events.failure("renewing the session", error);
            }
            Err(error) if !failing => world.events.error("renewing the session", &error),
            Ok(None) | Err(_) => {}
        }
        (rest, failing) = (period / 4, true);
    }
}

/// `None` if the backend does not answer in time.
async fn beat_within(world: &World, open: &OpenJournal, limit: Duration) -> Result<Option<Beat>, StoreError> {
    tokio::select! {
        biased;
        beat = open.journal.beat() => beat.map(Some),
        () = world.seams.clock.sleep(limit) => Ok(None),
    }
}
