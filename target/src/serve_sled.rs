//! `onefold sled serve`: raw drives for other machines, from the start to the end.
//!
//! Guarantees:
//! - Nothing is written to a drive but what hosts write.
//! - `ready` is printed when, and only when, hosts can connect.
//! - A start that fails says what is taken, missing or wrong, and leaves nothing running, and no file that it made.
//! - SIGINT, SIGTERM and the end of its terminal end it cleanly: no new commands, those under way answered, data durable,
//!   exit 0. A second signal ends it at once; nothing acknowledged is lost then.
//! - No two sleds of a machine have one name.
//! - Who has reserved a drive is known after a restart, or a warning says at the start that it will not be.
//! - A file with a key that others can read, or that holds none, is refused at the start; at a reload all keys stay as they were.

use std::collections::BTreeMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dedup::ErrorKind;
use drives::{BLOCK_BYTES, Drive, MemoryDrive, block_device_of};
use fabric::{KnownAddresses, TargetQueue, TlsKeys, TlsMode, Transport, TransportAddress};
use fabric_drives::read_key_file;
use futures_util::future::{join_all, select_all};
use meta::is_remote_drive;
use nvme::Nqn;
use nvme::auth::{ConfiguredPsk, Secret};
use reactor::ReactorThread;
use rustix::fs::Mode;
use sled::{Export, HostKeys, Hosts, ReservationFolder, Sled, SledConfig, identity};
use subsystem::errors::Failure;
use subsystem::figures::ReactorFigures;
use subsystem::limits::Limits;
use uuid::Uuid;

use crate::announcement::{Place, commands, reachable};
use crate::descriptors::{self, Asked};
use crate::errors::of_drive;
use crate::lingering::outlast;
use crate::listen::{self, Everywhere, Service, Wanted, listen_everywhere};
use crate::new_drive::{MadeFiles, open_named};
use crate::notify;
use crate::opened_drive::kind_of_address;
use crate::options::{BufferMemory, DriveArg, HostArg, SledServeArgs};
use crate::output::print;
use crate::pool::check_memory;
use crate::recorder;
use crate::serve::{default_reactors, start_reactor};
use crate::signals::{Signals, Told};
use crate::size::format_human;

/// Hosts at one time: pools and machines, not users.
const HOSTS_MAX: usize = 128;

/// Where it is kept who has reserved a drive, unless somebody names another folder.
const RESERVATIONS: &str = "/var/lib/onefold/reservations";

/// How long a clean stop waits for hosts' commands before it goes on without them.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);

/// Runs the sled until it is told to stop.
///
/// # Errors
/// Why it could not start, or had to stop.
pub(crate) fn run(args: &SledServeArgs) -> Result<(), Failure> {
    // A file that is made for a drive belongs to its user alone.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| internal("cannot start the control runtime", &e))?;
    let served = runtime.block_on(serve(args));
    recorder::drain();
    served
}

fn internal(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(ErrorKind::Internal, format!("{what}: {error}"))
}

async fn serve(args: &SledServeArgs) -> Result<(), Failure> {
    let mut signals = Signals::new().map_err(|e| internal("cannot wait for signals", &e))?;
    let listeners = TransportAddress::distinct(&args.listen)
        .map_err(|error| Failure::invalid(error.to_string()))?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => identity::default_name().ok_or_else(|| {
            Failure::invalid(
                "this machine has no /etc/machine-id to make a name of: give the sled one with --name",
            )
        })?,
    };
    let nqn = identity::nqn_of(&name).map_err(|error| Failure::invalid(error.to_string()))?;
    let _name = claim(&nqn)?;
    let hosts = hosts_of(&args.hosts)?;
    let mut wanted = Wanted::new(&listeners, false, false);
    listen::check(&wanted).await?;
    let count = args.reactors.unwrap_or_else(default_reactors);
    let limits = limits(wanted.of(Transport::Tcp).count(), count);
    let buffers = BufferMemory::Private.of_each(args.buffers, count)?;
    let mut made = MadeFiles::default();
    let exports = open_drives(&args.drives, &name, &mut made).await?;
    let reservations = reservation_folder(args)?;
    let sled = Sled::new(SledConfig {
        nqn,
        hosts,
        exports,
        listeners,
        reservations,
        limits: of_hosts(&limits),
    });
    let sled = Arc::new(sled.map_err(|error| Failure::invalid(error.to_string()))?);
    wanted.tls = sled.tls();
    let mut data = Vec::new();
    for index in 0..count {
        let name = format!("onefold-data{index}");
        data.push(start_reactor(&name, buffers.clone(), args.spin)?);
    }
    let reactors = data.iter().map(ReactorThread::handle);
    let watching = tokio::spawn(notify::watch(reactors.collect()));
    let node = Node {
        sled: sled.clone(),
        limits,
    };
    let served = serve_on(&node, args, wanted, &data, made, &mut signals).await;
    let flushed = match served {
        Ok(()) => flush(sled, &data).await,
        Err(_) => Ok(()),
    };
    // The threads end after everything that lives on them: tasks drop their queues there.
    let stopped = tokio::task::spawn_blocking(move || {
        data.into_iter().for_each(ReactorThread::stop_and_join);
    });
    let _ = stopped.await;
    watching.abort();
    fabric::peer_log::end();
    served?;
    flushed?;
    tracing::info!("stopped cleanly");
    Ok(())
}

/// Takes the name for this process, as long as the result is held.
fn claim(nqn: &Nqn) -> Result<UnixListener, Failure> {
    let claimed = SocketAddr::from_abstract_name(format!("onefold/{nqn}"))
        .and_then(|address| UnixListener::bind_addr(&address));
    claimed.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Failure::unavailable(format!(
            "another sled of this machine has the name '{nqn}': stop that, or give this one a name of its own with --name"
        )),
        _ => internal("cannot take the sled's name", &error),
    })
}

/// Where reservations are kept. A folder that was named has to be usable.
fn reservation_folder(args: &SledServeArgs) -> Result<Option<ReservationFolder>, Failure> {
    let is_kept = |drive: &DriveArg| !matches!(drive, DriveArg::Memory { .. });
    let path = match &args.reservations {
        Some(named) => named,
        None if !args.drives.iter().any(is_kept) => return Ok(None),
        None => Path::new(RESERVATIONS),
    };
    match (ReservationFolder::open(path), &args.reservations) {
        (Ok(folder), _) => Ok(Some(folder)),
        (Err(error), Some(_)) => Err(Failure::invalid(format!(
            "no files can be kept in '{}': {error}; name another folder with --reservations",
            path.display()
        ))),
        (Err(error), None) => {
            tracing::warn!(
                folder = RESERVATIONS,
                %error,
                "who has reserved a drive is forgotten when this program ends, and a host that was shut out could write again then: \
                 name a folder that this user may write to with --reservations"
            );
            Ok(None)
        }
    }
}

/// The hosts that may connect, with the keys that their files hold now.
fn hosts_of(named: &[HostArg]) -> Result<Hosts, Failure> {
    if named.is_empty() {
        return Ok(None);
    }
    let mut hosts = BTreeMap::new();
    for host in named {
        let failed = |error: fabric_drives::KeyFileError| {
            Failure::invalid(format!("--host {}: {error}", host.nqn))
        };
        let secret = |path: &Option<PathBuf>| {
            let read = |path: &PathBuf| read_key_file(path, Secret::parse);
            path.as_ref().map(read).transpose().map_err(failed)
        };
        let tls_key = host.tls_key_file.as_ref();
        let tls_key = tls_key.map(|path| read_key_file(path, ConfiguredPsk::parse));
        let keys = HostKeys {
            dhchap_secret: secret(&host.dhchap_secret_file)?,
            dhchap_ctrl_secret: secret(&host.dhchap_ctrl_secret_file)?,
            tls_key: tls_key.transpose().map_err(failed)?,
        };
        if hosts.insert(host.nqn.clone(), keys).is_some() {
            return Err(Failure::invalid(format!(
                "--host names {} twice: name it once, with all its files",
                host.nqn
            )));
        }
    }
    Ok(Some(hosts))
}

/// Takes the keys that the hosts' files hold now; all of them, or none.
fn reload(sled: &Sled, named: &[HostArg]) {
    match hosts_of(named) {
        Ok(hosts) => {
            sled.set_hosts(hosts);
            tracing::info!("SIGHUP: hosts' keys were read again");
        }
        Err(error) => tracing::error!(%error, "SIGHUP: hosts keep the keys that they had"),
    }
}

/// What hosts may take, with as many connections as this process can have descriptors for.
fn limits(tcp_addresses: usize, reactors: usize) -> Limits {
    let mut limits = Limits {
        controllers: HOSTS_MAX,
        ..Limits::default()
    };
    let descriptors = descriptors::raise();
    descriptors::fit(descriptors, &mut limits, Asked::default());
    let sockets = tcp_addresses.max(1) * reactors;
    limits.tcp_connections = descriptors::connections(descriptors, &limits, sockets);
    limits
}

/// The same, as the sled announces it.
fn of_hosts(limits: &Limits) -> sled::Limits {
    let of = |queue: subsystem::limits::QueueLimits| sled::limits::QueueLimits {
        depth: queue.depth,
        in_capsule_bytes: queue.in_capsule_bytes,
    };
    sled::Limits {
        controllers: limits.controllers,
        io_queues: limits.io_queues,
        rdma: of(limits.rdma),
        tcp: of(limits.tcp),
    }
}

/// Opens the drives, for this process alone. What they hold is not looked at: it is their hosts'.
async fn open_drives(
    drives: &[DriveArg],
    name: &str,
    made: &mut MadeFiles,
) -> Result<Vec<Export>, Failure> {
    let mut exports = Vec::new();
    for drive in drives {
        exports.push(match drive {
            DriveArg::Memory { size_bytes } => memory_drive(*size_bytes)?,
            DriveArg::Path {
                domain: Some(domain),
                ..
            } => {
                return Err(Failure::invalid(format!(
                    "a sled has no use for the failure domain '{domain}': say it to the pool that the drive is for"
                )));
            }
            DriveArg::Path {
                path, size_bytes, ..
            } => {
                file_drive(path, *size_bytes, name, made).await?
            }
        });
    }
    Ok(exports)
}

async fn file_drive(
    path: &Path,
    size_bytes: Option<u64>,
    name: &str,
    made: &mut MadeFiles,
) -> Result<Export, Failure> {
    // The kernel lets go of the drives of a process that was killed a moment after its end.
    let is_taken = |failure: &Failure| failure.kind == ErrorKind::Unavailable;
    if is_remote_drive(path) {
        return Err(Failure::invalid(format!(
            "'{}' is {}, and a sled serves files and devices of its own machine",
            path.display(),
            kind_of_address(path)
        )));
    }
    let open = || open_named(path, size_bytes, None, 0);
    let (spec, drive) = outlast(is_taken, open).await?;
    made.note(&drive, &spec.path);
    let is_made = drive.is_made();
    drive.check_unused(&spec.path).map_err(of_drive)?;
    // A namespace is the same one by either of its devices.
    let block = block_device_of(&spec.path);
    let uuid =
        identity::uuid_of_path(block.as_deref().unwrap_or(&spec.path), name).map_err(|error| {
            Failure::unavailable(format!("drive '{}': {error}", spec.path.display()))
        })?;
    let export = Export::new(drive.into_whole(), uuid);
    Ok(if is_made { export.made() } else { export })
}

fn memory_drive(bytes: u64) -> Result<Export, Failure> {
    let blocks = bytes / BLOCK_BYTES as u64;
    if blocks == 0 {
        return Err(Failure::invalid(format!(
            "a memory drive of {bytes} bytes has no block: name at least 4K"
        )));
    }
    check_memory(bytes)?;
    tracing::warn!(
        bytes,
        "a drive is in memory, for measurements: NOTHING IS KEPT when this program ends"
    );
    let drive: Arc<dyn Drive> = Arc::new(MemoryDrive::resident(blocks).map_err(of_drive)?);
    let uuid = identity::random_uuid().map_err(|e| internal("no random bytes", &e))?;
    Ok(Export::new(drive, uuid).volatile())
}

/// The sled, as listeners see it.
#[derive(Clone)]
struct Node {
    sled: Arc<Sled>,
    limits: Limits,
}

impl Service for Node {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn known_addresses(&self) -> &KnownAddresses {
        self.sled.known_addresses()
    }

    fn keys(&self) -> Option<Arc<dyn TlsKeys>> {
        (self.sled.tls() != TlsMode::Off).then(|| self.sled.tls_keys())
    }

    /// A sled has no control interface that would show them.
    fn reactor_figures(&self) -> ReactorFigures {
        ReactorFigures::default()
    }

    fn stopped(&self) -> impl Future<Output = ()> {
        self.sled.stopped()
    }

    fn drained(&self) -> impl Future<Output = ()> {
        self.sled.drained()
    }

    fn serve(&self, queue: TargetQueue) -> impl Future<Output = ()> + 'static {
        sled::serve_queue(self.sled.clone(), queue)
    }
}

async fn serve_on(
    node: &Node,
    args: &SledServeArgs,
    wanted: Wanted,
    data: &[ReactorThread],
    mut made: MadeFiles,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let is_open = wanted.addresses.iter().any(|a| !a.host.is_loopback());
    let Everywhere {
        bound,
        work,
        reactors: _orders,
    } = tokio::select! {
        listening = listen_everywhere(node, wanted, data) => listening?,
        _ = signals.stop() => return Ok(()),
    };
    made.keep();
    if is_open && !node.sled.admits_only_named_hosts() {
        tracing::warn!(
            "any host that reaches this machine may connect, read and overwrite these drives: --host names those that may"
        );
    }
    print(&announcement(&bound, &node.sled));
    notify::ready();
    let mut first_end = select_all(work);
    let listening = loop {
        tokio::select! {
            told = signals.next() => match told {
                Told::Reload => reload(&node.sled, &args.hosts),
                Told::Stop(by) => {
                    tracing::info!("stopping ({by})");
                    break first_end.into_inner();
                }
            },
            (ended, _, _) = &mut first_end => {
                notify::stopping();
                node.sled.stop();
                return Err(match ended {
                    Ok(()) => Failure::unavailable(
                        "a listener closed: the log above says which and why; mend that and start again",
                    ),
                    Err(error) => internal("a data reactor ended", &error),
                });
            }
        }
    };
    notify::stopping();
    node.sled.stop();
    let drained = async {
        node.sled.drained().await;
        join_all(listening).await;
    };
    tokio::select! {
        drained = tokio::time::timeout(DRAIN_TIMEOUT, drained) => if drained.is_err() {
            tracing::warn!("hosts' commands are still under way: stopping without them");
        },
        () = signals.insists() => tracing::warn!("told to stop again: not waiting for hosts"),
    }
    Ok(())
}

/// Makes durable what hosts wrote.
async fn flush(sled: Arc<Sled>, data: &[ReactorThread]) -> Result<(), Failure> {
    let Some(reactor) = data.first() else {
        return Ok(());
    };
    let flushing = reactor
        .handle()
        .spawn(move || async move { sled.flush().await });
    flushing.await?.map_err(|status| {
        Failure::unavailable(format!(
            "not all drives could make durable what hosts wrote: {status}; the log above says which"
        ))
    })
}

/// What people and scripts read at the start: each drive, with what names it on another machine.
fn announcement(bound: &[TransportAddress], sled: &Sled) -> String {
    let listed: Vec<String> = bound.iter().map(ToString::to_string).collect();
    let mut text = format!("ready {}\n", listed.join(" "));
    let is_by_tls = |address: TransportAddress| {
        address.scheme.transport() == Transport::Tcp && sled.tls() == TlsMode::Required
    };
    let places = reachable(bound, is_by_tls);
    for (nsid, export) in (1..).zip(sled.exports()) {
        let bytes = export.blocks().saturating_mul(BLOCK_BYTES as u64);
        text += &format!(
            "Namespace {nsid}: {}, {}, UUID {}\n",
            export.name(),
            format_human(bytes),
            Uuid::from_bytes(export.uuid())
        );
        for place in &places {
            text += &format!("  {}\n", name_elsewhere(place, sled.nqn(), nsid));
        }
    }
    text + &commands(&places, sled.nqn().as_str())
}

/// A namespace, as a pool of another machine names the drive.
fn name_elsewhere(place: &Place, nqn: &Nqn, nsid: u32) -> String {
    let address = std::net::SocketAddr::new(place.host, place.port);
    format!("nvme+{}://{address}/{nqn}#{nsid}", place.transport)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_drive_is_told_with_what_another_machine_types() {
        let config = SledConfig {
            nqn: identity::nqn_of("s1").expect("a name"),
            hosts: None,
            exports: vec![Export::new(Arc::new(MemoryDrive::new(512)), [7; 16])],
            listeners: Vec::new(),
            reservations: None,
            limits: sled::Limits::default(),
        };
        let sled = Sled::new(config).expect("a sled");
        let bound = ["tcp://192.0.2.7:4420", "rdma://[2001:db8::7]:4420"]
            .map(|address| address.parse().expect("an address"));
        let text = announcement(&bound, &sled);
        let expected = "ready tcp://192.0.2.7:4420 rdma://[2001:db8::7]:4420\n\
                        Namespace 1: memory, 2.00 MiB, UUID 07070707-0707-0707-0707-070707070707\n  \
                        nvme+tcp://192.0.2.7:4420/nqn.2026-11.dev.onefold:sled:s1#1\n  \
                        nvme+rdma://[2001:db8::7]:4420/nqn.2026-11.dev.onefold:sled:s1#1\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(
            text.contains(
                "nvme connect -t tcp -a 192.0.2.7 -s 4420 -n nqn.2026-11.dev.onefold:sled:s1\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_name_is_one_sleds_alone_while_it_runs() {
        let nqn = identity::nqn_of(&format!("test-{}", std::process::id())).expect("a name");
        let first = claim(&nqn).expect("free");
        let refused = claim(&nqn).expect_err("taken");
        assert!(refused.message.contains("--name"), "{refused}");
        drop(first);
        claim(&nqn).expect("free again");
    }
}
