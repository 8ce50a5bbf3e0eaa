//! What `onefold estimate` found, as a table and as JSON.

use std::path::PathBuf;

use dedup::Block;
use serde::Serialize;

/// What deduplication and compression would save on what was read. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Estimate {
    /// Files and devices that were read.
    pub files: u64,
    /// Their sizes together, each hard-linked file once.
    pub logical_bytes: u64,
    /// How much of that no space is taken for (holes of sparse files); zeros, too.
    pub hole_bytes: u64,
    /// For each block size; files are laid out from a block's start on, and their ends filled with zeros.
    pub grains: Vec<Grain>,
    /// What was left out, and why.
    pub skipped: Skipped,
    /// Whether a bound made counts of hard links inexact.
    pub hard_links_inexact: bool,
    /// Some of the blocks that are no zeros, each as likely as any other.
    #[serde(skip)]
    pub sample: Vec<Block>,
}

/// Figures for one block size. Errors are what 95 of 100 estimates keep; 0 where counts are exact.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Grain {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// All blocks.
    pub blocks: u64,
    /// Blocks of zeros, which are not stored; holes count among them.
    pub zero_blocks: u64,
    /// Distinct blocks among the others.
    pub unique_blocks: u64,
    /// Bytes stored when every block is stored once.
    pub deduplicated_bytes: u64,
    /// Its error, plus or minus.
    pub deduplicated_error_bytes: u64,
    /// Bytes stored when, besides, each is compressed with LZ4 where that saves an eighth at least.
    pub compressed_bytes: u64,
    /// Its error, plus or minus.
    pub compressed_error_bytes: u64,
}

impl Grain {
    /// Bytes of all blocks but those of zeros.
    #[must_use]
    pub fn nonzero_bytes(&self) -> u64 {
        (self.blocks - self.zero_blocks) * self.block_bytes
    }
}

/// What was not read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Symbolic links, sockets, pipes and devices inside folders.
    pub special_files: u64,
    /// Further names of files that were read under another name.
    pub hard_links: u64,
    /// Folders on which another file system is mounted.
    pub mounts: u64,
    /// Files and folders that could not be read.
    pub unreadable: u64,
    /// The first of them, with the reason.
    pub unreadable_first: Vec<Unreadable>,
}

/// A file or folder that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    /// The path.
    pub path: PathBuf,
    /// What the system said.
    pub reason: String,
}
