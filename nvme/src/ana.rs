//! Asymmetric Namespace Access (Base 2.0, sections 5.16.1.13 and 8.1): the states of a group of
//! namespaces on a path, and the log page that tells them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Status;
use crate::identify::layout::{Wire, layout};

/// CMIC bit 3: the subsystem reports asymmetric access.
pub const CMIC_ANA: u8 = 1 << 3;
/// ANACAP: the five states can be reported (bits 0 to 4). Bit 6 is clear: a namespace may come to
/// another group.
pub const ANACAP_ALL_STATES: u8 = 0x1f;
/// LSP bit 0 of Get Log Page, Return Groups Only: descriptors name no namespaces.
pub const RETURN_GROUPS_ONLY: u8 = 1;

/// How a path reaches the namespaces of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum AnaState {
    /// 1: as fast as any.
    #[default]
    Optimized = 1,
    /// 2: works, but hosts should use others first.
    NonOptimized = 2,
    /// 3: does not work now.
    Inaccessible = 3,
    /// 4: never works again.
    PersistentLoss = 4,
    /// Fh: changing; hosts wait, at most for ANATT.
    Change = 0xf,
}

impl AnaState {
    /// All five.
    pub const ALL: [Self; 5] = [
        Self::Optimized,
        Self::NonOptimized,
        Self::Inaccessible,
        Self::PersistentLoss,
        Self::Change,
    ];

    /// Reads the value from the wire; `None` for the reserved ones.
    #[must_use]
    pub fn from_u8(value: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u8 == value)
    }

    /// The name in the words of the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non-optimized",
            Self::Inaccessible => "inaccessible",
            Self::PersistentLoss => "persistent-loss",
            Self::Change => "change",
        }
    }

    /// The status of a command that needs the namespace, if the path does not reach it: never with Do
    /// Not Retry, so that the host tries another path.
    #[must_use]
    pub const fn refusal(self) -> Option<Status> {
        match self {
            Self::Optimized | Self::NonOptimized => None,
            Self::Inaccessible => Some(Status::ASYMMETRIC_INACCESSIBLE),
            Self::PersistentLoss => Some(Status::ASYMMETRIC_PERSISTENT_LOSS),
            Self::Change => Some(Status::ASYMMETRIC_TRANSITION),
        }
    }
}

impl fmt::Display for AnaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not one of optimized, non-optimized, inaccessible, persistent-loss and change")]
pub struct UnknownAnaState(String);

impl FromStr for AnaState {
    type Err = UnknownAnaState;

    fn from_str(text: &str) -> Result<Self, UnknownAnaState> {
        let mut states = Self::ALL.into_iter();
        let named = states.find(|state| state.name() == text);
        named.ok_or_else(|| UnknownAnaState(text.to_owned()))
    }
}

/// Bytes in front of the groups.
const HEADER_BYTES: usize = 16;
/// Bytes of a group in front of its namespaces.
const GROUP_BYTES: usize = 32;

layout! {
    struct Header [HEADER_BYTES] {
        0..8 => change_count: u64,
        8..10 => groups: u16,
    }
}

layout! {
    struct GroupHeader [GROUP_BYTES] {
        0..4 => id: u32,
        4..8 => nsids: u32,
        8..16 => change_count: u64,
        16..17 => state: u8,
    }
}

/// A group of namespaces that share their state on every path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnaGroup {
    /// ANAGRPID, from 1.
    pub id: u32,
    /// Change count of the log when this group changed last.
    pub change_count: u64,
    /// Its state on the path that the log was read by.
    pub state: AnaState,
    /// Its namespaces that are attached to the controller, ascending.
    pub nsids: Vec<u32>,
}

/// The Asymmetric Namespace Access log page, 0Ch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AnaLog {
    /// Rises with every change of the log.
    pub change_count: u64,
    /// The groups, ascending by identifier; at most 65535 are sent.
    pub groups: Vec<AnaGroup>,
}

impl AnaLog {
    /// The page; with `groups_only` (RGO) without the namespaces.
    #[must_use]
    pub fn encode(&self, groups_only: bool) -> Vec<u8> {
        let count = self.groups.len().min(usize::from(u16::MAX));
        let mut page = vec![0; HEADER_BYTES];
        let header = Header {
            change_count: self.change_count,
            groups: u16::try_from(count).unwrap_or(u16::MAX),
        };
        header.put_fields(&mut page);
        for group in &self.groups[..count] {
            let nsids = match groups_only {
                true => &[][..],
                false => &group.nsids,
            };
            let header = GroupHeader {
                id: group.id,
                nsids: u32::try_from(nsids.len()).unwrap_or(u32::MAX),
                change_count: group.change_count,
                state: group.state as u8,
            };
            let start = page.len();
            page.resize(start + GROUP_BYTES, 0);
            header.put_fields(&mut page[start..]);
            page.extend(nsids.iter().flat_map(|nsid| nsid.to_le_bytes()));
        }
        page
    }

    /// Reads a page; `None` if it ends before its last namespace, or a state is reserved.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, mut rest) = bytes.split_at_checked(HEADER_BYTES)?;
        let header = Header::take_fields(header)?;
        let mut groups = Vec::new();
        for _ in 0..header.groups {
            let (group, behind) = rest.split_at_checked(GROUP_BYTES)?;
            let group = GroupHeader::take_fields(group)?;
            let nsids_bytes = usize::try_from(group.nsids).ok()?.checked_mul(u32::BYTES)?;
            let (nsids, behind) = behind.split_at_checked(nsids_bytes)?;
            groups.push(AnaGroup {
                id: group.id,
                change_count: group.change_count,
                state: AnaState::from_u8(group.state & 0xf)?,
                nsids: nsids.chunks_exact(u32::BYTES).map(u32::take).collect(),
            });
            rest = behind;
        }
        Some(Self {
            change_count: header.change_count,
            groups,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_log_stands_where_linux_reads_it() {
        let log = AnaLog {
            change_count: 2,
            groups: vec![
                AnaGroup {
                    id: 1,
                    change_count: 1,
                    state: AnaState::Optimized,
                    nsids: vec![1, 3],
                },
                AnaGroup {
                    id: 7,
                    change_count: 2,
                    state: AnaState::Change,
                    nsids: vec![],
                },
            ],
        };
        let page = log.encode(false);
        assert_eq!(page.len(), 16 + 32 + 8 + 32);
        assert_eq!((page[0], page[8]), (2, 2));
        assert_eq!((page[16], page[20], page[24], page[32]), (1, 2, 1, 1));
        assert_eq!((page[48], page[52]), (1, 3));
        assert_eq!((page[56], page[60], page[72]), (7, 0, 0xf));
        assert_eq!(AnaLog::decode(&page).as_ref(), Some(&log));
        let groups_only = log.encode(true);
        assert_eq!(groups_only.len(), 16 + 2 * 32);
        assert_eq!(groups_only[20], 0);
    }

    #[test]
    fn only_paths_that_work_answer_and_no_refusal_forbids_another_path() {
        for state in AnaState::ALL {
            assert_eq!(state.name().parse(), Ok(state));
            assert_eq!(AnaState::from_u8(state as u8), Some(state));
            let works = matches!(state, AnaState::Optimized | AnaState::NonOptimized);
            assert_eq!(state.refusal().is_none(), works);
            assert!(state.refusal().is_none_or(|status| !status.is_dnr()));
            assert!(state.refusal().is_none_or(|status| status.bits() >> 8 == 3));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_read_back_or_are_refused(
            head in prop::collection::vec(0u8..4, 16..100),
            tail in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let bytes = [head, tail].concat();
            if let Some(log) = AnaLog::decode(&bytes) {
                prop_assert_eq!(AnaLog::decode(&log.encode(false)), Some(log));
            }
        }
    }
}
