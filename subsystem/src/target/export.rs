//! A volume as servers of exports use it: what a virtual machine or a client of another protocol may do to it.
//!
//! A server asks [`Target::export_shape`] what it offers, opens an [`ExportedVolume`] on each reactor that serves it, and
//! waits for changes by [`Target::changes`].
//!
//! Guarantees:
//! - Every request passes the same `Admission` as a host's command. To reservations an export is a host that has not
//!   registered. It takes no writes if it is read-only, shows a snapshot, or if any namespace of its volume is write
//!   protected.
//! - [`ExportedVolume::hold_back`] waits for the limits of the volume, which exports share with hosts, and while guarantees
//!   are not kept, for those. A request that waits holds no buffer.
//! - A request sees the configuration of its moment: an export that was deleted, or whose volume is gone, refuses.
//! - Ranges are in sectors of 512 bytes, whatever the LBA size of the volume is. A request of any length is made of pieces
//!   that the engine takes; nobody sees half a piece.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use dedup::{EngineError, MAX_COMMAND_BYTES, SECTOR_BYTES, Volume};
pub use dedup::{ErrorKind, Extents};
use reactor::{Buffer, BufferPool};
use reservations::{HostId, Watch};
use tokio::sync::watch;
use uuid::Uuid;

use crate::admission::{Access, Admission, Refusal};
use crate::catalog::{Catalog, ExportConfig, WriteProtect};
use crate::counters::{QueueCounters, VolumeCounters};
use crate::errors::Failure;
use crate::latency::Operation;
use crate::target::Target;
use crate::target::live_catalog::LiveCatalog;
pub use crate::throttle::Pass;
use crate::throttle::{By, Throttles};

pub use crate::target::export_socket::bind_socket;

/// Bytes of a sector, the grain of all ranges.
pub const SECTOR: u64 = SECTOR_BYTES as u64;

/// The longest piece of data that [`ExportedVolume::read`] and [`ExportedVolume::write`] take.
pub const PIECE_BYTES_MAX: usize = MAX_COMMAND_BYTES;

/// The host identifier of all exports: no host can have it, so nobody can register it.
const NOBODY: HostId = Uuid::nil();

/// What an export offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportShape {
    /// The volume's identity.
    pub volume: Uuid,
    /// Its size.
    pub size_bytes: u64,
    /// The size of its logical blocks, which its users should keep to.
    pub lba_bytes: u32,
    /// It takes no writes now.
    pub read_only: bool,
}

/// What an export is called, and what it can be compared with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportNames {
    /// The volume's name, or `VOLUME@NAME` of a snapshot.
    pub volume: String,
    /// The volume's snapshots, by their own names; of a snapshot, the others of its volume.
    pub snapshots: Vec<(String, Uuid)>,
}

/// Why a request on an export failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportError {
    /// The export or its volume is gone, or waits for the rest of an image.
    Gone,
    /// It takes no writes.
    ReadOnly,
    /// A host's reservation keeps it out.
    Reserved,
    /// The range is not of whole sectors, or not within the volume.
    OutOfRange,
    /// The engine's.
    Engine(ErrorKind),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("the volume is gone"),
            Self::ReadOnly => f.write_str("the volume takes no writes here"),
            Self::Reserved => f.write_str("a host's reservation keeps it out"),
            Self::OutOfRange => f.write_str("the range is outside of the volume"),
            Self::Engine(kind) => write!(f, "the pool refuses: {kind:?}"),
        }
    }
}

impl std::error::Error for ExportError {}

impl From<EngineError> for ExportError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error.kind)
    }
}

/// Whether the volume takes no writes by this export.
fn is_read_only(catalog: &Catalog, export: &ExportConfig, volume: &Volume) -> bool {
    let is_protected = |subsystem: &crate::catalog::SubsystemConfig| {
        let mut namespaces = subsystem.namespaces.values();
        namespaces.any(|it| it.volume == export.volume && it.write_protect != WriteProtect::Off)
    };
    export.read_only
        || !volume.is_writable()
        || catalog.subsystems.values().any(|it| is_protected(it))
}

impl Target {
    /// What an export offers now; `None` if it, or its volume, is not there.
    #[must_use]
    pub fn export_shape(&self, export: u16) -> Option<ExportShape> {
        let live = self.live();
        let export = live.catalog.exports.get(&export)?;
        let volume = live.volume(export.volume)?;
        let info = volume.info();
        Some(ExportShape {
            volume: info.uuid,
            size_bytes: info.size_bytes,
            lba_bytes: info.lba_bytes,
            read_only: is_read_only(&live.catalog, export, volume),
        })
    }

    /// What an export is called now, and with `snapshots` also what it can be compared with; `None` as for its shape.
    #[must_use]
    pub fn export_names(&self, export: u16, snapshots: bool) -> Option<ExportNames> {
        let live = self.live();
        let export = live.catalog.exports.get(&export)?;
        let info = live.volume(export.volume)?.info();
        let mut names = ExportNames {
            volume: info.name.clone(),
            snapshots: Vec::new(),
        };
        if snapshots {
            let origin = info.snapshot.map_or(info.id, |of| of.volume);
            let all = self.describe(|pool| pool.snapshots()).into_iter();
            let others = all.filter(|it| {
                it.uuid != info.uuid && it.snapshot.is_some_and(|of| of.volume == origin)
            });
            let named = others.filter_map(|it| {
                let (_, name) = it.name.split_once('@')?;
                Some((name.to_owned(), it.uuid))
            });
            names.snapshots = named.collect();
        }
        Some(names)
    }

    /// Opens an export on this reactor. It may be there or not: each request looks.
    ///
    /// # Errors
    /// This thread is no reactor's.
    pub fn open_export(self: &Arc<Self>, export: u16) -> Result<ExportedVolume, Failure> {
        let reactor = reactor::current();
        let reactor = reactor.ok_or_else(|| {
            Failure::new(ErrorKind::Internal, "exports are opened on reactors alone")
        })?;
        Ok(ExportedVolume {
            counters: self.health.enrol(reactor.name()),
            buffers: reactor.buffers().clone(),
            target: self.clone(),
            export,
            known: RefCell::default(),
        })
    }

    /// Told whenever the configuration or a volume changed, such as its size.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.published.subscribe()
    }
}

/// A volume as one server on one reactor uses it.
pub struct ExportedVolume {
    target: Arc<Target>,
    export: u16,
    buffers: BufferPool,
    counters: Arc<QueueCounters>,
    /// The volume as it was in a generation of the target.
    known: RefCell<Option<(u64, Rc<Known>)>>,
}

struct Known {
    /// At sector grain.
    volume: Volume,
    admission: Admission,
    throttles: Throttles,
    counters: Arc<VolumeCounters>,
}

impl Known {
    fn new(target: &Target, live: &LiveCatalog, id: u16) -> Option<Self> {
        let export = live.catalog.exports.get(&id)?;
        let volume = live.volume(export.volume)?;
        let info = volume.info();
        let write_protect = match is_read_only(&live.catalog, export, volume) {
            true => WriteProtect::On,
            false => WriteProtect::Off,
        };
        Some(Self {
            admission: Admission {
                size_bytes: info.size_bytes,
                lba_bytes: SECTOR_BYTES,
                write_protect,
                reservations: Watch::new(target.reservations.of(info.uuid), NOBODY),
            },
            throttles: target.throttles.of(info.uuid, By::Export(id)),
            counters: target.health.enrol_volume(info.uuid),
            volume: volume.at_sectors(),
        })
    }
}

/// A request that is under way; it is counted when it ends well.
struct Underway<'a> {
    of: &'a ExportedVolume,
    known: Rc<Known>,
    since: Instant,
}

impl Underway<'_> {
    fn done(self, operation: Operation, bytes: u64) {
        let took = reactor::now().saturating_duration_since(self.since);
        self.of.counters.count(operation, bytes);
        self.known.counters.count(operation, bytes, took);
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.of.counters.ended_commands.add(1);
    }
}

impl ExportedVolume {
    /// Memory for data, of this reactor.
    #[must_use]
    pub fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// The volume, as it is now.
    fn known(&self) -> Result<Rc<Known>, ExportError> {
        // Read before the look-up: the next request sees a change in between.
        let generation = self.target.generation();
        let mut slot = self.known.borrow_mut();
        let fresh = slot.take().filter(|(seen, _)| *seen == generation);
        let known = match fresh {
            Some((_, known)) => known,
            None => {
                let known = Known::new(&self.target, &self.target.live(), self.export);
                Rc::new(known.ok_or(ExportError::Gone)?)
            }
        };
        *slot = Some((generation, known.clone()));
        Ok(known)
    }

    /// Waits until the limits of the volume allow a request that moves so many bytes: before it has a buffer, and whatever
    /// it may do afterwards. Dropped, it gives its place to others. What it gives is kept until the request is done: by that
    /// guarantees see that it is under way.
    #[must_use]
    pub async fn hold_back(&self, bytes: u64) -> Option<Pass> {
        // One that is gone refuses what comes next.
        let known = self.known().ok()?;
        if known.throttles.is_empty() {
            return None;
        }
        let mut now = reactor::now();
        let mut turn = known.throttles.queue_up(now, bytes);
        let mut is_held = false;
        while let Some(wait) = turn.wait(now) {
            is_held = true;
            reactor::sleep(wait).await;
            now = reactor::now();
        }
        if is_held {
            turn.held(now);
        }
        turn.pass(now)
    }

    /// The volume, if it may be used so.
    fn admit(&self, access: Access) -> Result<Rc<Known>, ExportError> {
        let known = self.known()?;
        known.admission.admit(access).map_err(|why| match why {
            Refusal::WriteProtected => ExportError::ReadOnly,
            Refusal::Reserved => ExportError::Reserved,
        })?;
        Ok(known)
    }

    /// As [`Self::admit`], for a range of the volume.
    fn admit_at(&self, access: Access, at: u64, len: u64) -> Result<Rc<Known>, ExportError> {
        let known = self.admit(access)?;
        let is_whole = at.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR);
        let end = at.checked_add(len);
        let fits = end.is_some_and(|end| end <= known.admission.size_bytes);
        match is_whole && fits {
            true => Ok(known),
            false => Err(ExportError::OutOfRange),
        }
    }

    fn begin(&self, known: Rc<Known>) -> Underway<'_> {
        self.counters.begun_commands.add(1);
        Underway {
            of: self,
            known,
            since: reactor::recently(),
        }
    }

    /// Begins with a request for a range of the volume.
    fn begin_at(&self, access: Access, at: u64, len: u64) -> Result<Underway<'_>, ExportError> {
        Ok(self.begin(self.admit_at(access, at, len)?))
    }

    /// Whether the volume may be read or written there, without doing it.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, is_write: bool, at: u64, len: u64) -> Result<(), ExportError> {
        let access = match is_write {
            true => Access::Write,
            false => Access::Read,
        };
        self.admit_at(access, at, len).map(drop)
    }

    /// Reads `buffer.len()` bytes, at most [`PIECE_BYTES_MAX`]. On an error the buffer holds nothing of a volume.
    ///
    /// # Errors
    /// Why it could not be read.
    pub async fn read(&self, at: u64, buffer: Buffer) -> (Result<(), ExportError>, Buffer) {
        let len = buffer.len() as u64;
        let underway = match self.begin_at(Access::Read, at, len) {
            Ok(underway) => underway,
            Err(error) => {
                let mut buffer = buffer;
                buffer.fill(0);
                return (Err(error), buffer);
            }
        };
        let (result, buffer) = underway.known.volume.read(at, buffer).await;
        if result.is_ok() {
            underway.done(Operation::Read, len);
        }
        (result.map_err(Into::into), buffer)
    }

    /// Writes the buffer, at most [`PIECE_BYTES_MAX`] bytes. It survives a crash of the program when this returns, and a
    /// loss of power with `durable`, or after a flush.
    ///
    /// # Errors
    /// Why it could not be written.
    pub async fn write(
        &self,
        at: u64,
        buffer: Buffer,
        durable: bool,
    ) -> (Result<(), ExportError>, Buffer) {
        let len = buffer.len() as u64;
        let underway = match self.begin_at(Access::Write, at, len) {
            Ok(underway) => underway,
            Err(error) => return (Err(error), buffer),
        };
        let (result, buffer) = underway.known.volume.write(at, buffer, durable).await;
        if result.is_ok() {
            underway.done(Operation::Write, len);
        }
        (result.map_err(Into::into), buffer)
    }

    /// Makes a range read as zeros; any length.
    ///
    /// # Errors
    /// Why not.
    pub async fn write_zeroes(&self, at: u64, len: u64, durable: bool) -> Result<(), ExportError> {
        let underway = self.begin_at(Access::Write, at, len)?;
        underway.known.volume.write_zeroes(at, len, durable).await?;
        underway.done(Operation::WriteZeroes, 0);
        Ok(())
    }

    /// Gives whole blocks of 4 KiB inside of a range back; any length.
    ///
    /// # Errors
    /// Why not.
    pub async fn trim(&self, at: u64, len: u64) -> Result<(), ExportError> {
        let underway = self.begin_at(Access::Write, at, len)?;
        underway.known.volume.trim(at, len).await?;
        underway.done(Operation::Trim, 0);
        Ok(())
    }

    /// Where the volume has data in a range, in at most so many ranges: see [`Volume::extents`].
    ///
    /// # Errors
    /// Why that is not known.
    pub async fn extents(
        &self,
        at: u64,
        len: u64,
        count_max: usize,
    ) -> Result<Extents, ExportError> {
        let underway = self.begin_at(Access::Read, at, len)?;
        Ok(underway.known.volume.extents(at, len, count_max).await?)
    }

    /// Where the volume may differ from a snapshot of it in a range, in at most so many ranges. They are of whole blocks of
    /// 4 KiB, and may begin before the range and end behind it.
    ///
    /// # Errors
    /// Why that is not known; [`ErrorKind::NotFound`] if the snapshot is gone.
    pub async fn changes(
        &self,
        since: Uuid,
        at: u64,
        len: u64,
        count_max: usize,
    ) -> Result<Extents, ExportError> {
        let underway = self.begin_at(Access::Read, at, len)?;
        let snapshot = self.target.live().volume(since).cloned();
        let snapshot = snapshot.ok_or(ExportError::Engine(ErrorKind::NotFound))?;
        let volume = &underway.known.volume;
        Ok(volume.diff_within(&snapshot, at, len, count_max).await?)
    }

    /// Makes everything that was acknowledged survive a loss of power.
    ///
    /// # Errors
    /// Why not.
    pub async fn flush(&self) -> Result<(), ExportError> {
        let underway = self.begin(self.admit(Access::Flush)?);
        underway.known.volume.flush().await?;
        underway.done(Operation::Flush, 0);
        Ok(())
    }
}

impl fmt::Debug for ExportedVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ExportedVolume");
        shown.field("export", &self.export).finish_non_exhaustive()
    }
}

impl Drop for ExportedVolume {
    fn drop(&mut self) {
        self.target.health.retire(&self.counters);
    }
}
