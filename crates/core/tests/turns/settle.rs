//! Progress: from wherever the faults ended, a bounded number of fair rounds serves everybody, those too who come then.

use crate::client::Wish;
use crate::setting::{LEASE, Setting};
use crate::state::{Flying, Place, Replica, Session, State};
use crate::steps::{Step, When};

/// Rounds, of a tick each, after which everything must be done: two leases and a grace pass, and each turn takes one.
fn rounds(state: &State) -> u8 {
    let messages: u8 = state.replicas.iter().flat_map(|replica| &replica.todo).sum();
    let tickets = state.replicas.iter().filter_map(|replica| replica.session.as_ref());
    let tickets: usize = tickets.map(|session| session.tickets.len()).sum();
    4 * LEASE + messages + u8::try_from(tickets).expect("few")
}

/// Whether everything is served when nothing goes wrong any more. What is late never arrives. Pushes are lost if one is
/// under way: that must cost nobody the turn, unless a ticket that its session does not know is in the way.
pub(crate) fn settles(state: &State, setting: &Setting) -> bool {
    let pushes = !state.net.iter().any(|flying| matches!(flying, Flying::Push(_))) || state.has_ghost();
    let mut state = state.clone();
    // A ticket that nobody knows may rest at the head of a queue until somebody wants the chat.
    for replica in &mut state.replicas {
        replica.todo = replica.todo.map(|messages| messages + 1);
    }
    state.net.retain(|flying| matches!(flying, Flying::Push(_)) && pushes);
    while !state.calls.is_empty() {
        state = state.step(setting, Step::Land(0, When::Now));
    }
    for _ in 0..rounds(&state) {
        for replica in 0..state.replicas.len() {
            round(&mut state, setting, replica);
            if !pushes {
                state.net.clear();
            }
            while !state.net.is_empty() {
                if let Flying::Push(push) = state.net.remove(0) {
                    state.pushed(setting, &push);
                }
                state.prune();
            }
        }
        if is_done(&state) {
            return true;
        }
        state.pass(setting, [Some(When::Now); 3]);
        state.prune();
    }
    false
}

/// Whether no replica has a message or a ticket, and the server knows of none.
fn is_done(state: &State) -> bool {
    let idle = |session: &Session| session.tickets.is_empty() && session.leaving.is_empty();
    let done = |who: &Replica| !who.up || (who.todo == [0, 0] && who.session.as_ref().is_some_and(idle));
    state.replicas.iter().all(done) && !state.has_ticket_of_living()
}

/// What a replica does within a tick when nothing goes wrong.
fn round(state: &mut State, setting: &Setting, replica: usize) {
    if !state.replicas[replica].up {
        return;
    }
    if state.replicas[replica].session.is_none() {
        state.ask(setting, replica, Wish::Open);
    }
    for key in [0, 1] {
        let has_entering = |state: &State| {
            let session = state.replicas[replica].session.as_ref()?;
            let entering = |place| matches!(place, Place::Entering { .. });
            let again = session.tickets.iter().find(|ticket| ticket.key == key && entering(ticket.place));
            Some(again.map(|ticket| ticket.seq))
        };
        while let Some(again) = has_entering(state) {
            match again {
                Some(seq) => state.ask(setting, replica, Wish::Again(seq)),
                None if state.replicas[replica].todo[usize::from(key)] > 0 => {
                    state.ask(setting, replica, Wish::Enter(key));
                }
                None => break,
            }
        }
    }
    let tickets = |state: &State| {
        let session = state.replicas[replica].session.as_ref();
        session.map_or(Vec::new(), |session| session.tickets.clone())
    };
    for ticket in tickets(state) {
        if state.replicas[replica].session.is_some() {
            state.ask(setting, replica, Wish::Poll(ticket.seq));
        }
    }
    for ticket in tickets(state) {
        if ticket.place == (Place::Held { called: false }) {
            *state = state.step(setting, Step::Call(replica, ticket.seq));
            *state = state.step(setting, Step::Land(0, When::Now));
        }
    }
    while state.replicas[replica].session.as_ref().is_some_and(|session| !session.leaving.is_empty()) {
        state.ask(setting, replica, Wish::Leave);
    }
}
