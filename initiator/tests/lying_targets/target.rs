//! A target with one volume that says the truth until it is told not to.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use fabric::{
    Capsule, Connector, Device, DeviceConfig, Listener, QueueLimits, TargetQueue, TcpHostConfig,
    TcpListener, TcpListenerConfig,
};
use initiator::{ConnectOptions, Controller, Error, Host, Namespace};
use nvme::admin::AdminCommand;
use nvme::command::FABRICS_OPCODE;
use nvme::fabrics::FabricsCommand;
use nvme::identify::{
    Cns, IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, LbaFormat, encode_namespace_list,
};
use nvme::io::IoCommand;
use nvme::node_table::NodeTableCommand;
use nvme::reservation::{ReservationCommand, ReservationReport};
use nvme::{Cqe, Sqe, Status};
use reactor::Buffer;

pub(crate) const SUBSYSTEM: &str = "nqn.2026-11.dev.onefold:liar";
pub(crate) const CNTLID: u16 = 7;
pub(crate) const VOLUME_BYTES: usize = 1 << 20;

/// No story takes that long; one that does hangs.
const STORY_MAX: Duration = Duration::from_secs(120);

/// What the target says instead of the truth.
#[derive(Clone, Debug)]
pub(crate) enum Lie {
    /// That status, and no data.
    Status(Status),
    /// Success, with that in dwords 0 and 1.
    Result(u64),
    /// Success, with these data instead of all of the right ones.
    Data(Vec<u8>),
    /// Nothing.
    Silence,
    /// The end of the connection.
    HangUp,
}

/// Which command the target lies about, and how.
pub(crate) type Liar = Rc<RefCell<Box<dyn FnMut(&Sqe) -> Option<Lie>>>>;

#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) lie: Liar,
    pub(crate) disk: Rc<RefCell<Vec<u8>>>,
    pub(crate) address: SocketAddr,
    pub(crate) connector: Connector,
    /// Lives as long as the target.
    _device: Option<Device>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Tcp,
    Rdma,
}

/// Tells a story of a target, over both transports.
pub(crate) fn story(tell: impl AsyncFn(Target)) {
    for over in [Over::Tcp, Over::Rdma] {
        let config = reactor::Config {
            buffer_pool: reactor::PoolConfig { bytes: 64 << 20 },
            name: "test".into(),
            ..Default::default()
        };
        reactor::run(config, async {
            let told = tell(Target::start(over));
            let told = reactor::timeout(STORY_MAX, told).await;
            assert!(told.is_ok(), "the story hangs over {over:?}");
        })
        .expect("a reactor");
    }
}

/// A loopback address that no other test has.
fn own_device() -> Device {
    let random = getrandom::u32().expect("randomness").to_le_bytes();
    let address = [127, random[0] | 0x80, random[1], random[2].clamp(1, 254)];
    let config = DeviceConfig::on(vec![IpAddr::from(address)]);
    Device::open(config).expect("a device on a loopback address")
}

impl Target {
    pub(crate) fn start(over: Over) -> Self {
        let honest: Liar = Rc::new(RefCell::new(Box::new(|_| None)));
        let disk = Rc::new(RefCell::new(vec![0; VOLUME_BYTES]));
        match over {
            Over::Tcp => {
                let config = TcpListenerConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)));
                let listener = TcpListener::bind(config).expect("a free port");
                let target = Self {
                    lie: honest,
                    disk,
                    address: listener.local_addr(),
                    connector: Connector::tcp(TcpHostConfig::default()),
                    _device: None,
                };
                let serving = target.clone();
                reactor::spawn(async move {
                    while let Some(queue) = TargetQueue::accept_tcp(&listener).await {
                        reactor::spawn(serving.clone().serve(queue)).detach();
                    }
                })
                .detach();
                target
            }
            Over::Rdma => {
                let device = own_device();
                let listener = Listener::bind(&device, 4420).expect("a free port");
                let target = Self {
                    lie: honest,
                    disk,
                    address: SocketAddr::new(device.addresses()[0], 4420),
                    connector: own_device().into(),
                    _device: Some(device),
                };
                let serving = target.clone();
                reactor::spawn(async move {
                    while let Some(incoming) = listener.accept().await {
                        if let Ok(queue) =
                            TargetQueue::accept_rdma(incoming, QueueLimits::default())
                        {
                            reactor::spawn(serving.clone().serve(queue)).detach();
                        }
                    }
                })
                .detach();
                target
            }
        }
    }

    /// Lies from now on about what `is` names, and says the truth about all else.
    pub(crate) fn lies(&self, is: impl Fn(&Sqe) -> bool + 'static, lie: Lie) {
        *self.lie.borrow_mut() = Box::new(move |sqe| is(sqe).then(|| lie.clone()));
    }

    pub(crate) fn lies_with(&self, lie: impl FnMut(&Sqe) -> Option<Lie> + 'static) {
        *self.lie.borrow_mut() = Box::new(lie);
    }

    pub(crate) fn says_the_truth(&self) {
        *self.lie.borrow_mut() = Box::new(|_| None);
    }

    pub(crate) fn options(&self) -> ConnectOptions {
        let subsystem = SUBSYSTEM.parse().expect("a name");
        ConnectOptions {
            keep_alive: Duration::ZERO,
            depth: 16,
            ..ConnectOptions::new(self.address, subsystem, Host::generate())
        }
    }

    pub(crate) async fn connect(&self) -> Result<Controller, Error> {
        Controller::connect(&self.connector, self.options()).await
    }

    /// A host at an honest target.
    pub(crate) async fn attached(&self) -> (Controller, Namespace) {
        let controller = self.connect().await.expect("an honest target");
        let namespace = controller.namespace(1).await.expect("its namespace");
        (controller, namespace)
    }

    async fn serve(self, queue: TargetQueue) {
        let is_admin = Rc::new(Cell::new(true));
        while let Some(capsule) = queue.next_command().await {
            if capsule.sqe.opcode() == FABRICS_OPCODE
                && let Ok(FabricsCommand::Connect(connect)) = FabricsCommand::parse(&capsule.sqe)
            {
                is_admin.set(connect.qid == 0);
                queue.connected(connect.qid, connect.sqsize + 1);
                queue.proved(false);
            }
            let lie = (self.lie.borrow_mut())(&capsule.sqe);
            let task = self
                .clone()
                .answer(queue.clone(), capsule, is_admin.get(), lie);
            reactor::spawn(task).detach();
        }
    }

    async fn answer(self, queue: TargetQueue, capsule: Capsule, is_admin: bool, lie: Option<Lie>) {
        let success = |result| Cqe::new(Status::SUCCESS, result);
        match lie {
            Some(Lie::Status(status)) => queue.complete(capsule, Cqe::new(status, 0), None),
            Some(Lie::Result(result)) => queue.complete(capsule, success(result), None),
            Some(Lie::Data(bytes)) => {
                let data = loaded(&bytes).await;
                queue.complete(capsule, success(0), Some(data));
            }
            // The capsule is held for as long as the queue stands.
            Some(Lie::Silence) => {
                queue.closed().await;
                drop(capsule);
            }
            Some(Lie::HangUp) => queue.close(),
            None => {
                let (result, data) = self.truth(&queue, &capsule, is_admin).await;
                queue.complete(capsule, success(result), data);
            }
        }
    }

    async fn truth(
        &self,
        queue: &TargetQueue,
        capsule: &Capsule,
        is_admin: bool,
    ) -> (u64, Option<(Buffer, usize)>) {
        let sqe = &capsule.sqe;
        if sqe.opcode() == FABRICS_OPCODE {
            let command = FabricsCommand::parse(sqe).expect("a command");
            let result = match command {
                FabricsCommand::Connect(_) => u64::from(CNTLID),
                FabricsCommand::PropertyGet { offset, .. } => property(offset),
                _ => 0,
            };
            return (result, None);
        }
        let page = match is_admin {
            true => match AdminCommand::parse(sqe).expect("a command") {
                AdminCommand::Identify(identify) => match Cns::from_u8(identify.cns) {
                    Some(Cns::Controller) => controller_page().encode().to_vec(),
                    Some(Cns::ActiveNamespaces) if identify.nsid == 0 => {
                        encode_namespace_list(&[1]).to_vec()
                    }
                    Some(Cns::Namespace) => namespace_page().encode().to_vec(),
                    _ => vec![0; IDENTIFY_BYTES],
                },
                AdminCommand::GetLogPage(get) => vec![0; get.length as usize],
                AdminCommand::GetLbaStatus(get) => {
                    let mut list = nvme::lba_status::LbaStatusList::default().encode();
                    list.resize(get.length as usize, 0);
                    list
                }
                _ => return (0, None),
            },
            false => return (0, self.io(queue, capsule).await),
        };
        (0, Some(loaded(&page).await))
    }

    async fn io(&self, queue: &TargetQueue, capsule: &Capsule) -> Option<(Buffer, usize)> {
        if let Some(Ok(command)) = ReservationCommand::parse(&capsule.sqe) {
            let ReservationCommand::Report { length, .. } = command else {
                return None;
            };
            let mut report = ReservationReport::default().encode(true);
            report.resize(length as usize, 0);
            return Some(loaded(&report).await);
        }
        if let Some(Ok(command)) = NodeTableCommand::parse(&capsule.sqe) {
            let NodeTableCommand::Receive { length, .. } = command else {
                return None;
            };
            return Some(loaded(&vec![0; length as usize]).await);
        }
        match IoCommand::parse(&capsule.sqe.with_fuse(0)).expect("a command") {
            IoCommand::Read { range, .. } => {
                let (at, len) = place(range);
                let bytes = self.disk.borrow()[at..at + len].to_vec();
                Some(loaded(&bytes).await)
            }
            IoCommand::Write { range, .. } => {
                let (at, len) = place(range);
                let data = initiator::buffer(len).await;
                let data = queue.fetch(capsule, len, data).await.expect("the data");
                self.disk.borrow_mut()[at..at + len].copy_from_slice(&data.buffer[..len]);
                None
            }
            _ => None,
        }
    }
}

fn place(range: nvme::io::LbaRange) -> (usize, usize) {
    (range.slba as usize * 4096, range.blocks as usize * 4096)
}

async fn loaded(bytes: &[u8]) -> (Buffer, usize) {
    let mut buffer = initiator::buffer(bytes.len()).await;
    buffer[..bytes.len()].copy_from_slice(bytes);
    (buffer, bytes.len())
}

fn property(offset: u32) -> u64 {
    match offset {
        nvme::properties::CAP => capabilities(2, 0),
        nvme::properties::CSTS => 1,
        _ => 0,
    }
}

/// CAP of a controller that is ready within so many units of 500 ms, with that smallest page.
pub(crate) fn capabilities(timeout_500ms: u64, page_size_min: u64) -> u64 {
    127 | 1 << 16 | timeout_500ms << 24 | 1 << 37 | page_size_min << 48
}

pub(crate) fn controller_page() -> IdentifyController {
    IdentifyController {
        cntlid: CNTLID,
        mdts: 5,
        sqes: 0x66,
        cqes: 0x44,
        maxcmd: 128,
        nn: 1,
        kas: 1,
        ioccsz: (64 + 4096) / 16,
        iorcsz: 1,
        sgls: 0x0010_0005,
        subnqn: SUBSYSTEM.into(),
        ..Default::default()
    }
}

pub(crate) fn namespace_page() -> IdentifyNamespace {
    let blocks = VOLUME_BYTES as u64 / 4096;
    IdentifyNamespace {
        nsze: blocks,
        ncap: blocks,
        lbaf: vec![LbaFormat {
            ms: 0,
            lbads: 12,
            rp: 0,
        }],
        ..Default::default()
    }
}

/// A command of an I/O queue with that opcode. Fabrics commands have one of their own.
pub(crate) fn opcode(wanted: u8) -> impl Fn(&Sqe) -> bool + 'static {
    move |sqe| sqe.opcode() == wanted
}

/// Identify with that CNS.
pub(crate) fn identify(cns: Cns) -> impl Fn(&Sqe) -> bool + 'static {
    move |sqe| sqe.opcode() == nvme::admin::OPCODE_IDENTIFY && sqe.cdw(10) as u8 == cns.as_u8()
}
