//! What a node says of itself in the node tables of its pool's drives.
//!
//! ```text
//! line 1  the process ([`Process`])
//! line 2  its state, one space, the epoch in which it has the pool, as decimal digits; 0 for none
//! rest    what it says to the other nodes; only the program knows what that means
//! ```
//!
//! Guarantee: what is no such text is taken for that of a node of which nothing is known.

use drives::nodes::Process;

/// Bytes of what a node says to others at most; an entry has room for 4,080, and the lines before take less than 300.
pub(crate) const SAYS_BYTES_MAX: usize = 3700;

/// What a node does with the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It waits.
    Standby,
    /// It takes the pool, and opens it in this epoch; 0: it does not know yet in which.
    Takes(u32),
    /// It serves the pool, in this epoch.
    Serves(u32),
    /// It served the pool in this epoch, and ended in order.
    Left(u32),
}

impl NodeState {
    const fn name(self) -> &'static str {
        match self {
            Self::Standby => "standby",
            Self::Takes(_) => "takes",
            Self::Serves(_) => "serves",
            Self::Left(_) => "left",
        }
    }

    /// The epoch in which it has the pool, or had it, or opens it; 0 for none.
    pub(crate) const fn epoch(self) -> u32 {
        match self {
            Self::Standby => 0,
            Self::Takes(epoch) | Self::Serves(epoch) | Self::Left(epoch) => epoch,
        }
    }

    fn parse(name: &str, epoch: u32) -> Option<Self> {
        let all = [
            Self::Standby,
            Self::Takes(epoch),
            Self::Serves(epoch),
            Self::Left(epoch),
        ];
        all.into_iter().find(|state| state.name() == name)
    }
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) process: Process,
    pub(crate) state: NodeState,
    pub(crate) says: Vec<u8>,
}

impl Said {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let Self {
            process,
            state,
            says,
        } = self;
        let mut bytes = format!("{process}\n{} {}\n", state.name(), state.epoch()).into_bytes();
        bytes.extend(says);
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut parts = bytes.splitn(3, |byte| *byte == b'\n');
        let process = std::str::from_utf8(parts.next()?).ok()?;
        let state = std::str::from_utf8(parts.next()?).ok()?;
        let (state, epoch) = state.split_once(' ')?;
        Some(Self {
            process: Process::parse(process)?,
            state: NodeState::parse(state, epoch.parse().ok()?)?,
            says: parts.next()?.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_node_says_is_read_as_it_was_written() {
        for state in [
            NodeState::Standby,
            NodeState::Takes(0),
            NodeState::Takes(6),
            NodeState::Serves(7),
            NodeState::Left(8),
        ] {
            let said = Said {
                process: Process::own(),
                state,
                says: b"any\nbytes\n\xff".to_vec(),
            };
            assert_eq!(Said::parse(&said.to_bytes()), Some(said));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_say_something_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(said) = Said::parse(&bytes) {
                prop_assert_eq!(Said::parse(&said.to_bytes()), Some(said));
            }
        }
    }
}
