//! Work requests of a send queue: how the device is told of one, and what its poster learns.

use std::ptr;

use reactor::Buffer;

use super::abi::*;
use super::memory::Span;
use crate::memory::FabricMemory;
use crate::provider::{Completion, RegionKey, WorkKind, WorkStatus};

/// A work request of a send queue, and the memory that it owns.
pub(super) struct Send {
    pub(super) id: u64,
    pub(super) what: SendKind,
    pub(super) memory: FabricMemory,
    /// Registered memory that stands in for `memory`, which lies in no pool.
    pub(super) staged: Option<Buffer>,
    pub(super) span: Option<Span>,
    pub(super) len: usize,
}

pub(super) enum SendKind {
    Send { invalidate: Option<u32> },
    Read { offset: usize, remote: RegionKey },
    Write { remote: RegionKey },
    Bind(Binding),
}

/// Shows a peer a part of a registration.
pub(super) struct Binding {
    pub(super) window: *mut ibv_mw,
    pub(super) rkey: u32,
    pub(super) access: i32,
}

impl Send {
    /// Fills in a request of the device, all but its number and whether it is signalled.
    pub(super) fn describe(&mut self, request: &mut ibv_send_wr, place: &mut ibv_sge) {
        // Without a place of its own it is copied into the request.
        let inline = self.span.is_none();
        let (address, lkey) = match &self.span {
            Some(span) => (span.address, span.lkey),
            None => (self.memory.bytes().as_ptr() as u64, 0),
        };
        *place = ibv_sge {
            addr: address,
            length: self.len as u32,
            lkey,
        };
        request.sg_list = place;
        request.num_sge = 1;
        let towards = |remote: &RegionKey| wr_part {
            rdma: rdma_part {
                remote_addr: remote.address,
                rkey: remote.rkey,
            },
        };
        match &self.what {
            SendKind::Send { invalidate } => {
                request.opcode = match invalidate {
                    Some(_) => IBV_WR_SEND_WITH_INV,
                    None => IBV_WR_SEND,
                };
                request.invalidate_rkey = invalidate.unwrap_or(0);
                if inline {
                    request.send_flags |= IBV_SEND_INLINE;
                }
            }
            SendKind::Read { offset, remote } => {
                request.opcode = IBV_WR_RDMA_READ;
                request.wr = towards(remote);
                if self.staged.is_none() {
                    place.addr += *offset as u64;
                }
            }
            SendKind::Write { remote } => {
                request.opcode = IBV_WR_RDMA_WRITE;
                request.wr = towards(remote);
            }
            SendKind::Bind(binding) => {
                request.opcode = IBV_WR_BIND_MW;
                request.num_sge = 0;
                request.bind_mw = bind_mw_part {
                    mw: binding.window,
                    rkey: binding.rkey,
                    bind_info: ibv_mw_bind_info {
                        mr: self.span.map_or(ptr::null_mut(), |span| span.mr),
                        addr: address,
                        length: self.len as u64,
                        mw_access_flags: binding.access as u32,
                    },
                };
            }
        }
    }

    /// What its poster learns; nothing of a binding.
    pub(super) fn finish(self, status: WorkStatus) -> Option<Completion> {
        let Self {
            id,
            what,
            mut memory,
            staged,
            len,
            ..
        } = self;
        let kind = match what {
            SendKind::Send { .. } => WorkKind::Send,
            SendKind::Write { .. } => WorkKind::Write,
            SendKind::Read { offset, .. } => {
                if let (Some(staged), WorkStatus::Success) = (staged, status) {
                    memory.bytes_mut()[offset..offset + len].copy_from_slice(&staged[..len]);
                }
                WorkKind::Read
            }
            SendKind::Bind(_) => return None,
        };
        Some(Completion {
            id,
            kind,
            status,
            len,
            invalidated: None,
            memory,
        })
    }
}
