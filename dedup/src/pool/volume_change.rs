//! What subscribers are told of volumes.

use meta::VolumeInfo;

/// What happened to a volume, for subscribers (the target tells its hosts).
#[derive(Clone, Debug)]
pub struct VolumeChange {
    /// What happened.
    pub kind: VolumeChangeKind,
    /// The volume after the change.
    pub info: VolumeInfo,
}

/// The kinds of change of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeChangeKind {
    /// It can be used from now on.
    Created,
    /// Its size changed.
    Resized,
    /// Its name changed: hosts do not see names.
    Renamed,
    /// What is written to it follows another policy: hosts do not see that.
    PolicyChanged,
    /// It has the content, and the size, of one of its snapshots.
    RolledBack,
    /// It cannot be used any more; its blocks are freed in the background.
    Deleted,
}
