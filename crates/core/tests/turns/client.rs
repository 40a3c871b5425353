//! The replicas' side: the rules by which a coordinator's client acts on what it is told.

use crate::server::{Answer, Op, Push, Request, What};
use crate::setting::{Broken, MARGIN, Setting};
use crate::state::{Flying, Loss, Place, Session, Sid, State, Ticket};

/// What a replica asks the server for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wish {
    Open,
    Beat,
    /// Tells of a session that ended.
    Close,
    /// Takes a ticket for the next message of a key.
    Enter(u8),
    /// Asks again for a ticket whose answer did not come.
    Again(u8),
    /// Gives back what is to be given back first.
    Leave,
    /// Asks where a ticket stands.
    Poll(u8),
}

impl State {
    /// Sends a request, and it is carried out and answered at once.
    pub(crate) fn ask(&mut self, setting: &Setting, replica: usize, wish: Wish) {
        let request = self.request(setting, replica, wish);
        let answer = self.serve(setting, &request);
        self.answered(setting, &request, answer);
    }

    /// What a replica sends.
    pub(crate) fn request(&mut self, setting: &Setting, replica: usize, wish: Wish) -> Request {
        let rows = self.rows;
        let tick = self.tick;
        let who = &mut self.replicas[replica];
        let elapsed = who.witnessed.map(|last| tick - last);
        let request = |session, op| Request { session, op, sent: tick, elapsed };
        let sees = !setting.breaks(Broken::NoFloor) && !setting.breaks(Broken::CountedFences);
        let floor = if sees { who.largest } else { 0 };
        if wish == Wish::Open {
            let known = who.known.clone().filter(|_| !setting.breaks(Broken::NoGrace));
            let id = Sid { replica: u8::try_from(replica).expect("few"), generation: who.generation };
            who.generation += 1;
            return request(id, Op::Open { known, floor });
        }
        if wish == Wish::Close {
            let (id, _) = who.to_close.take().expect("a session that ended");
            return request(id, Op::Close { gives_back: who.lost == Some(Loss::Released) });
        }
        let session = who.session.as_mut().expect("a session");
        let key_of = |session: &Session, seq| {
            session.tickets.iter().find(|ticket| ticket.seq == seq).expect("a ticket").key
        };
        let op = match wish {
            Wish::Enter(key) => {
                who.todo[usize::from(key)] -= 1;
                session.last_seq += 1;
                let seq = session.last_seq;
                let after = rows[usize::from(key)].acknowledged;
                let place = Place::Entering { granted: false };
                session.tickets.push(Ticket { seq, key, place, number: None, after });
                Op::Enter { key, seq, floor }
            }
            Wish::Again(seq) => Op::Enter { key: key_of(session, seq), seq, floor },
            Wish::Poll(seq) => Op::Poll { key: key_of(session, seq), seq },
            Wish::Leave => {
                let (key, seq) = session.leaving[0];
                Op::Leave { key, seq }
            }
            Wish::Beat | Wish::Open | Wish::Close => Op::Beat,
        };
        request(session.id, op)
    }

    /// An answer arrived.
    pub(crate) fn answered(&mut self, setting: &Setting, request: &Request, answer: Answer) {
        let (tick, id) = (self.tick, request.session);
        let who = &mut self.replicas[usize::from(id.replica)];
        if setting.witnesses() && !matches!(request.op, Op::Leave { .. }) {
            who.witnessed = who.witnessed.max(Some(request.sent));
        }
        let heard = request.sent;
        let valid_until = Self::valid_until(setting, heard);
        if matches!(request.op, Op::Open { .. }) {
            let latest = who.up && who.session.is_none() && who.generation == id.generation + 1;
            if latest && answer.what == What::Alive && tick < valid_until {
                let epoch = answer.epoch.expect("an open session has an epoch");
                (who.lost, who.known) = (None, Some(epoch.clone()));
                let (tickets, leaving) = (Vec::new(), Vec::new());
                who.session = Some(Session { id, epoch, heard, valid_until, last_seq: 0, tickets, leaving });
            }
            return;
        }
        let Some(session) = self.session(id) else { return };
        if answer.epoch.as_ref() != Some(&session.epoch) {
            return self.lose(setting, id, Loss::Data);
        }
        match (&request.op, answer.what) {
            (_, What::Dead) => self.lose(setting, id, Loss::Expired),
            (Op::Beat, _) => {
                session.heard = session.heard.max(heard);
                session.valid_until = session.valid_until.max(valid_until);
            }
            (Op::Enter { seq, .. }, what) => self.entered(id, *seq, what),
            (Op::Leave { key, seq }, _) => session.leaving.retain(|left| *left != (*key, *seq)),
            (Op::Poll { seq, .. }, what) => {
                let ticket = session.tickets.iter_mut().find(|ticket| ticket.seq == *seq);
                match (ticket, what) {
                    (Some(_), What::Unknown) => self.lose(setting, id, Loss::Data),
                    (Some(ticket), What::Granted(_)) if ticket.place == Place::Waiting => {
                        ticket.place = Place::Held { called: false };
                    }
                    _ => {}
                }
            }
            (Op::Open { .. } | Op::Close { .. }, _) => {}
        }
    }

    /// A ticket got its number.
    fn entered(&mut self, id: Sid, seq: u8, what: What) {
        let Some(session) = self.session(id) else { return };
        let Some(at) = session.tickets.iter().position(|ticket| ticket.seq == seq) else { return };
        let Place::Entering { granted } = session.tickets[at].place else { return };
        let (number, granted) = match what {
            What::Granted(number) => (number, true),
            What::Waiting(number) => (number, granted),
            What::Unknown | What::Alive | What::Dead | What::Left => return,
        };
        let ticket = &mut session.tickets[at];
        ticket.place = if granted { Place::Held { called: false } } else { Place::Waiting };
        ticket.number = Some(number);
        let (key, after) = (ticket.key, ticket.after);
        let disorder = session.tickets.iter().filter(|other| other.key == key).any(|other| {
            other.number.is_some_and(|earlier| (other.seq < seq) != (earlier < number) && other.seq != seq)
        });
        self.offences.overtook |= disorder || number <= after;
        let row = &mut self.rows[usize::from(key)];
        row.acknowledged = row.acknowledged.max(number);
        let largest = &mut self.replicas[usize::from(id.replica)].largest;
        *largest = number.max(*largest);
    }

    /// A push arrived. One of another epoch, or for an earlier session, says nothing.
    pub(crate) fn pushed(&mut self, setting: &Setting, push: &Push) {
        let Some(session) = self.session(push.session) else { return };
        if push.epoch.as_ref() != Some(&session.epoch) {
            return;
        }
        let ticket = session.tickets.iter_mut().find(|ticket| ticket.seq == push.seq);
        match (ticket, push.grants) {
            (Some(ticket), Some(_)) => match &mut ticket.place {
                Place::Entering { granted } => *granted = true,
                place @ Place::Waiting => *place = Place::Held { called: false },
                Place::Held { .. } => {}
            },
            (Some(_), None) => {}
            (None, _) => {
                let ghost = (push.key, push.seq);
                if !session.leaving.contains(&ghost) && !setting.breaks(Broken::GhostsKept) {
                    session.leaving.push(ghost);
                    session.leaving.sort_unstable();
                }
            }
        }
        if let Some(number) = push.grants {
            let largest = &mut self.replicas[usize::from(push.session.replica)].largest;
            *largest = number.max(*largest);
        }
    }

    /// A session ends with all its tickets; their messages need others. One whose call was made needs none.
    pub(crate) fn lose(&mut self, setting: &Setting, id: Sid, why: Loss) {
        let tick = self.tick;
        let who = &mut self.replicas[usize::from(id.replica)];
        let Some(session) = who.session.take_if(|session| session.id == id) else { return };
        for ticket in session.tickets {
            if ticket.place != (Place::Held { called: true }) {
                who.todo[usize::from(ticket.key)] += 1;
            }
        }
        // Its end was between two ticks, if it saw itself that the time was over.
        let over = if tick < session.valid_until { tick + 1 } else { tick };
        let from = if setting.breaks(Broken::ClosesAtOnce) { tick } else { over + MARGIN };
        (who.lost, who.to_close) = (Some(why), Some((id, from)));
    }

    /// Gives a ticket back: a turn, or a place in the queue.
    pub(crate) fn give_back(&mut self, replica: usize, seq: u8) {
        let Some(session) = &mut self.replicas[replica].session else { return };
        if let Some(at) = session.tickets.iter().position(|ticket| ticket.seq == seq) {
            let ticket = session.tickets.remove(at);
            session.leaving.push((ticket.key, seq));
            session.leaving.sort_unstable();
        }
    }

    /// A replica dies with all it knows.
    pub(crate) fn crash(&mut self, setting: &Setting, replica: usize) {
        if let Some(session) = &self.replicas[replica].session {
            let id = session.id;
            self.lose(setting, id, Loss::Expired);
        }
        let who = &mut self.replicas[replica];
        (who.up, who.lost, who.to_close, who.known) = (false, None, None, None);
        (who.largest, who.witnessed) = (0, None);
    }

    /// A replica that died starts again, and looks up which fences the store has seen.
    pub(crate) fn restart(&mut self, replica: usize) {
        let written = self.rows.iter().filter_map(|row| row.written);
        let largest = written.map(|(fence, _)| fence).max().unwrap_or_default();
        let who = &mut self.replicas[replica];
        (who.up, who.largest) = (true, largest);
    }

    /// A replica stops when it has made its calls, and tells the server.
    pub(crate) fn close(&mut self, setting: &Setting, replica: usize) {
        if let Some(session) = &self.replicas[replica].session {
            let id = session.id;
            self.lose(setting, id, Loss::Released);
            self.ask(setting, replica, Wish::Close);
        }
        self.crash(setting, replica);
    }

    /// Forgets what is under way and would change nothing when it arrived.
    pub(crate) fn prune(&mut self) {
        let replicas = &self.replicas;
        let current =
            |id: Sid| replicas[usize::from(id.replica)].session.as_ref().filter(|session| session.id == id);
        self.net.retain(|flying| match flying {
            Flying::Request(_) => true,
            Flying::Answer(request, _) => match request.op {
                Op::Open { .. } => {
                    let who = &replicas[usize::from(request.session.replica)];
                    who.up && who.session.is_none() && who.generation == request.session.generation + 1
                }
                _ => current(request.session).is_some(),
            },
            Flying::Push(push) => current(push.session).is_some_and(|session| {
                let ticket = session.tickets.iter().find(|ticket| ticket.seq == push.seq);
                let changes = match ticket.map(|ticket| ticket.place) {
                    Some(Place::Entering { granted }) => push.grants.is_some() && !granted,
                    Some(Place::Waiting) => push.grants.is_some(),
                    Some(Place::Held { .. }) => false,
                    None => !session.leaving.contains(&(push.key, push.seq)),
                };
                push.epoch.as_ref() == Some(&session.epoch) && changes
            }),
        });
    }
}
