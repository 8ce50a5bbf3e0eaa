//! Ways to break the engine on purpose, in tests only: each proves that the simulation would notice.

use std::cell::Cell;

/// A rule that is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Freed blocks are reused at once, not when their record is durable (I3).
    ReuseBeforeDurable,
    /// Blocks of writes and discards whose outcome nobody knows are reused at once.
    ReuseUnknown,
    /// Recovery believes records whose data may not have reached the drives (I2).
    TrustUnflushed,
    /// Recovery takes what the drive lost for never written, though only the program ended (I1).
    UndoAfterCrash,
    /// Recovery takes what cannot be read for never written (I1).
    UndoUnreadable,
    /// Recovery takes what never arrived before a loss of power for damage (I2).
    ForgetPowerLoss,
    /// A flush does not flush the drives (I1).
    FlushJournalOnly,
    /// The journal says that data are durable which only its next sync makes so (I2). Few stories of the simulation notice:
    /// `log::flush` has a test of its own.
    NoteUnsynced,
    /// The store takes changes whose records are not stable in the journal yet, which proves then that
    /// the two are of different moments (a pool that does not open).
    StoreBeforeJournal,
    /// A failed write keeps the references it took (I4).
    KeepReferences,
    /// Writes do not lock their range (I2, and lost updates).
    NoRangeLock,
    /// Others may share a block before it is written.
    ShareInFlight,
    /// The last reference of a block goes while others look for its content (I4). Only reactors side by side meet that.
    LoseUnguarded,
    /// Writes map into a range that is being trimmed in the background (lost updates).
    MapWhatIsTrimmed,
    /// What is found by its fingerprint is taken for equal, though it was compared and is not.
    IgnoreMismatch,
    /// The range of an acknowledged write is unlocked before its duplicates are compared.
    UnlockBeforeCompared,
    /// What is known of blocks leaves memory though commands hold references there (I4).
    EvictHeld,
    /// What is known of blocks leaves memory before the store has it (I4).
    EvictUnstoredBlocks,
    /// What was read from the store of blocks is believed, whatever happened meanwhile (I4).
    BelieveStaleBlocks,
    /// Records are appended without a look whether what they change is in memory (I4).
    AppendBlindly,
    /// New blocks that the index has no room for are not remembered (lost duplicates).
    ForgetUnindexed,
    /// Blocks that are found by an index entry are not remembered while commands hold them (lost duplicates).
    ForgetHeldIndexEntries,
    /// The block that an index entry leads to is taken without a look at it (another block's content).
    BelieveIndexEntries,
    /// What the store said of a content is believed, though index entries were written since (lost duplicates).
    BelieveOldAnswers,
    /// A record counts as appended when it is written, though one before it is not (I1).
    BelieveHoles,
    /// Pages of maps leave memory before the store has what changed in them (lost mappings).
    EvictUnstored,
    /// Pages of maps leave memory while commands rely on what they found there (mixed-up mappings).
    EvictInUse,
    /// What a map copies of an inherited page is not counted (I4).
    CopyUncounted,
    /// An entry of a map's own hides all that ancestors have of its page (lost mappings).
    PartHidesRest,
    /// A map that became a parent is not noted where it has entries (old data come back).
    ForgetNewOwner,
    /// What a map does not hide of its parent is taken away there, too (lost mappings).
    DropWhatShows,
    /// What hides a mapping of a parent is not on stable drives when that is taken away (lost mappings). No story of the
    /// simulation is so unlucky: `background::merging` has a test of its own.
    DropUnflushed,
    /// What is unmapped in a map with a parent is taken for inherited (old data come back).
    UnmappedInherits,
    /// Snapshots of one moment are in the journal one by one (half of them after a crash).
    SnapshotOneByOne,
    /// A parent's pages are copied to its own parent though that has other children (their content changes).
    LiftThoughSeen,
    /// A parent is deleted while children need it (lost mappings).
    FreeParentInUse,
    /// A page is copied before the fork is durable (I2). No story of the simulation is so unlucky:
    /// `background::bring_near` has a test of its own.
    CopyUnflushed,
    /// A volume's policy changes while writes are on their way and comparisons are to come (old data after a crash). No
    /// story of the simulation is so unlucky: `io::verify` has a test of its own.
    ChangePolicyAtOnce,
    /// A pack is freed with the first of its fragments that goes, and not with the last one.
    FreePackInUse,
    /// Metadata opens whatever the drives' labels say (an older copy, or an import of an older epoch, goes on where a newer one
    /// was).
    EpochIgnored,
    /// Changes are acknowledged before it is durable that a drive which lacks them is offline (old data come back from it).
    ForgetOffline,
    /// A rebuild does not wait for writes that began before it, and did not go to its drive.
    RebuildBesideWrites,
    /// A drive is online before what was copied to it is on stable storage.
    RebuildUnflushed,
    /// A copy that is being made counts though a write missed it (lost data). No story of the simulation is so unlucky:
    /// `background::moving` has a test of its own.
    MissIncoming,
    /// The old place of a segment is free before its new copy is made and proven (lost data).
    FreeBeforeProven,
    /// A copy that is being made counts before what was copied to it is on stable storage.
    MoveUnflushed,
    /// A segment is copied beside writes that began before, and did not go to the new place.
    MoveBesideWrites,
    /// A place is another segment's before all have left who may use it for the one before. `background::moving` has a
    /// test of its own.
    ReusePlaceAtOnce,
    /// Recovery looks at one copy of what was not flushed (the others may hold something else).
    ProveOneCopy,
    /// What does not match its checksum is returned (I8).
    ReturnDamaged,
    /// Damaged blocks are not healed when their content is written again.
    NeverHeal,
    /// Of a content that was stored once more while its older block was not known, and cannot become one with it, the
    /// newer block is not found. `background::deferred_dedup` has a test of its own.
    ForgetUnmerged,
}

thread_local! {
    static BROKEN: Cell<Option<Broken>> = const { Cell::new(None) };
}

/// Breaks the engine on this thread, until the next call.
pub(crate) fn set(broken: Option<Broken>) {
    BROKEN.set(broken);
}

/// Whether this rule is broken on this thread.
pub(crate) fn is(broken: Broken) -> bool {
    BROKEN.get() == Some(broken)
}

/// Whether any rule is broken on this thread.
pub(crate) fn is_active() -> bool {
    BROKEN.get().is_some()
}
