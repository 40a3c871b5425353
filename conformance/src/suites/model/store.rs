//! A store beside [`MemoryStore`]. Revisions and positions differ between the two and are compared through the writes
//! that made them.

use std::sync::Arc;

use botmesh_core::error::Cas;
use botmesh_core::id::{ChatId, ConversationKey, MessageId, ParticipantId};
use botmesh_core::memory::MemoryStore;
use botmesh_core::scope::Scope;
use botmesh_core::store::{ChatState, Checkpoint, Direction, LogEntry, LogPosition, Revision, Store};
use botmesh_core::time::Timestamp;
use serde_json::json;

use super::random::{History, Random};
use crate::case::{ensure, ensure_eq};
use crate::suites::store::{plain_checkpoint, turn};
use crate::{Context, Failure};

const CHATS: [&str; 4] = ["a", "a/b", "-1001557912345", "A"];
const NAMES: [&str; 4] = ["", "name", "Name", "a\0"];
const SESSIONS: [&str; 2] = ["s1", "s2"];
const TIMES: [i64; 5] = [i64::MIN, -1, 0, 7, i64::MAX];

struct Model {
    random: Random,
    history: History,
    reference: Arc<dyn Store>,
    /// Turns have this fence or little more. Grows after each clear, as turns do.
    fence: u64,
    /// The revisions that were given: of which conversation, on the backend and in the reference.
    revisions: Vec<(ConversationKey, Revision, Revision)>,
    /// The positions that were seen, on the backend and in the reference.
    positions: Vec<(LogPosition, LogPosition)>,
}

pub(super) async fn run(context: &mut Context, steps: usize, reopen: bool) -> Result<(), Failure> {
    let mut model = Model {
        random: Random::new(context.entropy()),
        history: History::default(),
        reference: MemoryStore::new().scoped(&Scope::default()),
        fence: 1_000,
        revisions: Vec::new(),
        positions: Vec::new(),
    };
    for _ in 0..steps {
        if reopen && model.random.chance(5) {
            model.history.push("close and open again");
            context.reopen().await.map_err(|failure| model.history.failed(&failure))?;
        }
        let backend = context.store()?;
        let step = match model.random.below(14) {
            0 | 1 => model.user_value(&backend).await,
            2 => model.chat(&backend).await,
            3..7 => model.set_checkpoint(&backend).await,
            7 | 8 => model.clear_checkpoint(&backend).await,
            9 => model.due(&backend).await,
            10 => model.append(&backend).await,
            _ => model.log(&backend).await,
        };
        step.map_err(|failure| model.history.failed(&failure))?;
    }
    Ok(())
}

impl Model {
    async fn user_value(&mut self, backend: &Arc<dyn Store>) -> Result<(), Failure> {
        let (user, name) = (ParticipantId::from(self.random.pick(&CHATS)), self.random.pick(&NAMES));
        let number = self.random.below(100);
        let value = (!self.random.chance(25)).then(|| json!({"number": number, "text": "a\0\u{1F600}"}));
        self.history.push(format!("set the value {name:?} of {user:?} to {value:?}"));
        backend.set_user_value(&user, name, value.as_ref()).await?;
        self.reference.set_user_value(&user, name, value.as_ref()).await?;
        let found = backend.user_values(&user).await?;
        ensure_eq!(found, self.reference.user_values(&user).await?, "the values of {user:?}");
        let name = self.random.pick(&NAMES);
        let found = backend.user_value(&user, name).await?;
        ensure_eq!(found, self.reference.user_value(&user, name).await?, "the value {name:?} of {user:?}");
        Ok(())
    }

    async fn chat(&mut self, backend: &Arc<dyn Store>) -> Result<(), Failure> {
        let chat = ChatId::from(self.random.pick(&CHATS));
        let language = self.random.chance(50).then(|| "es".to_owned());
        let state = ChatState { language };
        self.history.push(format!("set the chat {chat:?} to {state:?}"));
        backend.set_chat(&chat, &state).await?;
        self.reference.set_chat(&chat, &state).await?;
        for chat in CHATS.map(ChatId::from) {
            let found = backend.chat(&chat).await?;
            ensure_eq!(found, self.reference.chat(&chat).await?, "the chat {chat:?}");
        }
        Ok(())
    }

    fn conversation(&self) -> ConversationKey {
        let chat = self.random.pick(&CHATS);
        if self.random.chance(40) {
            ConversationKey::in_group(chat, self.random.pick(&["b", "a/b"]))
        } else {
            ConversationKey::private(chat)
        }
    }

    /// Mostly the latest revision of the conversation, sometimes an old one or none.
    fn expect(&self, key: &ConversationKey) -> Option<(Revision, Revision)> {
        let of_key = self.revisions.iter().filter(|(other, ..)| other == key);
        let of_key: Vec<_> = of_key.map(|(_, revision, reference)| (*revision, *reference)).collect();
        match self.random.below(10) {
            0..7 => of_key.last().copied(),
            7 | 8 if !of_key.is_empty() => Some(self.random.pick(&of_key)),
            _ => None,
        }
    }

    async fn set_checkpoint(&mut self, backend: &Arc<dyn Store>) -> Result<(), Failure> {
        let key = self.conversation();
        let turn = turn(self.fence + self.random.below(3) as u64, self.random.pick(&SESSIONS));
        let expect = self.expect(&key);
        let due = self.random.chance(50).then(|| Timestamp::from_millis(self.random.pick(&TIMES)));
        let step = format!("step {}", self.random.below(1_000));
        let checkpoint = Checkpoint { due, ..plain_checkpoint(&step) };
        self.history.push(format!("set {key:?} to {step} with {due:?} by {turn:?} expecting {expect:?}"));
        let (own, reference) = expect.unzip();
        let found = backend.set_checkpoint(&turn, &key, own, &checkpoint).await?;
        let expected = self.reference.set_checkpoint(&turn, &key, reference, &checkpoint).await?;
        match (found, expected) {
            (Cas::Lost, Cas::Lost) => {}
            (Cas::Applied(found), Cas::Applied(expected)) => {
                let earlier = self.revisions.iter().filter(|(other, ..)| *other == key);
                let last = earlier.map(|(_, revision, _)| *revision).max();
                ensure!(last.is_none_or(|last| last < found), "{found:?} after {last:?}");
                self.revisions.push((key.clone(), found, expected));
            }
            (found, expected) => {
                return Err(Failure::new(format!("the outcome is {found:?}, in the reference {expected:?}")));
            }
        }
        self.same_checkpoint(backend, &key).await
    }

    async fn clear_checkpoint(&mut self, backend: &Arc<dyn Store>) -> Result<(), Failure> {
        let key = self.conversation();
        let turn = turn(self.fence + self.random.below(3) as u64, self.random.pick(&SESSIONS));
        let Some((own, reference)) = self.expect(&key) else { return Ok(()) };
        self.history.push(format!("clear {key:?} by {turn:?} expecting {own:?}"));
        let found = backend.clear_checkpoint(&turn, &key, own).await?;
        let expected = self.reference.clear_checkpoint(&turn, &key, reference).await?;
        ensure_eq!(found, expected, "the outcome");
        if found == Cas::Applied(()) {
            self.fence += 1_000;
        }
        self.same_checkpoint(backend, &key).await
    }

    async fn same_checkpoint(&self, backend: &Arc<dyn Store>, key: &ConversationKey) -> Result<(), Failure> {
        let found = backend.checkpoint(key).await?;
        let expected = self.reference.checkpoint(key).await?;
        let revisions =
            found.as_ref().zip(expected.as_ref()).map(|(one, other)| (one.revision, other.revision));
        if let Some((found, expected)) = revisions {
            let given = self.revisions.contains(&(key.clone(), found, expected));
            ensure!(given, "{found:?} and {expected:?} are of different writes");
        }
        let plain = |checkpoint: Checkpoint| Checkpoint { revision: Revision(0), ..checkpoint };
        ensure_eq!(found.map(plain), expected.map(plain), "the checkpoint of {key:?}");
        Ok(())
    }

    async fn due(&mut self, backend: &Arc<dyn Store>) -> Result<(), Failure> {
        let until = Timestamp::from_millis(self.random.pick(&TIMES));
        let limit = self.random.pick(&[1, 3, 1_000]);
        self.history.push(format!("what is due until {until:?}, limit {limit}"));
        let mut found = backend.due_checkpoints(until, limit).await?;
        let mut expected = self.reference.due_checkpoints(until, limit).await?;
        let times = |due: &[(ConversationKey, Timestamp)]| due.iter().map(|(_, at)| *at).collect::<Vec<_>>();
        ensure_eq!(times(&found), times(&expected), "the deadlines");
        // The order of equal deadlines is not part of the contract, so a page that ends among them may differ.
        if found.len() < limit {
            found.sort_by(|one, other| (one.1, &one.0).cmp(&(other.1, &other.0)));
            expected.sort_by(|one, other| (one.1, &one.0).cmp(&(other.1, &other.0)));
            ensure_eq!(found, expected, "what is due");
        }
        Ok(())
    }

    async fn append(&mut self, backend: &Arc<dyn Store>) -> Result<(), Failure> {
        let entries: Vec<_> = (0..self.random.below(4)).map(|_| self.entry()).collect();
        let chats: Vec<_> = entries.iter().map(|entry| entry.chat.clone()).collect();
        self.history.push(format!("append to the logs of {chats:?}"));
        backend.append_log(&entries).await?;
        self.reference.append_log(&entries).await?;
        Ok(())
    }

    fn entry(&self) -> LogEntry {
        LogEntry {
            chat: ChatId::from(self.random.pick(&CHATS)),
            direction: if self.random.chance(50) { Direction::In } else { Direction::Out },
            at: Timestamp::from_millis(self.random.pick(&TIMES)),
            message: MessageId::from("m"),
            text: format!("text {}", self.random.below(1_000_000)),
        }
    }

    async fn log(&mut self, backend: &Arc<dyn Store>) -> Result<(), Failure> {
        let chat = ChatId::from(self.random.pick(&CHATS));
        let limit = self.random.pick(&[1, 2, 5, 1_000]);
        let known = self.random.chance(50) && !self.positions.is_empty();
        let before = known.then(|| self.random.pick(&self.positions));
        self.history.push(format!("the log of {chat:?} before {before:?}, limit {limit}"));
        let (own, reference) = before.unzip();
        let found = backend.log(&chat, own, limit).await?;
        let expected = self.reference.log(&chat, reference, limit).await?;
        ensure_eq!(texts(&found), texts(&expected), "the log of {chat:?}");
        if own.is_none() {
            let seen = found.iter().zip(&expected).map(|((found, _), (expected, _))| (*found, *expected));
            self.positions = seen.collect();
        }
        Ok(())
    }
}

fn texts(page: &[(LogPosition, LogEntry)]) -> Vec<&LogEntry> {
    page.iter().map(|(_, entry)| entry).collect()
}
