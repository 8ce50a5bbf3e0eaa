//! What happened in stories, so that a run can prove that it tried everything.

/// What happened, for the report at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(super) lives: u64,
    pub(super) crashes: u64,
    pub(super) power_losses: u64,
    /// Changes that were acknowledged.
    pub(super) changes: u64,
    /// Copies that were acknowledged.
    pub(super) copies: u64,
    /// Volumes that were cloned.
    pub(super) forks: u64,
    /// Snapshots that were taken, and volumes that were rolled back to one.
    pub(super) snapshots: u64,
    pub(super) rollbacks: u64,
    /// Changes of policies.
    pub(super) policies: u64,
    /// Compare and Write commands that wrote.
    pub(super) exchanges: u64,
    /// Changes that found no space.
    pub(super) full: u64,
    /// Commands that a failing drive, journal or store ended.
    pub(super) failed: u64,
    /// Commands whose future was dropped.
    pub(super) dropped: u64,
    /// Openings of pools whose labels took no epoch, which were read and not written.
    pub(super) only_read: u64,
    /// Openings of pools whose segments have copies, and drives that were offline then.
    pub(super) mirrored: u64,
    pub(super) offline: u64,
    /// Drives that came online again.
    pub(super) rebuilt: u64,
    /// Drives that were lost with a crash, and those without which the pool did not open.
    pub(super) lost: u64,
    pub(super) lost_refused: u64,
    /// Lost drives that came back as they were, and those that others took the place of.
    pub(super) returned: u64,
    pub(super) replaced: u64,
    /// Pools that were imported from their drives, and of these those where a drive that holds the same was lost.
    pub(super) imports: u64,
    pub(super) imports_forced: u64,
    /// Imports that were refused, because a lost drive holds something newer, and of metadata from before an opening.
    pub(super) imports_refused: u64,
    pub(super) imports_older: u64,
    /// Segments that were moved, withdrawn or placed, and drives that were found empty.
    pub(super) moved: u64,
    pub(super) emptied: u64,
    /// Changes of the redundancy.
    pub(super) redundancies: u64,
    /// Records that were replayed, and sub-blocks in them that were taken back.
    pub(super) replayed: u64,
    pub(super) unproven: u64,
    /// Blocks of them that were damaged before they were flushed.
    pub(super) unproven_damaged: u64,
    pub(super) added_drives: u64,
    /// Batches of several commands, and commands that could not go on with theirs.
    pub(super) shared_batches: u64,
    pub(super) went_alone: u64,
    /// Duplicates that were compared, and those that were none.
    pub(super) compared: u64,
    pub(super) collisions: u64,
    /// Pages of maps that left memory.
    pub(super) evicted: u64,
    /// Contents that the store had an index entry for when it was asked.
    pub(super) found_on_disk: u64,
    /// Reads that met a damaged block, and blocks that were healed.
    pub(super) unreadable: u64,
    pub(super) healed: u64,
    /// Scrubs that came to their end.
    pub(super) scrubs: u64,
    /// Copies of the metadata that were restored, and halves of two that were refused.
    pub(super) restored: u64,
    pub(super) refused: u64,
    /// Metadata that was refused because the drives knew a later opening.
    pub(super) outdated: u64,
    /// Copies of drives that were refused because the metadata knew later labels, and those that were used all the same.
    pub(super) outdated_drives: u64,
    pub(super) restored_drives: u64,
    /// Those of the refused that were copied in the life of the pool that ended cleanly.
    pub(super) closed_without: u64,
    /// A sum over all steps: which task went on, among how many.
    pub(super) steps: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.lives += other.lives;
        self.crashes += other.crashes;
        self.power_losses += other.power_losses;
        self.changes += other.changes;
        self.copies += other.copies;
        self.forks += other.forks;
        self.snapshots += other.snapshots;
        self.rollbacks += other.rollbacks;
        self.policies += other.policies;
        self.exchanges += other.exchanges;
        self.full += other.full;
        self.failed += other.failed;
        self.dropped += other.dropped;
        self.only_read += other.only_read;
        self.mirrored += other.mirrored;
        self.offline += other.offline;
        self.rebuilt += other.rebuilt;
        self.lost += other.lost;
        self.lost_refused += other.lost_refused;
        self.returned += other.returned;
        self.replaced += other.replaced;
        self.imports += other.imports;
        self.imports_forced += other.imports_forced;
        self.imports_refused += other.imports_refused;
        self.imports_older += other.imports_older;
        self.moved += other.moved;
        self.emptied += other.emptied;
        self.redundancies += other.redundancies;
        self.replayed += other.replayed;
        self.unproven += other.unproven;
        self.unproven_damaged += other.unproven_damaged;
        self.added_drives += other.added_drives;
        self.shared_batches += other.shared_batches;
        self.went_alone += other.went_alone;
        self.compared += other.compared;
        self.collisions += other.collisions;
        self.evicted += other.evicted;
        self.found_on_disk += other.found_on_disk;
        self.unreadable += other.unreadable;
        self.healed += other.healed;
        self.scrubs += other.scrubs;
        self.restored += other.restored;
        self.refused += other.refused;
        self.outdated += other.outdated;
        self.outdated_drives += other.outdated_drives;
        self.restored_drives += other.restored_drives;
        self.closed_without += other.closed_without;
        self.steps = self.steps.wrapping_add(other.steps);
    }
}
