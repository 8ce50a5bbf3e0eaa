//! The list of blocks that are known to be damaged.
//!
//! Guarantees: a damaged block leaves the index at once, so no new write is mapped to it. The list survives a
//! restart (a small file beside the pool), and is only a hint there: every block in it is read again first. Memory is
//! bounded by [`LISTED_MAX`]; what is beyond is an error when it is read, as all damage is.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use drives::{BLOCK_BYTES, replace_file};
use meta::{Fingerprint, NewBlock, Pba};
use serde::{Deserialize, Serialize};

use crate::hooks::{Current, Hooks};
use crate::metadata::block_table::{BlockInfo, IN_FLIGHT};
use crate::metadata::state::State;
use crate::pool::Shared;
use crate::sync::wait::lock;

/// Damaged blocks that are remembered.
const LISTED_MAX: usize = 16 * 1024;

/// Ranges of volumes that are told.
const RANGES_MAX: usize = 1000;

/// What is known of damage in a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamageStatus {
    /// Blocks that are damaged now.
    pub damaged_blocks: u64,
    /// Blocks that were healed since the pool was opened.
    pub healed_blocks: u64,
    /// Ranges of volumes that refer to damaged blocks, listed or not.
    pub ranges_total: u64,
    /// The first thousand of them.
    pub ranges: Vec<DamagedRange>,
}

impl DamageStatus {
    /// One mapping more, in their order.
    pub(crate) fn add(&mut self, volume: &str, offset: u64, goes_on: bool) {
        if goes_on {
            if self.ranges_total == self.ranges.len() as u64
                && let Some(range) = self.ranges.last_mut()
            {
                range.bytes += BLOCK_BYTES as u64;
            }
            return;
        }
        self.ranges_total += 1;
        if self.ranges.len() < RANGES_MAX {
            self.ranges.push(DamagedRange {
                volume: volume.to_owned(),
                offset,
                bytes: BLOCK_BYTES as u64,
            });
        }
    }
}

/// Bytes of a volume that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedRange {
    /// Name of the volume.
    pub volume: String,
    /// First byte.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What a damaged block should hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) crc32c: u32,
    /// Known from an earlier opening: to be read again.
    pub(crate) is_old: bool,
    /// This other block could not heal it.
    pub(crate) tried: Option<Pba>,
}

impl Known {
    /// What the row of a block says.
    pub(crate) fn of(info: &BlockInfo) -> Self {
        Self {
            fingerprint: info.fingerprint,
            crc32c: info.crc32c,
            is_old: false,
            tried: None,
        }
    }

    pub(crate) fn describes(&self, info: &BlockInfo) -> bool {
        info.references & !IN_FLIGHT > 0
            && info.references & IN_FLIGHT == 0
            && (info.fingerprint, info.crc32c) == (self.fingerprint, self.crc32c)
    }
}

/// The list.
#[derive(Default)]
pub(crate) struct Damage {
    pub(crate) blocks: BTreeMap<Pba, Known>,
    pub(crate) healed: u64,
    /// Where it is kept, if it is.
    pub(crate) file: Option<PathBuf>,
    pub(crate) is_changed: bool,
}

impl Damage {
    /// The list of an earlier opening. What the pool no longer holds leaves it when everything is loaded;
    /// what is listed does not enter the index.
    pub(crate) fn load(file: Option<PathBuf>) -> Self {
        let text = file
            .as_deref()
            .and_then(|file| std::fs::read_to_string(file).ok())
            .unwrap_or_default();
        let mut damage = Self {
            file,
            ..Self::default()
        };
        for (pba, known) in text.lines().filter_map(parse).take(LISTED_MAX) {
            damage.blocks.insert(pba, known);
        }
        damage
    }

    /// An opening found these damaged, and keeps them at once: with the batch that the store takes next they
    /// are as any other block. They are read again before anything is believed of them.
    pub(crate) fn found_at_opening(&mut self, found: Vec<NewBlock>) {
        for new in found {
            if self.blocks.len() >= LISTED_MAX && !self.blocks.contains_key(&new.pba) {
                break;
            }
            let known = Known {
                fingerprint: new.fingerprint,
                crc32c: new.crc32c,
                is_old: true,
                tried: None,
            };
            self.blocks.insert(new.pba, known);
            self.is_changed = true;
        }
        if !self.is_changed {
            return;
        }
        let Some(file) = &self.file else { return };
        match replace_file(file, self.text().as_bytes()) {
            Ok(()) => self.is_changed = false,
            // Maintenance tries again.
            Err(error) => tracing::warn!(%error, "the list of damaged blocks cannot be kept"),
        }
    }

    /// All that are listed.
    pub(crate) fn listed(&self) -> impl Iterator<Item = Pba> + '_ {
        self.blocks.keys().copied()
    }

    pub(crate) fn count(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Whether a block is listed with what it holds now.
    pub(crate) fn describes(&self, pba: Pba, info: &BlockInfo) -> bool {
        let known = self.blocks.get(&pba);
        known.is_some_and(|known| known.describes(info))
    }

    /// Whether a block is listed.
    pub(crate) fn contains(&self, pba: Pba) -> bool {
        self.blocks.contains_key(&pba)
    }

    pub(crate) fn insert(&mut self, pba: Pba, info: &BlockInfo) -> bool {
        if self.blocks.len() >= LISTED_MAX {
            return false;
        }
        let known = Known {
            fingerprint: info.fingerprint,
            crc32c: info.crc32c,
            is_old: false,
            tried: None,
        };
        let is_new = self.blocks.insert(pba, known).is_none();
        self.is_changed |= is_new;
        is_new
    }

    pub(crate) fn remove(&mut self, pba: Pba) -> bool {
        let is_known = self.blocks.remove(&pba).is_some();
        self.is_changed |= is_known;
        is_known
    }

    pub(crate) fn text(&self) -> String {
        let mut text =
            "# Damaged blocks: DRIVE:BLOCK[/SLOT] FINGERPRINT CRC32C. Written by the program.\n"
                .to_owned();
        for (pba, known) in &self.blocks {
            let _ = writeln!(text, "{pba} {} {:08x}", known.fingerprint, known.crc32c);
        }
        text
    }
}

fn parse(line: &str) -> Option<(Pba, Known)> {
    let mut words = line.split_ascii_whitespace();
    let pba = words.next()?.parse().ok()?;
    let fingerprint = u128::from_str_radix(words.next()?, 16).ok()?;
    let crc32c = u32::from_str_radix(words.next()?, 16).ok()?;
    let known = Known {
        fingerprint: Fingerprint(fingerprint.to_be_bytes()),
        crc32c,
        is_old: true,
        tried: None,
    };
    Some((pba, known))
}

impl Shared {
    /// A read found a block whose content is not what its row says. The state is locked.
    pub(crate) fn found_damage(&self, state: &mut State, pba: Pba) {
        let info = state.blocks.get(pba);
        if info.references & IN_FLIGHT != 0 {
            return;
        }
        // Content that is written again must not be taken for stored there.
        state.unindex(pba);
        state.on_disk_index.hide(pba);
        Current::observe(|| state.on_disk_index.displaces(true));
        if lock(&self.damage).insert(pba, &info) {
            lock(&self.alert_log).block(pba);
        }
    }

    /// A copy of a block is damaged; if it is the only one, the block is.
    pub(crate) fn found_wrong_copy(&self, state: &mut State, pba: Pba) {
        match self.drives.readable(pba).len() {
            0 | 1 => self.found_damage(state, pba),
            _ => self.drives.suspects.add([pba]),
        }
    }

    /// A block is unreadable because a host wants it so.
    pub(crate) fn list_damage(&self, pba: Pba, info: &BlockInfo) {
        lock(&self.damage).insert(pba, info);
    }

    /// A block that may be listed as damaged holds what it should.
    pub(crate) fn is_well(&self, state: &mut State, pba: Pba) {
        if !lock(&self.damage).remove(pba) {
            return;
        }
        state.index_again(pba);
    }
}
