//! What a server says of its device: features and configuration space (VIRTIO 1.2, sections 5.2.3 and 5.2.4), what is used
//! of them, and whether the device is the same one as before.
//!
//! Guarantee: any bytes are a device or an error.

use drives::BLOCK_BYTES;

/// Bytes of the configuration space that are asked for: up to `write_zeroes_may_unmap` and its padding, which all servers have.
pub(crate) const CONFIG_BYTES: usize = 60;

/// Bytes of the answer to `VIRTIO_BLK_T_GET_ID` (5.2.6).
pub(crate) const ID_BYTES: usize = 20;

/// Unit of sectors, whatever the block size (5.2.4).
pub(crate) const SECTOR_BYTES: u64 = 512;

/// Features (`VIRTIO_BLK_F_`, `VIRTIO_F_`, `VHOST_USER_F_`).
mod feature {
    pub(super) const SIZE_MAX: u64 = 1 << 1;
    pub(super) const SEG_MAX: u64 = 1 << 2;
    pub(super) const RO: u64 = 1 << 5;
    pub(super) const BLK_SIZE: u64 = 1 << 6;
    pub(super) const FLUSH: u64 = 1 << 9;
    pub(super) const CONFIG_WCE: u64 = 1 << 11;
    pub(super) const MQ: u64 = 1 << 12;
    pub(super) const DISCARD: u64 = 1 << 13;
    pub(super) const INDIRECT_DESC: u64 = 1 << 28;
    pub(super) const EVENT_IDX: u64 = 1 << 29;
    pub(super) const PROTOCOL: u64 = 1 << 30;
    pub(super) const VERSION_1: u64 = 1 << 32;
    /// All that this front end uses. `CONFIG_WCE` is only looked at: the cache stays as it is.
    pub(super) const USED: u64 = SIZE_MAX
        | SEG_MAX
        | BLK_SIZE
        | FLUSH
        | MQ
        | DISCARD
        | INDIRECT_DESC
        | EVENT_IDX
        | PROTOCOL
        | VERSION_1;
}

/// What can be discarded at a time, in sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiscardLimits {
    /// Of one segment.
    pub(crate) sectors: u64,
    /// Where segments begin and end.
    pub(crate) alignment: u64,
}

/// What does not change while a drive is open, and what is used of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    sectors: u64,
    block_bytes: u32,
    id: [u8; ID_BYTES],
    /// Completed writes may be in a cache that loses them with the power.
    pub(crate) has_cache: bool,
    /// Bytes of one data segment, and how many of them a command may have.
    pub(crate) segment_bytes: usize,
    pub(crate) segments: usize,
    pub(crate) discard: Option<DiscardLimits>,
    pub(crate) has_indirect: bool,
    /// Both sides tell by an index when they want to be told of something (2.7.7 and 2.7.10); else by a flag.
    pub(crate) has_event_index: bool,
    /// As the configuration space says.
    pub(crate) queues: u16,
}

/// Refuses a server that cannot be talked with.
///
/// # Errors
/// What it lacks, and what to do.
pub(crate) fn check_protocol(features: u64) -> Result<(), String> {
    let lacks = |what: &str| {
        Err(format!(
            "the server does not offer {what}, without which it cannot be a drive; use SPDK, qemu-storage-daemon or another \
             server of vhost-user-blk"
        ))
    };
    if features & feature::VERSION_1 == 0 {
        return lacks("VIRTIO_F_VERSION_1");
    }
    if features & feature::PROTOCOL == 0 {
        return lacks("VHOST_USER_F_PROTOCOL_FEATURES");
    }
    Ok(())
}

/// The features that are accepted of those that are offered.
pub(crate) fn accepted(features: u64) -> u64 {
    features & feature::USED
}

fn number<const N: usize>(space: &[u8; CONFIG_BYTES], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&space[at..at + N]);
    bytes
}

impl Facts {
    /// The device with these features and this configuration space.
    ///
    /// # Errors
    /// Why no drive can be made of it, and what to do.
    pub(crate) fn new(features: u64, space: &[u8; CONFIG_BYTES]) -> Result<Self, String> {
        let has = |bit: u64| features & bit != 0;
        let word = |at| u32::from_le_bytes(number(space, at));
        let sectors = u64::from_le_bytes(number(space, 0));
        if sectors.checked_mul(SECTOR_BYTES).is_none() {
            return Err(format!(
                "the server tells a size of {sectors} sectors, which no device has"
            ));
        }
        if has(feature::RO) {
            return Err("the device can only be read: export it for writing".to_owned());
        }
        let block_bytes = match has(feature::BLK_SIZE) {
            true => word(20),
            false => SECTOR_BYTES as u32,
        };
        if !block_bytes.is_power_of_two() || !(512..=BLOCK_BYTES as u32).contains(&block_bytes) {
            return Err(format!(
                "the device has blocks of {block_bytes} bytes, and a drive is written in blocks of {BLOCK_BYTES}: export it \
                 with 512 or 4096"
            ));
        }
        // QEMU's storage daemon offers a limit and leaves it at 0.
        let segment_bytes = match word(8) {
            bytes if bytes > 0 && has(feature::SIZE_MAX) => bytes as usize,
            _ => usize::MAX,
        };
        let segments = match word(12) {
            segments if segments > 0 && has(feature::SEG_MAX) => segments as usize,
            _ => 1,
        };
        if segment_bytes < BLOCK_BYTES {
            return Err(format!(
                "the device takes segments of at most {segment_bytes} bytes, and a block of a drive has {BLOCK_BYTES}"
            ));
        }
        // Without FLUSH and CONFIG_WCE the device writes through (5.2.5); with CONFIG_WCE alone the byte tells.
        if !has(feature::FLUSH) && has(feature::CONFIG_WCE) && space[32] != 0 {
            return Err(
                "the device has a write cache and no way to flush it: switch the cache off, or use another server".to_owned(),
            );
        }
        let discard = DiscardLimits {
            sectors: u64::from(word(36)),
            alignment: u64::from(word(44).max(1)),
        };
        Ok(Self {
            sectors,
            block_bytes,
            id: [0; ID_BYTES],
            has_cache: has(feature::FLUSH),
            segment_bytes,
            segments,
            discard: Some(discard)
                .filter(|limits| has(feature::DISCARD) && limits.sectors >= limits.alignment),
            has_indirect: has(feature::INDIRECT_DESC),
            has_event_index: has(feature::EVENT_IDX),
            queues: match has(feature::MQ) {
                true => u16::from_le_bytes(number(space, 34)).max(1),
                false => 1,
            },
        })
    }

    /// The same device with this identity, as it tells.
    pub(crate) fn with_id(self, id: [u8; ID_BYTES]) -> Self {
        Self { id, ..self }
    }

    /// Blocks of a drive that lie in it whole.
    pub(crate) fn drive_blocks(&self) -> u64 {
        self.sectors * SECTOR_BYTES / BLOCK_BYTES as u64
    }

    /// What it calls itself: at most 20 characters, and those that are not plain shown as escapes.
    fn shown_id(&self) -> String {
        let end = self.id.iter().position(|byte| *byte == 0);
        self.id[..end.unwrap_or(ID_BYTES)]
            .escape_ascii()
            .to_string()
    }

    /// Why what is found now is not what was opened.
    pub(crate) fn changed(&self, now: &Self) -> Option<String> {
        if self.id != now.id {
            return Some(format!(
                "another device is behind this socket now ('{}') than the one that was opened ('{}'): nothing is written to \
                 it; put the right one back, or replace the drive",
                now.shown_id(),
                self.shown_id()
            ));
        }
        if (self.sectors, self.block_bytes) != (now.sectors, now.block_bytes) {
            return Some(format!(
                "the device has {} sectors in blocks of {} bytes now, and had {} in blocks of {} when it was opened: nothing \
                 is written to it; undo that, or start the daemon again if it was made larger",
                now.sectors, now.block_bytes, self.sectors, self.block_bytes
            ));
        }
        if now.segment_bytes < self.segment_bytes || (now.has_cache && !self.has_cache) {
            let text = "the server can do less than when the drive was opened, or caches what it did not: start the daemon \
                        again, which takes it as it is";
            return Some(text.to_owned());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: u64 = feature::VERSION_1 | feature::PROTOCOL | feature::BLK_SIZE | feature::FLUSH;

    fn space(changes: &[(usize, &[u8])]) -> [u8; CONFIG_BYTES] {
        let mut space = [0; CONFIG_BYTES];
        space[..8].copy_from_slice(&800_u64.to_le_bytes());
        space[20..24].copy_from_slice(&512_u32.to_le_bytes());
        for (at, bytes) in changes {
            space[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        space
    }

    #[test]
    fn a_device_that_cannot_be_a_drive_is_refused_with_the_reason() {
        let facts = Facts::new(GOOD, &space(&[])).expect("a drive");
        assert_eq!((facts.drive_blocks(), facts.queues), (100, 1));
        let refused = [
            (GOOD | feature::RO, space(&[]), "only be read"),
            (
                GOOD,
                space(&[(20, &8192_u32.to_le_bytes())]),
                "blocks of 8192",
            ),
            (GOOD, space(&[(20, &[0; 4])]), "blocks of 0"),
            (GOOD, space(&[(0, &[0xff; 8])]), "no device has"),
            (
                GOOD | feature::SIZE_MAX,
                space(&[(8, &[0, 2, 0, 0])]),
                "at most 512",
            ),
            (
                GOOD & !feature::FLUSH | feature::CONFIG_WCE,
                space(&[(32, &[1])]),
                "no way to flush",
            ),
        ];
        for (features, space, reason) in refused {
            let error = Facts::new(features, &space).expect_err(reason);
            assert!(error.contains(reason), "{error}");
        }
        check_protocol(feature::VERSION_1).expect_err("no protocol features");
        check_protocol(feature::PROTOCOL).expect_err("an old device");
    }

    #[test]
    fn a_device_without_flush_writes_through() {
        let features = GOOD & !feature::FLUSH;
        assert!(
            !Facts::new(features, &space(&[]))
                .expect("a drive")
                .has_cache
        );
        let features = features | feature::CONFIG_WCE;
        assert!(
            !Facts::new(features, &space(&[]))
                .expect("a drive")
                .has_cache
        );
        assert!(Facts::new(GOOD, &space(&[])).expect("a drive").has_cache);
    }

    #[test]
    fn discards_of_no_sectors_are_no_discards() {
        let features = GOOD | feature::DISCARD;
        assert_eq!(
            Facts::new(features, &space(&[])).expect("a drive").discard,
            None
        );
        let some = space(&[(36, &[16, 0, 0, 0]), (44, &[8, 0, 0, 0])]);
        let limits = Facts::new(features, &some).expect("a drive").discard;
        let expected = DiscardLimits {
            sectors: 16,
            alignment: 8,
        };
        assert_eq!(limits, Some(expected));
        assert_eq!(Facts::new(GOOD, &some).expect("a drive").discard, None);
    }

    #[test]
    fn another_device_or_size_is_a_change() {
        let facts = Facts::new(GOOD, &space(&[])).expect("a drive");
        assert_eq!(facts.changed(&facts.clone()), None);
        let other = facts.clone().with_id(*b"other\n..............");
        let text = facts.changed(&other).expect("another");
        assert!(text.contains(r"('other\n"), "{text}");
        let smaller = Facts::new(GOOD, &space(&[(0, &[1, 0])])).expect("a drive");
        assert!(facts.changed(&smaller).is_some());
    }

    proptest! {
        #[test]
        fn any_configuration_is_a_device_or_an_error(features: u64, bytes in prop::collection::vec(any::<u8>(), CONFIG_BYTES)) {
            let space = <[u8; CONFIG_BYTES]>::try_from(bytes).expect("as many");
            if let Ok(facts) = Facts::new(features, &space) {
                prop_assert!(facts.segment_bytes >= BLOCK_BYTES);
                let _ = facts.drive_blocks();
            }
        }
    }
}
