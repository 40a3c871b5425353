use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::error::{StoreError, StoreErrorKind};
use crate::kv::{Caps, Cursor, DurableKv, Entry, MAX_KEY, Op, Outcome, Range};
use crate::spawn::Seams;
use crate::time::Timestamp;

/// Bounds of one group, and of the calls that wait for the next one.
const MAX_OPS: usize = 1000;
const MAX_BYTES: usize = 4 << 20;
const QUEUE: usize = 1024;

type Answer = Result<Vec<Outcome>, StoreError>;

struct Call {
    ops: Vec<Op>,
    answer: oneshot::Sender<Answer>,
}

/// Groups concurrent commits: while one is in flight, the next collects. There is no timer, so a lone commit waits for
/// nothing. A task owns the backend, so that a caller that goes away never cuts a commit in half.
pub(super) struct Grouped {
    kv: Arc<dyn DurableKv>,
    calls: mpsc::Sender<Call>,
}

impl Grouped {
    pub(super) fn start(kv: Arc<dyn DurableKv>, seams: &Seams) -> Arc<dyn DurableKv> {
        let (calls, waiting) = mpsc::channel(QUEUE);
        seams.spawn("group-commit", commit_groups(Arc::clone(&kv), waiting));
        Arc::new(Self { kv, calls })
    }

    fn refuse_oversized(&self, ops: &[Op]) -> Result<(), StoreError> {
        let max_value = self.kv.caps().max_value;
        let oversized = |op: &&Op| {
            op.key().len() > MAX_KEY || matches!(op, Op::Put { value, .. } if value.len() > max_value)
        };
        match ops.iter().find(oversized) {
            None => Ok(()),
            Some(op) => Err(StoreError::new(
                StoreErrorKind::TooLarge,
                "journal",
                "commit",
                format!(
                    "an entry of {} bytes; the backend takes keys of {MAX_KEY} and values of {max_value}",
                    op.size()
                ),
            )),
        }
    }
}

async fn commit_groups(kv: Arc<dyn DurableKv>, mut waiting: mpsc::Receiver<Call>) {
    let mut next = None;
    loop {
        let Some(first) = (match next.take() {
            Some(call) => Some(call),
            None => waiting.recv().await,
        }) else {
            return;
        };
        let mut ops = Vec::new();
        let mut answers = Vec::new();
        let mut size = 0;
        let mut candidate = Some(first);
        while let Some(call) = candidate {
            let bytes: usize = call.ops.iter().map(Op::size).sum();
            if !answers.is_empty() && (ops.len() + call.ops.len() > MAX_OPS || size + bytes > MAX_BYTES) {
                next = Some(call);
                break;
            }
            size += bytes;
            answers.push((call.ops.len(), call.answer));
            ops.extend(call.ops);
            candidate = waiting.try_recv().ok();
        }
        let result = kv.commit(ops).await;
        answer_all(answers, result);
    }
}

fn answer_all(answers: Vec<(usize, oneshot::Sender<Answer>)>, result: Answer) {
    match result {
        Ok(outcomes) => {
            let mut outcomes = outcomes.into_iter();
            for (count, answer) in answers {
                // A caller that went away needs no answer.
                let _ = answer.send(Ok(outcomes.by_ref().take(count).collect()));
            }
        }
        Err(error) => {
            for (_, answer) in answers {
                let _ = answer.send(Err(error.clone()));
            }
        }
    }
}

#[async_trait]
impl DurableKv for Grouped {
    fn scoped(&self, scope: &str) -> Arc<dyn DurableKv> {
        // Scopes are taken before grouping starts; a view of a group is ungrouped.
        self.kv.scoped(scope)
    }

    async fn commit(&self, ops: Vec<Op>) -> Result<Vec<Outcome>, StoreError> {
        self.refuse_oversized(&ops)?;
        let stopped =
            || StoreError::new(StoreErrorKind::Misuse, "journal", "commit", "the journal is closed");
        let (answer, answered) = oneshot::channel();
        self.calls.send(Call { ops, answer }).await.map_err(|_| stopped())?;
        answered.await.map_err(|_| stopped().with_unknown_effect())?
    }

    async fn get(&self, keys: &[Bytes]) -> Result<Vec<Option<Entry>>, StoreError> {
        self.kv.get(keys).await
    }

    async fn scan(
        &self,
        range: Range,
        after: Option<&Cursor>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.kv.scan(range, after, limit).await
    }

    async fn now(&self) -> Result<Option<Timestamp>, StoreError> {
        self.kv.now().await
    }

    fn caps(&self) -> Caps {
        self.kv.caps()
    }

    async fn close(&self) -> Result<(), StoreError> {
        self.kv.close().await
    }
}
