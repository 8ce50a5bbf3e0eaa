//! Commands beyond reading and writing: Compare and Write, Copy, Verify, Write Uncorrectable, Get LBA
//! Status.

use fabric::HostData;
use futures_util::future::join;
use nvme::admin::SetFeatures;
use nvme::features::{FeatureId, HostBehavior};
use nvme::io::{COPY_RANGES_MAX, CopyFormat, CopyRange, IoCommand, LbaRange};
use nvme::lba_status::{GetLbaStatus, LbaStatusAction, LbaStatusList};
use nvme::{Sqe, Status};
use reactor::Buffer;

use super::Namespace;
use crate::{Controller, Error, blank_buffer, buffer};

/// Bytes that one Get LBA Status asks for: 255 ranges.
const LBA_STATUS_BYTES: usize = 4096;

/// A part of a namespace that is copied, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct CopySource<'a> {
    /// Where it is: this namespace, or another one of the same controller.
    pub namespace: &'a Namespace,
    /// First byte.
    pub offset: u64,
    /// How many; at most 65535 blocks.
    pub len: u64,
}

/// Bytes of a namespace that cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnreadableRanges {
    /// First byte, and how many.
    pub ranges: Vec<(u64, u64)>,
    /// There are more behind them.
    pub has_more: bool,
}

impl Controller {
    /// Says that this host copies between namespaces; a controller refuses that before.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn enable_copies_between_namespaces(&self) -> Result<(), Error> {
        let behavior = HostBehavior {
            copy_formats: CopyFormat::AnyNamespace.bit(),
            ..HostBehavior::default()
        };
        let bytes = behavior.encode();
        let mut memory = buffer(bytes.len()).await;
        memory[..bytes.len()].copy_from_slice(&bytes);
        let set = SetFeatures {
            fid: FeatureId::HostBehavior as u8,
            save: false,
            dwords: [0; 5],
            nsid: 0,
        };
        let data = HostData::ToTarget(memory, bytes.len());
        let admin = self.admin_queue();
        admin.submit("Set Features", set.to_sqe(), data).await?;
        Ok(())
    }
}

impl Namespace {
    /// Writes `new` if what is stored equals `expected`, as one fused operation: nothing happens in
    /// between. Both are as long. False: it does not equal it, and nothing was written.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn compare_and_write(
        &self,
        offset: u64,
        expected: Buffer,
        new: Buffer,
        fua: bool,
    ) -> Result<bool, Error> {
        let range = self.data_range(offset, new.len().max(expected.len()))?;
        let nsid = self.nsid;
        let queue = self.queue()?;
        let fused = |command: IoCommand, fuse| command.to_sqe().with_fuse(fuse);
        let submit = |name, sqe: Sqe, memory: Buffer| {
            let len = memory.len();
            queue.submit_raw(name, sqe, HostData::ToTarget(memory, len))
        };
        // They are asked in this order, and whoever waits for a place in the queue is served in order: so
        // no other command comes between them.
        let compare = fused(IoCommand::Compare { nsid, range }, 1);
        let write = fused(IoCommand::Write { nsid, range, fua }, 2);
        let (compared, written) = join(
            submit("Compare", compare, expected),
            submit("Write", write, new),
        )
        .await;
        let (compared, written) = (compared?.0, written?.0);
        if compared.status.code() == Status::COMPARE_FAILURE {
            return Ok(false);
        }
        queue.check("Write", &written)?;
        queue.check("Compare", &compared)?;
        Ok(true)
    }

    /// Makes what is at `offset` a copy of the sources, one behind the other, without moving data over
    /// the network. All are of the same controller; see
    /// [`Controller::enable_copies_between_namespaces`].
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn copy(&self, offset: u64, sources: &[CopySource<'_>]) -> Result<(), Error> {
        let total = sources.iter().map(|source| source.len).sum();
        let whole = self.span(offset, total)?;
        let is_same = |source: &CopySource<'_>| source.namespace.nsid == self.nsid;
        let format = match sources.iter().all(is_same) {
            true => CopyFormat::SameNamespace,
            false => CopyFormat::AnyNamespace,
        };
        let Some(ranges) = u16::try_from(sources.len())
            .ok()
            .filter(|count| (1..=COPY_RANGES_MAX).contains(count))
        else {
            return Err(self.out_of_range(offset, total));
        };
        let mut bytes = Vec::new();
        for CopySource {
            namespace,
            offset,
            len,
        } in sources
        {
            let range = namespace.range(*offset, *len, usize::MAX)?;
            let range = CopyRange {
                nsid: namespace.nsid,
                slba: range.slba,
                blocks: range.blocks,
                fast_only: false,
            };
            bytes.extend(range.encode(format));
        }
        let mut memory = buffer(bytes.len()).await;
        memory[..bytes.len()].copy_from_slice(&bytes);
        let command = IoCommand::Copy {
            nsid: self.nsid,
            slba: whole,
            ranges,
            format,
            fua: false,
        };
        let data = HostData::ToTarget(memory, bytes.len());
        let queue = self.queue()?;
        queue.submit("Copy", command.to_sqe(), data).await?;
        Ok(())
    }

    /// Lets the target compare what it has stored with its checksums; at most 65536 blocks at once.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn verify(&self, offset: u64, len: u64) -> Result<(), Error> {
        let range = self.range(offset, len, usize::MAX)?;
        let nsid = self.nsid;
        self.simple("Verify", IoCommand::Verify { nsid, range })
            .await
    }

    /// Makes blocks unreadable until they are written.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn write_uncorrectable(&self, offset: u64, len: u64) -> Result<(), Error> {
        let range = self.range(offset, len, usize::MAX)?;
        let nsid = self.nsid;
        let command = IoCommand::WriteUncorrectable { nsid, range };
        self.simple("Write Uncorrectable", command).await
    }

    /// What cannot be read from `offset` on: what is known of it, or, with `scan`, what the target finds
    /// when it reads everything. `len` is at most 65535 blocks; 0 is up to the end.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn unreadable(
        &self,
        offset: u64,
        len: u64,
        scan: bool,
    ) -> Result<UnreadableRanges, Error> {
        let lba = u64::from(self.lba_bytes);
        let LbaRange { slba, blocks } = match len {
            0 => LbaRange {
                slba: offset / lba,
                blocks: 0,
            },
            len => self.range(offset, len, usize::MAX)?,
        };
        let action = match scan {
            true => LbaStatusAction::Scan,
            false => LbaStatusAction::Known,
        };
        let get = GetLbaStatus {
            nsid: self.nsid,
            slba,
            blocks: u16::try_from(blocks).map_err(|_| self.out_of_range(offset, len))?,
            action: action.as_u8(),
            length: LBA_STATUS_BYTES as u64,
        };
        let memory = blank_buffer(LBA_STATUS_BYTES).await;
        let data = HostData::FromTarget(memory, LBA_STATUS_BYTES);
        let admin = self.controller.admin_queue();
        let (_, memory) = admin.submit("Get LBA Status", get.to_sqe(), data).await?;
        let list = memory.and_then(|memory| LbaStatusList::decode(&memory));
        let list = list.ok_or(Error::Protocol {
            peer: self.peer(),
            command: "Get LBA Status",
            what: "a list that cannot be read",
        })?;
        let bytes = |range: &nvme::lba_status::LbaStatusRange| {
            (
                range.slba.saturating_mul(lba),
                u64::from(range.blocks) * lba,
            )
        };
        Ok(UnreadableRanges {
            ranges: list.ranges.iter().map(bytes).collect(),
            has_more: list.has_more,
        })
    }

    /// The first block of a range of any length.
    pub(super) fn span(&self, offset: u64, len: u64) -> Result<u64, Error> {
        let lba = u64::from(self.lba_bytes);
        let end = offset.checked_add(len);
        let fits = offset.is_multiple_of(lba) && end.is_some_and(|end| end <= self.size_bytes());
        match fits {
            true => Ok(offset / lba),
            false => Err(self.out_of_range(offset, len)),
        }
    }

    pub(super) fn out_of_range(&self, offset: u64, len: u64) -> Error {
        Error::Range {
            nsid: self.nsid,
            offset,
            len,
            size: self.size_bytes(),
            lba_bytes: self.lba_bytes,
            max_bytes: usize::MAX,
        }
    }
}
