//! Which start of the machine a pool was opened in: whether power may have been lost since.
//!
//! A write completes on the drive before its record is appended, and both survive the end of the program
//! (`kill -9`, a panic): what was written to a buffered drive is in the system's page cache, what was written
//! past the cache is in the device, and the journal is in the page cache. All of that lasts as long as the
//! machine runs. So a block that was not flushed and does not hold what its record says has one of two
//! reasons: power was lost in between, and the write never arrived; or the drive lost it, which is damage.
//!
//! The kernel makes a new identifier at each start, and never the same again. An opening stores it together
//! with the journal's new epoch, so it describes exactly the records that follow. At the next opening:
//!
//! * Same identifier, stored with the epoch of the records that are replayed: the machine ran all the time.
//! * Anything else: power may have been lost. That is the case after a restart of the machine, for a pool that
//!   moved to another machine (also if it comes back: the other machine's opening began a new epoch), where the
//!   identifier cannot be read, and where the program before this rule had the pool open. A container shows its
//!   machine's identifier, or one of its own for each start; both are right.
//!
//! A drive that loses power alone (a shelf, a target behind a network) while the machine runs on is not
//! noticed: what it lost counts as damage then, and reads as an error, never as older data.

use std::collections::BTreeMap;

use meta::{Checkpoint, SettingChanges};
use uuid::Uuid;

/// Where the kernel says it: 36 characters, the same until it is started again (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The setting that is stored with each new epoch: the epoch, little endian, and the identifier.
const KEY: &str = "engine.opened";

/// One start of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(Uuid);

impl BootId {
    /// The start that this process runs in; `None` if the kernel does not tell.
    #[must_use]
    pub fn current() -> Option<Self> {
        Self::parse(&std::fs::read_to_string(BOOT_ID).ok()?)
    }

    /// A start with this identifier, as a simulated machine has one; `None` for one that says nothing.
    #[must_use]
    pub fn from_uuid(uuid: Uuid) -> Option<Self> {
        (!uuid.is_nil()).then_some(Self(uuid))
    }

    fn parse(text: &str) -> Option<Self> {
        Self::from_uuid(Uuid::try_parse(text.trim_end()).ok()?)
    }
}

/// What becomes of the setting when a new epoch begins.
pub(crate) fn remember(
    settings: &mut SettingChanges,
    checkpoint: Checkpoint,
    boot: Option<BootId>,
) {
    let value = boot.map(|BootId(uuid)| {
        let mut value = checkpoint.epoch.to_le_bytes().to_vec();
        value.extend_from_slice(uuid.as_bytes());
        value
    });
    settings.insert(KEY.to_owned(), value);
}

/// Whether power may have been lost since the records of a checkpoint's epoch were appended. `stored`: the
/// settings of the store that has this checkpoint.
pub(crate) fn may_have_lost_power(
    stored: &BTreeMap<String, Vec<u8>>,
    checkpoint: Checkpoint,
    boot: Option<BootId>,
) -> bool {
    let mut expected = SettingChanges::new();
    remember(&mut expected, checkpoint, boot);
    let expected = expected.remove(KEY).flatten();
    expected.is_none() || stored.get(KEY) != expected.as_ref()
}

#[cfg(test)]
mod tests {
    use meta::Position;

    use super::*;

    fn boot(number: u128) -> Option<BootId> {
        BootId::from_uuid(Uuid::from_u128(number))
    }

    fn at(epoch: u32) -> Checkpoint {
        Checkpoint {
            position: Position::START,
            epoch,
            last_epoch: None,
        }
    }

    /// Whether an opening in `now` takes power for lost, after one in `before` that began epoch 7, when the
    /// store has `epoch`.
    fn is_lost(before: Option<BootId>, now: Option<BootId>, epoch: u32) -> bool {
        let mut settings = SettingChanges::new();
        remember(&mut settings, at(7), before);
        let stored = settings
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)));
        may_have_lost_power(&stored.collect(), at(epoch), now)
    }

    #[test]
    fn only_the_same_start_of_the_machine_in_the_same_epoch_is_no_loss_of_power() {
        assert!(!is_lost(boot(5), boot(5), 7));
        assert!(
            is_lost(boot(5), boot(6), 7),
            "the machine was started again"
        );
        assert!(
            is_lost(boot(5), boot(5), 8),
            "another program opened the pool in between, perhaps on another machine"
        );
        assert!(is_lost(None, boot(5), 7), "nothing was known then");
        assert!(is_lost(boot(5), None, 7), "nothing is known now");
        assert!(is_lost(None, None, 7));
        assert!(
            may_have_lost_power(&BTreeMap::new(), at(7), boot(5)),
            "a pool of the program before"
        );
    }

    #[test]
    fn the_kernels_identifier_is_read_and_what_says_nothing_is_not_believed() {
        let text = "52c8e5ee-6d2b-4a6f-8f5e-0d6a3a6f2a11\n";
        assert!(BootId::parse(text).is_some());
        assert_eq!(BootId::parse(text), BootId::parse(text.trim_end()));
        for text in [
            "",
            "\n",
            "unknown",
            "00000000-0000-0000-0000-000000000000\n",
        ] {
            assert_eq!(BootId::parse(text), None, "{text:?}");
        }
    }
}
