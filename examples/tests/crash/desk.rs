//! What the clinic's desk must answer, written apart from the example.

use botmesh::core::entropy::{Entropy, SeededEntropy};

const HELP: &str = "I am the clinic's desk. Write `book` to make an appointment, `list` to see yours, `cancel 1` to \
                    cancel the first one, or `help` to read this again.";

enum Step {
    Idle,
    Name,
    Day { name: String },
    Hour { name: String, day: &'static str },
    Confirm { appointment: String },
}

/// One chat of the desk.
pub(crate) struct Desk {
    step: Step,
    appointments: Vec<String>,
}

impl Desk {
    pub(crate) fn new() -> Self {
        Self { step: Step::Idle, appointments: Vec::new() }
    }

    /// Something a user may write now.
    pub(crate) fn say(&self, entropy: &SeededEntropy) -> String {
        let choices: &[&str] = match self.step {
            Step::Idle => &[
                "hi", "HOLA ", "book", "book", "book", "list", "cancel 1", "cancel 2", "cancel x", "help",
                "?",
            ],
            Step::Name => &["Ana", "Ñandú Pérez", "stop", "O'Neil", "李雷"],
            Step::Day { .. } => &["monday", "FRI", "sunday", "Wednesday", "tue", "stop"],
            Step::Hour { .. } => &["9", "17:00", "25", "noon", "12", "10"],
            Step::Confirm { .. } => &["yes", "Y", "no", "maybe", "yes", "1"],
        };
        let index = entropy.next_u64() as usize % choices.len();
        choices[index].to_owned()
    }

    /// What the desk answers.
    pub(crate) fn answer(&mut self, text: &str) -> String {
        let text = text.trim();
        match std::mem::replace(&mut self.step, Step::Idle) {
            Step::Idle => self.idle(text),
            _ if ["stop", "no"].contains(&text) => "All right, nothing was booked.".to_owned(),
            Step::Name => {
                self.step = Step::Day { name: text.to_owned() };
                "Which day suits you, Monday to Friday?".to_owned()
            }
            Step::Day { name } => {
                let day = match text {
                    "monday" => "Monday",
                    "tue" => "Tuesday",
                    "Wednesday" => "Wednesday",
                    "FRI" => "Friday",
                    _ => {
                        self.step = Step::Day { name };
                        return "We are open Monday to Friday. Try `Tuesday`.".to_owned();
                    }
                };
                self.step = Step::Hour { name, day };
                "At what hour, from 9 to 17?".to_owned()
            }
            Step::Hour { name, day } => match text {
                "9" | "10" | "12" | "17:00" => {
                    let appointment = format!("{name} on {day} at {}:00", text.trim_end_matches(":00"));
                    let question = format!("{appointment}. Shall I book it?\n1) Yes\n2) No");
                    self.step = Step::Confirm { appointment };
                    question
                }
                _ => {
                    self.step = Step::Hour { name, day };
                    "We see patients on the hour, from 9 to 17. Try `10`.".to_owned()
                }
            },
            Step::Confirm { appointment } => match text {
                "yes" | "Y" => {
                    self.appointments.push(appointment.clone());
                    format!("Booked: {appointment}. Number {} in your list.", self.appointments.len())
                }
                _ => {
                    self.step = Step::Confirm { appointment };
                    "Yes or no?".to_owned()
                }
            },
        }
    }

    fn idle(&mut self, text: &str) -> String {
        match text {
            "hi" | "HOLA" => format!("Hello! {HELP}"),
            "book" => {
                self.step = Step::Name;
                "What is your name?".to_owned()
            }
            "list" if self.appointments.is_empty() => {
                "You have no appointments. Write `book` to make one.".to_owned()
            }
            "list" => {
                let lines: Vec<_> =
                    self.appointments.iter().zip(1..).map(|(one, n)| format!("{n}. {one}")).collect();
                lines.join("\n")
            }
            _ => match text.strip_prefix("cancel ") {
                None => HELP.to_owned(),
                Some(n) => {
                    match n.parse::<usize>().ok().filter(|n| (1..=self.appointments.len()).contains(n)) {
                        Some(n) => format!("Cancelled: {}.", self.appointments.remove(n - 1)),
                        None => "I have no appointment of that number. Write `list` to see yours.".to_owned(),
                    }
                }
            },
        }
    }
}
