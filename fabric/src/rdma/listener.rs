//! Where a target receives its hosts' connections: checks what they ask for, and refuses what it
//! cannot serve with the status that NVMe/RDMA has for it.
//!
//! Guarantee: a request, whose sender may be forged, takes one of a bounded number of places
//! ([`crate::admission`]) and memory for a few capsules. The memory for all of a queue's capsules is
//! taken when its host has proved who it is.

use std::cell::{Cell, OnceCell};
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use nvme::command::SQE_BYTES;
use nvme::rdma_cm::{ADMIN_QUEUE_DEPTH, RdmaCmAccept, RdmaCmReject, RdmaCmRequest, RdmaCmStatus};

use super::target::{CapsuleMemory, RdmaTarget, Slot};
use crate::address::Transport;
use crate::admission::{Entrance, KnownAddresses};
use crate::device::Device;
use crate::error::{CloseReason, ListenError, SetupError};
use crate::memory::{Budget, Held};
use crate::provider::{ConnectionParams, PendingConnection, RdmaListener};
use crate::queue::{Close, Holder, QueueInfo, QueueLimits};

/// Bounds of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Only take connections to this address of the device; None means any.
    pub address: Option<IpAddr>,
    /// The service port.
    pub port: u16,
    /// Connections that may wait for an answer; more are refused.
    pub backlog: usize,
    /// The longest I/O queue that a host may ask for, in entries.
    pub depth_max: u16,
    /// Bytes of memory for the capsules of all queues accepted here together. A queue takes its depth
    /// times (64 + in-capsule bytes); what does not fit is refused with 'no resources'.
    pub capsule_bytes_max: usize,
    /// Queues of hosts that have not proved who they are, from addresses without a ready admin queue; and as many from
    /// other addresses.
    pub unproven_max: usize,
}

impl ListenerConfig {
    /// The usual bounds: 128 waiting connections, I/O queues of up to 1024 entries, 256 MiB for
    /// capsules (480 queues of 128 entries), 256 hosts that have not proved who they are.
    pub fn new(port: u16) -> Self {
        Self {
            address: None,
            port,
            backlog: 128,
            depth_max: 1024,
            capsule_bytes_max: 256 << 20,
            unproven_max: 256,
        }
    }
}

/// What happened at a listener so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerCounters {
    /// Queues accepted.
    pub accepted: u64,
    /// Requests refused because they made no sense.
    pub refused_invalid: u64,
    /// Requests refused because there was no room for their queue.
    pub refused_no_resources: u64,
    /// Hosts that were refused or closed because too many had not proved who they are.
    pub turned_away: u64,
    /// Bytes that the capsules of open queues take now.
    pub queue_bytes: u64,
    /// Their bound.
    pub queue_bytes_max: u64,
    /// Data of commands under way, and data that hosts have not acknowledged, in bytes, now.
    pub held_bytes: u64,
    /// How often a queue had to wait with its next command because it held its share.
    pub held_back: u64,
}

#[derive(Debug, Default)]
struct Counts {
    accepted: Cell<u64>,
    refused_invalid: Cell<u64>,
    refused_no_resources: Cell<u64>,
    held: Rc<Held>,
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get().wrapping_add(1));
}

/// Listens for NVMe/RDMA connections. Dropping it closes the port; accepted queues go on.
pub struct Listener {
    device: Device,
    listener: Box<dyn RdmaListener>,
    config: ListenerConfig,
    capsule_bytes: Budget,
    entrance: Rc<Entrance<Slot>>,
    counts: Rc<Counts>,
}

/// A host's request for a queue, checked. Dropping it refuses it.
pub struct Incoming {
    /// The host's address.
    pub peer: SocketAddr,
    /// The address and port that it asked.
    pub local: SocketAddr,
    /// What it asked for.
    pub request: RdmaCmRequest,
    device: Device,
    pending: Box<dyn PendingConnection>,
    capsule_bytes: Budget,
    entrance: Rc<Entrance<Slot>>,
    counts: Rc<Counts>,
}

impl Listener {
    /// Listens on every address of the device, with the usual bounds.
    pub fn bind(device: &Device, port: u16) -> Result<Self, ListenError> {
        Self::bind_with(device, ListenerConfig::new(port))
    }

    /// Listens with chosen bounds.
    pub fn bind_with(device: &Device, config: ListenerConfig) -> Result<Self, ListenError> {
        Self::bind_knowing(device, config, KnownAddresses::default())
    }

    /// The same, with a table of known addresses that it shares with other listeners.
    pub fn bind_knowing(
        device: &Device,
        config: ListenerConfig,
        known: KnownAddresses,
    ) -> Result<Self, ListenError> {
        let address = config.address.filter(|address| !address.is_unspecified());
        let listener = device.rdma.listen(address, config.port, config.backlog)?;
        Ok(Self {
            device: device.clone(),
            listener,
            capsule_bytes: Budget::new(config.capsule_bytes_max),
            entrance: Rc::new(Entrance::new(config.unproven_max, known)),
            counts: Rc::default(),
            config,
        })
    }

    /// The next valid request. Invalid ones are refused on the way. None when the device has closed.
    pub async fn accept(&self) -> Option<Incoming> {
        loop {
            let pending = poll_fn(|cx| self.listener.poll_accept(cx)).await?;
            let (peer, local) = (pending.peer(), pending.local());
            match check_request(pending.private_data(), self.config.depth_max) {
                Ok(request) => {
                    let device = self.device.clone();
                    return Some(Incoming {
                        peer,
                        local,
                        request,
                        device,
                        pending,
                        capsule_bytes: self.capsule_bytes.clone(),
                        entrance: self.entrance.clone(),
                        counts: self.counts.clone(),
                    });
                }
                Err(status) => {
                    count(&self.counts.refused_invalid);
                    crate::log_of_peer!(warn, "connection request refused", peer.ip(), %peer, ?status, "connection request refused");
                    pending.reject(
                        &RdmaCmReject {
                            status: status as u16,
                        }
                        .encode(),
                    );
                }
            }
        }
    }
}

impl Listener {
    /// What happened so far.
    pub fn counters(&self) -> ListenerCounters {
        let total = self.capsule_bytes.total();
        ListenerCounters {
            accepted: self.counts.accepted.get(),
            refused_invalid: self.counts.refused_invalid.get(),
            refused_no_resources: self.counts.refused_no_resources.get(),
            turned_away: self.entrance.turned_away(),
            queue_bytes: (total - self.capsule_bytes.free()) as u64,
            queue_bytes_max: total as u64,
            held_bytes: self.counts.held.bytes.get() as u64,
            held_back: self.counts.held.held_back.get(),
        }
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Incoming {
    /// Accepts, with the queue's first receives posted before the host learns of it.
    pub(crate) fn into_target(self, limits: QueueLimits) -> Result<Holder<RdmaTarget>, SetupError> {
        let depth = self.request.hsqsize.saturating_add(1);
        let info = QueueInfo {
            peer: self.peer,
            local: self.local,
            qid: Some(self.request.qid),
            depth: Some(depth),
            cntlid: Some(self.request.cntlid),
            in_capsule_bytes: limits.in_capsule_bytes,
            transport: Transport::Rdma,
        };
        let bytes = (usize::from(depth) + 1) * (SQE_BYTES + limits.in_capsule_bytes);
        // They are taken later, but a host that will not get them is told so now.
        if self.capsule_bytes.free() < bytes {
            count(&self.counts.refused_no_resources);
            self.reject(RdmaCmStatus::NoResources);
            return Err(SetupError::NoResources(format!(
                "its capsules need {bytes} bytes, and the listener's queues have all they may"
            )));
        }
        let slot = Slot::default();
        let (place, displaced) = match self.entrance.admit(self.peer.ip(), false, slot.clone()) {
            Ok(admitted) => admitted,
            Err(crowded) => {
                self.reject(RdmaCmStatus::NoResources);
                return Err(SetupError::NoResources(crowded.to_string()));
            }
        };
        if let Some(queue) = displaced.and_then(|slot| slot.get()?.upgrade()) {
            queue.close(CloseReason::Displaced);
        }
        let memory = CapsuleMemory {
            listener: self.capsule_bytes,
            bytes,
            taken: OnceCell::new(),
        };
        let held = self.counts.held.clone();
        let queue = RdmaTarget::new(info, depth, limits, self.device, memory, place, held);
        let queue = Rc::new(queue);
        let _ = slot.set(Rc::downgrade(&queue));
        let receives = queue.first_receives();
        let params = ConnectionParams {
            private_data: RdmaCmAccept { crqsize: depth }.encode().to_vec(),
            receives_later: queue.receives_in_all() - receives.len(),
            receives,
        };
        queue.attach(self.pending.accept(params, queue.clone())?);
        count(&self.counts.accepted);
        Ok(queue.into())
    }

    /// Refuses with a status.
    pub fn reject(self, status: RdmaCmStatus) {
        self.pending.reject(
            &RdmaCmReject {
                status: status as u16,
            }
            .encode(),
        );
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming")
            .field("peer", &self.peer)
            .field("local", &self.local)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

/// Checks a request's private data as the Linux target does, and the sizes more strictly: a queue
/// without entries, or longer than this target serves, is refused instead of half served.
fn check_request(private_data: &[u8], depth_max: u16) -> Result<RdmaCmRequest, RdmaCmStatus> {
    let request = RdmaCmRequest::parse(private_data)?;
    let limit = if request.qid == 0 {
        ADMIN_QUEUE_DEPTH
    } else {
        depth_max
    };
    if request.hsqsize == 0 || request.hsqsize >= limit {
        return Err(RdmaCmStatus::InvalidHsqSize);
    }
    if request.hrqsize == 0 || request.hrqsize > limit {
        return Err(RdmaCmStatus::InvalidHrqSize);
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: RdmaCmRequest = RdmaCmRequest {
        qid: 1,
        hrqsize: 128,
        hsqsize: 127,
        cntlid: 1,
    };

    #[test]
    fn what_linux_asks_for_is_taken() {
        let admin = RdmaCmRequest {
            qid: 0,
            hrqsize: 32,
            hsqsize: 31,
            cntlid: 0,
        };
        for request in [admin, GOOD, RdmaCmRequest { cntlid: 0, ..GOOD }] {
            assert_eq!(check_request(&request.encode(), 128), Ok(request));
            // The RDMA CM pads private data to its field's length.
            let mut padded = request.encode().to_vec();
            padded.resize(56, 0);
            assert_eq!(check_request(&padded, 128), Ok(request));
        }
    }

    #[test]
    fn each_wrong_field_has_its_status() {
        let check = |request: RdmaCmRequest| check_request(&request.encode(), 128);
        for hsqsize in [0, 128, 0xffff] {
            let status = Err(RdmaCmStatus::InvalidHsqSize);
            assert_eq!(check(RdmaCmRequest { hsqsize, ..GOOD }), status);
        }
        for hrqsize in [0, 129, 0xffff] {
            let status = Err(RdmaCmStatus::InvalidHrqSize);
            assert_eq!(check(RdmaCmRequest { hrqsize, ..GOOD }), status);
        }
        let admin = RdmaCmRequest {
            qid: 0,
            hrqsize: 32,
            hsqsize: 32,
            cntlid: 0,
        };
        assert_eq!(check(admin), Err(RdmaCmStatus::InvalidHsqSize));
        assert_eq!(check_request(&[], 128), Err(RdmaCmStatus::InvalidLength));
        assert_eq!(
            check_request(&GOOD.encode()[..31], 128),
            Err(RdmaCmStatus::InvalidLength)
        );
        let mut format = GOOD.encode();
        format[0] = 1;
        assert_eq!(
            check_request(&format, 128),
            Err(RdmaCmStatus::InvalidRecordFormat)
        );
    }
}
