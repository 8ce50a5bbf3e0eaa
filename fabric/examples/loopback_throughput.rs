//! How fast NVMe commands go within this machine, without any storage behind the target.
//!
//! A target and a host, each on a reactor of its own: by RDMA on two loopback addresses, or both on an
//! address of an RDMA device; or by TCP, without digests or with, or by TLS. Beside the rate stands the processor time that each side spent for one command,
//! which says more on a busy machine. A word picks the measurements whose name has it:
//!
//! ```text
//! cargo run -p fabric --example loopback_throughput [-- [ADDRESS | tcp | tcp+digests | tcp+tls] [WORD]]
//! ```

#![allow(clippy::print_stdout)]

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{
    Connector, Device, DeviceConfig, HostData, HostQueue, HostQueueParams, Listener, QueueLimits,
    TargetQueue, TcpHostConfig, TcpListener, TcpListenerConfig, TlsFailure, TlsHostConfig, TlsKeys,
    TlsMode,
};
use nvme::auth::{Hash, TlsPsk};
use nvme::command::FABRICS_OPCODE;
use nvme::fabrics::ConnectCommand;
use nvme::{Cqe, SglDescriptor, Sqe, Status};

const PORT: u16 = 4420;
const WRITE: u8 = 1;
const READ: u8 = 2;
const DEPTH: u16 = 128;
const TIME: Duration = Duration::from_secs(2);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let address = arguments.peek().and_then(|word| word.parse().ok());
    let (target_ip, host_ip) = match address {
        Some(address) => {
            arguments.next();
            (address, address)
        }
        None => (IpAddr::from([127, 99, 0, 1]), IpAddr::from([127, 99, 0, 2])),
    };
    let way = match arguments.peek().map(String::as_str) {
        Some("tcp") => Way::Tcp,
        Some("tcp+digests") => Way::Digests,
        Some("tcp+tls") => Way::Tls,
        _ => Way::Rdma,
    };
    if way != Way::Rdma {
        arguments.next();
    }
    let wanted = arguments.next();
    let target = reactor::start(config("target"))?;
    let serving = target.handle().spawn(move || async move {
        match way {
            Way::Rdma => serve_rdma(target_ip),
            _ => serve_tcp(SocketAddr::new(target_ip, PORT)),
        }
    });
    let measured = reactor::run(config("host"), async move {
        serving.await??;
        let host = match way {
            Way::Rdma => Device::open(DeviceConfig::on(vec![host_ip]))?.into(),
            _ => Connector::tcp(TcpHostConfig {
                header_digest: way == Way::Digests,
                data_digest: way == Way::Digests,
                tls: (way == Way::Tls).then(|| TlsHostConfig { psks: vec![psk()] }),
                ..TcpHostConfig::default()
            }),
        };
        let peer = SocketAddr::new(target_ip, PORT);
        let params = HostQueueParams {
            qid: 1,
            depth: DEPTH,
            cntlid: 1,
            in_capsule_bytes: 4096,
        };
        let queue = HostQueue::connect(&host, peer, params).await?;
        connect(&queue).await?;
        for (name, opcode, len, depth) in [
            ("4 KiB read, queue depth 1", READ, 4096, 1),
            ("4 KiB write, queue depth 1", WRITE, 4096, 1),
            ("4 KiB read, queue depth 32", READ, 4096, 32),
            ("4 KiB write, queue depth 32", WRITE, 4096, 32),
            ("128 KiB read, queue depth 16", READ, 131_072, 16),
            ("128 KiB write, queue depth 16", WRITE, 131_072, 16),
        ] {
            if wanted.as_ref().is_none_or(|wanted| name.contains(wanted)) {
                measure(&queue, name, opcode, len, depth).await?;
            }
        }
        if let Connector::Rdma(host) = host {
            match host.verbs_counters() {
                Some(counters) => println!("host: {:?} {counters:?}", host.adapters()),
                None => println!("host: {:?}", host.counters()),
            }
        }
        Ok::<(), Box<dyn std::error::Error>>(())
    })?;
    target.stop_and_join();
    measured
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Rdma,
    Tcp,
    Digests,
    Tls,
}

/// The key of both sides.
fn psk() -> TlsPsk {
    TlsPsk {
        identity: "NVMe0R01 host subsystem".to_owned(),
        hash: Hash::Sha256,
        key: vec![1; 32].into(),
    }
}

/// Whoever comes has that key.
struct Keys;

impl TlsKeys for Keys {
    fn find(&self, _: &str, _: SocketAddr) -> Option<TlsPsk> {
        Some(psk())
    }

    fn failed(&self, peer: SocketAddr, failure: &TlsFailure) {
        println!("{peer}: {failure}");
    }

    fn holds_off(&self, _: SocketAddr) -> bool {
        false
    }
}

fn config(name: &str) -> reactor::Config {
    let buffer_pool = reactor::PoolConfig { bytes: 64 << 20 };
    reactor::Config {
        name: name.into(),
        buffer_pool,
        ..Default::default()
    }
}

/// The Connect command, from which a queue over TCP learns its depth; without flow control of the queue,
/// so that a read over TCP needs no response.
async fn connect(queue: &HostQueue) -> Result<(), fabric::HostError> {
    let command = ConnectCommand {
        record_format: 0,
        qid: 1,
        sqsize: DEPTH - 1,
        attributes: ConnectCommand::DISABLE_SQ_FLOW_CONTROL,
        kato_ms: 0,
    };
    queue.submit(command.to_sqe(), HostData::None).await?;
    Ok(())
}

/// Listens, and serves every queue that comes.
fn serve_rdma(address: IpAddr) -> Result<(), String> {
    let device =
        Device::open(DeviceConfig::on(vec![address])).map_err(|error| error.to_string())?;
    let listener = Listener::bind(&device, PORT).map_err(|error| error.to_string())?;
    reactor::spawn(async move {
        while let Some(incoming) = listener.accept().await {
            if let Ok(queue) = TargetQueue::accept_rdma(incoming, QueueLimits::default()) {
                reactor::spawn(serve(queue));
            }
        }
    });
    Ok(())
}

fn serve_tcp(address: SocketAddr) -> Result<(), String> {
    let config = TcpListenerConfig {
        tls: TlsMode::Allowed,
        ..TcpListenerConfig::new(address)
    };
    let listener = TcpListener::bind_with_keys(config, Arc::new(Keys));
    let listener = listener.map_err(|error| error.to_string())?;
    reactor::spawn(async move {
        while let Some(queue) = TargetQueue::accept_tcp(&listener).await {
            reactor::spawn(serve(queue));
        }
    });
    Ok(())
}

/// As a target does: a command that does not have to wait needs no task.
async fn serve(queue: TargetQueue) {
    queue.proved(false);
    while let Some(capsule) = queue.next_command().await {
        if capsule.sqe.opcode() == FABRICS_OPCODE {
            queue.connected(1, DEPTH);
            queue.complete(capsule, Cqe::new(Status::SUCCESS, 0), None);
        } else if capsule.sqe.opcode() == READ || is_in_capsule(&capsule) {
            execute(queue.clone(), capsule).await;
        } else {
            reactor::spawn(execute(queue.clone(), capsule));
        }
    }
}

fn is_in_capsule(capsule: &fabric::Capsule) -> bool {
    let kind = capsule.sqe.sgl();
    matches!(kind, Ok(SglDescriptor::InCapsule { .. }))
}

async fn execute(queue: TargetQueue, capsule: fabric::Capsule) {
    let Some(here) = reactor::current() else {
        return;
    };
    let len = capsule.sqe.cdw(12) as usize;
    let buffer = here.buffers().alloc(len).await;
    let done = Cqe::new(Status::SUCCESS, 0);
    match capsule.sqe.opcode() {
        READ => queue.complete(capsule, done, Some((buffer, len))),
        _ => match queue.fetch(&capsule, len, buffer).await {
            Ok(_) => queue.complete(capsule, done, None),
            Err(error) => queue.complete(capsule, Cqe::new(error.status, 0), None),
        },
    }
}

async fn measure(
    queue: &HostQueue,
    name: &str,
    opcode: u8,
    len: usize,
    depth: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let here = reactor::current().ok_or("not on a reactor")?;
    let done = Cell::new(0_u64);
    let before = processor_nanos();
    let start = Instant::now();
    let worker = async || -> Result<(), fabric::HostError> {
        let mut buffer = here.buffers().alloc(len).await;
        while start.elapsed() < TIME {
            let sqe = Sqe::new(opcode).with_cdw(12, len as u32);
            let data = match opcode {
                READ => HostData::FromTarget(buffer, len),
                _ => HostData::ToTarget(buffer, len),
            };
            let (_, back) = queue.submit(sqe, data).await?;
            let Some(back) = back else { break };
            buffer = back;
            done.set(done.get() + 1);
        }
        Ok(())
    };
    futures_util::future::try_join_all((0..depth).map(|_| worker())).await?;
    let per_second = done.get() as f64 / start.elapsed().as_secs_f64();
    let megabytes = per_second * len as f64 / 1e6;
    let after = processor_nanos();
    let [host, target] =
        [0, 1].map(|side| (after[side] - before[side]) as f64 / 1e3 / done.get().max(1) as f64);
    println!(
        "{name}: {per_second:.0} per second, {megabytes:.0} MB/s; host {host:.2} us, target {target:.2} us"
    );
    Ok(())
}

/// The processor time of the host's and of the target's thread, in nanoseconds.
fn processor_nanos() -> [u64; 2] {
    let mut nanos = [0; 2];
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    for task in tasks.flatten() {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let is_target = read("comm").trim_end() == "target";
        let times = read("schedstat");
        let own = times.split(' ').next().and_then(|time| time.parse().ok());
        nanos[usize::from(is_target)] += own.unwrap_or(0);
    }
    nanos
}
