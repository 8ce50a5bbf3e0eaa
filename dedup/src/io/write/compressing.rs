//! What of a batch is compressed: contents that seem to be new, of volumes that ask for it.
//!
//! It is done before the look-up that takes blocks and outside of the state's lock: what turns out to be
//! known meanwhile was compressed for nothing, and nothing else comes of it.

use std::collections::HashSet;

use super::{Batch, Item, Job};
use crate::content::compress::Algorithm;
use crate::content::packing::Fragment;
use crate::io::packing::Packing;
use crate::metadata::on_disk_index::Sought;
use crate::sync::wait::yield_once;

/// Contents that are compressed before other tasks run: about 0.1 ms with LZ4.
const COMPRESS_AT_ONCE: usize = 16;

impl Batch {
    /// Compresses what seems to be new of volumes that ask for it, and plans packs.
    pub(super) async fn compress(&mut self) {
        self.packing = Packing::default();
        let mut lists: Vec<(String, Vec<Fragment>)> = Vec::new();
        for (count, (job, item, algorithm)) in (1..).zip(self.to_compress()) {
            let job = &self.jobs[job];
            let block = job.blocks().get(item - job.items.start);
            if let Some(bytes) = block.and_then(|block| algorithm.compress(block)) {
                let domain = job.domain();
                let at = lists.iter().position(|(other, _)| *other == domain);
                let at = at.unwrap_or_else(|| {
                    lists.push((domain, Vec::new()));
                    lists.len() - 1
                });
                lists[at].1.push(Fragment {
                    item,
                    algorithm,
                    bytes,
                });
            }
            if count % COMPRESS_AT_ONCE == 0 {
                yield_once().await;
            }
        }
        let lists = lists.into_iter().map(|(_, list)| list);
        self.packing = Packing::plan(lists, |bytes| self.shared.try_bounce(bytes));
    }

    /// Items that are worth a look, and their jobs: one of each content.
    fn to_compress(&self) -> Vec<(usize, usize, Algorithm)> {
        let algorithm = |job: &Job| {
            let command = job.command.as_ref().filter(|command| !command.is_mark)?;
            command.volume.compression()
        };
        let mut found = Vec::new();
        if self.jobs.iter().all(|job| algorithm(job).is_none()) {
            return found;
        }
        let mut seen = HashSet::new();
        let state = self.shared.state.share();
        for (number, job) in self.jobs.iter().enumerate() {
            let Some(algorithm) = algorithm(job) else {
                continue;
            };
            for at in job.items.clone() {
                let Item {
                    is_zero,
                    fingerprint,
                    taken,
                    answer,
                    ..
                } = &self.items[at];
                if *is_zero || taken.is_some() {
                    continue;
                }
                let is_hashed = fingerprint.is_some();
                // What the store is to be asked for comes again.
                let is_known = || state.seek(fingerprint, *answer) != Sought::Nowhere;
                if !is_hashed || (!is_known() && seen.insert(*fingerprint)) {
                    found.push((number, at, algorithm));
                }
            }
        }
        found
    }
}
