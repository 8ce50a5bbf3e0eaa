//! The resets of other controllers that the host of one controller asked it for (Cross-Controller Reset, TP8028): those that are
//! under way, and those that ended and that the host has not read yet.
//!
//! Guarantees:
//! - At most [`RESETS_MAX`] are under way, each of another instance, and at most [`CONTROLLER_RESETS_MAX`] are remembered.
//! - What ended before its command was answered is told by the answer alone, and anything else by the log page and one event.
//! - An entry leaves the page only when the host has read that its reset ended.

use nvme::Status;
use nvme::log::{
    CONTROLLER_RESETS_MAX, ControllerReset, ControllerResetState, ControllerResets, NO_CONTROLLER,
};

use super::instance::Instance;

/// Cross-Controller Reset Limit (CCRL): resets under way at a time. As the Linux target has it.
pub(crate) const RESETS_MAX: u8 = 4;

/// The controller that a reset is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Impacted {
    /// Its identifier.
    pub(crate) id: u16,
    /// The life of it that the host means.
    pub(crate) instance: Instance,
}

/// What a reset waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The last command of a controller of this process.
    Commands,
    /// The moment when this node has the pool: from then on the drives refuse what any other node has in hand.
    Pool,
}

/// Names a reset to the command that asked for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// The resets that one controller was asked for.
#[derive(Debug, Default)]
pub(crate) struct Resets {
    /// In the order in which they began.
    entries: Vec<Entry>,
    begun: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    impacted: Impacted,
    awaited: Awaited,
    is_over: bool,
    /// The host was told that it is in progress, so the page has to tell the rest.
    is_told: bool,
}

impl Resets {
    /// Notes a reset whose command is about to wait for it.
    ///
    /// # Errors
    /// The same one is under way, as many as may be are under way, or the host has to read the log page first.
    pub(crate) fn begin(&mut self, impacted: Impacted, awaited: Awaited) -> Result<Ticket, Status> {
        let mut under_way = self.entries.iter().filter(|entry| !entry.is_over);
        if under_way.clone().any(|entry| entry.impacted == impacted) {
            return Err(Status::CROSS_CONTROLLER_RESET_IN_PROGRESS);
        }
        if under_way.nth(usize::from(RESETS_MAX) - 1).is_some() {
            return Err(Status::LIMIT_EXCEEDED);
        }
        if self.entries.len() >= CONTROLLER_RESETS_MAX {
            return Err(Status::LOG_PAGE_FULL);
        }
        self.begun += 1;
        self.entries.push(Entry {
            number: self.begun,
            impacted,
            awaited,
            is_over: false,
            is_told: false,
        });
        Ok(Ticket(self.begun))
    }

    /// The command of a reset is about to be answered: whether the answer can say that the reset is over, because it was when
    /// the command looked, or has ended since.
    pub(crate) fn answer(&mut self, ticket: &Ticket, is_over: bool) -> bool {
        let mut entries = self.entries.iter();
        let Some(at) = entries.position(|entry| entry.number == ticket.0) else {
            // This controller was reset meanwhile.
            return is_over;
        };
        let entry = &mut self.entries[at];
        if is_over || entry.is_over {
            self.entries.remove(at);
            return true;
        }
        entry.is_told = true;
        false
    }

    /// The controllers whose resets are under way, and wait for that.
    pub(crate) fn awaiting(&self, what: Awaited) -> Vec<Impacted> {
        let waits = |entry: &&Entry| !entry.is_over && entry.awaited == what;
        let waiting = self.entries.iter().filter(waits);
        waiting.map(|entry| entry.impacted).collect()
    }

    /// What the resets of these controllers waited for has happened. Whether the host has to be told.
    pub(crate) fn ended(&mut self, impacted: &[Impacted]) -> bool {
        let mut is_to_be_told = false;
        for entry in &mut self.entries {
            if !entry.is_over && impacted.contains(&entry.impacted) {
                entry.is_over = true;
                is_to_be_told |= entry.is_told;
            }
        }
        is_to_be_told
    }

    /// The log page. Unless `retain`, what it says of resets that ended is not said again.
    pub(crate) fn read(&mut self, retain: bool) -> ControllerResets {
        let told = self.entries.iter().filter(|entry| entry.is_told);
        let page = told.map(Entry::told).collect();
        if !retain {
            self.entries
                .retain(|entry| !(entry.is_told && entry.is_over));
        }
        ControllerResets(page)
    }

    /// The controller that was asked is reset: its host does not hear of these resets any more.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}

impl Entry {
    fn told(&self) -> ControllerReset {
        let state = match self.is_over {
            false => ControllerResetState::InProgress,
            true => ControllerResetState::Successful,
        };
        let is_known = self.is_over || self.awaited == Awaited::Commands;
        ControllerReset {
            cntlid: self.impacted.id,
            uniquifier: self.impacted.instance.uniquifier,
            alternate: NO_CONTROLLER,
            state: state.as_u8(),
            flags: match is_known {
                true => ControllerReset::VALIDATED | ControllerReset::INITIATED,
                // Another node's controller: nobody here knows it.
                false => 0,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(id: u16) -> Impacted {
        Impacted {
            id,
            instance: Instance {
                uniquifier: 1,
                random: u64::from(id),
            },
        }
    }

    /// A reset that the host was told is in progress.
    fn told(resets: &mut Resets, id: u16, awaited: Awaited) {
        let ticket = resets.begin(of(id), awaited).expect("room");
        assert!(!resets.answer(&ticket, false));
    }

    fn states(resets: &mut Resets, retain: bool) -> Vec<(u16, ControllerResetState)> {
        let page = resets.read(retain).0.into_iter();
        page.map(|entry| (entry.cntlid, entry.state().expect("a state")))
            .collect()
    }

    #[test]
    fn a_reset_that_ends_before_its_answer_is_told_by_the_answer_alone() {
        let mut resets = Resets::default();
        let ticket = resets.begin(of(1), Awaited::Commands).expect("room");
        assert_eq!(states(&mut resets, true), []);
        assert!(!resets.ended(&[of(1)]), "no event");
        // It ended between the command's last look and its answer.
        assert!(resets.answer(&ticket, false));
        let ticket = resets.begin(of(1), Awaited::Commands).expect("room");
        assert!(resets.answer(&ticket, true));
        assert_eq!(states(&mut resets, false), []);
    }

    #[test]
    fn a_reset_that_ends_later_is_told_once_by_the_page_and_an_event() {
        use ControllerResetState::{InProgress, Successful};
        let mut resets = Resets::default();
        told(&mut resets, 1, Awaited::Commands);
        told(&mut resets, 2, Awaited::Pool);
        assert_eq!(
            states(&mut resets, false),
            [(1, InProgress), (2, InProgress)]
        );
        assert!(!resets.ended(&[of(3)]), "another one's end");
        assert!(resets.ended(&resets.awaiting(Awaited::Pool)));
        assert!(!resets.ended(&[of(2)]), "it had ended");
        let seen = [(1, InProgress), (2, Successful)];
        assert_eq!(states(&mut resets, true), seen);
        assert_eq!(states(&mut resets, false), seen, "the page was retained");
        assert_eq!(states(&mut resets, false), [(1, InProgress)]);
        assert_eq!(resets.awaiting(Awaited::Pool), []);
        assert_eq!(resets.awaiting(Awaited::Commands), [of(1)]);
    }

    #[test]
    fn the_same_instance_is_not_reset_twice_at_a_time_and_another_one_is() {
        let mut resets = Resets::default();
        told(&mut resets, 1, Awaited::Commands);
        let again = resets.begin(of(1), Awaited::Commands);
        assert_eq!(again, Err(Status::CROSS_CONTROLLER_RESET_IN_PROGRESS));
        let mut later = of(1);
        later.instance = later.instance.next();
        assert!(resets.begin(later, Awaited::Commands).is_ok());
        assert!(resets.ended(&[of(1)]));
        assert!(resets.begin(of(1), Awaited::Commands).is_ok());
    }

    #[test]
    fn four_resets_are_under_way_at_most() {
        let mut resets = Resets::default();
        for id in 1..=4 {
            told(&mut resets, id, Awaited::Commands);
        }
        let fifth = resets.begin(of(5), Awaited::Pool);
        assert_eq!(fifth, Err(Status::LIMIT_EXCEEDED));
        assert!(resets.ended(&[of(3)]));
        assert!(resets.begin(of(5), Awaited::Pool).is_ok());
    }

    #[test]
    fn a_host_that_does_not_read_what_ended_is_refused_before_memory_grows() {
        let mut resets = Resets::default();
        for id in 1..=511 {
            told(&mut resets, id, Awaited::Commands);
            assert!(resets.ended(&[of(id)]));
        }
        let full = resets.begin(of(512), Awaited::Commands);
        assert_eq!(full, Err(Status::LOG_PAGE_FULL));
        assert_eq!(states(&mut resets, false).len(), 511);
        assert!(resets.begin(of(512), Awaited::Commands).is_ok());
    }

    #[test]
    fn a_command_from_before_a_reset_of_its_controller_disturbs_no_later_one() {
        let mut resets = Resets::default();
        let before = resets.begin(of(1), Awaited::Commands).expect("room");
        resets.clear();
        let after = resets.begin(of(1), Awaited::Commands).expect("room");
        assert!(resets.answer(&before, true));
        assert!(!resets.answer(&after, false));
        assert!(resets.ended(&[of(1)]));
    }
}
