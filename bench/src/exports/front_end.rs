//! A front-end of vhost-user-blk: memory that it shares with a device, and the driver's side of one split queue in it.
//!
//! Requests have places of their own: header, status, data and descriptors of a place stay where they are, so that a request
//! costs this side as little as it costs a good driver.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg,
    sendmsg,
};
use vm_memory::mmap::MmapRegion;
use vm_memory::{AtomicAccess, Bytes, FileOffset, VolatileMemory};

/// Entries of the ring, as Linux asks for at QEMU.
const RING: u16 = 256;
/// Descriptors of a request: header, data, status.
const CHAIN: u16 = 3;
/// Requests under way at most.
pub(super) const DEPTH_MAX: u16 = RING / CHAIN;
/// Bytes of a request's data at most.
pub(super) const DATA_BYTES_MAX: usize = 128 << 10;
/// Targets take memory in pages of this size.
const HUGE_PAGE: usize = 2 << 20;

/// Where the front-end says that it has the memory. The guest has it at 0.
const USER: u64 = 0x7f00_0000_0000;
const DESCRIPTORS: usize = 0;
const AVAILABLE: usize = 0x2000;
const USED: usize = 0x4000;
/// Header and status of each place.
const HEADERS: usize = 0x8000;
const HEADER_STRIDE: usize = 64;
const STATUS_AT: usize = 16;
const DATA: usize = HUGE_PAGE;
const MEMORY: usize = (DATA + DEPTH_MAX as usize * DATA_BYTES_MAX).next_multiple_of(HUGE_PAGE);

const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;
/// Of the flags in both rings: no notification is wanted.
const NO_NOTIFICATION: u16 = 1;

/// Types of requests.
const IN: u32 = 0;
const OUT: u32 = 1;
const SECTOR: u64 = 512;

/// How long a target may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

// Features of the device that a driver of Linux uses, as far as they matter here.
const FLUSH: u64 = 1 << 9;
const EVENT_IDX: u64 = 1 << 29;
const PROTOCOL: u64 = 1 << 30;
const VERSION_1: u64 = 1 << 32;
/// Protocol feature: the configuration space can be read.
const CONFIG: u64 = 1 << 9;
/// Of that space, what every target has.
const CONFIG_BYTES: u32 = 60;

/// A device that is set up.
pub(super) struct FrontEnd {
    stream: UnixStream,
    memory: MmapRegion<()>,
    kick: OwnedFd,
    call: OwnedFd,
    event_idx: bool,
    /// Bytes of the disk.
    size_bytes: u64,
    /// Bytes of each request's data.
    data_bytes: usize,
    next_available: u16,
    /// Up to where the device was told, or did not want to be.
    told: u16,
    next_used: u16,
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

fn words(values: &[u64]) -> Vec<u8> {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    bytes.collect()
}

fn pair(one: u32, other: u32) -> Vec<u8> {
    [one.to_le_bytes(), other.to_le_bytes()].concat()
}

/// Sends a message, with descriptors.
fn send(
    stream: &UnixStream,
    request: u32,
    payload: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut bytes = [request, 1, payload.len() as u32]
        .map(u32::to_le_bytes)
        .concat();
    bytes.extend(payload);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    let sent = sendmsg(
        stream,
        &[IoSlice::new(&bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    match sent == bytes.len() {
        true => Ok(()),
        false => Err(invalid("the target takes no whole message")),
    }
}

/// The payload of the answer to a request.
fn answer(mut stream: &UnixStream, request: u32) -> io::Result<Vec<u8>> {
    let mut head = [0; 12];
    let mut control = RecvAncillaryBuffer::default();
    let mut parts = [IoSliceMut::new(&mut head)];
    let taken = recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if taken.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.read_exact(&mut head[taken.bytes..])?;
    let [answered, _, len] = [0, 4, 8]
        .map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
    if answered != request || len > 4096 {
        return Err(invalid("the target answers something else"));
    }
    let mut payload = vec![0; len as usize];
    stream.read_exact(&mut payload)?;
    Ok(payload)
}

fn number(payload: &[u8]) -> io::Result<u64> {
    let first = payload.first_chunk().copied();
    let first = first.ok_or_else(|| invalid("the target's answer is too short"))?;
    Ok(u64::from_le_bytes(first))
}

/// Memory to share. Targets on DPDK take any, and are quicker with huge pages.
fn memory(huge_pages: bool) -> io::Result<(MmapRegion<()>, OwnedFd)> {
    let kind = match huge_pages {
        true => MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        false => MemfdFlags::CLOEXEC,
    };
    let file = memfd_create("onefold-bench", kind)?;
    // Takes the memory now: a huge page that is not there would end the program at its first use (SIGBUS).
    fallocate(&file, FallocateFlags::empty(), 0, MEMORY as u64).map_err(|error| match huge_pages {
        true => io::Error::other(format!(
            "the system has no {} free huge pages of 2 MiB: write more to /proc/sys/vm/nr_hugepages ({error})",
            MEMORY >> 21
        )),
        false => error.into(),
    })?;
    let offset = FileOffset::new(file.try_clone()?.into(), 0);
    let mapping = MmapRegion::from_file(offset, MEMORY).map_err(io::Error::other)?;
    Ok((mapping, file))
}

impl FrontEnd {
    /// Connects, and starts a queue whose requests have that many bytes of data each.
    pub(super) fn connect(path: &Path, huge_pages: bool, data_bytes: usize) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let tell = |request, payload: &[u8]| send(&stream, request, payload, &[]);
        let ask = |request, payload: &[u8]| {
            tell(request, payload)?;
            answer(&stream, request)
        };
        tell(3, &[])?;
        let offered = number(&ask(1, &[])?)?;
        if offered & VERSION_1 == 0 || offered & PROTOCOL == 0 {
            return Err(invalid("the target does not offer what every disk needs"));
        }
        let protocol = number(&ask(15, &[])?)? & CONFIG;
        tell(16, &words(&[protocol]))?;
        // Offset, length, flags, and room for the answer.
        let mut payload = [0, CONFIG_BYTES, 0].map(u32::to_le_bytes).concat();
        payload.extend([0; CONFIG_BYTES as usize]);
        let config = ask(24, &payload)?;
        let size_bytes = number(config.get(12..).unwrap_or_default())? * SECTOR;
        let features = offered & (FLUSH | EVENT_IDX | PROTOCOL | VERSION_1);
        tell(2, &words(&[features]))?;
        let (memory, file) = memory(huge_pages)?;
        let table = [pair(1, 0), words(&[0, MEMORY as u64, USER, 0])].concat();
        send(&stream, 5, &table, &[file.as_fd()])?;
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (kick, call) = (event()?, event()?);
        let mut front_end = Self {
            stream,
            memory,
            kick,
            call,
            event_idx: features & EVENT_IDX != 0,
            size_bytes,
            data_bytes: data_bytes.min(DATA_BYTES_MAX),
            next_available: 0,
            told: 0,
            next_used: 0,
        };
        front_end.want_calls(false)?;
        front_end.start_queue()?;
        Ok(front_end)
    }

    fn start_queue(&mut self) -> io::Result<()> {
        let tell = |request, payload: &[u8]| send(&self.stream, request, payload, &[]);
        tell(8, &pair(0, RING.into()))?;
        tell(10, &pair(0, 0))?;
        let user = |at: usize| USER + at as u64;
        let places = words(&[user(DESCRIPTORS), user(USED), user(AVAILABLE), 0]);
        tell(9, &[pair(0, 0), places].concat())?;
        send(&self.stream, 13, &words(&[0]), &[self.call.as_fd()])?;
        send(&self.stream, 12, &words(&[0]), &[self.kick.as_fd()])?;
        tell(18, &pair(0, 1))
    }

    /// Bytes of the disk.
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn load<T: AtomicAccess>(&self, at: usize) -> io::Result<T> {
        let whole = self.memory.as_volatile_slice();
        whole.load(at, Ordering::Acquire).map_err(io::Error::other)
    }

    fn store<T: AtomicAccess>(&self, value: T, at: usize) -> io::Result<()> {
        let whole = self.memory.as_volatile_slice();
        let stored = whole.store(value, at, Ordering::Release);
        stored.map_err(io::Error::other)
    }

    /// Writes to the data of a place.
    pub(super) fn put_data(&self, place: u16, at: usize, bytes: &[u8]) -> io::Result<()> {
        let to = DATA + usize::from(place) * DATA_BYTES_MAX + at;
        let whole = self.memory.as_volatile_slice();
        whole.write_slice(bytes, to).map_err(io::Error::other)
    }

    /// Two words of the data of a place.
    pub(super) fn data_words(&self, place: u16, at: usize) -> io::Result<[u64; 2]> {
        let from = DATA + usize::from(place) * DATA_BYTES_MAX + at;
        Ok([self.load(from)?, self.load(from + 8)?])
    }

    /// Lays out the descriptors of a place, for requests of one direction.
    pub(super) fn prepare(&self, place: u16, is_write: bool) -> io::Result<()> {
        let first = place * CHAIN;
        let header = HEADERS + usize::from(place) * HEADER_STRIDE;
        let data = DATA + usize::from(place) * DATA_BYTES_MAX;
        let direction = if is_write { 0 } else { DEVICE_WRITES };
        let chain = [
            (header, STATUS_AT, NEXT),
            (data, self.data_bytes, NEXT | direction),
            (header + STATUS_AT, 1, DEVICE_WRITES),
        ];
        for (number, (at, len, flags)) in (first..).zip(chain) {
            let mut bytes = (at as u64).to_le_bytes().to_vec();
            bytes.extend((len as u32).to_le_bytes());
            bytes.extend(flags.to_le_bytes());
            bytes.extend((number + 1).to_le_bytes());
            let whole = self.memory.as_volatile_slice();
            let put = whole.write_slice(&bytes, DESCRIPTORS + 16 * usize::from(number));
            put.map_err(io::Error::other)?;
        }
        let kind = if is_write { OUT } else { IN };
        self.store(kind.to_le(), header)
    }

    /// Offers the request of a place; the device sees it by [`Self::publish`].
    pub(super) fn offer(&mut self, place: u16, at: u64) -> io::Result<()> {
        let header = HEADERS + usize::from(place) * HEADER_STRIDE;
        self.store((at / SECTOR).to_le(), header + 8)?;
        self.store(0xff_u8, header + STATUS_AT)?;
        let entry = usize::from(self.next_available % RING);
        self.store((place * CHAIN).to_le(), AVAILABLE + 4 + 2 * entry)?;
        self.next_available = self.next_available.wrapping_add(1);
        Ok(())
    }

    /// Lets the device see what was offered, and tells it of that if it wants to know.
    pub(super) fn publish(&mut self) -> io::Result<()> {
        self.store(self.next_available.to_le(), AVAILABLE + 2)?;
        fence(Ordering::SeqCst);
        let told = std::mem::replace(&mut self.told, self.next_available);
        let has_to_tell = if self.event_idx {
            let event = u16::from_le(self.load(USED + 4 + 8 * usize::from(RING))?);
            let since = self.next_available.wrapping_sub(event).wrapping_sub(1);
            since < self.next_available.wrapping_sub(told)
        } else {
            u16::from_le(self.load(USED)?) & NO_NOTIFICATION == 0
        };
        if has_to_tell {
            rustix::io::write(&self.kick, &1_u64.to_ne_bytes())?;
        }
        Ok(())
    }

    /// The place of the next request that is done, if there is one.
    ///
    /// # Errors
    /// The target failed it, or broke the rules of the ring.
    pub(super) fn take_done(&mut self) -> io::Result<Option<u16>> {
        if u16::from_le(self.load(USED + 2)?) == self.next_used {
            return Ok(None);
        }
        let entry = usize::from(self.next_used % RING);
        let head = u32::from_le(self.load(USED + 4 + 8 * entry)?);
        self.next_used = self.next_used.wrapping_add(1);
        let place = u16::try_from(head).ok().filter(|head| head % CHAIN == 0);
        let place = place
            .map(|head| head / CHAIN)
            .filter(|place| *place < DEPTH_MAX);
        let place = place.ok_or_else(|| invalid("the target answers what was not asked"))?;
        let header = HEADERS + usize::from(place) * HEADER_STRIDE;
        match self.load::<u8>(header + STATUS_AT)? {
            0 => Ok(Some(place)),
            status => Err(io::Error::other(format!(
                "the target failed a request with status {status}"
            ))),
        }
    }

    /// Whether the device is to call when something is done.
    fn want_calls(&mut self, want: bool) -> io::Result<()> {
        if self.event_idx {
            // An index of the past is not reached.
            let event = if want {
                self.next_used
            } else {
                self.next_used.wrapping_sub(1)
            };
            self.store(event.to_le(), AVAILABLE + 4 + 2 * usize::from(RING))?;
        } else {
            let flags = if want { 0 } else { NO_NOTIFICATION };
            self.store(flags.to_le(), AVAILABLE)?;
        }
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Lets the index of the past stay one. Whoever polls does this now and then.
    pub(super) fn want_no_calls(&mut self) -> io::Result<()> {
        match self.event_idx {
            true => self.want_calls(false),
            false => Ok(()),
        }
    }

    /// Sleeps until the device calls, or something is done.
    pub(super) fn sleep(&mut self) -> io::Result<()> {
        self.want_calls(true)?;
        if u16::from_le(self.load(USED + 2)?) == self.next_used {
            let mut looked = [PollFd::new(&self.call, PollFlags::IN)];
            let patience = Timespec {
                tv_sec: PATIENCE.as_secs() as i64,
                tv_nsec: 0,
            };
            if poll(&mut looked, Some(&patience))? == 0 {
                return Err(invalid("the target does not call"));
            }
            // A call of before may be heard only now.
            let _ = rustix::io::read(&self.call, &mut [0; 8]);
        }
        self.want_calls(false)
    }
}
