//! The drives of a pool, where segments lie on them, and the one way to read and write blocks of several drives.
//!
//! Guarantees: a reader names contents by their addresses. It need not know on which drives they are, nor whether a content
//! has a block of its own or shares one with others. What a command moves from and to several drives goes out at once. Of a
//! block with several copies a read is good if one of them is.

pub(crate) mod arrangement;
pub(crate) mod copysets;
pub(crate) mod drive_list;
pub(crate) mod drive_state;
pub(crate) mod fetch;
pub(crate) mod hedge;
pub(crate) mod labels;
pub(crate) mod layout;
pub(crate) mod read_times;
pub(crate) mod reader;
mod room;
pub(crate) mod scatter;
pub(crate) mod segments;
pub(crate) mod suspects;

use drives::Drive;
use meta::Pba;

use crate::{EngineError, LABEL_BLOCKS, Result};

/// Blocks of a drive that can hold data.
pub(crate) fn data_blocks_of(drive: &dyn Drive) -> Result<u64> {
    match drive.blocks().checked_sub(LABEL_BLOCKS) {
        Some(blocks @ 1..=Pba::BLOCK_MAX) => Ok(blocks),
        _ => Err(EngineError::invalid(format!(
            "drive {} has {} blocks; from {} to 2^44 are possible",
            drive.name(),
            drive.blocks(),
            LABEL_BLOCKS + 1
        ))),
    }
}
