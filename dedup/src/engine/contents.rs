//! How much of some data the pool has already.

use meta::Fingerprint;
use reactor::Buffer;

use crate::content::fingerprint;
use crate::io::find::find_blocks;
use crate::volumes::admin::check_name;
use crate::{Engine, EngineError, MAX_COMMAND_BYTES, Result};

/// What a domain has of some blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownContents {
    /// Blocks that are all zeros, and take no room in any pool.
    pub zeros: u64,
    /// Blocks whose content the domain has.
    pub known: u64,
}

impl Engine {
    /// Counts the contents of these whole sub-blocks that a domain has; an empty name is the pool's own. What is found is read and proven.
    /// Nothing is written, and nothing of the data is kept.
    ///
    /// # Errors
    /// `Invalid` for more than one command has, for parts of blocks, or for no name of a domain; or the store cannot be asked.
    pub async fn count_known(&self, domain: &str, data: Buffer) -> (Result<KnownContents>, Buffer) {
        let shared = &self.shared;
        let is_whole = data.len().is_multiple_of(drives::BLOCK_BYTES);
        if !is_whole || data.len() > MAX_COMMAND_BYTES {
            let text = format!(
                "{} bytes are no whole blocks, or more than the {MAX_COMMAND_BYTES} that can be looked for at a time",
                data.len()
            );
            return (Err(EngineError::invalid(text)), data);
        }
        if !domain.is_empty()
            && let Err(error) = check_name(domain, "domain")
        {
            return (Err(error), data);
        }
        let hasher = shared.domains.hasher(domain);
        let blocks = fingerprint::split(&data);
        let mut fingerprints = vec![Fingerprint::NONE; blocks.len()];
        let mut counted = KnownContents::default();
        hasher.look(blocks, |index, fingerprint| match fingerprint {
            Some(fingerprint) => fingerprints[index] = fingerprint,
            None => counted.zeros += 1,
        });
        // What is found has the same fingerprint, so it is what the buffer holds.
        let (found, data) = find_blocks(shared, &hasher, &fingerprints, data).await;
        let counted = found.map(|found| {
            counted.known = found.into_iter().filter(|found| *found).count() as u64;
            counted
        });
        (counted, data)
    }
}
