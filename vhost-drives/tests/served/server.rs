//! A vhost-user-blk server with a device in memory, which can be told to be slow, to lie, to change, and to go away.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use vhost_drives::{Limits, OpenOptions, SocketAddress, VhostDrive};
use vm_memory::mmap::MmapRegion;
use vm_memory::{Bytes, FileOffset, VolatileMemory};

pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;

/// Features that a server has to offer, and those that this one offers besides.
pub(crate) const NEEDED: u64 = 1 << 32 | 1 << 30;
pub(crate) const FEATURE_RO: u64 = 1 << 5;
pub(crate) const FEATURE_FLUSH: u64 = 1 << 9;
pub(crate) const FEATURE_INDIRECT: u64 = 1 << 28;
pub(crate) const FEATURE_EVENT_INDEX: u64 = 1 << 29;
const FEATURES: u64 = NEEDED
    | FEATURE_INDIRECT
    | FEATURE_EVENT_INDEX
    | FEATURE_FLUSH
    | 1 << 2
    | 1 << 6
    | 1 << 12
    | 1 << 13;

/// Segments of a command's data at most.
const SEGMENTS: u32 = 8;

/// Protocol features: MQ, REPLY_ACK, CONFIG.
const PROTOCOL: u64 = 1 | 1 << 3 | 1 << 9;

/// How often a queue looks whether it is to stop.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// Bytes of the device.
pub(crate) const BYTES: usize = 1 << 20;

/// How the server breaks the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Answers are for this command.
    Id(u32),
    /// Answers have this many bytes.
    Len(u32),
    /// The count of answers is larger by so much.
    Jump(u16),
    /// The same command is answered twice.
    Twice,
    /// Nothing is written into the status.
    NoStatus,
    /// The configuration space has so many bytes.
    ConfigBytes(usize),
    /// The answer to this message is one to another.
    Reply(u32),
    /// The answer to this message has so many bytes.
    ReplyBytes(u32, usize),
    /// This message gets no answer.
    Silent(u32),
    /// This message is refused.
    Refuses(u32),
    /// After this message something is said that nobody asked for.
    Chatters(u32),
    /// At this message the connection is closed.
    HangsUp(u32),
}

/// What outlives the server's connections.
pub(crate) struct Device {
    pub(crate) disk: Vec<u8>,
    pub(crate) features: u64,
    pub(crate) protocol: u64,
    pub(crate) config: [u8; 60],
    pub(crate) id: [u8; 20],
    pub(crate) queues: u64,
    pub(crate) lie: Option<Lie>,
    /// Commands of this type are taken and not done.
    pub(crate) holds: Option<u32>,
    /// Commands get this status, and are not done.
    pub(crate) fails_with: Option<u8>,
    /// Types of commands that were done.
    pub(crate) commands: Vec<u32>,
    /// Longest data of a command.
    pub(crate) longest: usize,
    /// Segments of data that were not in the memory of the queues.
    pub(crate) lent: usize,
    /// How often the front end was called.
    pub(crate) calls: usize,
    pub(crate) connections: usize,
    /// Queues that were enabled on the last connection, and those that were given commands.
    pub(crate) enabled: usize,
    pub(crate) used: Vec<u32>,
    held: VecDeque<Held>,
}

struct Held {
    ring: Arc<Ring>,
    head: u16,
}

impl Device {
    pub(crate) fn count(&self, kind: u32) -> usize {
        self.commands.iter().filter(|one| **one == kind).count()
    }

    /// Commands that were taken and not done.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    fn done(&mut self, ring: &Ring, head: u16) {
        let parts = ring.chain(head);
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
            return;
        };
        let header = ring.get(first.0, 16);
        let kind = u32::from_le_bytes(header[..4].try_into().expect("four"));
        let sector = u64::from_le_bytes(header[8..].try_into().expect("eight")) as usize;
        let mut written = 1;
        let mut status = 0;
        self.commands.push(kind);
        self.used.push(ring.number);
        let mut next = sector * 512;
        for (at, len, _) in &parts[1..parts.len() - 1] {
            let place = next..next + *len;
            next = place.end;
            self.longest = self.longest.max(next - sector * 512);
            self.lent += usize::from(ring.is_lent(*at));
            if self.fails_with.is_some() {
                break;
            }
            match kind {
                IN => {
                    ring.put(*at, &self.disk[place]);
                    written += *len;
                }
                OUT => self.disk[place].copy_from_slice(&ring.get(*at, *len)),
                GET_ID => {
                    ring.put(*at, &self.id[..*len]);
                    written += *len;
                }
                DISCARD => {
                    let segment = ring.get(*at, 16);
                    let first =
                        u64::from_le_bytes(segment[..8].try_into().expect("eight")) as usize;
                    let count =
                        u32::from_le_bytes(segment[8..12].try_into().expect("four")) as usize;
                    self.disk[first * 512..(first + count) * 512].fill(0xdd);
                }
                _ => status = 2,
            }
        }
        status = self.fails_with.filter(|_| kind != GET_ID).unwrap_or(status);
        if self.lie != Some(Lie::NoStatus) || kind == GET_ID {
            ring.put(last.0, &[status]);
        }
        let lie = self.lie.filter(|_| kind != GET_ID);
        self.calls += usize::from(ring.answer(head, written as u32, lie));
    }
}

/// A queue as the server has it.
struct Ring {
    number: u32,
    memory: Arc<Regions>,
    has_event_index: bool,
    size: u16,
    descriptors: u64,
    available: u64,
    used: u64,
    kick: OwnedFd,
    call: OwnedFd,
    stop: AtomicBool,
    taken: Mutex<u16>,
    answered: Mutex<u16>,
}

/// Memory that is shared, and where each part begins.
type Regions = Vec<(MmapRegion<()>, u64)>;

impl Ring {
    /// The region that an address is in, which one that is, and where the address is in it.
    fn place(&self, at: u64) -> (usize, &MmapRegion<()>, usize) {
        let mut all = self.memory.iter().enumerate();
        let found = all.find_map(|(number, (memory, base))| {
            let inside = usize::try_from(at.checked_sub(*base)?).ok()?;
            (inside < memory.size()).then_some((number, memory, inside))
        });
        found.expect("within memory")
    }

    fn is_lent(&self, at: u64) -> bool {
        self.place(at).0 > 0
    }

    fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let (_, memory, at) = self.place(at);
        let part = memory.get_slice(at, len);
        part.expect("within memory").copy_to(&mut bytes);
        bytes
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let (_, memory, at) = self.place(at);
        let part = memory.get_slice(at, bytes.len());
        part.expect("within memory").copy_from(bytes);
    }

    fn load(&self, at: u64) -> u16 {
        let (_, memory, at) = self.place(at);
        let all = memory.as_volatile_slice();
        all.load(at, Ordering::SeqCst).expect("within memory")
    }

    fn index(&self) -> u16 {
        self.load(self.available + 2)
    }

    /// Address, length, flags of each descriptor of a command.
    fn chain(&self, head: u16) -> Vec<(u64, usize, u16)> {
        let number = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let (mut table, mut next) = (self.descriptors, head);
        let mut parts = Vec::new();
        loop {
            let bytes = self.get(table + u64::from(next) * 16, 16);
            let at = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
            let len = u32::from_le_bytes(bytes[8..12].try_into().expect("four")) as usize;
            let flags = number(&bytes, 12);
            if flags & 4 != 0 {
                (table, next) = (at, 0);
                continue;
            }
            parts.push((at, len, flags));
            if flags & 1 == 0 {
                return parts;
            }
            next = number(&bytes, 14);
        }
    }

    /// Whether the front end wants to be called for the answer with this number.
    fn wants_call(&self, answer: u16) -> bool {
        match self.has_event_index {
            true => self.load(self.available + 4 + 2 * u64::from(self.size)) == answer,
            false => self.load(self.available) & 1 == 0,
        }
    }

    /// Whether it had to call.
    fn answer(&self, head: u16, len: u32, lie: Option<Lie>) -> bool {
        let mut answered = self.answered.lock().expect("whole");
        let (mut id, mut len, mut more) = (u32::from(head), len, 1);
        match lie {
            Some(Lie::Id(other)) => id = other,
            Some(Lie::Len(other)) => len = other,
            Some(Lie::Jump(by)) => more += by,
            Some(Lie::Twice) => {
                self.put(
                    self.used + 4 + u64::from((*answered + 1) % self.size) * 8,
                    &id.to_le_bytes(),
                );
                more += 1;
            }
            _ => {}
        }
        let entry = [id.to_le_bytes(), len.to_le_bytes()].concat();
        self.put(self.used + 4 + u64::from(*answered % self.size) * 8, &entry);
        *answered = answered.wrapping_add(more);
        let (_, memory, at) = self.place(self.used + 2);
        let all = memory.as_volatile_slice();
        all.store(*answered, at, Ordering::SeqCst)
            .expect("within memory");
        // The answer is seen before the wish is looked at (2.7.7.2).
        std::sync::atomic::fence(Ordering::SeqCst);
        let first = answered.wrapping_sub(more);
        let is_wanted = (0..more).any(|at| self.wants_call(first.wrapping_add(at)));
        if is_wanted {
            let _ = rustix::io::write(&self.call, &1_u64.to_ne_bytes());
        }
        is_wanted
    }

    fn serve(self: Arc<Self>, device: Arc<Mutex<Device>>) {
        while !self.stop.load(Ordering::Acquire) {
            let _ = poll(&mut [PollFd::new(&self.kick, PollFlags::IN)], Some(&LOOK));
            let _ = rustix::io::read(&self.kick, &mut [0_u8; 8]);
            let mut taken = self.taken.lock().expect("whole");
            while !self.stop.load(Ordering::Acquire) && *taken != self.index() {
                let entry = self.get(self.available + 4 + u64::from(*taken % self.size) * 2, 2);
                let head = u16::from_le_bytes([entry[0], entry[1]]);
                *taken = taken.wrapping_add(1);
                // It is kicked for the next one.
                let event = self.used + 4 + 8 * u64::from(self.size);
                self.put(event, &taken.to_le_bytes());
                std::sync::atomic::fence(Ordering::SeqCst);
                let kind = self.get(self.chain(head)[0].0, 1)[0];
                let mut device = lock(&device);
                match device.holds == Some(u32::from(kind)) {
                    true => device.held.push_back(Held {
                        ring: self.clone(),
                        head,
                    }),
                    false => device.done(&self, head),
                }
            }
        }
    }
}

fn lock(device: &Mutex<Device>) -> MutexGuard<'_, Device> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of a queue before it runs.
#[derive(Default)]
struct Parts {
    size: u16,
    addresses: Option<(u64, u64, u64)>,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    ring: Option<(Arc<Ring>, JoinHandle<()>)>,
}

impl Parts {
    /// Stops it: how many commands were taken.
    fn stop(&mut self) -> u16 {
        let Some((ring, thread)) = self.ring.take() else {
            return 0;
        };
        ring.stop.store(true, Ordering::Release);
        thread.join().expect("the queue's thread ends");
        *ring.taken.lock().expect("whole")
    }
}

/// See the module. Its process is that of the test, so it is never gone.
pub(crate) struct Server {
    _folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
    device: Arc<Mutex<Device>>,
    life: Option<Life>,
}

/// From a start to an end.
struct Life {
    is_over: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<UnixStream>>>,
    thread: JoinHandle<()>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = [0; 60];
        config[..8].copy_from_slice(&(BYTES as u64 / 512).to_le_bytes());
        config[12..16].copy_from_slice(&SEGMENTS.to_le_bytes());
        config[20..24].copy_from_slice(&512_u32.to_le_bytes());
        config[34..36].copy_from_slice(&8_u16.to_le_bytes());
        config[36..40].copy_from_slice(&64_u32.to_le_bytes());
        config[40..44].copy_from_slice(&1_u32.to_le_bytes());
        config[44..48].copy_from_slice(&8_u32.to_le_bytes());
        let device = Device {
            disk: vec![0; BYTES],
            features: FEATURES,
            protocol: PROTOCOL,
            config,
            id: *b"the device of tests\0",
            queues: 4,
            lie: None,
            holds: None,
            fails_with: None,
            commands: Vec::new(),
            longest: 0,
            lent: 0,
            calls: 0,
            connections: 0,
            enabled: 0,
            used: Vec::new(),
            held: VecDeque::new(),
        };
        let mut server = Self {
            path: folder.path().join("device.sock"),
            _folder: folder,
            device: Arc::new(Mutex::new(device)),
            life: None,
        };
        server.come_back();
        server
    }

    pub(crate) fn device(&self) -> MutexGuard<'_, Device> {
        lock(&self.device)
    }

    /// Does what is held back, by a thread of its own, as soon as there is something and the front end wants to be called for
    /// it or not.
    pub(crate) fn let_go_when(&self, is_called: bool) -> JoinHandle<()> {
        let device = self.device.clone();
        thread::spawn(move || {
            let is_time = |device: &Device| {
                let held = device.held.front();
                held.is_some_and(|held| {
                    let answer = *held.ring.answered.lock().expect("whole");
                    held.ring.wants_call(answer) == is_called
                })
            };
            while !is_time(&lock(&device)) {
                thread::yield_now();
            }
            let mut device = lock(&device);
            while let Some(Held { ring, head }) = device.held.pop_front() {
                device.done(&ring, head);
            }
        })
    }

    /// Does what was held back.
    pub(crate) fn let_go(&self) {
        let mut device = self.device();
        device.holds = None;
        while let Some(Held { ring, head }) = device.held.pop_front() {
            device.done(&ring, head);
        }
    }

    /// Closes all connections and the socket. What is held back stays so.
    pub(crate) fn die(&mut self) {
        let Some(life) = self.life.take() else { return };
        life.is_over.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        let _ = UnixStream::connect(&self.path);
        for stream in life.streams.lock().expect("whole").iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        life.thread.join().expect("the server's thread ends");
        std::fs::remove_file(&self.path).expect("the socket is removed");
    }

    /// Says something on every connection that nobody asked for.
    pub(crate) fn chatter(&self) {
        let life = self.life.as_ref().expect("it lives");
        for stream in life.streams.lock().expect("whole").iter() {
            let _ = (&*stream).write_all(&[0; 12]);
        }
    }

    pub(crate) fn come_back(&mut self) {
        let listener = UnixListener::bind(&self.path).expect("a socket");
        let is_over = Arc::new(AtomicBool::new(false));
        let streams = Arc::new(Mutex::new(Vec::new()));
        let (over, all, device) = (is_over.clone(), streams.clone(), self.device.clone());
        let thread = thread::spawn(move || {
            let mut sessions = Vec::new();
            for stream in listener.incoming() {
                let stream = stream.expect("a connection");
                if over.load(Ordering::Acquire) {
                    break;
                }
                let kept = stream.try_clone().expect("a descriptor");
                all.lock().expect("whole").push(kept);
                let device = device.clone();
                sessions.push(thread::spawn(move || session(&stream, &device)));
            }
            for session in sessions {
                session.join().expect("a session ends");
            }
        });
        self.life = Some(Life {
            is_over,
            streams,
            thread,
        });
    }

    pub(crate) fn address(&self) -> SocketAddress {
        let text = format!("vhost-user:{}", self.path.display());
        text.parse().expect("an address")
    }

    pub(crate) async fn open(&self) -> Result<VhostDrive, drives::DriveError> {
        VhostDrive::open(self.address(), options()).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.die();
    }
}

/// Short times.
pub(crate) fn options() -> OpenOptions {
    OpenOptions {
        queues: 4,
        limits: Limits {
            command: Duration::from_millis(500),
            connect: Duration::from_secs(1),
            patience: Duration::from_millis(400),
            orphans: Duration::from_millis(1),
        },
        ..OpenOptions::default()
    }
}

/// One message, with its descriptors; `None` at the end.
fn message(stream: &UnixStream) -> Option<(u32, u32, Vec<u8>, Vec<OwnedFd>)> {
    let mut header = [0; 12];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut to = [IoSliceMut::new(&mut header)];
    let got = recvmsg(stream, &mut to, &mut control, RecvFlags::WAITALL).ok()?;
    if got.bytes != 12 {
        return None;
    }
    let mut fds = Vec::new();
    for one in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = one {
            fds.extend(rights);
        }
    }
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
    let (code, flags) = (word(0), word(4));
    let mut payload = vec![0; word(8) as usize];
    (&*stream).read_exact(&mut payload).ok()?;
    Some((code, flags, payload, fds))
}

fn session(stream: &UnixStream, device: &Arc<Mutex<Device>>) {
    lock(device).connections += 1;
    lock(device).enabled = 0;
    let mut queues: Vec<Parts> = (0..8).map(|_| Parts::default()).collect();
    let mut memory: Arc<Regions> = Arc::default();
    while let Some((code, flags, payload, mut fds)) = message(stream) {
        let number = |at: usize| {
            let bytes = payload.get(at..at + 8).expect("long enough");
            u64::from_le_bytes(bytes.try_into().expect("eight"))
        };
        let word = |at: usize| {
            let bytes = payload.get(at..at + 4).expect("long enough");
            u32::from_le_bytes(bytes.try_into().expect("four"))
        };
        let at = |queue: u32| queue as usize;
        let (features, protocol, config, count, lie) = {
            let device = lock(device);
            (
                device.features,
                device.protocol,
                device.config,
                device.queues,
                device.lie,
            )
        };
        let mut answer = None;
        match code {
            1 => answer = Some(features.to_le_bytes().to_vec()),
            15 => answer = Some(protocol.to_le_bytes().to_vec()),
            17 => answer = Some(count.to_le_bytes().to_vec()),
            24 => {
                let bytes = match lie {
                    Some(Lie::ConfigBytes(bytes)) => bytes,
                    _ => 60,
                };
                let mut space = config.to_vec();
                space.resize(bytes, 0);
                answer = Some([&payload[..12], &space].concat());
            }
            5 => {
                assert_eq!(word(0) as usize, fds.len());
                let regions = fds.drain(..).zip((8..).step_by(32)).map(|(fd, at)| {
                    let (base, len) = (number(at), number(at + 8) as usize);
                    assert_eq!((number(at + 16), number(at + 24)), (base, 0));
                    let file = FileOffset::new(File::from(fd), 0);
                    (MmapRegion::from_file(file, len).expect("mapped"), base)
                });
                memory = Arc::new(regions.collect());
            }
            8 => queues[at(word(0))].size = word(4) as u16,
            9 => {
                queues[at(word(0))].addresses = Some((number(8), number(16), number(24)));
            }
            11 => {
                let taken = queues[at(word(0))].stop();
                answer = Some([word(0).to_le_bytes(), u32::from(taken).to_le_bytes()].concat());
            }
            12 => queues[at(word(0))].kick = fds.pop(),
            13 => queues[at(word(0))].call = fds.pop(),
            18 => {
                let parts = &mut queues[at(word(0))];
                let (descriptors, used, available) = parts.addresses.expect("addresses");
                let ring = Arc::new(Ring {
                    number: word(0),
                    memory: memory.clone(),
                    has_event_index: features & FEATURE_EVENT_INDEX != 0,
                    size: parts.size,
                    descriptors,
                    available,
                    used,
                    kick: parts.kick.take().expect("a kick"),
                    call: parts.call.take().expect("a call"),
                    stop: AtomicBool::new(false),
                    taken: Mutex::new(0),
                    answered: Mutex::new(0),
                });
                let device = device.clone();
                lock(&device).enabled += 1;
                let served = ring.clone();
                parts.ring = Some((ring, thread::spawn(move || served.serve(device))));
            }
            _ => {}
        }
        if flags & 8 != 0 && answer.is_none() {
            let refused = u64::from(lie == Some(Lie::Refuses(code)));
            answer = Some(refused.to_le_bytes().to_vec());
        }
        let mut replied = code;
        match lie {
            Some(Lie::HangsUp(of)) if of == code => break,
            Some(Lie::Silent(of)) if of == code => continue,
            Some(Lie::Reply(of)) if of == code => replied += 1,
            Some(Lie::ReplyBytes(of, bytes)) if of == code => {
                answer.get_or_insert_default().resize(bytes, 0);
            }
            _ => {}
        }
        if let Some(payload) = answer {
            let words = [replied, 5, payload.len() as u32].map(u32::to_le_bytes);
            let mut bytes = words.concat();
            bytes.extend(payload);
            if lie == Some(Lie::Chatters(code)) {
                bytes.extend([0; 12]);
            }
            if (&*stream).write_all(&bytes).is_err() {
                break;
            }
        }
    }
    for queue in &mut queues {
        queue.stop();
    }
    let _ = stream.shutdown(Shutdown::Both);
}
