//! Small histories against the shortest description of what turns are: one queue of tickets. A history is right if its calls
//! can be put in one order, each between its beginning and its end, in which the queue answers as they were answered.

use std::collections::{HashMap, HashSet, VecDeque};

use stateright::semantics::{ConsistencyTester as _, LinearizabilityTester, SequentialSpec};

use super::super::{Limits, check};
use super::history;
use super::world::{Plan, Rule};
use crate::history::{Event, Fault, Record};

/// Operations of a chat that are looked at. To find that there is no order takes much longer than to find one.
const OPERATIONS: usize = 30;
const WITHOUT_AN_ORDER: usize = 16;

/// A call of a process.
type Call = (u32, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Enter(Call),
    Begin(Call),
    End(Call),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ret {
    Number(u64),
    Done,
}

/// The description.
#[derive(Clone, Debug, Default)]
struct Queue {
    tickets: VecDeque<Call>,
    last: u64,
}

impl SequentialSpec for Queue {
    type Op = Op;
    type Ret = Ret;

    fn invoke(&mut self, op: &Op) -> Ret {
        match op {
            Op::Enter(call) => {
                self.tickets.push_back(*call);
                self.last += 1;
                Ret::Number(self.last)
            }
            Op::Begin(_) => Ret::Done,
            Op::End(call) => {
                self.tickets.retain(|other| other != call);
                Ret::Done
            }
        }
    }

    fn is_valid_step(&mut self, op: &Op, ret: &Ret) -> bool {
        match (op, ret) {
            (Op::Enter(call), Ret::Number(n)) => {
                let grows = *n > self.last;
                self.tickets.push_back(*call);
                self.last = *n;
                grows
            }
            (Op::Begin(call), Ret::Done) => self.tickets.front() == Some(call),
            (Op::End(_), Ret::Done) => {
                self.invoke(op);
                true
            }
            _ => false,
        }
    }
}

/// What the tester takes for a thread: each operation is one. It tries them in this order, which is nearly the right one: by
/// the number of the ticket, and last what a fault may have ended.
type Thread = (bool, u64, u8);

/// The first operations of a chat.
struct Tester {
    tester: LinearizabilityTester<Thread, Queue>,
    next: usize,
    most: usize,
    numbers: HashMap<Call, u64>,
    entering: HashMap<Call, Thread>,
    beginning: HashMap<Call, Thread>,
    ending: HashMap<Call, Thread>,
    answered: HashSet<Call>,
}

impl Tester {
    fn invoke(&mut self, op: Op, late: bool) -> Option<Thread> {
        let (Op::Enter(call) | Op::Begin(call) | Op::End(call)) = op;
        let kind = match op {
            Op::Enter(_) => 0,
            Op::Begin(_) => 1,
            Op::End(_) => 2,
        };
        let thread = (late, self.numbers[&call], kind);
        (self.next < self.most).then(|| {
            self.next += 1;
            self.tester.on_invoke(thread, op).unwrap();
            thread
        })
    }

    fn end(&mut self, call: Call, late: bool) {
        if self.answered.contains(&call)
            && !self.ending.contains_key(&call)
            && let Some(thread) = self.invoke(Op::End(call), late)
        {
            self.ending.insert(call, thread);
        }
    }

    fn ends_of(&mut self, hit: impl Fn(&Call) -> bool) {
        let mut calls: Vec<_> = self.answered.iter().copied().filter(hit).collect();
        calls.sort_unstable();
        for call in calls {
            self.end(call, true);
        }
    }
}

/// Whether a chat can be explained, and how many operations it had.
fn explain(records: &[Record], chat: &str, most: usize) -> (bool, usize) {
    // What was never answered may never have been.
    let numbers = records.iter().filter_map(|record| match &record.event {
        Event::EnterOk { call, n, .. } => Some(((record.pid, *call), *n)),
        _ => None,
    });
    let mut tester = Tester {
        tester: LinearizabilityTester::new(Queue::default()),
        next: 0,
        most,
        numbers: numbers.collect(),
        entering: HashMap::new(),
        beginning: HashMap::new(),
        ending: HashMap::new(),
        answered: HashSet::new(),
    };
    for record in records {
        let own = |call: &u64| (record.pid, *call);
        match &record.event {
            Event::EnterCall { chat: of, call, .. }
                if of == chat && tester.numbers.contains_key(&own(call)) =>
            {
                if let Some(thread) = tester.invoke(Op::Enter(own(call)), false) {
                    tester.entering.insert(own(call), thread);
                }
            }
            Event::EnterOk { chat: of, call, n } if of == chat => {
                let Some(thread) = tester.entering.remove(&own(call)) else { continue };
                tester.tester.on_return(thread, Ret::Number(*n)).unwrap();
                tester.answered.insert(own(call));
            }
            Event::Granted { chat: of, call, .. } if of == chat && tester.answered.contains(&own(call)) => {
                let Some(thread) = tester.invoke(Op::Begin(own(call)), false) else { continue };
                tester.tester.on_return(thread, Ret::Done).unwrap();
                tester.beginning.insert(own(call), thread);
                // Whoever had begun to end before is over by now.
                let mut over: Vec<_> = tester.ending.iter().map(|(call, thread)| (*thread, *call)).collect();
                over.sort_unstable();
                let over = over.into_iter().filter(|(_, call)| tester.beginning.contains_key(call));
                for (thread, call) in over.collect::<Vec<_>>() {
                    tester.beginning.remove(&call);
                    tester.tester.on_return(thread, Ret::Done).unwrap();
                }
            }
            Event::Released { chat: of, call, .. } | Event::Cancelled { chat: of, call } if of == chat => {
                tester.end(own(call), false);
            }
            Event::EnterErr { chat: of, call, .. } if of == chat => tester.end(own(call), false),
            Event::Lost { call: Some(call), .. } => tester.end(own(call), false),
            Event::Down { .. } => tester.ends_of(|(pid, _)| *pid == record.pid),
            Event::Nemesis { what: Fault::Flushall, .. } => tester.ends_of(|_| true),
            Event::Nemesis { target_pid: Some(hit), .. } => tester.ends_of(|(pid, _)| pid == hit),
            _ => {}
        }
    }
    (tester.tester.is_consistent(), tester.next)
}

fn chats(records: &[Record], most: usize) -> Vec<(bool, usize)> {
    (0..3).map(|chat| explain(records, &format!("chat{chat}"), most)).collect()
}

#[test]
fn what_the_machine_did_can_be_explained_by_a_queue() {
    let mut operations = 0;
    for seed in 0..40 {
        let records = history(seed, None, Plan::Random);
        for (explained, of) in chats(&records, OPERATIONS) {
            assert!(explained, "seed {seed}");
            operations += of;
        }
    }
    assert!(operations > 2000, "{operations}");
}

#[test]
fn what_a_queue_does_not_do_is_not_explained_and_found_by_the_check_too() {
    for (rule, plan) in [
        (Rule::FirstComeFirst, Plan::Calm),
        (Rule::OwnerOfLeave, Plan::Calm),
        (Rule::GrowingFences, Plan::DataLoss),
    ] {
        let unexplained = (0..25).find_map(|seed| {
            let records = history(seed, Some(rule), plan);
            chats(&records, WITHOUT_AN_ORDER).iter().any(|(explained, _)| !explained).then_some(records)
        });
        let records = unexplained.unwrap_or_else(|| panic!("{rule:?} can be explained"));
        let report = check(&records, Limits::default()).unwrap();
        assert!(!report.is_clean(), "{rule:?}: only the queue finds what is wrong");
    }
}
