//! A front-end and the driver of its guest.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

use crate::harness::{PATIENCE, wait_for};

/// Bytes of the guest's memory, which begins where no other number points to.
pub(crate) const MEMORY_BYTES: u64 = 8 << 20;
pub(crate) const BASE: u64 = 0x4000_0000;
/// Where the front-end says that it has the memory.
const USER: u64 = 0x7f00_0000_0000;
/// Data begin here.
pub(crate) const DATA: u64 = BASE + (1 << 20);
/// Entries of a ring.
pub(crate) const SIZE: u16 = 16;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;

/// A descriptor: address, length, flags, next.
pub(crate) type Descriptor = (u64, u32, u16, u16);

pub(crate) struct Memory {
    pub(crate) guest: GuestMemoryMmap<()>,
    file: OwnedFd,
}

/// A queue as the driver has it.
pub(crate) struct Queue {
    pub(crate) index: u32,
    kick: OwnedFd,
    pub(crate) call: OwnedFd,
    pub(crate) error: OwnedFd,
    available: u16,
    used: u16,
}

pub(crate) struct FrontEnd {
    pub(crate) stream: UnixStream,
    pub(crate) memory: Memory,
    pub(crate) queues: Vec<Queue>,
    pub(crate) features: u64,
}

impl Memory {
    pub(crate) fn new() -> Self {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, MEMORY_BYTES).expect("its size");
        let copy = file.try_clone().expect("a descriptor").into();
        let offset = Some(FileOffset::new(copy, 0));
        let range = (GuestAddress(BASE), MEMORY_BYTES as usize, offset);
        let guest = GuestMemoryMmap::from_ranges_with_files([range]).expect("mapped");
        Self { guest, file }
    }

    /// Cuts the file off, under the nose of who has mapped it. Nobody may touch what is beyond from here on.
    pub(crate) fn cut_off(&self, len: u64) {
        ftruncate(&self.file, len).expect("a shorter file");
    }

    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        let put = self.guest.write_slice(bytes, GuestAddress(at));
        put.expect("within memory");
    }

    pub(crate) fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let got = self.guest.read_slice(&mut bytes, GuestAddress(at));
        got.expect("within memory");
        bytes
    }
}

pub(crate) fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an event descriptor")
}

fn words(values: &[u64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn pair(one: u32, other: u32) -> Vec<u8> {
    [one.to_le_bytes(), other.to_le_bytes()].concat()
}

/// Where the parts of a queue's ring are in memory.
pub(crate) fn descriptors_of(queue: u32) -> u64 {
    BASE + u64::from(queue) * 0x4000
}

pub(crate) fn available_of(queue: u32) -> u64 {
    descriptors_of(queue) + 0x1000
}

pub(crate) fn used_of(queue: u32) -> u64 {
    descriptors_of(queue) + 0x2000
}

/// The bytes of a message.
fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [request, flags, payload.len() as u32] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(payload);
    bytes
}

/// Sends a message, with descriptors.
pub(crate) fn send(
    stream: &UnixStream,
    request: u32,
    payload: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = message(request, 1, payload);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    sendmsg(
        stream,
        &[IoSlice::new(&bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Receives an answer.
pub(crate) fn receive(mut stream: &UnixStream) -> io::Result<(u32, Vec<u8>, Option<OwnedFd>)> {
    let mut head = [0; 12];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut head)];
    let taken = recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut rights) = message {
            descriptor = rights.next();
        }
    }
    if taken.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.read_exact(&mut head[taken.bytes..])?;
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("a word"));
    let mut payload = vec![0; word(8) as usize];
    stream.read_exact(&mut payload)?;
    Ok((word(0), payload, descriptor))
}

impl FrontEnd {
    /// Connects, and negotiates everything.
    pub(crate) fn connect(path: &str, memory: Memory) -> Self {
        let stream = UnixStream::connect(path).expect("the export listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a patience");
        let mut front_end = Self {
            stream,
            memory,
            queues: Vec::new(),
            features: 0,
        };
        front_end.tell(3, &[]);
        let offered = front_end.number(1);
        front_end.features = offered & !(1 << 29);
        let protocol = front_end.number(15);
        front_end.tell(16, &words(&[protocol]));
        front_end
    }

    /// A whole device with so many queues.
    pub(crate) fn start(path: &str, memory: Memory, queues: u32) -> Self {
        let mut front_end = Self::connect(path, memory);
        front_end.set_up(queues);
        front_end
    }

    pub(crate) fn set_up(&mut self, queues: u32) {
        self.tell(2, &words(&[self.features]));
        let mut table = pair(1, 0);
        table.extend(words(&[BASE, MEMORY_BYTES, USER, 0]));
        self.send(5, &table, &[self.memory.file.as_fd()]);
        for index in 0..queues {
            self.start_queue(index);
        }
    }

    pub(crate) fn start_queue(&mut self, index: u32) {
        let used = self.load(used_of(index) + 2);
        let queue = Queue {
            index,
            kick: event(),
            call: event(),
            error: event(),
            available: self.load(available_of(index) + 2),
            used,
        };
        self.tell(8, &pair(index, u32::from(SIZE)));
        self.tell(10, &pair(index, u32::from(used)));
        let mut addresses = pair(index, 0);
        let user = |at: u64| at - BASE + USER;
        let (table, used, available) = (
            user(descriptors_of(index)),
            user(used_of(index)),
            user(available_of(index)),
        );
        addresses.extend(words(&[table, used, available, 0]));
        self.tell(9, &addresses);
        let number = words(&[u64::from(index)]);
        self.send(12, &number, &[queue.kick.as_fd()]);
        self.send(13, &number, &[queue.call.as_fd()]);
        self.send(14, &number, &[queue.error.as_fd()]);
        self.tell(18, &pair(index, 1));
        self.queues.push(queue);
    }

    pub(crate) fn send(&self, request: u32, payload: &[u8], descriptors: &[BorrowedFd<'_>]) {
        send(&self.stream, request, payload, descriptors).expect("the device listens");
    }

    pub(crate) fn tell(&self, request: u32, payload: &[u8]) {
        self.send(request, payload, &[]);
    }

    pub(crate) fn ask(&self, request: u32, payload: &[u8]) -> Vec<u8> {
        self.tell(request, payload);
        let (answered, payload, _) = receive(&self.stream).expect("an answer");
        assert_eq!(answered, request);
        payload
    }

    /// Sends a message that wants its outcome, and gives that.
    pub(crate) fn outcome(&self, request: u32, payload: &[u8]) -> u64 {
        let sent = (&self.stream).write_all(&message(request, 1 | 8, payload));
        sent.expect("the device listens");
        let (answered, payload, _) = receive(&self.stream).expect("an outcome");
        assert_eq!(answered, request);
        u64::from_le_bytes(payload.try_into().expect("a number"))
    }

    fn number(&self, request: u32) -> u64 {
        let answer = self.ask(request, &[]);
        u64::from_le_bytes(answer.try_into().expect("a number"))
    }

    /// The configuration space.
    pub(crate) fn config(&self) -> Vec<u8> {
        let mut payload = pair(0, 60);
        payload.extend([0; 64]);
        self.ask(24, &payload).split_off(12)
    }

    /// Ends a queue; gives the index of its next request.
    pub(crate) fn stop_queue(&self, index: u32) -> u32 {
        let answer = self.ask(11, &pair(index, 0));
        u32::from_le_bytes(answer[4..8].try_into().expect("a number"))
    }

    pub(crate) fn load(&self, at: u64) -> u16 {
        let load = self.memory.guest.load(GuestAddress(at), Ordering::Acquire);
        load.expect("within memory")
    }

    pub(crate) fn store(&self, value: u16, at: u64) {
        let store = self
            .memory
            .guest
            .store(value, GuestAddress(at), Ordering::Release);
        store.expect("within memory");
    }

    pub(crate) fn put_descriptor(
        &self,
        table: u64,
        at: u16,
        (address, len, flags, next): Descriptor,
    ) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.memory.put(table + 16 * u64::from(at), &bytes);
    }

    /// Offers the chain that begins at a descriptor.
    pub(crate) fn offer(&mut self, queue: usize, head: u16) {
        let ring = available_of(self.queues[queue].index);
        let next = self.queues[queue].available;
        self.store(head, ring + 4 + 2 * u64::from(next % SIZE));
        self.queues[queue].available = next.wrapping_add(1);
        self.store(next.wrapping_add(1), ring + 2);
    }

    pub(crate) fn kick(&self, queue: usize) {
        let kick = &self.queues[queue].kick;
        rustix::io::write(kick, &1u64.to_ne_bytes()).expect("a kick");
    }

    /// Puts a request into descriptors from `head` on: header, data, status. The status byte is `0xff` before the answer.
    pub(crate) fn put_request(
        &self,
        queue: usize,
        head: u16,
        (kind, sector): (u32, u64),
        data: &[(u64, u32)],
    ) -> u64 {
        let table = descriptors_of(self.queues[queue].index);
        let header = DATA - 0x8000 + 0x400 * queue as u64 + 0x20 * u64::from(head);
        let mut bytes = pair(kind, 0);
        bytes.extend(sector.to_le_bytes());
        self.memory.put(header, &bytes);
        self.memory.put(header + 16, &[0xff]);
        let is_out = [OUT, DISCARD, WRITE_ZEROES].contains(&kind);
        let access = if is_out { 0 } else { WRITE };
        let mut chain = vec![(header, 16, 0)];
        chain.extend(data.iter().map(|(at, len)| (*at, *len, access)));
        chain.push((header + 16, 1, WRITE));
        let last = chain.len() - 1;
        for (at, (address, len, flags)) in chain.into_iter().enumerate() {
            let place = (head + at as u16) % SIZE;
            let next = (place + 1) % SIZE;
            let more = if at == last { 0 } else { NEXT };
            self.put_descriptor(table, place, (address, len, flags | more, next));
        }
        header + 16
    }

    /// Waits for the next answer: its head and length.
    pub(crate) fn answered(&mut self, queue: usize) -> (u32, u32) {
        let ring = used_of(self.queues[queue].index);
        let next = self.queues[queue].used;
        wait_for("an answer", || self.load(ring + 2) != next);
        let entry = self.memory.get(ring + 4 + 8 * u64::from(next % SIZE), 8);
        self.queues[queue].used = next.wrapping_add(1);
        let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("a word"));
        (word(0), word(4))
    }

    /// Does one request; gives its status.
    pub(crate) fn does(&mut self, request: (u32, u64), data: &[(u64, u32)]) -> u8 {
        let status = self.put_request(0, 0, request, data);
        self.offer(0, 0);
        self.kick(0);
        let (head, _) = self.answered(0);
        assert_eq!(head, 0);
        self.memory.get(status, 1)[0]
    }

    pub(crate) fn writes(&mut self, sector: u64, bytes: &[u8]) -> u8 {
        self.memory.put(DATA, bytes);
        self.does((OUT, sector), &[(DATA, bytes.len() as u32)])
    }

    pub(crate) fn reads(&mut self, sector: u64, len: usize) -> Vec<u8> {
        self.memory.put(DATA, &vec![0xee; len]);
        assert_eq!(self.does((IN, sector), &[(DATA, len as u32)]), 0);
        self.memory.get(DATA, len)
    }

    /// The device has sent it away.
    pub(crate) fn is_sent_away(&mut self) -> bool {
        let _ = self.stream.flush();
        matches!(self.stream.read(&mut [0; 1]), Ok(0) | Err(_))
    }
}

/// Memory that the device made, as the front-end sees it.
pub(crate) struct Shared(GuestMemoryMmap<()>);

pub(crate) fn map(file: &OwnedFd) -> Shared {
    let copy: std::fs::File = file.try_clone().expect("a descriptor").into();
    let len = copy.metadata().expect("its size").len() as usize;
    let range = (GuestAddress(0), len, Some(FileOffset::new(copy, 0)));
    Shared(GuestMemoryMmap::from_ranges_with_files([range]).expect("mapped"))
}

impl Shared {
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        let put = self.0.write_slice(bytes, GuestAddress(at as u64));
        put.expect("within memory");
    }

    pub(crate) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let got = self.0.read_slice(&mut bytes, GuestAddress(at as u64));
        got.expect("within memory");
        bytes
    }
}

/// A queue that the device does not know.
pub(crate) fn unused_queue() -> Queue {
    Queue {
        index: 0,
        kick: event(),
        call: event(),
        error: event(),
        available: 0,
        used: 0,
    }
}
