//! The catalog as it is stored: settings of the pool, one for each named object.
//!
//! | key | value |
//! |---|---|
//! | `subsystem/NQN` | [`SubsystemConfig`] without its namespaces |
//! | `namespace/NQN/NSID` | [`NamespaceConfig`] |
//! | `host/NQN` | [`HostConfig`] |
//! | `port/ID` | [`PortConfig`] |
//! | `path/ADDRESS` | [`PathStates`] of a listener that is not stored itself |
//! | `referral/ID` | [`Referral`] |
//! | `export/ID` | [`ExportConfig`] |
//! | `limit/volume/UUID`, `limit/host/NQN` | [`IoLimits`] |
//! | `unattached` | the volumes that are meant to be in no subsystem |
//!
//! Guarantees:
//! - A setting that cannot be parsed stops the start, and the error names its key: nothing that a newer version wrote is
//!   dropped. Namespaces whose volume does not exist are left from an interrupted creation or deletion, and are ignored.
//! - A change is one record of the journal unless it is larger than a record; then deletions come first.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use dedup::{Engine, ErrorKind};
use fabric::TransportAddress;
use meta::SETTING_CHANGES_BYTES_MAX;
use nvme::Nqn;
use nvme::ana::AnaState;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{
    Catalog, ExportConfig, HostConfig, NamespaceConfig, PortConfig, Referral, SubsystemConfig,
    WriteProtect,
};
use crate::describe::Describe;
use crate::errors::Failure;
use crate::throttle::{IoLimits, Limited};

/// The form of the values; a later program may read several.
const VERSION: u32 = 1;

const SUBSYSTEM: &str = "subsystem/";
const NAMESPACE: &str = "namespace/";
const HOST: &str = "host/";
const PORT: &str = "port/";
const PATH: &str = "path/";
const REFERRAL: &str = "referral/";
const EXPORT: &str = "export/";
const VOLUME_LIMIT: &str = "limit/volume/";
const HOST_LIMIT: &str = "limit/host/";
const UNATTACHED: &str = "unattached";

/// Beginnings of all keys that are the catalog's.
const PREFIXES: [&str; 10] = [
    SUBSYSTEM,
    NAMESPACE,
    HOST,
    PORT,
    PATH,
    REFERRAL,
    EXPORT,
    VOLUME_LIMIT,
    HOST_LIMIT,
    UNATTACHED,
];

/// Bytes of one change, with room for what a record adds.
const CHANGE_BYTES_MAX: usize = SETTING_CHANGES_BYTES_MAX / 2;

#[derive(Serialize, Deserialize)]
struct Kept<T> {
    version: u32,
    value: T,
}

#[derive(Default, Serialize, Deserialize)]
struct Unattached {
    volumes: BTreeSet<Uuid>,
}

/// The ANA groups that are not optimized at a listener.
#[derive(Serialize, Deserialize)]
pub(crate) struct PathStates {
    #[serde(with = "super::text")]
    pub(crate) address: TransportAddress,
    pub(crate) ana: BTreeMap<u32, AnaState>,
}

pub(crate) type Values = BTreeMap<String, Vec<u8>>;

/// The catalog that the pool stores; `default` is the default subsystem of a pool that stores none.
///
/// # Errors
/// A value that cannot be understood.
pub(crate) fn load(pool: &dyn Describe, default: SubsystemConfig) -> Result<Catalog, Failure> {
    let mut catalog = Catalog::new(default);
    for (key, subsystem) in read::<SubsystemConfig>(pool, SUBSYSTEM)? {
        same_name(&key, subsystem.nqn.as_str())?;
        let nqn = subsystem.nqn.clone();
        catalog.subsystems.insert(nqn, Arc::new(subsystem));
    }
    let volumes = [pool.volumes(), pool.snapshots()].concat();
    let volumes: HashSet<Uuid> = volumes.iter().map(|info| info.uuid).collect();
    for (key, namespace) in read::<NamespaceConfig>(pool, NAMESPACE)? {
        let (nqn, nsid) = key.rsplit_once('/').unwrap_or((&key, ""));
        let strange = || unreadable(&format!("{NAMESPACE}{key}"), &"its key names no namespace");
        let nqn: Nqn = nqn.parse().map_err(|_| strange())?;
        let nsid = nsid.parse().map_err(|_| strange())?;
        if !volumes.contains(&namespace.volume) {
            tracing::warn!(subsystem = %nqn, nsid, volume = %namespace.volume, "the volume of a namespace is gone");
            continue;
        }
        if let Ok(subsystem) = catalog.subsystem_mut(&nqn) {
            subsystem.namespaces.insert(nsid, Arc::new(namespace));
        }
    }
    for (key, host) in read::<HostConfig>(pool, HOST)? {
        same_name(&key, host.nqn.as_str())?;
        catalog.hosts.insert(host.nqn.clone(), Arc::new(host));
    }
    for (_, port) in read::<PortConfig>(pool, PORT)? {
        catalog.ports.insert(port.id, Arc::new(port));
    }
    for (_, referral) in read::<Referral>(pool, REFERRAL)? {
        catalog.referrals.insert(referral.id, Arc::new(referral));
    }
    for (key, export) in read::<ExportConfig>(pool, EXPORT)? {
        same_name(&key, &export.id.to_string())?;
        if !volumes.contains(&export.volume) {
            tracing::warn!(export = %export.address, volume = %export.volume, "the volume of an export is gone");
            continue;
        }
        catalog.exports.insert(export.id, Arc::new(export));
    }
    for (key, limits) in read::<IoLimits>(pool, VOLUME_LIMIT)? {
        let uuid = key.parse::<Uuid>();
        let uuid = uuid.map_err(|error| unreadable(&format!("{VOLUME_LIMIT}{key}"), &error))?;
        // That of a volume that is gone is left from an interrupted deletion.
        if volumes.contains(&uuid) {
            let of = Limited::Volume(uuid);
            catalog.limits.insert(of, Arc::new(limits));
        }
    }
    for (key, limits) in read::<IoLimits>(pool, HOST_LIMIT)? {
        let nqn = key.parse();
        let nqn = nqn.map_err(|error| unreadable(&format!("{HOST_LIMIT}{key}"), &error))?;
        catalog.limits.insert(Limited::Host(nqn), Arc::new(limits));
    }
    for (_, unattached) in read::<Unattached>(pool, UNATTACHED)? {
        catalog.unattached = unattached.volumes;
        catalog.unattached.retain(|volume| volumes.contains(volume));
    }
    catalog.check()?;
    Ok(catalog)
}

/// The ANA states of listeners that are not stored themselves, by address. They apply again to a listener at that
/// address; the first change of the catalog drops those of addresses without a listener.
///
/// # Errors
/// A value that cannot be understood.
pub(crate) fn load_paths(pool: &dyn Describe) -> Result<Vec<PathStates>, Failure> {
    let paths = read(pool, PATH)?.into_iter();
    Ok(paths.map(|(_, path)| path).collect())
}

/// Stores a catalog; it is durable when this returns.
///
/// # Errors
/// The engine refuses.
pub(crate) async fn save(engine: &Engine, catalog: &Catalog) -> Result<(), Failure> {
    let wanted = values_of(catalog, engine.writes_through())?;
    let kept: BTreeMap<String, Arc<[u8]>> = PREFIXES
        .iter()
        .flat_map(|prefix| engine.settings(prefix))
        .collect();
    let gone = kept.keys().filter(|key| !wanted.contains_key(*key));
    let gone = gone.map(|key| (key.clone(), None));
    let new = wanted
        .iter()
        .filter(|(key, value)| kept.get(*key).is_none_or(|kept| kept[..] != value[..]))
        .map(|(key, value)| (key.clone(), Some(value.clone())));
    let (mut change, mut bytes) = (Vec::new(), 0);
    for (key, value) in gone.chain(new) {
        let more = key.len() + value.as_ref().map_or(0, Vec::len);
        if bytes + more > CHANGE_BYTES_MAX {
            engine.change_settings(std::mem::take(&mut change)).await?;
            bytes = 0;
        }
        bytes += more;
        change.push((key, value));
    }
    if !change.is_empty() {
        engine.change_settings(change).await?;
    }
    Ok(())
}

/// The settings that a catalog is stored as; with what ends with the power, if another node may go on with it before that.
///
/// # Errors
/// None that anybody knows.
pub(crate) fn values_of(catalog: &Catalog, with_power: bool) -> Result<Values, Failure> {
    let mut values = Values::new();
    for (nqn, subsystem) in &catalog.subsystems {
        put(&mut values, format!("{SUBSYSTEM}{nqn}"), &**subsystem)?;
        for (nsid, namespace) in &subsystem.namespaces {
            let mut namespace = NamespaceConfig::clone(namespace);
            if namespace.write_protect == WriteProtect::UntilPowerCycle && !with_power {
                namespace.write_protect = WriteProtect::Off;
            }
            put(&mut values, format!("{NAMESPACE}{nqn}/{nsid}"), &namespace)?;
        }
    }
    for (nqn, host) in &catalog.hosts {
        put(&mut values, format!("{HOST}{nqn}"), &**host)?;
    }
    for (id, port) in &catalog.ports {
        if !port.is_transient {
            put(&mut values, format!("{PORT}{id}"), &**port)?;
        } else if !port.ana.is_empty() {
            let states = PathStates {
                address: port.address,
                ana: port.ana.clone(),
            };
            put(&mut values, format!("{PATH}{}", port.address), &states)?;
        }
    }
    for (id, referral) in &catalog.referrals {
        put(&mut values, format!("{REFERRAL}{id}"), &**referral)?;
    }
    for (id, export) in &catalog.exports {
        put(&mut values, format!("{EXPORT}{id}"), &**export)?;
    }
    for (of, limits) in &catalog.limits {
        let key = match of {
            Limited::Volume(uuid) => format!("{VOLUME_LIMIT}{uuid}"),
            Limited::Host(nqn) => format!("{HOST_LIMIT}{nqn}"),
        };
        put(&mut values, key, &**limits)?;
    }
    if !catalog.unattached.is_empty() {
        let unattached = Unattached {
            volumes: catalog.unattached.clone(),
        };
        put(&mut values, UNATTACHED.to_owned(), &unattached)?;
    }
    Ok(values)
}

fn put<T: Serialize>(values: &mut Values, key: String, value: &T) -> Result<(), Failure> {
    let kept = Kept {
        version: VERSION,
        value,
    };
    let bytes = serde_json::to_vec(&kept)
        .map_err(|e| Failure::new(ErrorKind::Internal, format!("setting '{key}': {e}")))?;
    values.insert(key, bytes);
    Ok(())
}

/// The values whose keys begin so, with the rest of the keys.
fn read<T: DeserializeOwned>(
    pool: &dyn Describe,
    prefix: &str,
) -> Result<Vec<(String, T)>, Failure> {
    let parse = |(key, value): (String, Arc<[u8]>)| {
        let kept: Kept<T> =
            serde_json::from_slice(&value).map_err(|error| unreadable(&key, &error))?;
        if kept.version != VERSION {
            return Err(unreadable(&key, &format!("version {}", kept.version)));
        }
        let rest = key.strip_prefix(prefix).unwrap_or_default().to_owned();
        Ok((rest, kept.value))
    };
    pool.settings(prefix).into_iter().map(parse).collect()
}

fn same_name(key: &str, name: &str) -> Result<(), Failure> {
    match key == name {
        true => Ok(()),
        false => Err(unreadable(key, &format!("it is about '{name}'"))),
    }
}

fn unreadable(key: &str, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(
        ErrorKind::Corrupt,
        format!(
            "the pool's setting '{key}' cannot be understood: {why}; serve the pool with the version that wrote it"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_reads_back_but_what_ends_with_the_power() {
        let mut subsystem =
            SubsystemConfig::new("nqn.2026-11.x:a".parse().expect("a name"), "1".into());
        subsystem.allow_any_host = false;
        subsystem.hosts.insert("nqn.h:1".parse().expect("a name"));
        let mut catalog = Catalog::new(subsystem);
        let nqn: Nqn = "nqn.2026-11.x:a".parse().expect("a name");
        let mut namespace = NamespaceConfig::new(Uuid::from_u128(5));
        namespace.write_protect = WriteProtect::UntilPowerCycle;
        namespace.hosts = Some(BTreeSet::new());
        catalog.attach(&nqn, Some(9), namespace).expect("attached");
        for (id, is_transient) in [(1, true), (2, false)] {
            let address = format!("tcp://192.0.2.{id}:4420");
            let port = PortConfig {
                id,
                address: address.parse().expect("an address"),
                is_transient,
                ana: BTreeMap::from([(2, AnaState::NonOptimized)]),
                tls: fabric::TlsMode::Allowed,
            };
            catalog.ports.insert(id, Arc::new(port));
        }
        let values = values_of(&catalog, false).expect("values");
        let keys: Vec<_> = values.keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            [
                "namespace/nqn.2026-11.x:a/9",
                "path/tcp://192.0.2.1:4420",
                "port/2",
                "subsystem/nqn.2026-11.x:a"
            ]
        );
        let kept: Kept<NamespaceConfig> =
            serde_json::from_slice(&values["namespace/nqn.2026-11.x:a/9"]).expect("a namespace");
        assert_eq!(kept.value.write_protect, WriteProtect::Off);
        // Where another node may go on before the power is lost, it is kept; an opening after that ends it.
        let with_power = values_of(&catalog, true).expect("values");
        let held: Kept<NamespaceConfig> =
            serde_json::from_slice(&with_power["namespace/nqn.2026-11.x:a/9"])
                .expect("a namespace");
        assert_eq!(held.value.write_protect, WriteProtect::UntilPowerCycle);
        catalog.end_power_cycle();
        assert_eq!(values_of(&catalog, true).expect("values"), values);
        assert_eq!(kept.value.hosts, Some(BTreeSet::new()));
        let kept: Kept<PortConfig> = serde_json::from_slice(&values["port/2"]).expect("a port");
        assert_eq!(kept.value, *catalog.ports[&2]);
        let kept: Kept<SubsystemConfig> =
            serde_json::from_slice(&values["subsystem/nqn.2026-11.x:a"]).expect("a subsystem");
        assert!(
            kept.value
                .hosts
                .contains(&"nqn.h:1".parse().expect("a name"))
        );
    }
}
