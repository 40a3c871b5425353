//! Rules that a test can remove from a coordinator, to show that the checks of a run notice. With the feature `mutations`
//! alone; without it nothing of this is compiled.

/// Whether a rule is kept.
#[cfg(not(feature = "mutations"))]
macro_rules! keeps {
    ($config:expr, $rule:ident) => {
        true
    };
}

/// Whether a rule is kept.
#[cfg(feature = "mutations")]
macro_rules! keeps {
    ($config:expr, $rule:ident) => {
        $config.altered.keeps($crate::coordinator::rules::Rule::$rule)
    };
}

pub(crate) use keeps;

#[cfg(feature = "mutations")]
pub(crate) use altered::Altered;
#[cfg(feature = "mutations")]
pub use altered::Rule;

#[cfg(feature = "mutations")]
mod altered {
    use std::collections::HashMap;
    use std::sync::{LazyLock, Mutex, PoisonError};

    use crate::scripts::Script;

    /// A rule of the turns.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Rule {
        /// A beat revives no session.
        SessionInBeat,
        /// Who gives a ticket back gives back its own.
        OwnerInLeave,
        /// Who gives up a ticket that was no turn held nothing.
        UnusedTickets,
        /// Fences are not behind the clock of the server.
        GrowingFences,
        /// After a loss of data nobody is granted anything for a lease.
        Grace,
        /// A wall clock that is set forward ends no lease.
        ClockClamp,
        /// A replica stops acting before the server ends its lease.
        SelfFencing,
        /// A ticket that its replica does not know is left.
        LeaveUnknown,
        /// The next call of a key is sent when the one before was answered.
        LocalOrder,
        /// A ticket that hears nothing asks.
        Polls,
        /// A ticket that hears nothing asks no more than three times per lease.
        RarePolls,
        /// A ticket that is dropped before its turn is given back.
        DroppedTickets,
        /// After a loss a replica goes on under another session.
        NewSessions,
        /// Who waits for the loss of its turn is woken by it.
        ToldLosses,
        /// A queue without tickets is forgotten.
        IdleQueues,
        /// The store takes no checkpoint of an earlier turn than the last one.
        FencedWrites,
    }

    impl Rule {
        /// What stands in the scripts, and what in its place.
        pub(crate) fn texts(self) -> &'static [(&'static str, &'static str)] {
            match self {
                Self::SessionInBeat => &[(
                    "if not alive(session) then\n  save()\n  return epoch .. '|dead'\nend\nlocal known",
                    "local known",
                )],
                Self::OwnerInLeave => &[
                    ("if first == own and", "if first and"),
                    ("local held = member == own", "local held = member ~= nil"),
                ],
                Self::UnusedTickets => &[("ARGV[5] ~= 'unused'", "true")],
                Self::GrowingFences => &[("last = math.max(last + 1, wall)", "last = last + 1")],
                Self::Grace => &[("if ARGV[4] ~= '' and ARGV[4] ~= epoch then", "if false then")],
                Self::ClockClamp => &[("if ARGV[1] ~= '' and gone >", "if false and gone >")],
                Self::IdleQueues => {
                    &[("previous, 'PX', ARGV[4])", "previous)"), ("previous, 'PX', idle)", "previous)")]
                }
                Self::FencedWrites => &[(
                    "if not (fence > row[2] or (fence == row[2] and session == row[3])) then",
                    "if false then",
                )],
                Self::SelfFencing
                | Self::LeaveUnknown
                | Self::LocalOrder
                | Self::Polls
                | Self::RarePolls
                | Self::DroppedTickets
                | Self::NewSessions
                | Self::ToldLosses => &[],
            }
        }
    }

    /// How a coordinator differs from a real one.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub(crate) struct Altered {
        pub(crate) without: Option<Rule>,
        /// The server's clock goes ahead by so many seconds as a key of its own says, or stands still.
        pub(crate) clock_ahead: bool,
    }

    type Texts = HashMap<(Altered, usize), &'static str>;
    static TEXTS: LazyLock<Mutex<Texts>> = LazyLock::new(Mutex::default);

    impl Altered {
        pub(crate) fn keeps(self, rule: Rule) -> bool {
            self.without != Some(rule)
        }

        /// The text of a script that is not as it was.
        pub(crate) fn text(self, script: &Script) -> Option<&'static str> {
            if self == Self::default() {
                return None;
            }
            let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
            let text = texts.entry((self, script.number)).or_insert_with(|| {
                let mut text = script.text.to_owned();
                for (from, to) in self.without.map_or(&[][..], Rule::texts) {
                    text = text.replace(from, to);
                }
                if self.clock_ahead {
                    let time = "local time = redis.call('TIME')\n";
                    let set = "local set = redis.call('GET', string.sub(KEYS[1], 1, -6) .. 'ahead') or '0'\n\
                        if string.sub(set, 1, 1) == '=' then time = {string.sub(set, 2), '0'}\n\
                        else time[1] = string.format('%.0f', time[1] + set) end\n";
                    text = text.replace(time, &format!("{time}{set}"));
                }
                // One for each script of each kind.
                if text == script.text { script.text } else { String::leak(text) }
            });
            (*text != script.text).then_some(*text)
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::scripts::ALL;

        #[test]
        fn each_rule_is_in_the_scripts() {
            let rules = [
                Rule::SessionInBeat,
                Rule::OwnerInLeave,
                Rule::UnusedTickets,
                Rule::GrowingFences,
                Rule::Grace,
                Rule::ClockClamp,
                Rule::IdleQueues,
                Rule::FencedWrites,
            ];
            for rule in rules {
                let altered = Altered { without: Some(rule), clock_ahead: false };
                for (from, _) in rule.texts() {
                    let there = ALL.iter().filter(|script| script.text.contains(from));
                    assert!(there.count() > 0, "{rule:?} is written differently");
                }
                assert!(ALL.iter().any(|script| altered.text(script).is_some()), "{rule:?} alters nothing");
            }
            let altered = Altered { without: None, clock_ahead: true };
            let scripts = ALL.iter().filter(|script| script.text.contains("local wall"));
            for script in scripts {
                assert!(altered.text(script).is_some(), "{script:?}");
            }
        }
    }
}
