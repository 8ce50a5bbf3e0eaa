//! Reading and writing one namespace.

mod commands;
mod node_table;
mod reservation;

use std::net::SocketAddr;
use std::rc::Rc;

use fabric::HostData;
use nvme::{
    Status,
    identify::{Cns, IdentifyNamespace, NamespaceDescriptor, decode_descriptor_list},
    io::{DSM_RANGE_BYTES, DsmRange, IoCommand, LbaRange},
};
use reactor::Buffer;

use crate::{Controller, Error, buffer, controller::Queue};
pub use commands::{CopySource, UnreadableRanges};

/// Most blocks of one command: NLB has 16 bits, zero based.
const BLOCKS_MAX: u64 = 65536;

/// A namespace of a controller. Offsets and lengths are bytes, in multiples of the block size.
#[derive(Debug, Clone)]
pub struct Namespace {
    controller: Controller,
    nsid: u32,
    lba_bytes: u32,
    blocks: u64,
    user: usize,
    identify: Rc<IdentifyNamespace>,
}

impl Namespace {
    pub(crate) async fn open(controller: Controller, nsid: u32) -> Result<Self, Error> {
        let page = controller
            .identify_page(Cns::Namespace, nsid)
            .await
            .map_err(|error| match error.status().map(Status::code) {
                Some(Status::INVALID_NAMESPACE) => Error::NoNamespace {
                    peer: controller.peer(),
                    nsid,
                },
                _ => error,
            })?;
        let wrong = |what| Error::Protocol {
            peer: controller.peer(),
            command: "Identify",
            what,
        };
        let identify =
            IdentifyNamespace::decode(&page).ok_or_else(|| wrong("a page that cannot be read"))?;
        if identify.nsze == 0 {
            return Err(Error::NoNamespace {
                peer: controller.peer(),
                nsid,
            });
        }
        let lba_bytes = identify
            .lba_bytes()
            .ok_or_else(|| wrong("no format in use"))?;
        if !(512..=65536).contains(&lba_bytes)
            || identify.nsze.checked_mul(lba_bytes.into()).is_none()
        {
            return Err(wrong("a size that cannot be"));
        }
        Ok(Self {
            blocks: identify.nsze,
            controller,
            nsid,
            lba_bytes,
            user: 0,
            identify: Rc::new(identify),
        })
    }

    /// The same namespace, using the I/O queue that belongs to this user (a number of his choice).
    #[must_use]
    pub fn for_user(&self, user: usize) -> Self {
        Self {
            user,
            ..self.clone()
        }
    }

    /// What the controller said of it when it was opened.
    #[must_use]
    pub fn identify(&self) -> &IdentifyNamespace {
        &self.identify
    }

    /// The identifiers by which it is known everywhere (Namespace Identification Descriptor list), asked for now. A
    /// controller of before that list (NVMe 1.2) has those of [`identify`](Self::identify) only, and none is here.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn identifiers(&self) -> Result<Vec<NamespaceDescriptor>, Error> {
        let page = self
            .controller
            .identify_page(Cns::NamespaceDescriptors, self.nsid);
        let page = match page.await {
            Ok(page) => page,
            Err(error) if error.status().map(Status::code) == Some(Status::INVALID_FIELD) => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(error),
        };
        decode_descriptor_list(&page).ok_or(Error::Protocol {
            peer: self.peer(),
            command: "Identify",
            what: "a list of identifiers that cannot be read",
        })
    }

    /// Its identifier.
    #[must_use]
    pub fn nsid(&self) -> u32 {
        self.nsid
    }

    /// Bytes of a block.
    #[must_use]
    pub fn lba_bytes(&self) -> u32 {
        self.lba_bytes
    }

    /// Bytes in all.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.blocks * u64::from(self.lba_bytes)
    }

    fn peer(&self) -> SocketAddr {
        self.controller.peer()
    }

    fn queue(&self) -> Result<&Queue, Error> {
        self.controller.io_queue(self.user).ok_or(Error::Protocol {
            peer: self.peer(),
            command: "Connect",
            what: "the controller granted no I/O queue",
        })
    }

    fn range(&self, offset: u64, len: u64, max_bytes: usize) -> Result<LbaRange, Error> {
        let lba = u64::from(self.lba_bytes);
        let fits = len > 0
            && offset.is_multiple_of(lba)
            && len.is_multiple_of(lba)
            && len <= max_bytes as u64
            && len / lba <= BLOCKS_MAX
            && offset
                .checked_add(len)
                .is_some_and(|end| end <= self.size_bytes());
        if !fits {
            return Err(Error::Range {
                nsid: self.nsid,
                offset,
                len,
                size: self.size_bytes(),
                lba_bytes: self.lba_bytes,
                max_bytes,
            });
        }
        Ok(LbaRange {
            slba: offset / lba,
            blocks: (len / lba) as u32,
        })
    }

    fn data_range(&self, offset: u64, len: usize) -> Result<LbaRange, Error> {
        self.range(offset, len as u64, self.controller.max_transfer_bytes())
    }

    /// Fills the buffer from `offset`. The buffer comes back in every case but a lost connection.
    pub async fn read(&self, offset: u64, buffer: Buffer) -> (Result<(), Error>, Buffer) {
        let len = buffer.len();
        let command = |range| IoCommand::Read {
            nsid: self.nsid,
            range,
            fua: false,
        };
        self.transfer("Read", offset, buffer, command, |b| {
            HostData::FromTarget(b, len)
        })
        .await
    }

    /// Writes the buffer at `offset`; with `fua` it is durable before this returns.
    pub async fn write(
        &self,
        offset: u64,
        buffer: Buffer,
        fua: bool,
    ) -> (Result<(), Error>, Buffer) {
        let len = buffer.len();
        let command = |range| IoCommand::Write {
            nsid: self.nsid,
            range,
            fua,
        };
        self.transfer("Write", offset, buffer, command, |b| {
            HostData::ToTarget(b, len)
        })
        .await
    }

    /// Compares the buffer with what is stored at `offset`: whether they are equal.
    pub async fn compare(&self, offset: u64, buffer: Buffer) -> (Result<bool, Error>, Buffer) {
        let len = buffer.len();
        let command = |range| IoCommand::Compare {
            nsid: self.nsid,
            range,
        };
        let (result, buffer) = self
            .transfer("Compare", offset, buffer, command, |b| {
                HostData::ToTarget(b, len)
            })
            .await;
        let equal = match result {
            Ok(()) => Ok(true),
            Err(error) if error.status().map(Status::code) == Some(Status::COMPARE_FAILURE) => {
                Ok(false)
            }
            Err(error) => Err(error),
        };
        (equal, buffer)
    }

    async fn transfer(
        &self,
        name: &'static str,
        offset: u64,
        memory: Buffer,
        command: impl FnOnce(LbaRange) -> IoCommand,
        data: impl FnOnce(Buffer) -> HostData,
    ) -> (Result<(), Error>, Buffer) {
        let len = memory.len();
        let prepared = self
            .data_range(offset, len)
            .and_then(|range| Ok((self.queue()?, command(range))));
        let (queue, command) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return (Err(error), memory),
        };
        match queue.submit_raw(name, command.to_sqe(), data(memory)).await {
            Ok((cqe, Some(memory))) => (queue.check(name, &cqe), memory),
            // A lost queue takes the buffer with it: the caller gets another one of that size.
            Ok((_, None)) => {
                let what = "no data";
                (
                    Err(Error::Protocol {
                        peer: self.peer(),
                        command: name,
                        what,
                    }),
                    buffer(len).await,
                )
            }
            Err(error) => (Err(error), buffer(len).await),
        }
    }

    async fn simple(&self, name: &'static str, command: IoCommand) -> Result<(), Error> {
        self.queue()?
            .submit(name, command.to_sqe(), HostData::None)
            .await
            .map(|_| ())
    }

    /// Makes everything durable that was acknowledged before.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn flush(&self) -> Result<(), Error> {
        self.simple("Flush", IoCommand::Flush { nsid: self.nsid })
            .await
    }

    /// Writes zeroes without sending them; at most 65536 blocks at once.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), Error> {
        let range = self.range(offset, len, usize::MAX)?;
        let command = IoCommand::WriteZeroes {
            nsid: self.nsid,
            range,
            fua: false,
            deallocate: true,
        };
        self.simple("Write Zeroes", command).await
    }

    /// Tells the target that these bytes are no longer needed; afterwards they read as zero.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn trim(&self, offset: u64, len: u64) -> Result<(), Error> {
        let lba = u64::from(self.lba_bytes);
        let slba = self.span(offset, len)?;
        let blocks = Some(len / lba).filter(|_| len.is_multiple_of(lba));
        let blocks = blocks.and_then(|blocks| u32::try_from(blocks).ok());
        let blocks = blocks.ok_or_else(|| self.out_of_range(offset, len))?;
        let mut memory = buffer(4096).await;
        memory[..DSM_RANGE_BYTES].copy_from_slice(&DsmRange { slba, blocks }.encode());
        let command = IoCommand::DatasetManagement {
            nsid: self.nsid,
            ranges: 1,
            deallocate: true,
        };
        let data = HostData::ToTarget(memory, DSM_RANGE_BYTES);
        self.queue()?
            .submit("Dataset Management", command.to_sqe(), data)
            .await
            .map(|_| ())
    }
}
