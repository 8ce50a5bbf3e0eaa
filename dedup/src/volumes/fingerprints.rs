//! The fingerprints of a volume's domain, for who asks another pool for contents.

use meta::Fingerprint;
use reactor::Buffer;

use super::Volume;
use crate::content::fingerprint;
use crate::io::find::find_blocks;
use crate::{EngineError, MAX_COMMAND_BYTES, Result};

impl Volume {
    /// The fingerprints of whole sub-blocks, in order, by the key of the volume's domain.
    pub fn fingerprints(&self, data: &[u8]) -> Vec<Fingerprint> {
        let hasher = self.core.hasher(&self.shared.domains);
        let mut all = Vec::with_capacity(data.len() / drives::BLOCK_BYTES);
        hasher.batch(fingerprint::split(data), |fingerprint| {
            all.push(fingerprint)
        });
        all
    }

    /// Proves the key of the volume's domain to another pool that has it, too. Who does not have it learns nothing of it.
    pub fn key_proof(&self, nonce: &[u8; 32]) -> [u8; 32] {
        self.shared.domains.proof(&self.info().domain, nonce)
    }

    /// Reads the contents of the volume's domain that have these fingerprints, each to its place in the buffer. Whether each
    /// was found: what was not is left as it was.
    ///
    /// # Errors
    /// The store cannot be asked, or there are more than one command has, or as the buffer has room for.
    pub async fn find(
        &self,
        fingerprints: &[Fingerprint],
        buf: Buffer,
    ) -> (Result<Vec<bool>>, Buffer) {
        let bytes = fingerprints.len() * drives::BLOCK_BYTES;
        if bytes > MAX_COMMAND_BYTES || bytes > buf.len() {
            let text = format!(
                "{} contents are more than can be looked for at a time",
                fingerprints.len()
            );
            return (Err(EngineError::invalid(text)), buf);
        }
        let hasher = self.core.hasher(&self.shared.domains);
        find_blocks(&self.shared, hasher, fingerprints, buf).await
    }
}
