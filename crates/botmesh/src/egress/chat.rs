//! The unfinished sends of one chat, in their order: none goes out before those that were journaled before it.

use std::collections::HashMap;
use std::time::Duration;

use super::attempt::{Attempted, ended_in_flight, resolve};
use super::parts::{cut, is_too_long};
use super::{Egress, Sent, Slot, TurnScope};
use crate::core::content::Content;
use crate::core::error::{Cas, ChannelError, ErrorClass, Phase, SendError, StoreError};
use crate::core::id::{ChatId, SendKey};
use crate::core::journal::{
    Change, ErrorNote, Follows, InboxState, Leased, OutboxRecord, OutboxState, Part, Send, Stored,
};
use crate::core::time::Timestamp;
use crate::events::{BotEvent, DeadKind};
use crate::lanes::Lane;
use crate::world::OpenJournal;

/// How long a send waits in its place because of what other chats are sent; for longer, it is put off.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The most sends of a chat that are looked at in one go.
const MAX_DRAINED: usize = 100;

/// What a look at a chat came to.
#[derive(Default)]
struct Drained {
    /// What went out, in order.
    sent: Vec<OutboxRecord>,
    /// The send that holds back what follows it, and until when.
    held: Option<(SendKey, Timestamp)>,
    /// Whether there may be more to send at once.
    more: bool,
}

/// What became of the first send of a chat.
enum Taken {
    /// It holds back nothing any more.
    Over,
    /// It holds back what follows it until then.
    Held(Timestamp),
    /// It is one of several parts now.
    Cut,
    /// It is left to somebody else, and holds back nothing.
    Left,
}

impl Egress {
    /// Brings a journaled send of one or more parts to an end, after everything the chat was to get before it. Waits for
    /// what is due within the time for waiting, and leaves the rest to the background.
    pub(super) async fn finish(
        &self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        key: SendKey,
        lane: Lane<'_>,
    ) -> Result<Sent, SendError> {
        let give_up = self.world.now() + open.config.outbox.inline_max;
        let mut gone = Vec::new();
        let result = self.finish_parts(open, scope, &key, give_up, &mut gone).await;
        drop(lane);
        self.after_all_sent(&gone).await;
        if let Ok(sent) = &result
            && sent.deduped
        {
            self.world.metrics.outbox_deduped.increment();
        }
        if matches!(result, Err(SendError::Deferred { .. })) {
            self.world.metrics.outbox_deferred.increment();
        }
        result
    }

    async fn finish_parts(
        &self,
        open: &OpenJournal,
        scope: Option<&TurnScope>,
        key: &SendKey,
        give_up: Timestamp,
        gone: &mut Vec<OutboxRecord>,
    ) -> Result<Sent, SendError> {
        let mut seen = None;
        loop {
            let parts = self.parts_of(open, key).await?;
            let Some(first) = parts.first() else { return Err(SendError::Deferred { key: key.clone() }) };
            if let Some(part) = parts.iter().find(|part| part.record.state == OutboxState::Dead) {
                return Err(super::dead(&part.record));
            }
            let Some(last) = parts.iter().rfind(|part| part.record.is_unfinished()) else {
                let deduped =
                    !gone.iter().any(|record| parts.iter().any(|part| part.record.key == record.key));
                return Ok(Sent { key: key.clone(), message: first.record.message.clone(), deduped });
            };
            self.may_act(scope).await?;
            if !self.world.lead.may_call() {
                self.await_leader(open, key, give_up).await?;
                continue;
            }
            // The parts may have been journaled by two calls.
            let until =
                parts.iter().map(|part| (part.record.order, u32::MAX)).max().unwrap_or(last.record.place());
            let drained = self.drain(open, &last.record.chat, Some(until), Vec::new()).await?;
            gone.extend(drained.sent);
            let stands_still = seen.replace(last.version) == Some(last.version);
            let due = match drained.held {
                Some((_, due)) => due,
                // Its answer is being recorded elsewhere.
                None if stands_still => self.world.now() + open.config.poll,
                None => continue,
            };
            if due > give_up {
                return Err(SendError::Deferred { key: key.clone() });
            }
            self.world.seams.clock.sleep(due.since(self.world.now())).await;
        }
    }

    /// Waits a while for the replica that leads, which sends it.
    async fn await_leader(
        &self,
        open: &OpenJournal,
        key: &SendKey,
        give_up: Timestamp,
    ) -> Result<(), SendError> {
        if self.world.now() >= give_up {
            return Err(SendError::Deferred { key: key.clone() });
        }
        self.world.seams.clock.sleep(open.config.poll).await;
        Ok(())
    }

    /// Sends what is due in a chat, unless somebody waits for a send to it and does so himself. `due` are sends that are
    /// known to be due.
    pub(crate) async fn send_due(
        &self,
        open: &OpenJournal,
        chat: &ChatId,
        due: Vec<Stored<OutboxRecord>>,
    ) -> Result<bool, StoreError> {
        self.world.backlog.note(chat);
        let Some(lane) = self.lanes.try_enter(chat) else { return Ok(false) };
        let drained = self.drain(open, chat, None, due).await?;
        if let Some((head, until)) = &drained.held {
            self.hold_back(open, chat, head, *until).await?;
        }
        drop(lane);
        self.after_all_sent(&drained.sent).await;
        Ok(drained.more)
    }

    /// A place behind the unfinished sends of a chat, whatever the clocks of the processes say that journaled them.
    pub(super) async fn order_behind(
        &self,
        open: &OpenJournal,
        chat: &ChatId,
        now: Timestamp,
    ) -> Result<i64, StoreError> {
        let mut last = None;
        loop {
            let sends = open.journal.outbox().unfinished_of(chat, last, MAX_DRAINED).await?;
            last = sends.last().map(|send| send.record.place()).or(last);
            if sends.len() < MAX_DRAINED {
                return Ok(open.journal.next_order_after(last.map_or(i64::MIN, |(order, _)| order), now));
            }
        }
    }

    async fn after_all_sent(&self, records: &[OutboxRecord]) {
        for record in records {
            let sent = Sent { key: record.key.clone(), message: record.message.clone(), deduped: false };
            self.after_sent(&record.chat, &record.content, &sent).await;
        }
    }

    /// Takes up the unfinished sends of a chat in their order, up to the place `until`, as far as they are due. To be
    /// called in the chat's lane.
    async fn drain(
        &self,
        open: &OpenJournal,
        chat: &ChatId,
        until: Option<(i64, u32)>,
        known: Vec<Stored<OutboxRecord>>,
    ) -> Result<Drained, StoreError> {
        let (mut drained, mut known, mut after) = (Drained::default(), known, None);
        loop {
            let mut sends = open.journal.outbox().unfinished_of(chat, after, MAX_DRAINED).await?;
            let (found, truncated) = (sends.len(), sends.len() == MAX_DRAINED);
            let last = sends.last().map(|send| send.record.place());
            if !truncated {
                self.add_unseen(open, &mut sends, std::mem::take(&mut known)).await?;
            }
            sends.retain(|send| until.is_none_or(|until| send.record.place() <= until));
            let all = !truncated && sends.len() >= found && after.is_none();
            self.settle_orphans(open, &mut sends, &mut drained).await?;
            let (count, mut left) = (sends.len(), 0);
            for send in in_order(sends) {
                let key = send.record.key.clone();
                match self.take_up(open, send, &mut drained.sent).await? {
                    Taken::Over => {}
                    Taken::Left => left += 1,
                    Taken::Held(until) => {
                        drained.held = Some((key, until));
                        return Ok(drained);
                    }
                    Taken::Cut => {
                        drained.more = true;
                        return Ok(drained);
                    }
                }
            }
            // What is left to others holds back nothing, however much of it there is.
            if truncated && left > 0 && left == count && drained.held.is_none() {
                after = last;
                continue;
            }
            drained.more = truncated;
            if all && left == 0 && drained.held.is_none() {
                self.world.backlog.forget(chat);
            }
            return Ok(drained);
        }
    }

    /// Adds sends that are known and not among those found: of an earlier version, which found them under their due time
    /// only; or brought to an end meanwhile.
    async fn add_unseen(
        &self,
        open: &OpenJournal,
        sends: &mut Vec<Stored<OutboxRecord>>,
        known: Vec<Stored<OutboxRecord>>,
    ) -> Result<(), StoreError> {
        let mut unseen: Vec<SendKey> = known.into_iter().map(|send| send.record.key).collect();
        unseen.retain(|key| sends.iter().all(|send| send.record.key != *key));
        if !unseen.is_empty() {
            let read = open.journal.outbox().get_all(&unseen).await?;
            sends.extend(read.into_iter().flatten().filter(|send| send.record.is_unfinished()));
        }
        Ok(())
    }

    /// Decides what becomes of what dead processes left in flight, and leaves what waits in `sends`.
    async fn settle_orphans(
        &self,
        open: &OpenJournal,
        sends: &mut Vec<Stored<OutboxRecord>>,
        drained: &mut Drained,
    ) -> Result<(), StoreError> {
        let (flying, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(sends).into_iter().partition(|send| send.record.state == OutboxState::InFlight);
        *sends = waiting;
        let ours = open.journal.owner();
        // What is in flight of this process, in the lane of its chat, has its answer or is being settled.
        let others: Vec<_> =
            flying.into_iter().filter(|send| send.record.owner.as_ref() != Some(&ours)).collect();
        if others.is_empty() {
            return Ok(());
        }
        let sessions = open.journal.sessions().await?;
        for send in others {
            if send.record.owner.as_ref().is_some_and(|owner| !sessions.has_lost(owner, Leased::Sends)) {
                // Another process is calling the channel: nothing goes out before it has its answer.
                let until = self.world.now() + open.config.poll;
                sends.retain(|waiting| waiting.record.place() < send.record.place());
                drained.held.get_or_insert((send.record.key, until));
                continue;
            }
            self.world.broadcasts.note(&send.record.key);
            match resolve(&self.world, open, &send, &ended_in_flight(), false).await? {
                Attempted::Waiting(waiting) => sends.push(waiting),
                Attempted::Sent(record) => drained.sent.push(record),
                Attempted::Dead(_) | Attempted::Unknown | Attempted::Lost | Attempted::Refused(_) => {}
            }
        }
        Ok(())
    }

    /// Attempts a send that waits and is the first of its chat.
    async fn take_up(
        &self,
        open: &OpenJournal,
        send: Stored<OutboxRecord>,
        sent: &mut Vec<OutboxRecord>,
    ) -> Result<Taken, StoreError> {
        self.world.broadcasts.note(&send.record.key);
        let now = self.world.now();
        let due = send.record.due.filter(|_| send.record.behind.is_none()).unwrap_or(now);
        if due > now {
            return Ok(Taken::Held(due));
        }
        let soon = Taken::Held(now + open.config.poll);
        if let Some(previous) = send.record.previous_part() {
            let previous = open.journal.outbox().get(previous).await?.map(|stored| stored.record.state);
            match Follows::after(previous) {
                Follows::Now => {}
                Follows::Later => return Ok(soon),
                // Its turn had come before: the retention of the part before it is over, or an operator wants it so.
                Follows::Never if previous.is_none() && send.record.was_attempted() => {}
                Follows::Never if previous.is_none() && self.first_may_come(open, &send.record).await? => {
                    return Ok(Taken::Left);
                }
                Follows::Never => {
                    self.cut_off(open, &send).await?;
                    return Ok(Taken::Over);
                }
            }
        }
        if self.cut_if_too_long(open, &send).await? {
            return Ok(Taken::Cut);
        }
        let Some(address) = self.address_of(&send.record.chat).await else { return Ok(soon) };
        if let Some(wait) = self.await_pace(&send.record.chat).await {
            return Ok(Taken::Held(self.world.now() + wait));
        }
        let Some(started) = self.start_attempt(open, &send).await? else { return Ok(soon) };
        Ok(match self.attempt(open, None, started, &address).await? {
            Attempted::Waiting(waiting) => waiting.record.due.map_or(soon, Taken::Held),
            Attempted::Sent(record) => {
                sent.push(record);
                Taken::Over
            }
            Attempted::Dead(_) | Attempted::Unknown => Taken::Over,
            Attempted::Lost | Attempted::Refused(_) => soon,
        })
    }

    /// Waits for a place among the messages of all chats. How long a message to this chat must wait besides, if so.
    async fn await_pace(&self, chat: &ChatId) -> Option<Duration> {
        loop {
            match self.world.take_slot(chat) {
                Slot::Free => return None,
                Slot::AnyIn(wait) if wait <= LONGEST_WAIT => self.world.seams.clock.sleep(wait).await,
                Slot::ChatIn(wait) | Slot::AnyIn(wait) => return Some(wait),
            }
        }
    }

    /// Whether somebody may still journal the part before this one: whoever wrote this one, or the message that is handled
    /// again because that process died between the two.
    async fn first_may_come(&self, open: &OpenJournal, part: &OutboxRecord) -> Result<bool, StoreError> {
        if self.world.now().since(part.created) < open.config.outbox.lease {
            return Ok(true);
        }
        let Some(source) = &part.source else { return Ok(false) };
        let message = open.journal.inbox().get(source).await?;
        Ok(message
            .is_some_and(|message| !matches!(message.record.state, InboxState::Done | InboxState::Dead)))
    }

    /// Gives up a part of a text whose earlier part never went out.
    async fn cut_off(&self, open: &OpenJournal, send: &Stored<OutboxRecord>) -> Result<(), StoreError> {
        let missing = send.record.previous_part().map_or_else(String::new, ToString::to_string);
        let detail = format!("the part before it, {missing}, was given up");
        let error = ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, detail);
        let Ok(record) = send.record.cut_off(ErrorNote::from(&error), self.world.now()) else {
            return Ok(());
        };
        let change = Change::update(send.version, &record);
        let outcomes = open.journal.commit_patiently(vec![change], &self.world.abort).await?;
        if let Some(Cas::Applied(_)) = outcomes.first() {
            self.world.metrics.outbox_dead.increment();
            let (id, error) = (record.key.to_string(), error.to_string());
            self.world.events.emit(BotEvent::Dead { kind: DeadKind::Outbound, id, error });
        }
        Ok(())
    }

    /// Cuts a send whose text is over the channel's limit, as an earlier version or a larger limit may have left it: every
    /// other part is journaled before the first goes out.
    async fn cut_if_too_long(
        &self,
        open: &OpenJournal,
        send: &Stored<OutboxRecord>,
    ) -> Result<bool, StoreError> {
        let (now, record) = (self.world.now(), &send.record);
        let takes = self.world.provider.capabilities();
        if !is_too_long(&record.content, takes.text_limit) {
            return Ok(false);
        }
        // With too many parts, the channel says itself what is wrong with it.
        let Ok(contents) = cut(Content::clone(&record.content), takes) else { return Ok(false) };
        let whole = Send {
            key: record.key.clone(),
            chat: record.chat.clone(),
            content: Content::clone(&record.content),
            fingerprint: None,
            source: record.source.clone(),
        };
        let parts = self.parts(open, &whole, contents, record.order, now, None).await?;
        let Some(part) = parts.first.part else { return Ok(false) };
        let part = match &record.part {
            None => part,
            Some(cut) => Part { previous: cut.previous.clone(), number: cut.number, ..part },
        };
        let Ok(shortened) = record.shorten(parts.first.content, part, now) else { return Ok(false) };
        let mut others = parts.others;
        others.extend(self.relink_next(open, record, &parts.last).await?);
        self.journal_others(open, others, true).await?;
        let change = Change::update(send.version, &shortened);
        let _ = open.journal.commit_patiently(vec![change], &self.world.abort).await?;
        Ok(true)
    }

    /// Lets the part that follows one which is cut again follow the last of its pieces.
    async fn relink_next(
        &self,
        open: &OpenJournal,
        cut: &OutboxRecord,
        last: &SendKey,
    ) -> Result<Option<Change>, StoreError> {
        let Some(next) = cut.next_part() else { return Ok(None) };
        let Some(Stored { record, version }) = open.journal.outbox().get(next).await? else {
            return Ok(None);
        };
        Ok(record.relink(last.clone()).ok().map(|relinked| Change::update(version, &relinked)))
    }

    /// Lets what is due in a chat wait behind its first send, so that sweeps do not look at it again and again.
    async fn hold_back(
        &self,
        open: &OpenJournal,
        chat: &ChatId,
        head: &SendKey,
        until: Timestamp,
    ) -> Result<(), StoreError> {
        const PAGE: usize = 200;
        let now = self.world.now();
        let mut after = None;
        loop {
            let outbox = open.journal.outbox();
            let page = outbox.list_of(chat, OutboxState::Waiting, after.as_ref(), PAGE).await?;
            let changes: Vec<Change> = page
                .records
                .iter()
                .filter(|send| send.record.key != *head && send.record.due.is_none_or(|due| due <= now))
                .filter_map(|send| {
                    let waiting = send.record.wait_behind(head.clone(), until, now).ok()?;
                    Some(Change::update(send.version, &waiting))
                })
                .collect();
            if !changes.is_empty() {
                let _ = open.journal.commit(changes).await?;
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }
}

/// Puts sends in the order of their chat. A part stands after the one before it also where two processes, or two calls,
/// journaled the parts of one text between them.
fn in_order(mut sends: Vec<Stored<OutboxRecord>>) -> Vec<Stored<OutboxRecord>> {
    let mut orders: HashMap<SendKey, i64> = HashMap::new();
    sends.sort_by_key(|send| send.record.place().1);
    for Stored { record, .. } in &sends {
        let before = record.previous_part().and_then(|previous| orders.get(previous));
        let order = before.map_or(record.order, |before| record.order.max(*before));
        orders.insert(record.key.clone(), order);
    }
    let previous: HashMap<SendKey, Option<SendKey>> =
        sends.iter().map(|send| (send.record.key.clone(), send.record.previous_part().cloned())).collect();
    // Pieces of a part that was cut again have its number.
    let depth = |key: &SendKey| {
        let before = |key: &&SendKey| previous.get(*key)?.as_ref();
        std::iter::successors(Some(key), before).take(previous.len() + 1).count()
    };
    sends.sort_by_cached_key(|send| {
        let key = &send.record.key;
        (orders.get(key).copied(), send.record.place().1, depth(key))
    });
    sends
}
