//! The sled: its drives, and the associations with hosts.
//!
//! Guarantees:
//! - What is served, and to whom, does not change while the sled runs; hosts' keys may. Namespace 1 is the first drive, and so on.
//! - No two namespaces have one UUID.
//! - Everything here is usable from every thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fabric::{KnownAddresses, TlsKeys, TlsMode, Transport, TransportAddress};
use nvme::log::SmartLog;
use nvme::{Nqn, Status};
use reactor::sync::Event;
use reservations::HostId;

use crate::access::{Access, HostKeys, Hosts};
use crate::controller::{Controller, Kind, Registry};
use crate::export::Export;
use crate::identity;
use crate::limits::Limits;
use crate::reserved::{ReservationFolder, Reserved};

/// A data unit of the SMART log: 1000 blocks of 512 bytes.
const DATA_UNIT_BYTES: u64 = 512_000;

/// What a sled serves, to whom.
#[derive(Debug)]
pub struct SledConfig {
    /// Its name for hosts.
    pub nqn: Nqn,
    /// The hosts that may connect, with their keys; `None` admits any.
    pub hosts: Hosts,
    /// The drives, in the order of their namespaces: one at least.
    pub exports: Vec<Export>,
    /// Where it listens, for the discovery log.
    pub listeners: Vec<TransportAddress>,
    /// Where reservations are kept that are to survive the end of this program; `None`: none does.
    pub reservations: Option<ReservationFolder>,
    /// Bounds on hosts.
    pub limits: Limits,
}

/// Why drives cannot be served together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// There is none.
    NoDrive,
    /// Two have one identity: hosts would take them for paths to one drive.
    SameIdentity {
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// The reservations of a drive are not known.
    Reservations {
        /// Why.
        why: String,
    },
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoDrive => f.write_str("there is no drive to serve: name one with --drive"),
            Self::SameIdentity { first, second } => write!(
                f,
                "drives '{first}' and '{second}' have one identity: they are the same drive, or tell the same serial \
                 number; serve one of them"
            ),
            Self::Reservations { why } => f.write_str(why),
        }
    }
}

impl std::error::Error for ConfigError {}

/// What hosts did, for the SMART log.
#[derive(Debug, Default)]
struct Figures {
    reads: AtomicU64,
    bytes_read: AtomicU64,
    writes: AtomicU64,
    bytes_written: AtomicU64,
    media_errors: AtomicU64,
    errors: AtomicU64,
}

/// A target of raw drives.
#[derive(Debug)]
pub struct Sled {
    config: SledConfig,
    /// In the order of the drives.
    reserved: Vec<Arc<Reserved>>,
    access: Arc<Access>,
    pub(crate) serial: String,
    pub(crate) discovery_nqn: Nqn,
    nvm: Registry,
    discovery: Registry,
    known: KnownAddresses,
    figures: Figures,
    stopping: Event,
}

impl Sled {
    /// A sled with these drives. Nobody listens yet: the caller hands queues to [`serve_queue`](crate::serve_queue).
    ///
    /// # Errors
    /// Why the drives cannot be served together.
    ///
    /// # Panics
    /// Never: the name of the discovery service is well formed.
    pub fn new(mut config: SledConfig) -> Result<Self, ConfigError> {
        if config.exports.is_empty() {
            return Err(ConfigError::NoDrive);
        }
        for (at, second) in config.exports.iter().enumerate() {
            let mut earlier = config.exports[..at].iter();
            if let Some(first) = earlier.find(|first| first.uuid() == second.uuid()) {
                return Err(ConfigError::SameIdentity {
                    first: first.name().to_owned(),
                    second: second.name().to_owned(),
                });
            }
        }
        let folder = config.reservations.as_ref();
        let reserved = config.exports.iter().map(|export| {
            let loaded = Reserved::load(folder, export);
            loaded
                .map(Arc::new)
                .map_err(|why| ConfigError::Reservations {
                    why: why.to_string(),
                })
        });
        let reserved = reserved.collect::<Result<_, _>>()?;
        let controllers = config.limits.controllers;
        let discovery_nqn = Nqn::new(nvme::nqn::DISCOVERY).expect("the well-known name is one");
        let subsystems = [config.nqn.clone(), discovery_nqn.clone()];
        Ok(Self {
            serial: identity::serial_of(&config.nqn),
            reserved,
            access: Arc::new(Access::new(config.hosts.take(), subsystems)),
            discovery_nqn,
            nvm: Registry::new(controllers),
            discovery: Registry::new(controllers),
            known: KnownAddresses::default(),
            figures: Figures::default(),
            stopping: Event::new(),
            config,
        })
    }

    /// Its name for hosts.
    #[must_use]
    pub fn nqn(&self) -> &Nqn {
        &self.config.nqn
    }

    /// Its drives, in the order of their namespaces, which begin with 1.
    #[must_use]
    pub fn exports(&self) -> &[Export] {
        &self.config.exports
    }

    /// Bounds on hosts.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.config.limits
    }

    /// Where it listens.
    pub(crate) fn listeners(&self) -> &[TransportAddress] {
        &self.config.listeners
    }

    /// Bounds of I/O queues over that transport.
    pub(crate) fn queue_limits(&self, transport: Transport) -> crate::limits::QueueLimits {
        self.config.limits.queue(transport)
    }

    /// Addresses of hosts with a ready admin queue, for the listeners of all reactors.
    #[must_use]
    pub fn known_addresses(&self) -> &KnownAddresses {
        &self.known
    }

    /// The namespace of that identifier.
    pub(crate) fn export(&self, nsid: u32) -> Option<&Export> {
        let index = usize::try_from(nsid.checked_sub(1)?).ok()?;
        self.config.exports.get(index)
    }

    /// The reservations of all drives, in the order of their namespaces.
    pub(crate) fn reserved(&self) -> &[Arc<Reserved>] {
        &self.reserved
    }

    /// The proven name of the host that is registered with a drive under that identifier.
    pub(crate) fn owner_of(&self, id: &HostId) -> Option<Nqn> {
        let mut all = self.reserved.iter();
        all.find_map(|reserved| reserved.now().owner(id).cloned())
    }

    /// Whether this controller's host proves its name: by a secret, or by a key for TLS.
    pub(crate) fn is_proven(&self, controller: &Controller) -> bool {
        controller.is_by_tls || self.secrets(controller).is_some()
    }

    /// Identifiers of all namespaces: 1 to so many.
    pub(crate) fn namespaces(&self) -> u32 {
        u32::try_from(self.config.exports.len()).unwrap_or(u32::MAX)
    }

    /// Who may connect.
    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// The secrets by which this controller's host has to authenticate; none if it need not. The discovery service asks no host:
    /// it tells each one only of what it may use.
    pub(crate) fn secrets(&self, controller: &Controller) -> Option<Arc<HostKeys>> {
        match controller.kind {
            Kind::Discovery => None,
            Kind::Nvm => self.access.secrets(&controller.host.nqn),
        }
    }

    /// Whether hosts have to be named to connect.
    #[must_use]
    pub fn admits_only_named_hosts(&self) -> bool {
        self.access.is_for_named_hosts()
    }

    /// Gives the hosts other keys, for connections from now on; which hosts have keys of which kind must be as before.
    pub fn set_hosts(&self, hosts: Hosts) {
        self.access.set_hosts(hosts);
    }

    /// Whether hosts come by TLS over TCP.
    #[must_use]
    pub fn tls(&self) -> TlsMode {
        self.access.tls()
    }

    /// The keys of hosts that come by TLS, for the listeners of all reactors.
    #[must_use]
    pub fn tls_keys(&self) -> Arc<dyn TlsKeys> {
        self.access.clone()
    }

    /// What a host means by the name of a subsystem.
    pub(crate) fn kind_of(&self, subsystem: &Nqn) -> Option<Kind> {
        if *subsystem == self.config.nqn {
            return Some(Kind::Nvm);
        }
        subsystem.is_discovery().then_some(Kind::Discovery)
    }

    /// The associations of one kind.
    pub(crate) fn registry(&self, kind: Kind) -> &Registry {
        match kind {
            Kind::Nvm => &self.nvm,
            Kind::Discovery => &self.discovery,
        }
    }

    /// Makes durable what was completed before, on every drive.
    ///
    /// # Errors
    /// The status of the first drive that cannot; the others were asked all the same.
    pub async fn flush(&self) -> Result<(), Status> {
        let mut outcome = Ok(());
        for export in self.exports() {
            let flushed = export.flush().await;
            outcome = outcome.and(flushed);
        }
        outcome
    }

    /// Begins the end: hosts are told to come back later, commands under way are answered, queues close.
    pub fn stop(&self) {
        self.stopping.set();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_set()
    }

    /// Waits for [`stop`](Self::stop).
    pub async fn stopped(&self) {
        self.stopping.wait().await;
    }

    /// Waits until every association has ended and no command can touch a drive.
    pub async fn drained(&self) {
        self.nvm.all_gone().await;
        self.discovery.all_gone().await;
    }

    pub(crate) fn count_read(&self, bytes: usize) {
        self.figures.reads.fetch_add(1, Ordering::Relaxed);
        let read = &self.figures.bytes_read;
        read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_write(&self, bytes: usize) {
        self.figures.writes.fetch_add(1, Ordering::Relaxed);
        let written = &self.figures.bytes_written;
        written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn count_error(&self, status: Status) {
        self.figures.errors.fetch_add(1, Ordering::Relaxed);
        // Status code type 2 is media and data integrity.
        if status.bits() >> 8 & 7 == 2 {
            self.figures.media_errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The SMART log since the start. What the drives themselves tell of their health is theirs: `smartctl` here shows it.
    pub(crate) fn smart_log(&self) -> SmartLog {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let units = |bytes: &AtomicU64| u128::from(of(bytes).div_ceil(DATA_UNIT_BYTES));
        SmartLog {
            available_spare: 100,
            data_units_read: units(&self.figures.bytes_read),
            data_units_written: units(&self.figures.bytes_written),
            host_read_commands: u128::from(of(&self.figures.reads)),
            host_write_commands: u128::from(of(&self.figures.writes)),
            media_errors: u128::from(of(&self.figures.media_errors)),
            error_log_entries: u128::from(of(&self.figures.errors)),
            ..SmartLog::default()
        }
    }
}
