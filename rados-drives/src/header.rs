//! The header of a drive: an object of that name, whose attributes say how large the drive is and who owned it last.
//!
//! | attribute | what it says |
//! |---|---|
//! | `onefold.size` | the drive's bytes, as a decimal number |
//! | `onefold.owner` | [`Owner`] |
//! | `onefold.revision` | which description of the pool the object's data are |
//! | `onefold.deferred` | which objects may have deferred writes, see the room `deferred` |
//!
//! The header's data are what the owner says of the pool, for nodes that wait for it; only the program knows what it means. Each
//! of these nodes, and the owner, has the lock of one of a few objects that are named after its number.
//!
//! The data are in objects of [`OBJECT_BYTES`], named after the drive and their number; what is not there is zeros. An object
//! takes the room of what was written to it.
//!
//! Guarantee: what is no such attribute is refused, whatever its bytes are.

use std::fmt;
use std::str::FromStr;

use drives::nodes::Process;
use uuid::Uuid;

/// Bytes of an object with data: what Ceph's own block devices (RBD) have, and few enough to be recovered in one piece.
pub(crate) const OBJECT_BYTES: u64 = 4 << 20;

/// Bytes of a drive at most: 1 EiB, so that no position overflows.
pub(crate) const DRIVE_BYTES_MAX: u64 = 1 << 60;

pub(crate) const SIZE: &str = "onefold.size";
pub(crate) const OWNER: &str = "onefold.owner";
pub(crate) const REVISION: &str = "onefold.revision";

/// Bytes of a description at most: OSDs refuse a write of more than 90 MB (`osd_max_write_size`).
pub(crate) const DESCRIPTION_BYTES_MAX: usize = 64 << 20;

/// Addresses of an owner at most: a client has two.
const ADDRESSES_MAX: usize = 8;

/// The name of the object with the header.
pub(crate) fn header_of(drive: &str) -> String {
    format!("onefold.{drive}.header")
}

/// The name of the object whose lock a node with that number has.
pub(crate) fn node_of(drive: &str, number: u16) -> String {
    format!("onefold.{drive}.node.{number}")
}

/// The name of an object with data.
pub(crate) fn object_of(drive: &str, number: u64) -> String {
    format!("onefold.{drive}.data.{number:012x}")
}

/// The size that an attribute says.
pub(crate) fn parse_size(bytes: &[u8]) -> Option<u64> {
    let size: u64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    let is_whole = size.is_multiple_of(drives::BLOCK_BYTES as u64);
    (is_whole && size <= DRIVE_BYTES_MAX).then_some(size)
}

/// Who has a drive: a pool, in a process. Its text is the cookie of the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tenant {
    pub(crate) pool: Uuid,
    pub(crate) process: Process,
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pool, self.process)
    }
}

impl FromStr for Tenant {
    type Err = NotSo;

    fn from_str(text: &str) -> Result<Self, NotSo> {
        let (pool, process) = text.split_once(' ').ok_or(NotSo)?;
        Ok(Self {
            pool: pool.parse().map_err(|_| NotSo)?,
            process: Process::parse(process).ok_or(NotSo)?,
        })
    }
}

/// A text that says something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotSo;

/// Who owned a drive last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Counts the owners: each writes one more than it found.
    pub(crate) epoch: u64,
    pub(crate) tenant: Tenant,
    /// How its client is shut out. None: it left, and nothing of it was under way.
    pub(crate) addresses: Vec<String>,
    /// There may be deferred writes that are not in place. A program that knows of none takes such an owner for a damaged one.
    pub(crate) may_defer: bool,
}

/// Behind the epoch.
const MAY_DEFER: &str = " defers";

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let may_defer = if self.may_defer { MAY_DEFER } else { "" };
        write!(f, "{}{may_defer}\n{}", self.epoch, self.tenant)?;
        let mut addresses = self.addresses.iter();
        addresses.try_for_each(|address| write!(f, "\n{address}"))
    }
}

impl Owner {
    /// What an attribute says.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.split('\n');
        let first = lines.next()?;
        let (epoch, may_defer) = match first.strip_suffix(MAY_DEFER) {
            Some(epoch) => (epoch, true),
            None => (first, false),
        };
        let epoch = epoch.parse().ok()?;
        let tenant = lines.next()?.parse().ok()?;
        let addresses: Vec<String> = lines.map(str::to_owned).collect();
        let is_sound =
            addresses.len() <= ADDRESSES_MAX && addresses.iter().all(|address| !address.is_empty());
        is_sound.then_some(Self {
            epoch,
            tenant,
            addresses,
            may_defer,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_owner_is_read_as_it_was_written() {
        for may_defer in [false, true] {
            let owner = Owner {
                epoch: 7,
                tenant: Tenant {
                    pool: Uuid::from_u128(3),
                    process: Process::own(),
                },
                addresses: vec!["10.0.0.1:0/3".to_owned(), "10.0.0.1:0/4".to_owned()],
                may_defer,
            };
            assert_eq!(Owner::parse(owner.to_string().as_bytes()), Some(owner));
        }
    }

    #[test]
    fn a_size_is_whole_blocks_that_can_be_counted() {
        assert_eq!(parse_size(b"8192"), Some(8192));
        for text in [
            "",
            "-4096",
            "4095",
            "18446744073709551616",
            "1152921504606851072",
        ] {
            assert_eq!(parse_size(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_owner_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(owner) = Owner::parse(&bytes) {
                prop_assert_eq!(Owner::parse(owner.to_string().as_bytes()), Some(owner));
            }
            let _ = parse_size(&bytes);
        }
    }
}
