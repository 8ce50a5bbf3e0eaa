//! What is to be done next: which kind of command, where, and until when.

use std::{collections::HashSet, time::Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Contents, Limit, Options, Pattern, content::Content};

/// Read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
}

/// What a task does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// This command on this slot of `block_bytes`.
    Run { kind: Kind, slot: u64 },
    /// Every slot that would do is busy: look again in a moment.
    Wait,
    /// Nothing is left to do.
    Done,
}

enum Phase {
    Load,
    ReadBack { slots: std::vec::IntoIter<u64> },
}

/// The course of a run.
pub(super) struct Plan {
    phase: Phase,
    pattern: Pattern,
    slots: u64,
    next_slot: u64,
    deadline: Option<Instant>,
    operations_left: u64,
    limit: Limit,
    busy: HashSet<u64>,
    known: Known,
    random: ChaCha8Rng,
    stopped: bool,
}

/// What was written last, slot by slot; only kept when it will be verified.
struct Known {
    kept: bool,
    /// One past the content's number; 0 for nothing known, `u64::MAX` for zeroes.
    numbers: Vec<u64>,
    per_slot: usize,
    scratch: Contents,
}

const NOTHING: u64 = 0;
const ZERO: u64 = u64::MAX;

impl Plan {
    pub(super) fn new(options: &Options, range_bytes: u64) -> Self {
        let slots = range_bytes / options.block_bytes as u64;
        let per_slot = options
            .block_bytes
            .div_ceil(super::content::SUB_BLOCK_BYTES);
        let known = if options.verify {
            slots as usize * per_slot
        } else {
            0
        };
        Self {
            phase: Phase::Load,
            pattern: options.pattern,
            slots,
            next_slot: 0,
            deadline: None,
            operations_left: match options.limit {
                Limit::Bytes(bytes) => bytes.div_ceil(options.block_bytes as u64),
                Limit::Time(_) => u64::MAX,
            },
            limit: options.limit,
            busy: HashSet::new(),
            known: Known {
                kept: options.verify,
                numbers: vec![NOTHING; known],
                per_slot,
                scratch: Vec::new(),
            },
            random: ChaCha8Rng::seed_from_u64(options.seed ^ 0x706c_616e),
            stopped: false,
        }
    }

    /// The next command; its slot is busy until [`Plan::written`] or [`Plan::finished`].
    pub(super) fn next(&mut self, now: Instant) -> Operation {
        if self.stopped {
            return Operation::Done;
        }
        if let Phase::ReadBack { slots } = &mut self.phase {
            return match slots.next() {
                Some(slot) => Operation::Run {
                    kind: Kind::Read,
                    slot,
                },
                None => Operation::Done,
            };
        }
        if let Limit::Time(time) = self.limit
            && now >= *self.deadline.get_or_insert(now + time)
        {
            return Operation::Done;
        }
        if self.operations_left == 0 {
            return Operation::Done;
        }
        let kind = match self.pattern {
            Pattern::Read | Pattern::RandRead => Kind::Read,
            Pattern::Write | Pattern::RandWrite => Kind::Write,
            Pattern::Mixed | Pattern::RandMixed => {
                if self.random.random() {
                    Kind::Read
                } else {
                    Kind::Write
                }
            }
        };
        let random = matches!(
            self.pattern,
            Pattern::RandRead | Pattern::RandWrite | Pattern::RandMixed
        );
        // A few tries are enough unless the range is hardly larger than what is in flight.
        for _ in 0..8 {
            let slot = if random {
                self.random.random_range(0..self.slots)
            } else {
                let slot = self.next_slot;
                self.next_slot = (slot + 1) % self.slots;
                slot
            };
            if self.busy.insert(slot) {
                self.operations_left -= 1;
                return Operation::Run { kind, slot };
            }
        }
        Operation::Wait
    }

    /// A write ended: what lies there now, or `None` when that is unknown.
    pub(super) fn written(&mut self, slot: u64, contents: Option<Contents>) {
        self.busy.remove(&slot);
        if !self.known.kept {
            return;
        }
        let start = slot as usize * self.known.per_slot;
        for (index, number) in self.known.numbers[start..start + self.known.per_slot]
            .iter_mut()
            .enumerate()
        {
            *number = match contents.as_ref().and_then(|all| all.get(index)) {
                None => NOTHING,
                Some(Content::Zero) => ZERO,
                Some(Content::Number(number)) => number + 1,
            };
        }
    }

    /// A read ended.
    pub(super) fn finished(&mut self, slot: u64) {
        self.busy.remove(&slot);
    }

    /// What lies in a slot, when it was written by this run and is to be verified.
    pub(super) fn contents(&mut self, slot: u64) -> Option<&[Content]> {
        if !self.known.kept {
            return None;
        }
        let start = slot as usize * self.known.per_slot;
        let numbers = &self.known.numbers[start..start + self.known.per_slot];
        if numbers.contains(&NOTHING) {
            return None;
        }
        self.known.scratch.clear();
        self.known
            .scratch
            .extend(numbers.iter().map(|number| match *number {
                ZERO => Content::Zero,
                number => Content::Number(number - 1),
            }));
        Some(&self.known.scratch)
    }

    /// From now on everything that was written is read once.
    pub(super) fn start_read_back(&mut self) {
        let per_slot = self.known.per_slot;
        let written: Vec<u64> = self
            .known
            .numbers
            .chunks(per_slot)
            .enumerate()
            .filter(|(_, numbers)| !numbers.contains(&NOTHING))
            .map(|(slot, _)| slot as u64)
            .collect();
        self.phase = Phase::ReadBack {
            slots: written.into_iter(),
        };
    }

    /// Nothing more is to be started.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }
}
