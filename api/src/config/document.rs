//! The exported configuration: what stands in the file, and how it follows from a pool.
//!
//! Guarantees:
//! - The text depends on nothing but what is configured: exported, imported into a new pool and exported again it is the
//!   same, byte for byte. (Wrapped secrets are new bytes each time.)
//! - No secret is in it, but wrapped in the table `secrets`.
//! - Its last line says that it is whole.
//! - Objects know each other by name: volumes by theirs, listeners and referrals by their addresses. The numbers of
//!   listeners and referrals are not in it.

use std::collections::{BTreeMap, BTreeSet};

use fabric::{TlsMode, TransportAddress};
use meta::{Compression, VerifyPolicy, VolumeInfo};
use nvme::Nqn;
use nvme::ana::AnaState;
use nvme::auth::{Group, Hash, Secret};
use serde::{Deserialize, Serialize};
use subsystem::catalog::{
    self, Catalog, ExportConfig, ExportKind, HostConfig, NamespaceConfig, PortConfig, Referral,
    SubsystemConfig, WriteProtect,
};
use subsystem::errors::Failure;
use subsystem::throttle::{BURST_MS_DEFAULT, IoLimits, Limited};
use uuid::Uuid;

use super::wrapped::Wrapped;
use crate::scrub::ScrubSchedule;
use crate::snapshot_schedules::SnapshotSchedule;

/// The form of the file; a later program may read several.
pub(super) const VERSION: i64 = 1;

/// What a reader of the file should know.
const HEAD: &str = "\
# The configuration of an Onefold pool, written by `onefold config export`.
# `onefold config import FILE` brings it into a pool. The data of the volumes are not in it.
";

/// The last line. A file that was cut off could be one whose hosts need no secrets any more, or whose volumes every host
/// may use: so one without it is refused.
pub(super) const END: &str = "# The configuration ends here.";

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Document {
    #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
    pub(super) volumes: Vec<Volume>,
    #[serde(rename = "subsystem", skip_serializing_if = "Vec::is_empty")]
    pub(super) subsystems: Vec<Subsystem>,
    #[serde(rename = "host", skip_serializing_if = "Vec::is_empty")]
    pub(super) hosts: Vec<Host>,
    #[serde(rename = "listener", skip_serializing_if = "Vec::is_empty")]
    pub(super) listeners: Vec<Listener>,
    #[serde(rename = "referral", skip_serializing_if = "Vec::is_empty")]
    pub(super) referrals: Vec<ReferralEntry>,
    #[serde(rename = "export", skip_serializing_if = "Vec::is_empty")]
    pub(super) exports: Vec<Export>,
    #[serde(rename = "limit", skip_serializing_if = "Vec::is_empty")]
    pub(super) limits: Vec<Limit>,
    #[serde(rename = "snapshot_schedule", skip_serializing_if = "Vec::is_empty")]
    pub(super) schedules: Vec<Schedule>,
    /// When scrubs begin by themselves.
    #[serde(rename = "scrub", skip_serializing_if = "Option::is_none")]
    pub(super) scrubs: Option<ScrubSchedule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) secrets: Option<Wrapped>,
}

/// `[[volume]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) uuid: Uuid,
    pub(super) size_bytes: u64,
    pub(super) lba_bytes: u32,
    pub(super) dedup: bool,
    pub(super) compression: Compression,
    pub(super) verify: VerifyPolicy,
    /// Left out: the pool's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) domain: String,
}

/// `[[subsystem]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Subsystem {
    pub(super) nqn: Nqn,
    pub(super) serial: String,
    pub(super) allow_any_host: bool,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) hosts: BTreeSet<Nqn>,
    pub(super) namespace_management: bool,
    /// They are read one by one.
    #[serde(
        rename = "namespace",
        skip_deserializing,
        skip_serializing_if = "Vec::is_empty"
    )]
    pub(super) namespaces: Vec<Namespace>,
}

/// `[[subsystem.namespace]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Namespace {
    pub(super) nsid: u32,
    /// The volume's name.
    pub(super) volume: String,
    pub(super) eui64: bool,
    pub(super) shared: bool,
    pub(super) write_protect: WriteProtect,
    pub(super) ana_group: u32,
    /// Left out: every host that may connect to the subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) hosts: Option<BTreeSet<Nqn>>,
}

/// `[[host]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Host {
    pub(super) nqn: Nqn,
    pub(super) tls_only: bool,
    /// It has a secret: the hash that it is bound to its owner's name with, or `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) dhchap_secret: Option<SecretHash>,
    /// The same of the controller's secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) dhchap_ctrl_secret: Option<SecretHash>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) dhchap_hashes: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) dhchap_groups: Vec<String>,
    /// The number of the newest TLS key that it ever had.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) tls_keys_made: u32,
    #[serde(default, rename = "tls_key", skip_serializing_if = "Vec::is_empty")]
    pub(super) tls_keys: Vec<TlsKeyEntry>,
}

/// `[[limit]]`: of a volume, by its name, or of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limit {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) volume: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) host: Option<Nqn>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) iops: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bandwidth_bytes: Option<u64>,
    #[serde(default = "burst_default")]
    pub(super) burst_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) guarantee_iops: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) guarantee_bandwidth_bytes: Option<u64>,
}

fn burst_default() -> u64 {
    BURST_MS_DEFAULT
}

impl Limit {
    pub(super) fn limits(&self) -> IoLimits {
        IoLimits {
            iops: self.iops,
            bandwidth_bytes: self.bandwidth_bytes,
            burst_ms: self.burst_ms,
            guarantee_iops: self.guarantee_iops,
            guarantee_bandwidth_bytes: self.guarantee_bandwidth_bytes,
        }
    }
}

/// `[[snapshot_schedule]]`: of a volume, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Schedule {
    pub(super) volume: String,
    pub(super) every_seconds: u64,
    pub(super) keep: u32,
}

impl Schedule {
    /// Those of volumes that are there, in the order of their names.
    pub(super) fn all(volumes: &[VolumeInfo], schedules: &[(Uuid, SnapshotSchedule)]) -> Vec<Self> {
        let of = |(uuid, schedule): &(Uuid, SnapshotSchedule)| {
            let volume = volumes.iter().find(|info| info.uuid == *uuid)?;
            Some(Self {
                volume: volume.name.clone(),
                every_seconds: schedule.every_seconds,
                keep: schedule.keep,
            })
        };
        let mut all: Vec<Self> = schedules.iter().filter_map(of).collect();
        all.sort_by(|one, other| one.volume.cmp(&other.volume));
        all
    }

    pub(super) fn schedule(&self) -> SnapshotSchedule {
        SnapshotSchedule {
            every_seconds: self.every_seconds,
            keep: self.keep,
        }
    }
}

/// `[[host.tls_key]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsKeyEntry {
    pub(super) id: u32,
    /// `sha256` or `sha384`.
    pub(super) hash: SecretHash,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) compat: bool,
}

/// The hash of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SecretHash {
    None,
    Sha256,
    Sha384,
    Sha512,
}

/// `[[listener]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listener {
    #[serde(with = "catalog::text")]
    pub(super) address: TransportAddress,
    /// The pool stores it. One that it does not store comes from the daemon's options; only its ANA states are
    /// configured.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub(super) kept: bool,
    #[serde(default, with = "catalog::text", skip_serializing_if = "is_off")]
    pub(super) tls: TlsMode,
    /// The ANA groups that are not optimized there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) ana: BTreeMap<u32, AnaState>,
}

/// `[[referral]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReferralEntry {
    #[serde(with = "catalog::text")]
    pub(super) address: TransportAddress,
    pub(super) nqn: Nqn,
}

/// `[[export]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Export {
    /// The volume's name.
    pub(super) volume: String,
    pub(super) kind: ExportKind,
    pub(super) address: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) read_only: bool,
}

fn yes() -> bool {
    true
}

fn is_true(value: &bool) -> bool {
    *value
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_off(mode: &TlsMode) -> bool {
    *mode == TlsMode::Off
}

impl From<Option<Hash>> for SecretHash {
    fn from(hash: Option<Hash>) -> Self {
        match hash {
            None => Self::None,
            Some(Hash::Sha256) => Self::Sha256,
            Some(Hash::Sha384) => Self::Sha384,
            Some(Hash::Sha512) => Self::Sha512,
        }
    }
}

impl From<SecretHash> for Option<Hash> {
    fn from(hash: SecretHash) -> Self {
        match hash {
            SecretHash::None => None,
            SecretHash::Sha256 => Some(Hash::Sha256),
            SecretHash::Sha384 => Some(Hash::Sha384),
            SecretHash::Sha512 => Some(Hash::Sha512),
        }
    }
}

impl Document {
    /// What is configured, without secrets.
    pub(super) fn of(volumes: &[VolumeInfo], catalog: &Catalog) -> Self {
        let name_of = |uuid: Uuid| {
            let volume = volumes.iter().find(|info| info.uuid == uuid);
            volume.map(|info| info.name.clone())
        };
        let mut listeners: Vec<_> = catalog
            .ports
            .values()
            .filter_map(|port| Listener::of(port))
            .collect();
        listeners.sort_by_cached_key(|listener| listener.address.to_string());
        let referrals = catalog.referrals.values();
        let mut referrals: Vec<_> = referrals
            .map(|referral| ReferralEntry::of(referral))
            .collect();
        referrals.sort_by_cached_key(|referral| referral.address.to_string());
        let exports = catalog.exports.values();
        // One of a snapshot, which is not in the file either, is left out.
        let exports = exports.filter_map(|it| Some(Export::of(it, name_of(it.volume)?)));
        let mut exports: Vec<_> = exports.collect();
        exports.sort_by(|one, other| one.address.cmp(&other.address));
        let mut volumes: Vec<_> = volumes.iter().map(Volume::of).collect();
        volumes.sort_by(|one, other| one.name.cmp(&other.name));
        let limits = catalog.limits.iter().filter_map(|(of, limits)| {
            let (volume, host) = match of {
                Limited::Volume(uuid) => (Some(name_of(*uuid)?), None),
                Limited::Host(nqn) => (None, Some(nqn.clone())),
            };
            Some(Limit {
                volume,
                host,
                iops: limits.iops,
                bandwidth_bytes: limits.bandwidth_bytes,
                burst_ms: limits.burst_ms,
                guarantee_iops: limits.guarantee_iops,
                guarantee_bandwidth_bytes: limits.guarantee_bandwidth_bytes,
            })
        });
        let subsystems = catalog.subsystems.values();
        Self {
            volumes,
            subsystems: subsystems
                .map(|subsystem| Subsystem::of(subsystem, name_of))
                .collect(),
            hosts: catalog.hosts.values().map(|host| Host::of(host)).collect(),
            listeners,
            referrals,
            exports,
            limits: limits.collect(),
            schedules: Vec::new(),
            scrubs: None,
            secrets: None,
        }
    }

    /// The file's text.
    ///
    /// # Errors
    /// A value that TOML cannot hold: a number beyond 2^63.
    pub(super) fn to_text(&self) -> Result<String, Failure> {
        let body = toml::to_string_pretty(self).map_err(|error| {
            Failure::new(
                dedup::ErrorKind::Internal,
                format!("the configuration cannot be written as TOML: {error}"),
            )
        })?;
        Ok(format!("{HEAD}version = {VERSION}\n\n{body}\n{END}\n"))
    }
}

impl Volume {
    pub(super) fn of(info: &VolumeInfo) -> Self {
        Self {
            name: info.name.clone(),
            uuid: info.uuid,
            size_bytes: info.size_bytes,
            lba_bytes: info.lba_bytes,
            dedup: info.dedup,
            compression: info.compression,
            verify: info.verify,
            domain: info.domain.clone(),
        }
    }
}

impl Subsystem {
    fn of(config: &SubsystemConfig, name_of: impl Fn(Uuid) -> Option<String>) -> Self {
        let namespaces = config.namespaces.iter();
        // A namespace whose volume is being deleted is none any more.
        let namespaces = namespaces.filter_map(|(nsid, namespace)| {
            Some(Namespace::of(*nsid, namespace, name_of(namespace.volume)?))
        });
        Self {
            namespaces: namespaces.collect(),
            ..Self::without_namespaces(config)
        }
    }

    pub(super) fn without_namespaces(config: &SubsystemConfig) -> Self {
        Self {
            nqn: config.nqn.clone(),
            serial: config.serial.clone(),
            allow_any_host: config.allow_any_host,
            hosts: config.hosts.clone(),
            namespace_management: config.namespace_management,
            namespaces: Vec::new(),
        }
    }
}

impl Namespace {
    pub(super) fn of(nsid: u32, config: &NamespaceConfig, volume: String) -> Self {
        Self {
            nsid,
            volume,
            eui64: config.eui64,
            shared: config.shared,
            write_protect: config.write_protect,
            ana_group: config.ana_group,
            hosts: config.hosts.clone(),
        }
    }

    pub(super) fn config(&self, volume: Uuid) -> NamespaceConfig {
        NamespaceConfig {
            volume,
            eui64: self.eui64,
            shared: self.shared,
            write_protect: self.write_protect,
            ana_group: self.ana_group,
            hosts: self.hosts.clone(),
        }
    }
}

impl Host {
    pub(super) fn of(config: &HostConfig) -> Self {
        let auth = &config.auth;
        let hash =
            |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.transform().into());
        let keys = auth.tls_keys.iter();
        Self {
            nqn: config.nqn.clone(),
            tls_only: auth.tls_only,
            dhchap_secret: hash(&auth.dhchap_secret),
            dhchap_ctrl_secret: hash(&auth.dhchap_ctrl_secret),
            dhchap_hashes: auth.dhchap_hashes.iter().map(Hash::to_string).collect(),
            dhchap_groups: auth.dhchap_groups.iter().map(Group::to_string).collect(),
            tls_keys_made: auth.tls_keys_made,
            tls_keys: keys
                .map(|key| TlsKeyEntry {
                    id: key.id,
                    hash: Some(key.psk.hash()).into(),
                    compat: key.compat,
                })
                .collect(),
        }
    }
}

impl Listener {
    /// `None` for one that has nothing of its own: it is not stored, and all is optimized there.
    fn of(port: &PortConfig) -> Option<Self> {
        let kept = !port.is_transient;
        (kept || !port.ana.is_empty()).then(|| Self {
            address: port.address,
            kept,
            tls: if kept { port.tls } else { TlsMode::Off },
            ana: port.ana.clone(),
        })
    }
}

impl ReferralEntry {
    fn of(referral: &Referral) -> Self {
        Self {
            address: referral.address,
            nqn: referral.nqn.clone(),
        }
    }
}

impl Export {
    pub(super) fn of(export: &ExportConfig, volume: String) -> Self {
        Self {
            volume,
            kind: export.kind,
            address: export.address.clone(),
            read_only: export.read_only,
        }
    }
}
