//! What a front-end says, and what the device becomes by it.
//!
//! Guarantees: no queue runs while what it is made of changes; a session that ends leaves no request under way.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use subsystem::export::ExportShape;
use tokio::sync::{oneshot, watch};

use crate::config::{self, CONFIG_BYTES, QUEUES_MAX, WRITEBACK_AT, feature};
use crate::connection::{Received, send};
use crate::inflight::{self, Area};
use crate::memory::{Guest, REGIONS_MAX, Table};
use crate::message::{self, Request, RingAddresses, protocol};
use crate::queue::{self, Bell, ring_bell};
use crate::request::{Disk, ID_BYTES};
use crate::ring::{Layout, SIZE_MAX};
use crate::server::Parts;

/// How long a front-end may take to read what it is told.
const TELL_PATIENCE: Duration = Duration::from_secs(5);

/// A queue, as the front-end sets it up.
#[derive(Default)]
struct Vring {
    size: u16,
    addresses: Option<RingAddresses>,
    next_available: u16,
    /// There from the moment that the front-end starts the queue.
    kick: Option<OwnedFd>,
    call: Bell,
    error: Bell,
    is_enabled: bool,
    running: Option<Running>,
}

/// A queue that a reactor serves.
struct Running {
    stop: watch::Sender<bool>,
    /// The index of the next request.
    ended: oneshot::Receiver<u16>,
}

/// A device as one front-end has it.
pub(crate) struct Session<'a> {
    parts: &'a Parts,
    /// Wakes the thread that this is used on.
    wake: &'a OwnedFd,
    features: u64,
    protocol_features: u64,
    writeback: Arc<AtomicBool>,
    table: Table,
    guest: Option<Arc<Guest>>,
    notes: Option<Arc<Area>>,
    rings: Vec<Vring>,
    /// Where the front-end is told of changes.
    back: Option<UnixStream>,
    /// The size that the front-end knows.
    told: Option<ExportShape>,
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

/// An answer of the device.
enum Answer {
    /// No payload: only success or failure.
    Done,
    Payload(Vec<u8>, Option<OwnedFd>),
}

impl Answer {
    fn number(value: u64) -> Self {
        Self::Payload(value.to_le_bytes().to_vec(), None)
    }
}

impl<'a> Session<'a> {
    pub(crate) fn new(parts: &'a Parts, wake: &'a OwnedFd) -> Self {
        Self {
            parts,
            wake,
            features: 0,
            protocol_features: 0,
            writeback: Arc::new(AtomicBool::new(true)),
            table: Table::default(),
            guest: None,
            notes: None,
            rings: (0..QUEUES_MAX).map(|_| Vring::default()).collect(),
            back: None,
            told: None,
        }
    }

    fn shape(&self) -> io::Result<ExportShape> {
        let shape = self.parts.target.export_shape(self.parts.export);
        shape.ok_or_else(|| {
            io::Error::other("the volume is gone, or waits for the rest of an image")
        })
    }

    /// Does what a message asks for, and answers it.
    ///
    /// # Errors
    /// The session cannot go on.
    pub(crate) fn take(&mut self, stream: &UnixStream, received: Received) -> io::Result<()> {
        let Received {
            header,
            request,
            descriptors,
        } = received;
        let request = request?;
        // What one compiler makes of this structure is longer than what another does, and front-ends compare.
        let is_padded = matches!(request, Request::GetInflightFd(_));
        let outcome = self.run(request, descriptors);
        // Looked at afterwards: the message that agrees on outcomes may want its own already (user-mode Linux does).
        let wants_outcome =
            header.needs_reply() && self.protocol_features & protocol::REPLY_ACK != 0;
        let answer = |payload: &[u8]| message::reply(header.request, payload);
        match outcome {
            Ok(Answer::Payload(mut payload, descriptor)) => {
                if is_padded {
                    payload.resize(header.len, 0);
                }
                send(stream, &answer(&payload), descriptor.as_ref())
            }
            Ok(Answer::Done) if wants_outcome => send(stream, &answer(&[0; 8]), None),
            Ok(Answer::Done) => Ok(()),
            Err(error) if wants_outcome => {
                tracing::warn!(export = self.parts.path, request = header.request, %error, "a virtual machine's front-end was refused");
                send(stream, &answer(&1u64.to_le_bytes()), None)
            }
            Err(error) => Err(error),
        }
    }

    fn run(&mut self, request: Request, mut fds: VecDeque<OwnedFd>) -> io::Result<Answer> {
        let mut descriptor = || {
            let first = fds.pop_front();
            first.ok_or_else(|| invalid("a message without its descriptor"))
        };
        match request {
            Request::GetFeatures => {
                let shape = self.shape()?;
                return Ok(Answer::number(feature::offered(shape.read_only)));
            }
            Request::SetFeatures(features) => {
                // One that was read-only when it was offered may not be any more, or the other way round.
                if features & !feature::offered(true) != 0 {
                    return Err(invalid("features that were not offered"));
                }
                self.halt_all()?;
                self.features = features;
            }
            Request::SetOwner | Request::ResetOwner => {}
            Request::SetMemTable(regions) => {
                self.halt_all()?;
                if regions.len() != fds.len() {
                    return Err(invalid("regions of memory without descriptors"));
                }
                self.table = Table::default();
                for (region, file) in regions.into_iter().zip(fds) {
                    self.table.add(region, file.into())?;
                }
                self.guest = Some(Arc::new(self.table.guest()?));
            }
            Request::AddMemReg(region) => {
                let file = descriptor()?;
                self.halt_all()?;
                self.table.add(region, file.into())?;
                self.guest = Some(Arc::new(self.table.guest()?));
            }
            Request::RemMemReg(region) => {
                self.halt_all()?;
                self.guest = None;
                self.table.remove(region)?;
                // Without any region there is no memory.
                self.guest = self.table.guest().ok().map(Arc::new);
            }
            Request::SetVringNum(index, size) => {
                let size = u16::try_from(size).unwrap_or(0);
                if !size.is_power_of_two() || size > SIZE_MAX {
                    return Err(invalid("a ring of a size that was not offered"));
                }
                self.halted(index)?.size = size;
            }
            Request::SetVringAddr(index, addresses) => {
                self.halted(index)?.addresses = Some(addresses);
            }
            Request::SetVringBase(index, base) => {
                let base = u16::try_from(base).map_err(|_| invalid("an index out of its range"))?;
                self.halted(index)?.next_available = base;
            }
            Request::GetVringBase(index) => {
                let ring = self.halted(index)?;
                ring.kick = None;
                let state = [index, u32::from(ring.next_available)];
                let state = state.iter().flat_map(|word| word.to_le_bytes());
                self.resume()?;
                return Ok(Answer::Payload(state.collect(), None));
            }
            Request::SetVringKick(index, has) => {
                if !has {
                    return Err(invalid("a queue that is to be polled for ever"));
                }
                let kick = descriptor()?;
                not_blocking(&kick)?;
                self.halted(index)?.kick = Some(kick);
            }
            Request::SetVringCall(index, has) => {
                let call = has.then(descriptor).transpose()?;
                call.as_ref().map(not_blocking).transpose()?;
                let ring = self.ring(index)?;
                exchange(&ring.call, call);
                // What was done for the descriptor before may not have been heard.
                ring_bell(&ring.call);
            }
            Request::SetVringErr(index, has) => {
                let error = has.then(descriptor).transpose()?;
                error.as_ref().map(not_blocking).transpose()?;
                exchange(&self.ring(index)?.error, error);
            }
            Request::GetProtocolFeatures => return Ok(Answer::number(protocol::OFFERED)),
            Request::SetProtocolFeatures(features) => {
                if features & !protocol::OFFERED != 0 {
                    return Err(invalid("protocol features that were not offered"));
                }
                self.protocol_features = features;
            }
            Request::GetQueueNum => return Ok(Answer::number(u64::from(QUEUES_MAX))),
            Request::GetMaxMemSlots => return Ok(Answer::number(REGIONS_MAX as u64)),
            Request::SetVringEnable(index, on) => self.halted(index)?.is_enabled = on,
            Request::SetBackendReqFd => {
                let back = UnixStream::from(descriptor()?);
                back.set_write_timeout(Some(TELL_PATIENCE))?;
                self.back = Some(back);
            }
            Request::GetConfig(offset, len) => return self.config(offset, len),
            Request::SetConfig(offset, data) => {
                let [byte @ 0..=1] = data[..] else {
                    return Err(invalid(
                        "a part of the configuration that cannot be written",
                    ));
                };
                if offset != WRITEBACK_AT {
                    return Err(invalid(
                        "a part of the configuration that cannot be written",
                    ));
                }
                self.writeback.store(byte == 1, Ordering::Relaxed);
            }
            Request::GetInflightFd(area) => {
                let (area, file) = inflight::make(area.queues, area.queue_size)?;
                return Ok(Answer::Payload(area.to_bytes(), Some(file)));
            }
            Request::SetInflightFd(area) => {
                let file = descriptor()?;
                self.halt_all()?;
                self.notes = Some(Arc::new(Area::map(area, file)?));
            }
        }
        self.resume()?;
        Ok(Answer::Done)
    }

    /// A part of the configuration space; zeros beyond its end.
    fn config(&mut self, offset: u32, len: u32) -> io::Result<Answer> {
        let shape = self.shape()?;
        let space = config::space(&shape, self.writeback.load(Ordering::Relaxed));
        self.told = Some(shape);
        let (from, count) = (offset as usize, len as usize);
        if count > message::PAYLOAD_BYTES_MAX / 2 || from > CONFIG_BYTES {
            return Err(invalid("a part of the configuration that there is not"));
        }
        let mut payload = Vec::with_capacity(12 + count);
        for word in [offset, len, 0] {
            payload.extend(word.to_le_bytes());
        }
        let bytes = space[from..].iter().copied();
        payload.extend(bytes.chain(std::iter::repeat(0)).take(count));
        Ok(Answer::Payload(payload, None))
    }

    /// Looks whether memory that is shared has gone away.
    ///
    /// # Errors
    /// It has: the session cannot go on.
    pub(crate) fn look_at_memory(&self) -> io::Result<()> {
        let is_lost = self.guest.as_ref().is_some_and(|guest| guest.is_lost())
            || self.notes.as_ref().is_some_and(|area| area.is_lost());
        match is_lost {
            true => Err(io::Error::other(
                "memory that the virtual machine shares has gone away while it was used: its file was cut off, or its \
                 file system is full or failed. Start the machine again, with memory of memory-backend-memfd if you can",
            )),
            false => Ok(()),
        }
    }

    /// Tells the front-end that the disk has another size, if it has.
    pub(crate) fn look_at_shape(&mut self) {
        let Ok(shape) = self.shape() else {
            return;
        };
        // A front-end that came again after a restart does not ask, and may know another size.
        let told = self.told.map(|told| told.size_bytes);
        if told == Some(shape.size_bytes) {
            return;
        }
        self.told = Some(shape);
        let has_config = self.protocol_features & protocol::CONFIG != 0;
        if let Some(back) = self.back.as_ref().filter(|_| has_config)
            && let Err(error) = send(back, &message::config_changed(), None)
        {
            tracing::warn!(export = self.parts.path, %error, "a virtual machine was not told of its disk's new size");
            self.back = None;
        }
    }

    fn ring(&mut self, index: u32) -> io::Result<&mut Vring> {
        let ring = self.rings.get_mut(index as usize);
        ring.ok_or_else(|| invalid("a queue that there is not"))
    }

    /// The queue, at rest.
    fn halted(&mut self, index: u32) -> io::Result<&mut Vring> {
        let ring = self.ring(index)?;
        ring.halt()?;
        Ok(ring)
    }

    fn halt_all(&mut self) -> io::Result<()> {
        // All are told before it waits for the first.
        self.rings.iter().for_each(Vring::tell_to_stop);
        self.rings.iter_mut().try_for_each(Vring::halt)
    }

    /// Lets all queues run that are set up.
    fn resume(&mut self) -> io::Result<()> {
        let Some(guest) = self.guest.clone() else {
            return Ok(());
        };
        let by_default = self.features & feature::PROTOCOL == 0;
        for index in 0..self.rings.len() {
            let ring = &self.rings[index];
            let (Some(addresses), Some(kick)) = (ring.addresses, &ring.kick) else {
                continue;
            };
            let is_enabled = ring.is_enabled || by_default;
            if ring.running.is_some() || !is_enabled || ring.size == 0 {
                continue;
            }
            let layout = Layout {
                size: ring.size,
                descriptors: self.table.guest_address(addresses.descriptors)?,
                available: self.table.guest_address(addresses.available)?,
                used: self.table.guest_address(addresses.used)?,
                event_idx: self.features & feature::EVENT_IDX != 0,
            };
            let (stop, stopped) = watch::channel(false);
            let parts = queue::Parts {
                index: index as u32,
                guest: guest.clone(),
                layout,
                next_available: ring.next_available,
                notes: self.notes.clone(),
                kick: kick.try_clone()?,
                call: ring.call.clone(),
                error: ring.error.clone(),
                wake: self.wake.try_clone()?,
                stop: stopped,
                name: self.parts.path.clone(),
            };
            let ended = self.start(index, parts)?;
            self.rings[index].running = Some(Running { stop, ended });
        }
        Ok(())
    }

    /// Lets a reactor serve a queue.
    fn start(&self, index: usize, parts: queue::Parts) -> io::Result<oneshot::Receiver<u16>> {
        let reactors = &self.parts.reactors;
        let at = (index + usize::from(self.parts.export)) % reactors.len().max(1);
        let reactor = reactors.get(at).ok_or_else(|| invalid("no reactor"))?;
        let (target, export) = (self.parts.target.clone(), self.parts.export);
        let mut id = [0; ID_BYTES];
        let uuid = self.shape()?.volume.simple().to_string();
        id.copy_from_slice(&uuid.as_bytes()[..ID_BYTES]);
        let flushes = self.features & feature::FLUSH != 0;
        let writeback = self.writeback.clone();
        let (end, ended) = oneshot::channel();
        drop(reactor.spawn(move || async move {
            let next_available = parts.next_available;
            let next = match target.open_export(export) {
                Ok(volume) => {
                    let disk = Disk {
                        volume,
                        id,
                        flushes,
                        writeback,
                        stop: parts.stop.clone(),
                    };
                    queue::serve(parts, disk).await
                }
                Err(error) => {
                    tracing::error!(%error, "a virtual machine's queue is not served");
                    next_available
                }
            };
            // The session may have ended.
            let _ = end.send(next);
        }));
        Ok(ended)
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.halt_all() {
            tracing::error!(export = self.parts.path, %error, "a virtual machine's queue did not end");
        }
    }
}

impl Vring {
    fn tell_to_stop(&self) {
        if let Some(running) = &self.running {
            running.stop.send_replace(true);
        }
    }

    /// Waits until the reactor serves it no more.
    fn halt(&mut self) -> io::Result<()> {
        self.tell_to_stop();
        if let Some(running) = self.running.take() {
            let ended = running.ended.blocking_recv();
            self.next_available = ended.map_err(|_| io::Error::other("its reactor ended"))?;
        }
        Ok(())
    }
}

fn exchange(bell: &Bell, descriptor: Option<OwnedFd>) {
    *bell.lock().unwrap_or_else(PoisonError::into_inner) = descriptor;
}

/// A reactor must never wait for what it reads or writes.
fn not_blocking(descriptor: &OwnedFd) -> io::Result<()> {
    let flags = fcntl_getfl(descriptor)?;
    Ok(fcntl_setfl(descriptor, flags | OFlags::NONBLOCK)?)
}
