//! How the new blocks of a batch go to the drives: with their checksums, straight from the buffers of its commands, all
//! drives at once.

use drives::GatherExtent;
use reactor::Buffer;

use super::{Batch, Crc, Job, New};
use crate::content::fingerprint;
use crate::drive_io::scatter::{self, OfDrive};
use crate::drive_io::segments::Place;
use crate::pool::alerts::Action;
use crate::{Result, SUB_BLOCK_BYTES};

impl Batch {
    /// Computes the checksums of what is to be stored.
    pub(super) fn checksum(&mut self) {
        for New { job, item, .. } in self.new.iter() {
            let job = &self.jobs[*job as usize];
            let at = *item as usize - job.items.start;
            if let (Some(block), Some(command)) = (job.blocks().get(at), &job.command) {
                let known = command.checksums.as_ref().and_then(|known| known.get(at));
                let crc32c = known.map_or_else(|| fingerprint::crc32c(block), |known| *known);
                let is_mark = command.is_mark;
                self.items[*item as usize].crc = Crc::Known(if is_mark { !crc32c } else { crc32c });
            }
        }
        for at in 0..self.items.len() {
            if let Crc::Of(other) = self.items[at].crc {
                self.items[at].crc = self.items[other as usize].crc;
            }
        }
    }

    /// Writes the new blocks.
    pub(super) async fn write_new(&mut self) -> Result<()> {
        if self.new.is_empty() {
            return Ok(());
        }
        let packed = self.new.iter().filter(|new| new.pba.is_fragment());
        self.packing.build(packed.map(|new| new.item as usize));
        if self.gate.is_none() {
            self.gate = Some(self.shared.drives.gate.enter());
        }
        let groups = self.gather();
        // No command was acknowledged yet, so the buffers have the numbers of their jobs.
        debug_assert!(!self.jobs.iter().any(Job::is_told));
        let mut buffers: Vec<Buffer> = self
            .commands()
            .filter_map(|command| command.buf.take())
            .collect();
        // Behind them, as the last one.
        let packs = self.packing.take_buffer();
        let has_packs = packs.is_some();
        buffers.extend(packs);
        self.writing = true;
        let shared = self.shared.clone();
        let failed;
        (failed, buffers) = scatter::write(&shared.drives, buffers, &groups).await;
        self.writing = false;
        if has_packs {
            self.packing.put_back(buffers.pop());
        }
        for (command, buf) in self.commands().zip(buffers) {
            command.buf = Some(buf);
        }
        for group in &groups {
            if failed.iter().all(|(drive, _)| *drive != group.drive) {
                shared
                    .alerts
                    .drive_worked(group.drive.into(), Action::Write);
            }
        }
        let in_doubt = failed.iter().filter(|(_, error)| error.is_in_doubt());
        self.in_doubt = in_doubt.map(|(drive, _)| *drive).collect();
        let mut result = Ok(());
        for (drive, error) in &failed {
            let error_of_drive = shared.write_error(*drive, error);
            if shared.go_on_without(*drive, error).await || self.gives_up_move_to(*drive) {
                continue;
            }
            if result.is_ok() {
                result = Err(error_of_drive);
            }
        }
        result
    }

    /// If all that a drive missed was for the copy of a segment that is being made there, that copy never counts: then true.
    fn gives_up_move_to(&self, drive: u16) -> bool {
        let drives = &self.shared.drives;
        let is_elsewhere = |new: &New| {
            drives
                .places(new.pba)
                .iter()
                .all(|place| place.drive != drive)
        };
        self.new.iter().all(is_elsewhere) && drives.spoil_incoming()
    }

    /// The new blocks by drive, with all of their copies; those that follow each other on a drive and in a buffer as
    /// one extent.
    fn gather(&self) -> Vec<OfDrive<GatherExtent>> {
        let packs = self.jobs.len() as u32;
        let mut groups: Vec<OfDrive<GatherExtent>> = Vec::with_capacity(1);
        for New { job, item, pba } in &self.new {
            let (job, at) = match pba.slot() {
                None => {
                    let first = self.jobs[*job as usize].items.start;
                    (job, (*item as usize - first) * SUB_BLOCK_BYTES)
                }
                // The first fragment writes the pack of all.
                Some(0) => (&packs, self.packing.offset_of(*item as usize).unwrap_or(0)),
                Some(_) => continue,
            };
            let buffer_offset = at as u32;
            for Place { drive, block } in self.shared.drives.writable(*pba).iter().copied() {
                let extents = scatter::of_drive(&mut groups, drive);
                if let Some(last) = extents.last_mut()
                    && last.buffer == *job
                    && last.block + u64::from(last.blocks) == block
                    && last.buffer_offset + last.blocks * SUB_BLOCK_BYTES as u32 == buffer_offset
                {
                    last.blocks += 1;
                    continue;
                }
                extents.push(GatherExtent {
                    block,
                    buffer: *job,
                    buffer_offset,
                    blocks: 1,
                });
            }
        }
        groups
    }
}
