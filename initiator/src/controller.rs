//! One association: an admin queue, I/O queues, and what keeps them alive.

use std::{cell::Cell, net::SocketAddr, rc::Rc, sync::Arc, time::Duration};

use fabric::{CloseReason, Connector, HostData, HostError, HostQueue, HostQueueParams, Transport};
use nvme::{
    Cqe, Nqn, Sqe, Status,
    admin::{GetLogPage, Identify, OPCODE_KEEP_ALIVE, SetFeatures},
    auth::HostKeys,
    fabrics::{CNTLID_DYNAMIC, CONNECT_DATA_BYTES, ConnectCommand, ConnectData, FabricsCommand},
    features::FeatureId,
    identify::{
        Cns, IDENTIFY_BYTES, IdentifyController, NAMESPACE_LIST_MAX, decode_namespace_list,
    },
    log::LogPage,
    properties::{CAP, CC, CSTS, Capabilities, Configuration, ControllerStatus},
};
use reactor::Buffer;

use crate::authenticate::authenticate;
use crate::{Error, Host, Namespace, blank_buffer, buffer};

/// Entries of the admin queue, as Linux uses them (`NVME_AQ_DEPTH`).
const ADMIN_DEPTH: u16 = 32;
/// The largest transfer this library asks for, when the controller sets no smaller limit.
const MAX_TRANSFER_BYTES: usize = 1 << 20;
/// Between two looks at CSTS while a controller gets ready.
const READY_POLL: Duration = Duration::from_millis(10);

/// How to connect.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// The target.
    pub address: SocketAddr,
    /// The subsystem.
    pub subsystem: Nqn,
    /// Who connects.
    pub host: Host,
    /// I/O queues to ask for; the controller may grant fewer.
    pub io_queues: u16,
    /// Commands in flight on each I/O queue (2 to 1024).
    pub depth: u16,
    /// Keep-alive timeout; the library sends at half of it. Zero sends none.
    pub keep_alive: Duration,
    /// After how long a command without an answer is an error.
    pub command_timeout: Duration,
    /// What the host authenticates with, if the target asks it to.
    pub keys: Option<Arc<HostKeys>>,
}

impl ConnectOptions {
    /// Linux's defaults: depth 128, keep alive 5 s; one I/O queue, 30 s for a command.
    #[must_use]
    pub fn new(address: SocketAddr, subsystem: Nqn, host: Host) -> Self {
        Self {
            address,
            subsystem,
            host,
            io_queues: 1,
            depth: 128,
            keep_alive: Duration::from_secs(5),
            command_timeout: Duration::from_secs(30),
            keys: None,
        }
    }
}

/// A queue with the patience that belongs to it.
#[derive(Clone)]
pub(crate) struct Queue {
    pub(crate) queue: HostQueue,
    pub(crate) timeout: Duration,
}

impl Queue {
    /// Submits a command, and fails when it is not answered in time or with an error status.
    pub(crate) async fn submit(
        &self,
        command: &'static str,
        sqe: Sqe,
        data: HostData,
    ) -> Result<(Cqe, Option<Buffer>), Error> {
        let (cqe, buffer) = self.submit_raw(command, sqe, data).await?;
        self.check(command, &cqe)?;
        Ok((cqe, buffer))
    }

    /// Submits a command; an error status is an answer like any other.
    pub(crate) async fn submit_raw(
        &self,
        command: &'static str,
        sqe: Sqe,
        data: HostData,
    ) -> Result<(Cqe, Option<Buffer>), Error> {
        match reactor::timeout(self.timeout, self.queue.submit(sqe, data)).await {
            Ok(outcome) => Ok(outcome?),
            Err(_) => {
                // The target may still write into the buffer of a lost command, so the queue ends
                // and takes the memory region with it.
                self.queue.close();
                Err(Error::Timeout {
                    peer: self.queue.peer(),
                    command,
                    limit: self.timeout,
                })
            }
        }
    }

    pub(crate) fn check(&self, command: &'static str, cqe: &Cqe) -> Result<(), Error> {
        if cqe.status.is_success() {
            return Ok(());
        }
        let hint = match cqe.status.code() {
            Status::CONNECT_INVALID_PARAMETERS => {
                "; check the subsystem's NQN (`onefold discover` shows it)"
            }
            Status::CAPACITY_EXCEEDED => "; the pool is full: delete or trim data",
            _ => "",
        };
        let peer = self.queue.peer();
        Err(Error::Status {
            peer,
            command,
            status: cqe.status,
            hint,
        })
    }

    pub(crate) fn wrong(&self, command: &'static str, what: &'static str) -> Error {
        Error::Protocol {
            peer: self.queue.peer(),
            command,
            what,
        }
    }
}

struct Inner {
    admin: Queue,
    io: Vec<Queue>,
    identify: IdentifyController,
    max_transfer: usize,
    keep_alive: Option<reactor::JoinHandle<()>>,
    alive: Rc<Cell<bool>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(task) = &self.keep_alive {
            task.abort();
        }
    }
}

/// A connected controller. Clones are the same; its queues end when the last clone is dropped.
#[derive(Clone)]
pub struct Controller {
    inner: Rc<Inner>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("peer", &self.inner.admin.queue.peer())
            .field("io_queues", &self.inner.io.len())
            .finish_non_exhaustive()
    }
}

impl Controller {
    /// Connects the admin queue, enables the controller, and connects the I/O queues.
    ///
    /// # Errors
    /// See [`Error`]; nothing stays connected.
    pub async fn connect(connector: &Connector, options: ConnectOptions) -> Result<Self, Error> {
        let timeout = options.command_timeout;
        let params = HostQueueParams {
            qid: 0,
            depth: ADMIN_DEPTH,
            cntlid: 0,
            in_capsule_bytes: 0,
        };
        let queue = HostQueue::connect(connector, options.address, params).await?;
        let admin = Queue { queue, timeout };
        let cntlid = fabrics_connect(&admin, &options, 0, ADMIN_DEPTH, CNTLID_DYNAMIC).await?;
        enable(&admin).await?;
        let identify = identify_controller(&admin).await?;
        if identify.cntlid != cntlid {
            return Err(admin.wrong("Identify", "another controller than Connect named"));
        }

        let mut io = Vec::new();
        // A discovery controller has no I/O queues.
        if !options.subsystem.is_discovery() && options.io_queues > 0 {
            let granted = request_queues(&admin, options.io_queues).await?;
            let in_capsule_bytes = in_capsule_bytes(&identify);
            let depth = match identify.maxcmd {
                0 => options.depth,
                limit => options.depth.min(limit),
            };
            for qid in 1..=granted {
                let params = HostQueueParams {
                    qid,
                    depth,
                    cntlid,
                    in_capsule_bytes,
                };
                let queue = HostQueue::connect(connector, options.address, params).await?;
                let queue = Queue { queue, timeout };
                fabrics_connect(&queue, &options, qid, depth, cntlid).await?;
                io.push(queue);
            }
        }
        let max_transfer = max_transfer_bytes(identify.mdts);
        let alive = Rc::new(Cell::new(true));
        let keep_alive = (!options.keep_alive.is_zero()).then(|| {
            let (admin, io, alive) = (admin.clone(), io.clone(), alive.clone());
            reactor::spawn(keep_alive(admin, io, options.keep_alive / 2, alive))
        });
        let inner = Inner {
            admin,
            io,
            identify,
            max_transfer,
            keep_alive,
            alive,
        };
        Ok(Self {
            inner: Rc::new(inner),
        })
    }

    /// What the controller says of itself.
    #[must_use]
    pub fn identify(&self) -> &IdentifyController {
        &self.inner.identify
    }

    /// I/O queues that stand.
    #[must_use]
    pub fn io_queues(&self) -> usize {
        self.inner.io.len()
    }

    /// The target has answered the last keep alive.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.inner.alive.get() && !self.inner.admin.queue.is_closing()
    }

    /// As [`is_alive`](Self::is_alive), and no I/O queue is ending: commands can be sent.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.is_alive() && self.inner.io.iter().all(|queue| !queue.queue.is_closing())
    }

    /// Bytes that one command may move.
    #[must_use]
    pub fn max_transfer_bytes(&self) -> usize {
        self.inner.max_transfer
    }

    /// Identifiers of the active namespaces, ascending.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn namespaces(&self) -> Result<Vec<u32>, Error> {
        let mut all = Vec::new();
        loop {
            let after = all.last().copied().unwrap_or(0);
            let page = self.identify_page(Cns::ActiveNamespaces, after).await?;
            let wrong = |what| self.inner.admin.wrong("Identify", what);
            let ids =
                decode_namespace_list(&page).ok_or_else(|| wrong("a list that cannot be read"))?;
            // A list that did not ascend could be asked for again and again.
            let ascends = ids.is_sorted_by(|one, next| one < next);
            if ids.first().is_some_and(|first| *first <= after) || !ascends {
                return Err(wrong("a list that does not ascend"));
            }
            let full = ids.len() == NAMESPACE_LIST_MAX;
            all.extend(ids);
            if !full {
                return Ok(all);
            }
        }
    }

    /// A namespace to read and write.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn namespace(&self, nsid: u32) -> Result<Namespace, Error> {
        Namespace::open(self.clone(), nsid).await
    }

    /// One page of Identify.
    pub(crate) async fn identify_page(&self, cns: Cns, nsid: u32) -> Result<Buffer, Error> {
        identify(&self.inner.admin, cns, nsid).await
    }

    /// `length` bytes of a log page from `offset`, both multiples of 4; at most 4096 bytes at once.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn log_page(
        &self,
        page: LogPage,
        offset: u64,
        length: usize,
    ) -> Result<Buffer, Error> {
        let sqe = GetLogPage {
            lid: page.as_u8(),
            lsp: 0,
            retain_event: false,
            length: length as u64,
            offset,
            offset_is_index: false,
            nsid: u32::MAX,
            csi: 0,
        }
        .to_sqe();
        fetch(&self.inner.admin, "Get Log Page", sqe, length).await
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.inner.admin.queue.peer()
    }

    pub(crate) fn admin_queue(&self) -> &Queue {
        &self.inner.admin
    }

    /// The I/O queue for a user of the controller, who may be numbered as he likes.
    pub(crate) fn io_queue(&self, user: usize) -> Option<&Queue> {
        self.inner.io.get(user % self.inner.io.len().max(1))
    }

    /// Begins to end every queue, without a word to the target: what is outstanding fails, and nothing more is sent.
    pub fn close(&self) {
        for queue in self.inner.io.iter().chain([&self.inner.admin]) {
            queue.queue.close();
        }
    }

    /// Shuts the controller down in order: normal shutdown, then every queue.
    pub async fn disconnect(self) {
        let configuration = Configuration {
            enable: true,
            shutdown: 1,
            sq_entry_log2: 6,
            cq_entry_log2: 4,
            ..Configuration::default()
        };
        let sqe = FabricsCommand::property_set(CC, false, configuration.encode().into());
        // A target that is gone needs no goodbye.
        let _ = self
            .inner
            .admin
            .submit("Property Set", sqe, HostData::None)
            .await;
        for queue in self.inner.io.iter().chain([&self.inner.admin]) {
            queue.queue.close();
            queue.queue.closed().await;
        }
    }
}

/// Bytes that one command may move. MDTS is a power of two of the smallest page, 4 KiB here; 0 sets no limit, and
/// neither does a power beyond every number.
fn max_transfer_bytes(mdts: u8) -> usize {
    let pages = 1_usize.checked_shl(mdts.into()).filter(|_| mdts != 0);
    pages
        .and_then(|pages| pages.checked_mul(4096))
        .map_or(MAX_TRANSFER_BYTES, |bytes| bytes.min(MAX_TRANSFER_BYTES))
}

/// Bytes of write data that fit a capsule, or 0 when the controller takes none.
fn in_capsule_bytes(identify: &IdentifyController) -> usize {
    /// SGLS bit 20: the address field may be an offset.
    const SGL_OFFSET: u32 = 1 << 20;
    if identify.sgls & SGL_OFFSET == 0 || identify.icdoff != 0 {
        return 0;
    }
    (identify.ioccsz as usize)
        .saturating_mul(16)
        .saturating_sub(64)
        .min(MAX_TRANSFER_BYTES)
}

async fn fabrics_connect(
    queue: &Queue,
    options: &ConnectOptions,
    qid: u16,
    depth: u16,
    cntlid: u16,
) -> Result<u16, Error> {
    let kato_ms = match qid {
        0 => u32::try_from(options.keep_alive.as_millis()).unwrap_or(u32::MAX),
        _ => 0,
    };
    // The library counts its commands itself. Without flow control of the queue a read over TCP needs no
    // response behind its data.
    let attributes = match queue.queue.transport() {
        Transport::Tcp => ConnectCommand::DISABLE_SQ_FLOW_CONTROL,
        Transport::Rdma => 0,
    };
    let command = ConnectCommand {
        record_format: 0,
        qid,
        sqsize: depth - 1,
        attributes,
        kato_ms,
    };
    let data = ConnectData {
        host_id: options.host.id,
        cntlid,
        subsystem: options.subsystem.clone(),
        host: options.host.nqn.clone(),
    };
    let mut memory = buffer(CONNECT_DATA_BYTES).await;
    memory[..CONNECT_DATA_BYTES].copy_from_slice(&data.encode());
    let data = HostData::ToTarget(memory, CONNECT_DATA_BYTES);
    let (cqe, _) = queue.submit("Connect", command.to_sqe(), data).await?;
    authenticate(queue, options, qid, cqe.result).await?;
    Ok(cqe.result as u16)
}

/// Writes CC.EN and waits for CSTS.RDY, as long as CAP.TO allows.
async fn enable(admin: &Queue) -> Result<(), Error> {
    const COMMAND: &str = "Property Get";
    let get = |offset, wide| {
        admin.submit(
            COMMAND,
            FabricsCommand::property_get(offset, wide),
            HostData::None,
        )
    };
    let (cqe, _) = get(CAP, true).await?;
    let capabilities = Capabilities::decode(cqe.result);
    if capabilities.page_size_min != 0 {
        return Err(admin.wrong(COMMAND, "a smallest page of more than 4 KiB"));
    }
    let configuration = Configuration {
        enable: true,
        sq_entry_log2: 6,
        cq_entry_log2: 4,
        ..Configuration::default()
    };
    let sqe = FabricsCommand::property_set(CC, false, configuration.encode().into());
    admin.submit("Property Set", sqe, HostData::None).await?;
    let limit = Duration::from_millis(500) * u32::from(capabilities.timeout_500ms.max(1));
    let deadline = reactor::now() + limit;
    loop {
        let (cqe, _) = get(CSTS, false).await?;
        let status = ControllerStatus::decode(cqe.result as u32);
        if status.fatal {
            return Err(admin.wrong(COMMAND, "a fatal controller status (CSTS.CFS)"));
        }
        if status.ready {
            return Ok(());
        }
        if reactor::now() >= deadline {
            let peer = admin.queue.peer();
            return Err(Error::Timeout {
                peer,
                command: "enabling the controller",
                limit,
            });
        }
        reactor::sleep(READY_POLL).await;
    }
}

async fn fetch(
    queue: &Queue,
    command: &'static str,
    sqe: Sqe,
    length: usize,
) -> Result<Buffer, Error> {
    let memory = blank_buffer(length).await;
    let (_, memory) = queue
        .submit(command, sqe, HostData::FromTarget(memory, length))
        .await?;
    memory.ok_or_else(|| queue.wrong(command, "no data"))
}

async fn identify(admin: &Queue, cns: Cns, nsid: u32) -> Result<Buffer, Error> {
    let sqe = Identify {
        cns: cns.as_u8(),
        cntid: 0,
        nsid,
        csi: 0,
        specific_id: 0,
    }
    .to_sqe();
    fetch(admin, "Identify", sqe, IDENTIFY_BYTES).await
}

async fn identify_controller(admin: &Queue) -> Result<IdentifyController, Error> {
    let page = identify(admin, Cns::Controller, 0).await?;
    IdentifyController::decode(&page)
        .ok_or_else(|| admin.wrong("Identify", "a page that cannot be read"))
}

/// Asks for I/O queues and gives back how many are granted.
async fn request_queues(admin: &Queue, wanted: u16) -> Result<u16, Error> {
    let zero_based = u32::from(wanted - 1);
    let sqe = SetFeatures {
        fid: FeatureId::NumberOfQueues.as_u8(),
        save: false,
        dwords: [zero_based << 16 | zero_based, 0, 0, 0, 0],
        nsid: 0,
    }
    .to_sqe();
    let (cqe, _) = admin.submit("Set Features", sqe, HostData::None).await?;
    let submission = (cqe.result as u16).saturating_add(1);
    let completion = ((cqe.result >> 16) as u16).saturating_add(1);
    Ok(wanted.min(submission).min(completion))
}

/// Tells the target that this host is there. When the target does not answer, the controller is gone, and
/// its queues with it: what waits on one of them would wait until its time is over.
async fn keep_alive(mut admin: Queue, io: Vec<Queue>, period: Duration, alive: Rc<Cell<bool>>) {
    // A controller that takes longer would be gone for this host by its own clock.
    admin.timeout = admin.timeout.min(period * 2);
    loop {
        reactor::sleep(period).await;
        let sqe = Sqe::new(OPCODE_KEEP_ALIVE);
        if let Err(error) = admin.submit("Keep Alive", sqe, HostData::None).await {
            tracing::warn!(%error, "the target does not answer keep alives");
            alive.set(false);
            if error.status().is_none() {
                // What ended the admin queue may be about to end the others, whose commands are told the same.
                let reason = match error {
                    Error::Queue(HostError::Closed { reason, .. }) => reason,
                    _ => CloseReason::Local,
                };
                for queue in io.iter().chain([&admin]) {
                    queue.queue.close_because(reason.clone());
                }
            }
            return;
        }
    }
}
