//! What is expected of conversations that go from replica to replica.

use botmesh::{BotEvent, HandoverOutcome};
use botmesh_core::id::ConversationKey;

use super::stage::{PATIENCE, Stage};
use super::{Step, TestBot, TestUser};

/// A hand-over that a replica told.
struct Told {
    /// Its place among all events.
    place: usize,
    replica: usize,
    key: ConversationKey,
    name: String,
    outcome: HandoverOutcome,
}

impl TestBot {
    /// The next hand-over of this user's conversation is of the flow or conversation `name`, and this became of it. If there
    /// is none yet, virtual time passes, up to a minute. Returns the number of the replica that took it over.
    ///
    /// # Panics
    /// The step panics if the next hand-over is another one, or if there is none.
    pub fn expect_handover(
        &self,
        user: &TestUser,
        name: impl Into<String>,
        outcome: HandoverOutcome,
    ) -> Step<'_, usize> {
        let (key, name) = (user.key(), name.into());
        Step::new(async move {
            let wanted = format!("{key}: expected a hand-over of `{name}`: {outcome:?}, but");
            let told = self.stage.wait_for(PATIENCE, || self.stage.next_handover(|told| told.key == key));
            let Some(told) = told.await? else {
                return Err(self.stage.failure(&format!("{wanted} nothing is handed over")));
            };
            match told.name == name && told.outcome == outcome {
                true => Ok(told.replica),
                false => {
                    let Told { name, outcome, .. } = &told;
                    let who = self.stage.name(told.replica);
                    Err(self.stage.failure(&format!("{wanted} {who} tells that `{name}` is {outcome:?}")))
                }
            }
        })
    }

    /// No conversation was handed over, but for those that were [expected](Self::expect_handover).
    ///
    /// # Panics
    /// The step panics if one was.
    pub fn expect_no_handover(&self) -> Step<'_> {
        Step::new(async move {
            self.stage.settle().await?;
            match self.stage.next_handover(|_| true) {
                None => Ok(()),
                Some(Told { replica, key, name, outcome, .. }) => {
                    let who = self.stage.name(replica);
                    Err(self.stage.failure(&format!(
                        "expected no hand-over, but {who} tells that `{name}` of {key} is {outcome:?}"
                    )))
                }
            }
        })
    }
}

impl Stage {
    /// The first hand-over that was not returned yet and is one of `wanted`.
    fn next_handover(&self, wanted: impl Fn(&Told) -> bool) -> Option<Told> {
        let mut state = self.state();
        let told = state.told.iter().enumerate().filter_map(|(place, (replica, event))| match event {
            BotEvent::Handover { key, name, outcome } => Some(Told {
                place,
                replica: *replica,
                key: key.clone(),
                name: name.clone(),
                outcome: *outcome,
            }),
            _ => None,
        });
        let new = |told: &Told| !state.expected.contains(&told.place);
        let told = told.filter(new).find(|told| wanted(told))?;
        state.expected.insert(told.place);
        Some(told)
    }
}
