//! A sled on a port of its own, and hosts.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use drives::{BLOCK_BYTES, Drive, MemoryDrive};
use fabric::{
    Connector, HostData, HostQueue, HostQueueParams, Scheme, TargetQueue, TcpHostConfig,
    TcpListener, TcpListenerConfig, TlsFailure, TlsKeys, TransportAddress,
};
use initiator::{ConnectOptions, Controller, Host, Namespace};
use nvme::auth::TlsPsk;
use nvme::fabrics::{
    CNTLID_DYNAMIC, CONNECT_DATA_BYTES, ConnectCommand, ConnectData, FabricsCommand,
};
use nvme::properties::CC;
use nvme::{Nqn, Sqe, Status};
use sled::{Export, HostKeys, Hosts, Limits, ReservationFolder, Sled, SledConfig};

/// Blocks of each drive.
pub(crate) const BLOCKS: u64 = 1024;

/// The name of the sled.
pub(crate) fn nqn() -> Nqn {
    sled::identity::nqn_of("test").unwrap()
}

/// A sled that serves.
pub(crate) struct Stage {
    pub(crate) sled: Arc<Sled>,
    pub(crate) address: SocketAddr,
}

/// Runs a story on a reactor, within two minutes.
pub(crate) fn story(story: impl Future<Output = ()>) {
    let config = reactor::Config {
        name: "story".into(),
        ..reactor::Config::default()
    };
    let told = reactor::run(config, reactor::timeout(Duration::from_secs(120), story));
    assert!(told.unwrap().is_ok(), "the story takes too long");
}

/// A drive in memory.
pub(crate) fn memory() -> Arc<dyn Drive> {
    Arc::new(MemoryDrive::new(BLOCKS))
}

/// The keys of a sled that is made when its port is known.
#[derive(Default)]
struct LateKeys(OnceLock<Arc<dyn TlsKeys>>);

impl TlsKeys for LateKeys {
    fn find(&self, identity: &str, peer: SocketAddr) -> Option<TlsPsk> {
        self.0.get()?.find(identity, peer)
    }

    fn failed(&self, peer: SocketAddr, failure: &TlsFailure) {
        self.0.get().unwrap().failed(peer, failure);
    }

    fn holds_off(&self, peer: SocketAddr) -> bool {
        self.0.get().unwrap().holds_off(peer)
    }
}

impl Stage {
    /// Serves these drives to any host.
    pub(crate) fn new(drives: Vec<Arc<dyn Drive>>) -> Self {
        Self::with(drives, None, Limits::default())
    }

    pub(crate) fn with(
        drives: Vec<Arc<dyn Drive>>,
        hosts: Option<BTreeSet<Nqn>>,
        limits: Limits,
    ) -> Self {
        let bare = |nqn| (nqn, HostKeys::default());
        let hosts = hosts.map(|hosts| hosts.into_iter().map(bare).collect());
        Self::to_hosts(drives, hosts, limits)
    }

    /// Serves hosts that have to prove who they are.
    pub(crate) fn to_hosts(drives: Vec<Arc<dyn Drive>>, hosts: Hosts, limits: Limits) -> Self {
        Self::keeping(None, drives, hosts, limits)
    }

    /// The same, with reservations that survive its end.
    pub(crate) fn keeping(
        reservations: Option<ReservationFolder>,
        drives: Vec<Arc<dyn Drive>>,
        hosts: Hosts,
        limits: Limits,
    ) -> Self {
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let keys = Arc::new(LateKeys::default());
        let config = TcpListenerConfig::new(anywhere);
        let listener = TcpListener::bind_with_keys(config, keys.clone()).unwrap();
        let address = listener.local_addr();
        let exports = (1..)
            .zip(drives)
            .map(|(number, drive)| Export::new(drive, [number; 16]));
        let config = SledConfig {
            nqn: nqn(),
            hosts,
            exports: exports.collect(),
            listeners: vec![TransportAddress {
                scheme: Scheme::Tcp,
                host: address.ip(),
                port: address.port(),
            }],
            reservations,
            limits,
        };
        let sled = Arc::new(Sled::new(config).unwrap());
        assert!(keys.0.set(sled.tls_keys()).is_ok());
        listener.set_tls(sled.tls());
        let served = sled.clone();
        reactor::spawn(async move {
            while let Some(queue) = TargetQueue::accept_tcp(&listener).await {
                drop(reactor::spawn(sled::serve_queue(served.clone(), queue)));
            }
        })
        .detach();
        Self { sled, address }
    }

    pub(crate) fn connector() -> Connector {
        Connector::tcp(TcpHostConfig::default())
    }

    /// A host of the library attaches.
    pub(crate) async fn attach(&self, host: &Host) -> Result<Controller, initiator::Error> {
        let options = ConnectOptions::new(self.address, nqn(), host.clone());
        Controller::connect(&Self::connector(), options).await
    }

    /// A queue of a host that makes its commands by hand.
    pub(crate) async fn queue(&self, qid: u16) -> HostQueue {
        let params = HostQueueParams {
            qid,
            depth: 32,
            cntlid: 0,
            in_capsule_bytes: 0,
        };
        HostQueue::connect(&Self::connector(), self.address, params)
            .await
            .unwrap()
    }

    /// An enabled controller whose host says nothing by itself, and its I/O queue.
    pub(crate) async fn associate(&self, host: &Host, kato_ms: u32) -> Associated {
        let admin = self.queue(0).await;
        let connect = Connect {
            kato_ms,
            ..Connect::of(host)
        };
        let (status, result) = connect.send(&admin).await;
        assert_eq!(status, Status::SUCCESS);
        let cntlid = result as u16;
        let enable = FabricsCommand::property_set(CC, false, 0x0046_0001);
        assert_eq!(submit(&admin, enable).await, Status::SUCCESS);
        let io = self.queue(1).await;
        let connect = Connect {
            qid: 1,
            cntlid,
            ..Connect::of(host)
        };
        let (status, _) = connect.send(&io).await;
        assert_eq!(status, Status::SUCCESS);
        Associated { admin, io, cntlid }
    }
}

/// The queues of an association.
pub(crate) struct Associated {
    pub(crate) admin: HostQueue,
    pub(crate) io: HostQueue,
    pub(crate) cntlid: u16,
}

/// A Connect with all its fields.
pub(crate) struct Connect {
    pub(crate) host: Host,
    pub(crate) subsystem: Nqn,
    pub(crate) qid: u16,
    pub(crate) sqsize: u16,
    pub(crate) record_format: u16,
    pub(crate) kato_ms: u32,
    pub(crate) cntlid: u16,
}

impl Connect {
    pub(crate) fn of(host: &Host) -> Self {
        Self {
            host: host.clone(),
            subsystem: nqn(),
            qid: 0,
            sqsize: 31,
            record_format: 0,
            kato_ms: 0,
            cntlid: CNTLID_DYNAMIC,
        }
    }

    /// Status and result.
    pub(crate) async fn send(&self, queue: &HostQueue) -> (Status, u64) {
        let command = ConnectCommand {
            record_format: self.record_format,
            qid: self.qid,
            sqsize: self.sqsize,
            attributes: 0,
            kato_ms: self.kato_ms,
        };
        let data = ConnectData {
            host_id: self.host.id,
            cntlid: self.cntlid,
            subsystem: self.subsystem.clone(),
            host: self.host.nqn.clone(),
        };
        let mut buffer = initiator::buffer(CONNECT_DATA_BYTES).await;
        buffer[..CONNECT_DATA_BYTES].copy_from_slice(&data.encode());
        let data = HostData::ToTarget(buffer, CONNECT_DATA_BYTES);
        let (cqe, _) = queue.submit(command.to_sqe(), data).await.unwrap();
        (cqe.status, cqe.result)
    }
}

/// A command without data.
pub(crate) async fn submit(queue: &HostQueue, sqe: Sqe) -> Status {
    let (cqe, _) = queue.submit(sqe, HostData::None).await.unwrap();
    cqe.status.code()
}

/// A command that the host has so many bytes for.
pub(crate) async fn submit_to(queue: &HostQueue, sqe: Sqe, len: usize) -> Status {
    let buffer = initiator::buffer(len).await;
    let data = HostData::ToTarget(buffer, len);
    let (cqe, _) = queue.submit(sqe, data).await.unwrap();
    cqe.status.code()
}

/// A command that the host has room for so many bytes for.
pub(crate) async fn submit_from(queue: &HostQueue, sqe: Sqe, len: usize) -> Status {
    let buffer = initiator::buffer(len).await;
    let data = HostData::FromTarget(buffer, len);
    let (cqe, _) = queue.submit(sqe, data).await.unwrap();
    cqe.status.code()
}

/// Blocks whose content tells where they belong.
pub(crate) async fn write_blocks(
    namespace: &Namespace,
    block: u64,
    blocks: usize,
    seed: u8,
    fua: bool,
) -> Result<(), initiator::Error> {
    let mut buffer = initiator::buffer(blocks * BLOCK_BYTES).await;
    for (number, content) in (block..).zip(buffer.chunks_mut(BLOCK_BYTES)) {
        content.fill(number as u8 ^ seed);
    }
    let (done, _) = namespace
        .write(block * BLOCK_BYTES as u64, buffer, fua)
        .await;
    done
}

/// Whether they are there.
pub(crate) async fn assert_blocks(namespace: &Namespace, block: u64, blocks: usize, seed: u8) {
    let buffer = initiator::buffer(blocks * BLOCK_BYTES).await;
    let (done, buffer) = namespace.read(block * BLOCK_BYTES as u64, buffer).await;
    done.unwrap();
    for (number, content) in (block..).zip(buffer.chunks(BLOCK_BYTES)) {
        let expected = number as u8 ^ seed;
        assert!(
            content.iter().all(|byte| *byte == expected),
            "block {number}"
        );
    }
}
