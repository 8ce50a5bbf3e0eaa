//! How fast a drive was filled: how long the next rebuild takes follows from it.
//!
//! Guarantees: only a rebuild counts that filled a drive that was new to the pool, in one go, with [`COPIED_MIN`] bytes at
//! least. One that compares what is there already says nothing of writing, and a short one is mostly flushes. The last one
//! survives a restart.

use std::collections::BTreeMap;
use std::time::Duration;

use meta::SettingChanges;

use crate::SUB_BLOCK_BYTES;
use crate::background::Background;
use crate::drive_io::segments::SEGMENT_BLOCKS;
use crate::pool::Shared;
use crate::sync::wait::lock;

/// A segment: what is less is not measured.
const COPIED_MIN: u64 = SEGMENT_BLOCKS * SUB_BLOCK_BYTES as u64;

/// The setting that keeps it: bytes and microseconds, little endian. In the store at once, and in no record of the journal.
const KEY: &str = "engine.rebuild_speed";

/// A rebuild that was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebuildSpeed {
    /// Bytes that were copied to the drive.
    pub copied_bytes: u64,
    /// How long that took, in microseconds, with the rests that it made while hosts were at work. Above 0.
    pub took_micros: u64,
}

impl RebuildSpeed {
    /// Bytes in a second, 1 at least.
    #[must_use]
    pub fn bytes_per_second(&self) -> u64 {
        let rate = u128::from(self.copied_bytes) * 1_000_000 / u128::from(self.took_micros.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX).max(1)
    }

    /// What the settings of the store say; what cannot be is not known.
    pub(crate) fn stored_in(settings: &BTreeMap<String, Vec<u8>>) -> Option<Self> {
        let bytes: &[u8; 16] = settings.get(KEY)?.as_slice().try_into().ok()?;
        let (copied, took) = bytes.split_at(8);
        let speed = Self {
            copied_bytes: u64::from_le_bytes(copied.try_into().ok()?),
            took_micros: u64::from_le_bytes(took.try_into().ok()?),
        };
        (speed.copied_bytes > 0 && speed.took_micros > 0).then_some(speed)
    }

    /// The change of settings that keeps it.
    fn stored(&self) -> SettingChanges {
        let mut value = self.copied_bytes.to_le_bytes().to_vec();
        value.extend_from_slice(&self.took_micros.to_le_bytes());
        [(KEY.to_owned(), Some(value))].into_iter().collect()
    }
}

/// A drive that was new to the pool has so many bytes now, which took so long.
pub(crate) async fn note(
    shared: &Shared,
    background: &Background,
    copied_bytes: u64,
    took: Duration,
) {
    if copied_bytes < COPIED_MIN {
        return;
    }
    let speed = RebuildSpeed {
        copied_bytes,
        took_micros: u64::try_from(took.as_micros()).unwrap_or(u64::MAX).max(1),
    };
    *lock(&background.rebuild_speed) = Some(speed);
    let store = shared.store.clone();
    let written = shared.block_on(move || store.put_settings(&speed.stored()));
    if let Err(error) = written.await {
        tracing::warn!(%error, "the speed of the rebuild is not known after a restart: it cannot be stored");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_comes_back_and_what_cannot_be_is_not_believed() {
        let speed = RebuildSpeed {
            copied_bytes: 3 << 30,
            took_micros: 1_500_000,
        };
        assert_eq!(speed.bytes_per_second(), 2 << 30);
        let stored: BTreeMap<String, Vec<u8>> = speed
            .stored()
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
            .collect();
        assert_eq!(RebuildSpeed::stored_in(&stored), Some(speed));
        for wrong in [
            vec![],
            vec![0; 16],
            vec![1; 15],
            vec![1; 17],
            [[1; 8], [0; 8]].concat(),
        ] {
            let settings = BTreeMap::from([(KEY.to_owned(), wrong.clone())]);
            assert_eq!(RebuildSpeed::stored_in(&settings), None, "{wrong:?}");
        }
    }
}
