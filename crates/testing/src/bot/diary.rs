use std::fmt::Write as _;
use std::time::Duration;

/// What happened so far, for people: who said what and when, and what became of the bot.
#[derive(Default)]
pub(super) struct Diary {
    entries: Vec<(Duration, String)>,
    /// How many calls of the channel are in it.
    pub(super) sends: usize,
}

impl Diary {
    pub(super) fn write(&mut self, at: Duration, entry: String) {
        self.entries.push((at, entry));
    }

    pub(super) fn read(&self) -> String {
        if self.entries.is_empty() {
            return "  (nothing was said)\n".to_owned();
        }
        let mut text = String::new();
        for (at, entry) in &self.entries {
            let (minutes, seconds) = (at.as_secs() / 60, at.as_secs() % 60);
            let written = writeln!(text, "  {minutes}:{seconds:02}.{:03}  {entry}", at.subsec_millis());
            debug_assert!(written.is_ok(), "writing to a String never fails");
        }
        text
    }
}
