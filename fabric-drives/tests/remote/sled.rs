//! A target with one namespace in memory, which can be told to be slow, to change, and to go away.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use drives::{BLOCK_BYTES, Drive, DriveError, Extent};
use fabric::{Capsule, TargetQueue, TcpListener, TcpListenerConfig, TlsFailure, TlsKeys, TlsMode};
use fabric_drives::{KeyFolder, Limits, OpenOptions, RemoteDrive};
use nvme::admin::AdminCommand;
use nvme::auth::{ConfiguredPsk, PskIdentity, TlsPsk};
use nvme::command::FABRICS_OPCODE;
use nvme::fabrics::{CONNECT_DATA_BYTES, ConnectData, FabricsCommand};
use nvme::identify::{
    Cns, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, LbaFormat, NamespaceDescriptor,
    encode_descriptor_list, encode_namespace_list,
};
use nvme::io::IoCommand;
use nvme::log::{LogPage, SmartLog};
use nvme::node_table::NodeTableCommand;
use nvme::reservation::{
    AcquireAction, KeyPair, ReportedRegistrant, ReservationCommand, ReservationReport,
    ReservationType,
};
use nvme::{Cqe, Nqn, Status};
use reactor::{Buffer, BufferPool, ReactorThread};

use crate::nodes::Nodes;

pub(crate) const SUBSYSTEM: &str = "nqn.2026-11.dev.onefold:sled";
const CNTLID: u16 = 7;

/// Bytes of the namespace: whole blocks, and one sector more where these are of 512 bytes.
pub(crate) const BYTES: usize = 1 << 20;

/// Bytes that one command moves (MDTS 3).
pub(crate) const TRANSFER_BYTES: usize = 32 << 10;

/// No story takes that long; one that does hangs.
const STORY_MAX: Duration = Duration::from_secs(120);

type HostId = [u8; 16];

/// A write that the target has, and has not done.
struct Held {
    host: HostId,
    at: usize,
    bytes: Vec<u8>,
}

/// What outlives the target's process.
pub(crate) struct Media {
    pub(crate) disk: Vec<u8>,
    pub(crate) namespace: IdentifyNamespace,
    pub(crate) controller: IdentifyController,
    pub(crate) uuid: [u8; 16],
    /// What it tells of its health; without it the target does not know the page.
    pub(crate) health: Option<SmartLog>,
    /// Opcodes of I/O commands that came.
    pub(crate) commands: Vec<u8>,
    /// Host Identifiers of admin queues that connected.
    pub(crate) connected: Vec<HostId>,
    /// The node table; without it the target does not know the commands.
    pub(crate) nodes: Option<Nodes>,
    registrants: Vec<(HostId, u64)>,
    holder: Option<HostId>,
    held: Vec<Held>,
}

impl Media {
    pub(crate) fn count(&self, opcode: u8) -> usize {
        self.commands.iter().filter(|one| **one == opcode).count()
    }

    /// As after a loss of power, which reservations here do not survive.
    pub(crate) fn forget_reservations(&mut self) {
        self.registrants.clear();
        self.holder = None;
    }

    pub(crate) fn is_reserved(&self) -> bool {
        self.holder.is_some()
    }

    /// Does what was held back and not aborted.
    pub(crate) fn let_go(&mut self) {
        for Held { at, bytes, .. } in std::mem::take(&mut self.held) {
            self.disk[at..at + bytes.len()].copy_from_slice(&bytes);
        }
    }
}

/// The key of whoever comes by TLS.
pub(crate) struct Key {
    psk: Mutex<ConfiguredPsk>,
    /// Handshakes that failed.
    pub(crate) failed: AtomicUsize,
}

impl Key {
    pub(crate) fn new(psk: ConfiguredPsk) -> Arc<Self> {
        Arc::new(Self {
            psk: Mutex::new(psk),
            failed: AtomicUsize::new(0),
        })
    }

    pub(crate) fn change(&self, psk: ConfiguredPsk) {
        *self.psk.lock().expect("no story panics with it") = psk;
    }
}

impl TlsKeys for Key {
    fn find(&self, identity: &str, _: SocketAddr) -> Option<TlsPsk> {
        let psk = self.psk.lock().expect("no story panics with it");
        let named = psk.named(&PskIdentity::parse(identity)?, false);
        named.expect("OpenSSL computes")
    }

    fn failed(&self, _: SocketAddr, _: &TlsFailure) {
        self.failed.fetch_add(1, Ordering::AcqRel);
    }

    fn holds_off(&self, _: SocketAddr) -> bool {
        false
    }
}

/// See the module.
pub(crate) struct Sled {
    pub(crate) media: Arc<Mutex<Media>>,
    /// Writes are taken and not answered.
    pub(crate) holds_writes: Arc<AtomicBool>,
    /// Writes that were taken so.
    pub(crate) held: Arc<AtomicUsize>,
    /// Hosts come by TLS with this key alone.
    key: Option<Arc<Key>>,
    thread: Option<ReactorThread>,
    address: SocketAddr,
}

impl Sled {
    /// A namespace with blocks of so many bytes, a cache, deallocation and reservations.
    pub(crate) fn start(lba_bytes: usize) -> Self {
        Self::start_with(lba_bytes, None)
    }

    /// The same, for hosts that come by TLS with this key.
    pub(crate) fn start_with(lba_bytes: usize, key: Option<Arc<Key>>) -> Self {
        let odd = usize::from(lba_bytes == 512);
        let blocks = (BYTES / lba_bytes + odd) as u64;
        let namespace = IdentifyNamespace {
            nsze: blocks,
            ncap: blocks,
            rescap: 0x7e,
            lbaf: vec![LbaFormat {
                ms: 0,
                lbads: lba_bytes.ilog2() as u8,
                rp: 0,
            }],
            ..Default::default()
        };
        let controller = IdentifyController {
            cntlid: CNTLID,
            mdts: 3,
            sqes: 0x66,
            cqes: 0x44,
            maxcmd: 128,
            nn: 1,
            kas: 1,
            oncs: 1 << 2 | 1 << 5,
            vwc: 1,
            ioccsz: (64 + 4096) / 16,
            iorcsz: 1,
            sgls: 0x0010_0005,
            subnqn: SUBSYSTEM.into(),
            mn: nvme::node_table::MODEL.into(),
            ..Default::default()
        };
        let media = Media {
            disk: vec![0; BYTES + 512 * odd],
            namespace,
            controller,
            uuid: *uuid::Uuid::new_v4().as_bytes(),
            health: Some(SmartLog::default()),
            commands: Vec::new(),
            connected: Vec::new(),
            nodes: None,
            registrants: Vec::new(),
            holder: None,
            held: Vec::new(),
        };
        let mut sled = Self {
            media: Arc::new(Mutex::new(media)),
            holds_writes: Arc::default(),
            held: Arc::default(),
            key,
            thread: None,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        sled.come_back();
        sled
    }

    pub(crate) fn media(&self) -> MutexGuard<'_, Media> {
        self.media.lock().expect("no story panics with it")
    }

    /// The same with a node table, and with commands that move 1 MiB (MDTS 8).
    pub(crate) fn with_nodes(self) -> Self {
        self.media().nodes = Some(Nodes::default());
        self.media().controller.mdts = 8;
        self
    }

    /// Changes the node table.
    pub(crate) fn change_nodes(&self, change: impl FnOnce(&mut Nodes)) {
        change(self.media().nodes.as_mut().expect("it has a table"));
    }

    /// The same without reservations.
    pub(crate) fn without_reservations(self) -> Self {
        self.media().namespace.rescap = 0;
        self
    }

    /// Its process ends: connections break, and what was not flushed stays or not.
    pub(crate) fn die(&mut self) {
        self.thread.take().expect("it lives").stop_and_join();
    }

    /// Listens (again), at the same address.
    pub(crate) fn come_back(&mut self) {
        let config = reactor::Config {
            buffer_pool: reactor::PoolConfig { bytes: 16 << 20 },
            name: "sled".into(),
            ..Default::default()
        };
        let thread = reactor::start(config).expect("a reactor");
        let (media, address) = (self.media.clone(), self.address);
        let (holds, held) = (self.holds_writes.clone(), self.held.clone());
        let key = self.key.clone();
        // Stories call this on their reactor, which may wait for another thread only so.
        let (tell, told) = std::sync::mpsc::channel();
        let listening = move || async move {
            // The kernel may hold the port for a moment.
            let listener = loop {
                let config = TcpListenerConfig::new(address);
                let bound = match &key {
                    None => TcpListener::bind(config),
                    Some(key) => {
                        let tls = TlsMode::Required;
                        let config = TcpListenerConfig { tls, ..config };
                        TcpListener::bind_with_keys(config, key.clone())
                    }
                };
                match bound {
                    Ok(listener) => break listener,
                    Err(_) => reactor::sleep(Duration::from_millis(5)).await,
                }
            };
            let address = listener.local_addr();
            reactor::spawn(async move {
                while let Some(queue) = TargetQueue::accept_tcp(&listener).await {
                    let serving = Serving {
                        media: media.clone(),
                        holds_writes: holds.clone(),
                        held: held.clone(),
                        host: Rc::default(),
                        is_admin: Rc::new(Cell::new(true)),
                    };
                    reactor::spawn(serving.serve(queue)).detach();
                }
            })
            .detach();
            tell.send(address).expect("the story waits");
        };
        thread.handle().spawn(listening).detach();
        self.address = told.recv().expect("it listens");
        self.thread = Some(thread);
    }

    pub(crate) fn address(&self) -> String {
        format!("nvme+tcp://{}/{SUBSYSTEM}#1", self.address)
    }

    /// The drive, with short limits.
    pub(crate) async fn open(&self) -> Result<RemoteDrive, DriveError> {
        let address = self.address().parse().expect("an address");
        RemoteDrive::open(address, options()).await
    }

    /// The same, with the keys in a folder.
    pub(crate) async fn open_with(&self, keys: KeyFolder) -> Result<RemoteDrive, DriveError> {
        let address = self.address().parse().expect("an address");
        let options = OpenOptions { keys, ..options() };
        RemoteDrive::open(address, options).await
    }
}

pub(crate) fn options() -> OpenOptions {
    let host = Nqn::new("nqn.2026-11.dev.onefold:a-pool").expect("a name");
    OpenOptions {
        limits: Limits {
            keep_alive: Duration::from_millis(400),
            command: Duration::from_millis(600),
            patience: Duration::from_millis(400),
            ..Limits::default()
        },
        ..OpenOptions::new(host, KeyFolder::new("/no/keys"))
    }
}

/// Tells a story on a reactor.
pub(crate) fn story(tell: impl AsyncFnOnce()) {
    let config = reactor::Config {
        buffer_pool: reactor::PoolConfig { bytes: 16 << 20 },
        name: "story".into(),
        ..Default::default()
    };
    let told = reactor::run(config, async { reactor::timeout(STORY_MAX, tell()).await });
    assert!(told.expect("a reactor").is_ok(), "the story hangs");
}

/// A buffer of so many blocks of this byte.
pub(crate) fn filled(blocks: usize, byte: u8) -> Buffer {
    let pool = BufferPool::new(2 << 20).expect("memory");
    let mut buffer = pool.try_alloc(blocks * BLOCK_BYTES).expect("memory");
    buffer.fill(byte);
    buffer
}

pub(crate) fn extent(block: u64, buffer_offset: usize, blocks: u32) -> Extent {
    Extent {
        block,
        buffer_offset,
        blocks,
    }
}

pub(crate) async fn write(drive: &RemoteDrive, block: u64, byte: u8) -> Result<(), DriveError> {
    drive.write(filled(1, byte), &[extent(block, 0, 1)]).await.0
}

/// The byte that a block is full of.
pub(crate) async fn read(drive: &RemoteDrive, block: u64) -> Result<u8, DriveError> {
    let (result, buffer) = drive.read(filled(1, 0xee), &[extent(block, 0, 1)]).await;
    result?;
    assert!(buffer.iter().all(|byte| *byte == buffer[0]));
    Ok(buffer[0])
}

/// One queue.
#[derive(Clone)]
struct Serving {
    media: Arc<Mutex<Media>>,
    holds_writes: Arc<AtomicBool>,
    held: Arc<AtomicUsize>,
    host: Rc<RefCell<HostId>>,
    is_admin: Rc<Cell<bool>>,
}

impl Serving {
    fn media(&self) -> MutexGuard<'_, Media> {
        self.media.lock().expect("no story panics with it")
    }

    async fn serve(self, queue: TargetQueue) {
        while let Some(capsule) = queue.next_command().await {
            if capsule.sqe.opcode() == FABRICS_OPCODE
                && let Ok(FabricsCommand::Connect(connect)) = FabricsCommand::parse(&capsule.sqe)
            {
                let data = initiator::buffer(CONNECT_DATA_BYTES).await;
                let data = queue.fetch(&capsule, CONNECT_DATA_BYTES, data).await;
                let data = data.expect("the data of Connect").buffer;
                let data = ConnectData::parse(&data[..CONNECT_DATA_BYTES]).expect("names");
                *self.host.borrow_mut() = data.host_id;
                self.is_admin.set(connect.qid == 0);
                if connect.qid == 0 {
                    self.media().connected.push(data.host_id);
                }
                queue.connected(connect.qid, connect.sqsize + 1);
                queue.proved(false);
            }
            let answer = self.clone().answer(queue.clone(), capsule);
            reactor::spawn(answer).detach();
        }
    }

    async fn answer(self, queue: TargetQueue, capsule: Capsule) {
        let result = match (capsule.sqe.opcode() == FABRICS_OPCODE, self.is_admin.get()) {
            (true, _) => Ok((fabrics(&capsule), Vec::new())),
            (false, true) => self.admin(&capsule).map(|data| (0, data)),
            (false, false) => self.io(&queue, &capsule).await.map(|data| (0, data)),
        };
        match result {
            Ok((result, data)) => {
                let cqe = Cqe::new(Status::SUCCESS, result);
                let data = match data.is_empty() {
                    true => None,
                    false => Some(loaded(&data).await),
                };
                queue.complete(capsule, cqe, data);
            }
            Err(Status::SUCCESS) => {
                // Held back, for as long as the queue stands.
                queue.closed().await;
                drop(capsule);
            }
            Err(status) => queue.complete(capsule, Cqe::new(status, 0), None),
        }
    }

    fn admin(&self, capsule: &Capsule) -> Result<Vec<u8>, Status> {
        let media = self.media();
        Ok(
            match AdminCommand::parse(&capsule.sqe).expect("a command") {
                AdminCommand::Identify(identify) => match Cns::from_u8(identify.cns) {
                    Some(Cns::Controller) => media.controller.encode().to_vec(),
                    Some(Cns::Namespace) => media.namespace.encode().to_vec(),
                    Some(Cns::NamespaceDescriptors) => {
                        encode_descriptor_list(&[NamespaceDescriptor::Uuid(media.uuid)]).to_vec()
                    }
                    Some(Cns::ActiveNamespaces) => encode_namespace_list(&[1]).to_vec(),
                    _ => vec![0; IDENTIFY_BYTES],
                },
                AdminCommand::GetLogPage(get) if get.lid == LogPage::Smart.as_u8() => {
                    let health = media.health.ok_or(Status::INVALID_LOG_PAGE)?;
                    health.encode().to_vec()
                }
                _ => Vec::new(),
            },
        )
    }

    /// The data; a status; or success, for a command that gets no answer.
    async fn io(&self, queue: &TargetQueue, capsule: &Capsule) -> Result<Vec<u8>, Status> {
        let host = *self.host.borrow();
        let fetched = async |len: usize| {
            let data = initiator::buffer(len).await;
            let data = queue.fetch(capsule, len, data).await.expect("the data");
            data.buffer[..len].to_vec()
        };
        self.media().commands.push(capsule.sqe.opcode());
        if let Some(command) = NodeTableCommand::parse(&capsule.sqe) {
            let command = command.expect("a command");
            let data = match command {
                NodeTableCommand::Send { length, .. } => fetched(length as usize).await,
                NodeTableCommand::Receive { .. } => Vec::new(),
            };
            let mut media = self.media();
            let nodes = media.nodes.as_mut().ok_or(Status::INVALID_OPCODE)?;
            return nodes.run(command, &data);
        }
        if let Some(command) = ReservationCommand::parse(&capsule.sqe) {
            let command = command.expect("a command");
            let data = match command {
                ReservationCommand::Report { .. } => Vec::new(),
                _ => {
                    fetched(16.min(capsule.sqe.sgl().map_or(0, |sgl| sgl.length() as usize))).await
                }
            };
            return self.media().reserve(host, command, &data);
        }
        let lba_bytes = self.media().namespace.lba_bytes().expect("a format") as usize;
        let place = |range: nvme::io::LbaRange| {
            (
                range.slba as usize * lba_bytes,
                range.blocks as usize * lba_bytes,
            )
        };
        match IoCommand::parse(&capsule.sqe).expect("a command") {
            IoCommand::Read { range, .. } => {
                let (at, len) = place(range);
                assert!(len <= TRANSFER_BYTES, "MDTS");
                Ok(self.media().disk[at..at + len].to_vec())
            }
            IoCommand::Write { range, .. } => {
                let (at, len) = place(range);
                assert!(len <= TRANSFER_BYTES, "MDTS");
                let bytes = fetched(len).await;
                let mut media = self.media();
                if media.holder.is_some_and(|holder| holder != host) {
                    return Err(Status::RESERVATION_CONFLICT);
                }
                if self.holds_writes.load(Ordering::Acquire) {
                    media.held.push(Held { host, at, bytes });
                    self.held.fetch_add(1, Ordering::AcqRel);
                    return Err(Status::SUCCESS);
                }
                media.disk[at..at + len].copy_from_slice(&bytes);
                Ok(Vec::new())
            }
            IoCommand::DatasetManagement { .. } => {
                let bytes = fetched(nvme::io::DSM_RANGE_BYTES).await;
                let range = nvme::io::DsmRange::parse_list(&bytes, 1).expect("a range")[0];
                let (at, len) = (
                    range.slba as usize * lba_bytes,
                    range.blocks as usize * lba_bytes,
                );
                self.media().disk[at..at + len].fill(0);
                Ok(Vec::new())
            }
            _ => Ok(Vec::new()),
        }
    }
}

impl Media {
    /// As of NVMe Base 2.0, section 8.19, for Write Exclusive.
    fn reserve(
        &mut self,
        host: HostId,
        command: ReservationCommand,
        data: &[u8],
    ) -> Result<Vec<u8>, Status> {
        let conflict = Err(Status::RESERVATION_CONFLICT);
        let key_of = |media: &Self, host: HostId| {
            let mut found = media.registrants.iter();
            found.find(|one| one.0 == host).map(|one| one.1)
        };
        let keys = KeyPair::decode(data);
        match (command, keys) {
            (ReservationCommand::Report { length, .. }, _) => {
                let registrants = self
                    .registrants
                    .iter()
                    .map(|(one, key)| ReportedRegistrant {
                        cntlid: 0xffff,
                        is_holder: self.holder == Some(*one),
                        host: *one,
                        key: *key,
                    });
                let report = ReservationReport {
                    kind: self.holder.map(|_| ReservationType::WriteExclusive),
                    registrants: registrants.collect(),
                    ..Default::default()
                };
                let mut bytes = report.encode(true);
                bytes.resize(length as usize, 0);
                Ok(bytes)
            }
            (ReservationCommand::Register { .. }, Some(keys)) => match key_of(self, host) {
                Some(key) if key != keys.other => conflict,
                Some(_) => Ok(Vec::new()),
                None => {
                    self.registrants.push((host, keys.other));
                    Ok(Vec::new())
                }
            },
            (ReservationCommand::Acquire { action, .. }, Some(keys)) => {
                if key_of(self, host) != Some(keys.current) {
                    return conflict;
                }
                if action == AcquireAction::Acquire {
                    return match self.holder {
                        Some(holder) if holder != host => conflict,
                        _ => {
                            self.holder = Some(host);
                            Ok(Vec::new())
                        }
                    };
                }
                let (gone, left): (Vec<_>, Vec<_>) =
                    self.registrants.iter().partition(|one| one.1 == keys.other);
                if gone.is_empty() {
                    return conflict;
                }
                self.registrants = left;
                self.held
                    .retain(|held| gone.iter().all(|one| one.0 != held.host));
                if self
                    .holder
                    .is_none_or(|holder| gone.iter().any(|one| one.0 == holder))
                {
                    self.holder = Some(host);
                }
                Ok(Vec::new())
            }
            // Release, whose data is one key.
            _ => {
                self.holder = self.holder.filter(|holder| *holder != host);
                Ok(Vec::new())
            }
        }
    }
}

fn fabrics(capsule: &Capsule) -> u64 {
    match FabricsCommand::parse(&capsule.sqe).expect("a command") {
        FabricsCommand::Connect(_) => u64::from(CNTLID),
        FabricsCommand::PropertyGet { offset, .. } => match offset {
            nvme::properties::CAP => 127 | 1 << 16 | 2 << 24 | 1 << 37,
            nvme::properties::CSTS => 1,
            _ => 0,
        },
        _ => 0,
    }
}

async fn loaded(bytes: &[u8]) -> (Buffer, usize) {
    let mut buffer = initiator::buffer(bytes.len()).await;
    buffer[..bytes.len()].copy_from_slice(bytes);
    (buffer, bytes.len())
}
