//! The catalog: how the target is configured. Subsystems with their namespaces and the hosts that may
//! use them, listeners, referrals.
//!
//! A [`Catalog`] is immutable while it is in use. A change makes a new one, which is stored (`store`) and then put into
//! force (the target's live catalog).
//!
//! Guarantees:
//! - A catalog that [`Catalog::check`] accepts is consistent: every namespace has an identifier that hosts can use, and a
//!   subsystem shows a volume at most once.
//! - The default subsystem always exists.
//! - Everything is bounded, by the constants here.

mod export;
mod host_auth;
mod port;
pub(crate) mod store;
pub mod text;
mod write_protect;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use dedup::ErrorKind;
use fabric::{Transport, TransportAddress};
use nvme::Nqn;
use nvme::ana::AnaState;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::errors::Failure;
use crate::throttle::{IoLimits, Limited};
pub use export::{EXPORTS_MAX, ExportConfig, ExportKind, NbdAddress};
pub use host_auth::{HostAuth, TLS_KEYS_MAX, TlsKey};
pub use port::{PortChange, PortConfig};
pub use write_protect::WriteProtect;

/// NN and MNAN: namespaces of a subsystem, and the highest identifier. As nvmet.
pub const NAMESPACES_MAX: u32 = 1024;

/// Subsystems of a target.
pub const SUBSYSTEMS_MAX: usize = 128;

/// Hosts on the list of a subsystem: with names of the longest kind its row stays below 64 KiB.
pub const SUBSYSTEM_HOSTS_MAX: usize = 256;

/// Hosts on the list of a namespace.
pub const NAMESPACE_HOSTS_MAX: usize = 64;

/// Hosts that are known by name.
pub const HOSTS_MAX: usize = 1024;

/// Listeners of a target.
pub const PORTS_MAX: usize = 32;

/// Referrals of a target.
pub const REFERRALS_MAX: usize = 64;

/// ANA groups: 1 to 128, as nvmet.
pub const ANA_GROUPS_MAX: u32 = 128;

/// The ANA group of a namespace by default.
pub const ANA_GROUP_DEFAULT: u32 = 1;

/// The whole configuration. Parts that did not change are shared with the previous catalog.
#[derive(Clone, Debug, PartialEq)]
pub struct Catalog {
    /// The subsystems by name; the default one is always there.
    pub subsystems: BTreeMap<Nqn, Arc<SubsystemConfig>>,
    /// The keys of hosts.
    pub hosts: BTreeMap<Nqn, Arc<HostConfig>>,
    /// Listeners by identifier (PORTID in the discovery log).
    pub ports: BTreeMap<u16, Arc<PortConfig>>,
    /// Listeners of other nodes that offer the same pool; they are not stored.
    pub elsewhere: Vec<PortConfig>,
    /// Other discovery services that hosts are referred to.
    pub referrals: BTreeMap<u16, Arc<Referral>>,
    /// Volumes that are reached by something else than NVMe.
    pub exports: BTreeMap<u16, Arc<ExportConfig>>,
    /// Volumes that are meant to be in no subsystem. Any other volume that is in none belongs to the
    /// default one.
    pub unattached: BTreeSet<Uuid>,
    /// What volumes and hosts may do in a second; those without a limit are not here.
    pub limits: BTreeMap<Limited, Arc<IoLimits>>,
}

/// A subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubsystemConfig {
    /// Its name.
    pub nqn: Nqn,
    /// Its serial number: 1 to 20 printable ASCII characters, the same for its whole life.
    pub serial: String,
    /// Every host may connect, on the list or not.
    pub allow_any_host: bool,
    /// Hosts that may connect.
    #[serde(default)]
    pub hosts: BTreeSet<Nqn>,
    /// Hosts may make, attach, detach and delete namespaces.
    #[serde(default)]
    pub namespace_management: bool,
    /// Its namespaces by identifier (1 to [`NAMESPACES_MAX`]). They are stored one by one.
    #[serde(skip)]
    pub namespaces: BTreeMap<u32, Arc<NamespaceConfig>>,
}

/// A volume as a subsystem shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceConfig {
    /// The volume, by its identity, from which UUID, NGUID and EUI64 derive.
    pub volume: Uuid,
    /// Hosts see an EUI64. Namespaces of pools from before there was one stay without: a Linux host drops a namespace
    /// whose identifiers change.
    #[serde(default)]
    pub eui64: bool,
    /// Several controllers may use it at a time (NMIC bit 0).
    #[serde(default = "yes")]
    pub shared: bool,
    /// Its write protection.
    #[serde(default)]
    pub write_protect: WriteProtect,
    /// Its ANA group, 1 to [`ANA_GROUPS_MAX`].
    #[serde(default = "default_ana_group")]
    pub ana_group: u32,
    /// The hosts that see it; `None` is every host that may connect to the subsystem.
    #[serde(default)]
    pub hosts: Option<BTreeSet<Nqn>>,
}

fn yes() -> bool {
    true
}

fn default_ana_group() -> u32 {
    ANA_GROUP_DEFAULT
}

/// A host's keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostConfig {
    /// Its name.
    pub nqn: Nqn,
    /// How it authenticates.
    #[serde(default)]
    pub auth: HostAuth,
}

/// Another discovery service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Referral {
    /// Its identifier: PORTID in the discovery log.
    pub id: u16,
    /// Where it listens.
    #[serde(with = "text")]
    pub address: TransportAddress,
    /// The name of its discovery subsystem.
    pub nqn: Nqn,
}

impl SubsystemConfig {
    /// A subsystem without namespaces that every host may use.
    #[must_use]
    pub fn new(nqn: Nqn, serial: String) -> Self {
        Self {
            nqn,
            serial,
            allow_any_host: true,
            hosts: BTreeSet::new(),
            namespace_management: false,
            namespaces: BTreeMap::new(),
        }
    }

    /// Whether a host may connect.
    #[must_use]
    pub fn allows(&self, host: &Nqn) -> bool {
        self.allow_any_host || self.hosts.contains(host)
    }

    /// Whether such a subsystem is possible.
    ///
    /// # Errors
    /// Names what is wrong.
    pub fn check(&self) -> Result<(), Failure> {
        let nqn = &self.nqn;
        check_key(nqn)?;
        if nqn.is_discovery() || is_unique_discovery_name(nqn) {
            return Err(Failure::invalid(format!(
                "'{nqn}' is the name of the discovery service: choose another one"
            )));
        }
        bounded(
            self.hosts.len(),
            SUBSYSTEM_HOSTS_MAX,
            &format!("hosts on the list of subsystem {nqn}"),
            "subsystem disallow",
        )?;
        check_serial(&self.serial)?;
        for (nsid, namespace) in &self.namespaces {
            namespace.check(*nsid)?;
        }
        Ok(())
    }

    /// The identifier under which it shows a volume.
    #[must_use]
    pub fn nsid_of(&self, volume: Uuid) -> Option<u32> {
        let mut namespaces = self.namespaces.iter();
        namespaces
            .find(|(_, namespace)| namespace.volume == volume)
            .map(|(nsid, _)| *nsid)
    }

    /// The lowest identifier that is free.
    #[must_use]
    pub fn free_nsid(&self) -> Option<u32> {
        (1..=NAMESPACES_MAX).find(|nsid| !self.namespaces.contains_key(nsid))
    }
}

impl NamespaceConfig {
    /// A volume as new ones are attached: visible to every host.
    #[must_use]
    pub fn new(volume: Uuid) -> Self {
        Self {
            volume,
            eui64: true,
            shared: true,
            write_protect: WriteProtect::Off,
            ana_group: ANA_GROUP_DEFAULT,
            hosts: None,
        }
    }

    /// Whether a host that may connect to the subsystem sees it.
    #[must_use]
    pub fn shows_to(&self, host: &Nqn) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.contains(host))
    }

    /// Whether such a namespace is possible.
    ///
    /// # Errors
    /// Names what is wrong.
    pub fn check(&self, nsid: u32) -> Result<(), Failure> {
        if nsid == 0 || nsid > NAMESPACES_MAX {
            return Err(Failure::invalid(format!(
                "namespace identifier {nsid} is not possible: use 1 to {NAMESPACES_MAX}"
            )));
        }
        if self.ana_group == 0 || self.ana_group > ANA_GROUPS_MAX {
            return Err(Failure::invalid(format!(
                "ANA group {} is not possible: use 1 to {ANA_GROUPS_MAX}",
                self.ana_group
            )));
        }
        let hosts = self.hosts.as_ref().map_or(0, BTreeSet::len);
        if hosts > NAMESPACE_HOSTS_MAX {
            return Err(Failure::invalid(format!(
                "namespace {nsid} has {NAMESPACE_HOSTS_MAX} hosts on its list, and no more are possible: name fewer with \
                 `onefold namespace set --hosts`"
            )));
        }
        Ok(())
    }

    /// The EUI64: both halves of the volume's UUID, each byte of the one combined with that of the
    /// other by exclusive or, as a locally administered address of one device (bits 1:0 of the first
    /// byte are 10b). Zeros if hosts are told none.
    #[must_use]
    pub fn eui64_bytes(&self) -> [u8; 8] {
        if !self.eui64 {
            return [0; 8];
        }
        let uuid = self.volume.as_bytes();
        let mut eui64: [u8; 8] = std::array::from_fn(|at| uuid[at] ^ uuid[at + 8]);
        eui64[0] = eui64[0] & !1 | 2;
        eui64
    }
}

impl HostConfig {
    /// Whether such a host is possible.
    ///
    /// # Errors
    /// Names what is wrong.
    pub fn check(&self) -> Result<(), Failure> {
        check_key(&self.nqn)?;
        let what = format!("TLS keys of host {}", self.nqn);
        bounded(
            self.auth.tls_keys.len(),
            TLS_KEYS_MAX,
            &what,
            "host tls-key remove",
        )
    }
}

impl Catalog {
    /// Whether a host must use TLS.
    pub(crate) fn has_to_use_tls(&self, host: &Nqn) -> bool {
        self.hosts.get(host).is_some_and(|host| host.auth.tls_only)
    }

    /// The catalog of a pool that stores none.
    #[must_use]
    pub fn new(default: SubsystemConfig) -> Self {
        Self {
            subsystems: BTreeMap::from([(default.nqn.clone(), Arc::new(default))]),
            hosts: BTreeMap::new(),
            ports: BTreeMap::new(),
            elsewhere: Vec::new(),
            referrals: BTreeMap::new(),
            exports: BTreeMap::new(),
            unattached: BTreeSet::new(),
            limits: BTreeMap::new(),
        }
    }

    /// The subsystem of that name.
    ///
    /// # Errors
    /// Not found.
    pub fn subsystem(&self, nqn: &Nqn) -> Result<&SubsystemConfig, Failure> {
        self.subsystems
            .get(nqn)
            .map(|subsystem| &**subsystem)
            .ok_or_else(|| no_subsystem(nqn))
    }

    /// The subsystem of that name, to be changed.
    ///
    /// # Errors
    /// Not found.
    pub fn subsystem_mut(&mut self, nqn: &Nqn) -> Result<&mut SubsystemConfig, Failure> {
        self.subsystems
            .get_mut(nqn)
            .map(Arc::make_mut)
            .ok_or_else(|| no_subsystem(nqn))
    }

    /// A namespace, to be changed.
    ///
    /// # Errors
    /// Not found.
    pub fn namespace_mut(&mut self, nqn: &Nqn, nsid: u32) -> Result<&mut NamespaceConfig, Failure> {
        self.subsystem_mut(nqn)?
            .namespaces
            .get_mut(&nsid)
            .map(Arc::make_mut)
            .ok_or_else(|| no_namespace(nqn, nsid))
    }

    /// Sets how a listener, named by its identifier or its address, reaches the namespaces of a group.
    ///
    /// # Errors
    /// There is no such listener or group.
    pub fn set_ana(
        &mut self,
        listener: &str,
        group: u32,
        state: AnaState,
    ) -> Result<&PortConfig, Failure> {
        let is_meant = |port: &PortConfig| {
            listener.parse() == Ok(port.id) || listener.parse().is_ok_and(|at| port.address == at)
        };
        let port = self.ports.values_mut().find(|port| is_meant(port));
        let port = port.ok_or_else(|| {
            let text = format!(
                "there is no listener '{listener}': `onefold ana list` shows those there are"
            );
            Failure::new(ErrorKind::NotFound, text)
        })?;
        let port = Arc::make_mut(port);
        port.set_ana(group, state)?;
        Ok(port)
    }

    /// Adds a subsystem.
    ///
    /// # Errors
    /// There is one of that name, or the name is that of the discovery service.
    pub fn create_subsystem(&mut self, subsystem: SubsystemConfig) -> Result<(), Failure> {
        let nqn = subsystem.nqn.clone();
        if self.subsystems.contains_key(&nqn) {
            return Err(Failure::invalid(format!(
                "subsystem '{nqn}' exists already: choose another name"
            )));
        }
        self.subsystems.insert(nqn, Arc::new(subsystem));
        Ok(())
    }

    /// Ends what ends with the power.
    pub(crate) fn end_power_cycle(&mut self) {
        for subsystem in self.subsystems.values_mut() {
            let is_protected = |namespace: &Arc<NamespaceConfig>| {
                namespace.write_protect == WriteProtect::UntilPowerCycle
            };
            if subsystem.namespaces.values().any(is_protected) {
                let namespaces = &mut Arc::make_mut(subsystem).namespaces;
                for namespace in namespaces.values_mut().filter(|it| is_protected(it)) {
                    Arc::make_mut(namespace).write_protect = WriteProtect::Off;
                }
            }
        }
    }

    /// Removes a subsystem. Its volumes stay; those that no other subsystem shows are then in none.
    ///
    /// # Errors
    /// Not found, or it is the default one.
    pub fn delete_subsystem(&mut self, nqn: &Nqn) -> Result<(), Failure> {
        if nqn.as_str() == crate::DEFAULT_SUBSYSTEM_NQN {
            return Err(Failure::invalid(format!(
                "subsystem '{nqn}' is the default one and stays: detach its namespaces instead"
            )));
        }
        let gone = self
            .subsystems
            .remove(nqn)
            .ok_or_else(|| no_subsystem(nqn))?;
        for namespace in gone.namespaces.values() {
            self.note_unattached(namespace.volume);
        }
        Ok(())
    }

    /// Attaches a volume to a subsystem as namespace `nsid`, or under the lowest free identifier; returns the identifier.
    ///
    /// # Errors
    /// No such subsystem, the volume is in it already, or the identifier is taken or cannot be.
    pub fn attach(
        &mut self,
        nqn: &Nqn,
        nsid: Option<u32>,
        namespace: NamespaceConfig,
    ) -> Result<u32, Failure> {
        let volume = namespace.volume;
        let subsystem = self.subsystem_mut(nqn)?;
        if let Some(nsid) = subsystem.nsid_of(volume) {
            return Err(Failure::invalid(format!(
                "the volume is namespace {nsid} of subsystem '{nqn}' already"
            )));
        }
        let nsid = match nsid {
            Some(nsid) if subsystem.namespaces.contains_key(&nsid) => {
                return Err(Failure::invalid(format!(
                    "namespace {nsid} of subsystem '{nqn}' is taken: choose another --nsid"
                )));
            }
            Some(nsid) => nsid,
            None => subsystem.free_nsid().ok_or_else(|| {
                Failure::invalid(format!(
                    "subsystem '{nqn}' has {NAMESPACES_MAX} namespaces already: detach one, or use another \
                     subsystem"
                ))
            })?,
        };
        subsystem.namespaces.insert(nsid, Arc::new(namespace));
        self.unattached.remove(&volume);
        self.exports.retain(|_, export| export.volume != volume);
        Ok(nsid)
    }

    /// Takes a namespace out of a subsystem; the volume stays.
    ///
    /// # Errors
    /// No such subsystem or namespace.
    pub fn detach(&mut self, nqn: &Nqn, nsid: u32) -> Result<Arc<NamespaceConfig>, Failure> {
        let subsystem = self.subsystem_mut(nqn)?;
        let gone = subsystem
            .namespaces
            .remove(&nsid)
            .ok_or_else(|| no_namespace(nqn, nsid))?;
        self.note_unattached(gone.volume);
        Ok(gone)
    }

    /// Takes a volume out of all subsystems but one.
    ///
    /// # Errors
    /// It is permanently write protected in one of them: moving it must not lift that.
    pub fn detach_elsewhere(&mut self, stays: &Nqn, volume: Uuid) -> Result<(), Failure> {
        let places = self.places_of(volume).filter(|(nqn, _)| *nqn != stays);
        let places: Vec<_> = places.map(|(nqn, nsid)| (nqn.clone(), nsid)).collect();
        for (nqn, nsid) in places {
            if self.namespace_mut(&nqn, nsid)?.write_protect == WriteProtect::Permanent {
                return Err(Failure::invalid(format!(
                    "the volume is namespace {nsid} of subsystem '{nqn}', permanently write protected: \
                     `onefold namespace detach {nqn} {nsid}` ends that"
                )));
            }
            self.detach(&nqn, nsid)?;
        }
        Ok(())
    }

    /// Forgets a volume that does not exist any more.
    pub fn forget_volume(&mut self, volume: Uuid) {
        self.unattached.remove(&volume);
        self.limits.remove(&Limited::Volume(volume));
        for subsystem in self.subsystems.values_mut() {
            if subsystem.nsid_of(volume).is_some() {
                Arc::make_mut(subsystem)
                    .namespaces
                    .retain(|_, namespace| namespace.volume != volume);
            }
        }
    }

    /// The subsystems that show a volume, each with the identifier there.
    pub fn places_of(&self, volume: Uuid) -> impl Iterator<Item = (&Nqn, u32)> {
        self.subsystems
            .iter()
            .filter_map(move |(nqn, subsystem)| Some((nqn, subsystem.nsid_of(volume)?)))
    }

    /// Whether anything is noted of a volume.
    #[must_use]
    pub fn knows_volume(&self, volume: Uuid) -> bool {
        self.unattached.contains(&volume) || self.places_of(volume).next().is_some()
    }

    fn note_unattached(&mut self, volume: Uuid) {
        if self.places_of(volume).next().is_none() {
            self.unattached.insert(volume);
        }
    }

    /// The default subsystem. It is always there in a catalog that was loaded or made by
    /// [`Catalog::new`].
    pub(crate) fn default_subsystem_mut(&mut self) -> Option<&mut Arc<SubsystemConfig>> {
        let mut all = self.subsystems.iter_mut();
        all.find(|(nqn, _)| nqn.as_str() == crate::DEFAULT_SUBSYSTEM_NQN)
            .map(|(_, subsystem)| subsystem)
    }

    /// The listener that a host came to at `local`: the one at that address, or else the one at all
    /// addresses.
    #[must_use]
    pub fn port_at(&self, transport: Transport, local: SocketAddr) -> Option<&PortConfig> {
        let host = local.ip().to_canonical();
        let here = || {
            let ports = self.ports.values().map(|port| &**port);
            ports.filter(move |port| {
                port.address.scheme.transport() == transport && port.address.port == local.port()
            })
        };
        let of_all = |port: &&PortConfig| {
            let listens = port.address.host;
            listens.is_unspecified() && listens.is_ipv4() == host.is_ipv4()
        };
        here()
            .find(|port| port.address.host.to_canonical() == host)
            .or_else(|| here().find(of_all))
    }

    /// The lowest identifier of a listener that is free.
    ///
    /// # Errors
    /// If all are in use.
    pub fn free_port_id(&self) -> Result<u16, Failure> {
        let free = (1..=u16::MAX).find(|id| !self.ports.contains_key(id));
        free.ok_or_else(|| {
            Failure::invalid(
                "no identifier of a listener is free: take one away with `onefold listener remove`",
            )
        })
    }

    /// Whether it contradicts itself or one of the bounds.
    ///
    /// # Errors
    /// Names what is wrong.
    pub fn check(&self) -> Result<(), Failure> {
        let (subsystems, hosts) = (self.subsystems.len(), self.hosts.len());
        let (ports, referrals) = (self.ports.len(), self.referrals.len());
        bounded(subsystems, SUBSYSTEMS_MAX, "subsystems", "subsystem delete")?;
        bounded(hosts, HOSTS_MAX, "hosts", "host delete")?;
        bounded(ports, PORTS_MAX, "listeners", "listener remove")?;
        bounded(referrals, REFERRALS_MAX, "referrals", "referral remove")?;
        bounded(self.exports.len(), EXPORTS_MAX, "exports", "export delete")?;
        let mut places = BTreeSet::new();
        for export in self.exports.values() {
            export.check()?;
            if !places.insert(export.address.as_str()) {
                return Err(Failure::invalid(format!(
                    "'{}' is an export already: `onefold export list` shows it; name another place",
                    export.address
                )));
            }
        }
        for host in self.hosts.values() {
            host.check()?;
        }
        let of_hosts = self.limits.keys();
        let of_hosts = of_hosts.filter(|of| matches!(of, Limited::Host(_)));
        bounded(
            of_hosts.count(),
            HOSTS_MAX,
            "hosts with limits",
            "host limit",
        )?;
        for (of, limits) in &self.limits {
            limits.check(&match of {
                Limited::Volume(uuid) => format!("volume {uuid}"),
                Limited::Host(nqn) => format!("host '{nqn}'"),
            })?;
        }
        for port in self.ports.values() {
            port.check()?;
        }
        for subsystem in self.subsystems.values() {
            subsystem.check()?;
        }
        Ok(())
    }
}

fn bounded(count: usize, max: usize, what: &str, remover: &str) -> Result<(), Failure> {
    match count > max {
        true => Err(Failure::invalid(format!(
            "there are {max} {what}, and no more are possible: take one away with `onefold {remover}`"
        ))),
        false => Ok(()),
    }
}

/// Names of subsystems and hosts are keys in the pool.
fn check_key(nqn: &Nqn) -> Result<(), Failure> {
    match nqn.as_str().bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(()),
        false => Err(Failure::invalid(format!(
            "'{nqn}' has characters beyond ASCII: choose another name"
        ))),
    }
}

fn check_serial(serial: &str) -> Result<(), Failure> {
    let printable = serial.bytes().all(|byte| byte.is_ascii_graphic());
    if serial.is_empty() || serial.len() > 20 || !printable {
        return Err(Failure::invalid(format!(
            "'{}' is no serial number: use 1 to 20 printable ASCII characters without blanks",
            serial.escape_debug()
        )));
    }
    Ok(())
}

/// The beginning of the names of our own discovery subsystems; the pool's identity follows.
pub(crate) const UNIQUE_DISCOVERY_PREFIX: &str = "nqn.2026-11.dev.onefold:discovery:";

fn is_unique_discovery_name(nqn: &Nqn) -> bool {
    nqn.as_str().starts_with(UNIQUE_DISCOVERY_PREFIX)
}

/// The error for a subsystem that does not exist.
pub(crate) fn no_subsystem(nqn: &Nqn) -> Failure {
    Failure::new(
        ErrorKind::NotFound,
        format!("there is no subsystem '{nqn}': `onefold subsystem list` shows those there are"),
    )
}

/// The error for a namespace that does not exist.
#[must_use]
pub fn no_namespace(nqn: &Nqn, nsid: u32) -> Failure {
    Failure::new(
        ErrorKind::NotFound,
        format!(
            "subsystem '{nqn}' has no namespace {nsid}: `onefold namespace list` shows those there are"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn(text: &str) -> Nqn {
        text.parse().expect("a name")
    }

    fn catalog() -> Catalog {
        let default = nqn(crate::DEFAULT_SUBSYSTEM_NQN);
        Catalog::new(SubsystemConfig::new(default, "1".into()))
    }

    #[test]
    fn a_volume_can_be_in_several_subsystems_and_once_in_each() {
        let mut catalog = catalog();
        let (default, other) = (nqn(crate::DEFAULT_SUBSYSTEM_NQN), nqn("nqn.2026-11.x:b"));
        catalog
            .create_subsystem(SubsystemConfig::new(other.clone(), "2".into()))
            .expect("created");
        let volume = NamespaceConfig::new(Uuid::from_u128(7));
        assert_eq!(catalog.attach(&default, None, volume.clone()), Ok(1));
        assert_eq!(catalog.attach(&other, Some(1000), volume.clone()), Ok(1000));
        assert!(catalog.attach(&other, None, volume.clone()).is_err());
        catalog.check().expect("sound");
        let places: Vec<_> = catalog.places_of(volume.volume).map(|(_, id)| id).collect();
        assert_eq!(places, [1, 1000], "in the order of names");
        catalog.delete_subsystem(&other).expect("deleted");
        assert!(catalog.unattached.is_empty(), "the default one shows it");
        catalog.detach(&default, 1).expect("detached");
        assert!(catalog.unattached.contains(&volume.volume));
    }

    #[test]
    fn what_hosts_could_not_use_is_refused() {
        let default = nqn(crate::DEFAULT_SUBSYSTEM_NQN);
        for nsid in [0, 1025, u32::MAX] {
            let mut catalog = catalog();
            let volume = NamespaceConfig::new(Uuid::from_u128(7));
            catalog.attach(&default, Some(nsid), volume).expect("noted");
            assert!(catalog.check().is_err(), "{nsid}");
        }
        let mut catalog = catalog();
        let discovery = SubsystemConfig::new(nqn(nvme::nqn::DISCOVERY), "1".into());
        catalog.create_subsystem(discovery).expect("noted");
        assert!(catalog.check().is_err());
        assert!(catalog.clone().delete_subsystem(&default).is_err());
    }

    #[test]
    fn a_host_came_to_the_listener_at_its_address_or_to_the_one_at_all() {
        let mut catalog = catalog();
        let listeners = [
            "tcp://0.0.0.0:4420",
            "tcp://192.0.2.2:4420",
            "rdma://[::]:4420",
        ];
        for (id, address) in (1..).zip(listeners) {
            let port = PortConfig::new(id, address.parse().expect("an address"));
            catalog.ports.insert(id, Arc::new(port));
        }
        for (transport, local, id) in [
            (Transport::Tcp, "192.0.2.2:4420", Some(2)),
            (Transport::Tcp, "[::ffff:192.0.2.3]:4420", Some(1)),
            (Transport::Tcp, "192.0.2.2:4421", None),
            (Transport::Rdma, "192.0.2.2:4420", None),
            (Transport::Rdma, "[2001:db8::1]:4420", Some(3)),
        ] {
            let port = catalog.port_at(transport, local.parse().expect("an address"));
            assert_eq!(port.map(|port| port.id), id, "{transport} {local}");
        }
    }

    #[test]
    fn an_eui64_is_local_stable_and_can_be_left_out() {
        let mut namespace = NamespaceConfig::new(Uuid::from_u128(0x0102 << 64 | 0xff01));
        assert_eq!(namespace.eui64_bytes(), [2, 0, 0, 0, 0, 0, 0xfe, 3]);
        namespace.eui64 = false;
        assert_eq!(namespace.eui64_bytes(), [0; 8]);
    }
}
