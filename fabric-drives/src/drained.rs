//! Machines that are to have no pool, as the node tables of sleds list them: one machine a line, with the time of the last command about
//! it, and what that was.
//!
//! ```text
//! node-a 1764445834123 +
//! node-b 1764445801877 -
//! ```
//!
//! Guarantees:
//! - What is no such line is dropped when a list is read.
//! - Lists that differ become one, in whatever order and however often they meet: of each machine the last command counts, whatever sleds
//!   it was given to.
//! - A list fits its table: where it does not, machines that were resumed are left out, the first ones first.

use std::collections::{BTreeMap, BTreeSet};

use drives::nodes::is_name;
use nvme::node_table::DRAINED_BYTES_MAX;

/// The last command about a machine. The later one is greater, and of two at the same time that which drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Command {
    /// In milliseconds since 1970, by the clock of who gave it, and later than any that it follows.
    at: u64,
    drains: bool,
}

/// A list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    commands: BTreeMap<String, Command>,
}

impl Drained {
    /// The list that others wrote.
    #[must_use]
    pub fn read(text: &[u8]) -> Self {
        let lines = text.split(|byte| *byte == b'\n');
        let lines = lines.filter_map(|line| parse(std::str::from_utf8(line).ok()?));
        let mut list = Self::default();
        for (machine, command) in lines {
            list.note(machine, command);
        }
        list.shorten();
        list
    }

    fn note(&mut self, machine: &str, command: Command) {
        let known = self.commands.entry(machine.to_owned()).or_insert(command);
        *known = command.max(*known);
    }

    /// Drains a machine, or ends that; `now` is the time in milliseconds since 1970. It counts also where an earlier command came by a clock
    /// that is ahead.
    pub fn set(&mut self, machine: &str, drains: bool, now: u64) {
        let before = self.commands.get(machine).map_or(0, |known| known.at);
        let at = now.max(before.saturating_add(1));
        self.note(machine, Command { at, drains });
        self.shorten();
    }

    /// The machines that are drained.
    #[must_use]
    pub fn machines(&self) -> BTreeSet<String> {
        let drained = self.commands.iter().filter(|(_, command)| command.drains);
        drained.map(|(machine, _)| machine.clone()).collect()
    }

    /// The list as tables have it.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let lines = self.commands.iter().map(|(machine, command)| {
            let sign = if command.drains { '+' } else { '-' };
            format!("{machine} {} {sign}", command.at)
        });
        lines.collect::<Vec<_>>().join("\n").into_bytes()
    }

    /// Both lists.
    pub fn merge(&mut self, other: &Self) {
        for (machine, command) in &other.commands {
            self.note(machine, *command);
        }
        self.shorten();
    }

    fn shorten(&mut self) {
        while self.text().len() > DRAINED_BYTES_MAX {
            let resumed = self.commands.iter().filter(|(_, command)| !command.drains);
            let first = resumed.min_by_key(|(_, command)| command.at);
            let Some(first) = first.map(|(machine, _)| machine.clone()) else {
                return;
            };
            self.commands.remove(&first);
        }
    }
}

fn parse(line: &str) -> Option<(&str, Command)> {
    let mut words = line.split(' ');
    let (machine, at, sign) = (words.next()?, words.next()?, words.next()?);
    let drains = match sign {
        "+" => true,
        "-" => false,
        _ => return None,
    };
    let at = at.parse().ok()?;
    let is_whole = words.next().is_none() && is_name(machine);
    is_whole.then_some((machine, Command { at, drains }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(text: &str) -> Drained {
        Drained::read(text.as_bytes())
    }

    #[test]
    fn of_each_machine_the_last_command_counts() {
        let mut one = list("a 5 +\nb 5 +\nc 7 -");
        let other = list("a 6 -\nb 4 -\nc 7 +\nd 1 +");
        let mut both = other.clone();
        both.merge(&one);
        one.merge(&other);
        assert_eq!(one, both);
        assert_eq!(one, list("a 6 -\nb 5 +\nc 7 +\nd 1 +"));
        assert_eq!(one.machines(), ["b", "c", "d"].map(str::to_owned).into());
    }

    #[test]
    fn a_command_counts_also_behind_one_by_a_clock_that_is_ahead() {
        let mut one = list("a 900 +");
        one.set("a", false, 5);
        one.merge(&list("a 900 +"));
        assert_eq!(one, list("a 901 -"));
    }

    #[test]
    fn what_is_no_command_is_dropped() {
        let text = b"a 1 +\n\x1b[2J 1 +\n\n\xff 1 +\nb c 1 +\nd 1 +\ne\nf 1\ng x +\nh 1 *\ni 1 + ";
        assert_eq!(Drained::read(text), list("a 1 +\nd 1 +"));
    }

    #[test]
    fn a_list_that_is_too_long_forgets_who_was_resumed_first() {
        let name = |number: u64| format!("node-{number:0>90}");
        let mut long = Drained::default();
        for number in 0..60 {
            long.set(&name(number), number % 2 == 0, 1000 + number);
        }
        assert!(long.text().len() <= DRAINED_BYTES_MAX);
        assert_eq!(long.machines().len(), 30, "all that are drained");
        assert!(long.commands.contains_key(&name(59)) && !long.commands.contains_key(&name(1)));
        let mut again = long.clone();
        again.merge(&list(&format!("{} 1001 -", name(1))));
        assert_eq!(again, long, "it comes to rest");
    }

    /// A command about a machine, given to some sleds; or what the nodes of a pool with drives on some sleds do: they tell each what the
    /// others have.
    #[derive(Clone, Debug)]
    enum Step {
        Command(u8, bool, Vec<bool>),
        Meet(Vec<bool>),
    }

    fn step() -> impl Strategy<Value = Step> {
        let some = || proptest::collection::vec(any::<bool>(), 3);
        prop_oneof![
            (0..3u8, any::<bool>(), some())
                .prop_map(|(machine, drains, sleds)| Step::Command(machine, drains, sleds)),
            some().prop_map(Step::Meet),
        ]
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_list_that_is_read_again(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let read = Drained::read(&bytes);
            prop_assert_eq!(Drained::read(&read.text()), read);
        }

        #[test]
        fn commands_by_any_sleds_end_in_one_list_with_the_last_command_about_each_machine(
            steps in proptest::collection::vec(step(), 0..40),
        ) {
            let mut sleds = vec![Drained::default(); 3];
            let mut last = BTreeMap::new();
            let meet = |sleds: &mut [Drained], there: &[bool]| {
                let mut all = Drained::default();
                for (sled, _) in sleds.iter().zip(there).filter(|(_, there)| **there) {
                    all.merge(sled);
                }
                all
            };
            for (now, step) in (1u64..).zip(steps) {
                let (mut all, there) = match &step {
                    Step::Command(_, _, there) | Step::Meet(there) => (meet(&mut sleds, there), there),
                };
                if let Step::Command(machine, drains, there) = &step
                    && there.contains(&true)
                {
                    let machine = format!("node-{machine}");
                    all.set(&machine, *drains, now);
                    last.insert(machine, *drains);
                }
                for (sled, _) in sleds.iter_mut().zip(there).filter(|(_, there)| **there) {
                    sled.clone_from(&all);
                }
            }
            let all = meet(&mut sleds, &[true; 3]);
            let drained = last.into_iter().filter(|(_, drains)| *drains);
            prop_assert_eq!(all.machines(), drained.map(|(machine, _)| machine).collect::<BTreeSet<_>>());
        }
    }
}
