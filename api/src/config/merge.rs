//! What an import changes: the file compared with what is configured.
//!
//! Guarantees:
//! - Nothing is deleted, and no volume shrinks. What differs is replaced only if that is asked for; what can never be
//!   changed (a volume's identity, its domain) is a mistake even then.
//! - A merge of what was merged before changes nothing, and one of what was merged in part does the rest.
//! - A host whose secret is neither in the file nor in the pool gets a random one: nobody gets in who had to prove who it
//!   is.

mod limits;
mod snapshots;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

use dedup::{PolicyChange, VOLUMES_MAX, VolumeSpec};
use fabric::TransportAddress;
use meta::VolumeInfo;
use nvme::Nqn;
use nvme::ana::AnaState;
use serde::Serialize;
use subsystem::catalog::{
    Catalog, ExportConfig, HostConfig, PortChange, PortConfig, Referral, SubsystemConfig,
    WriteProtect,
};
use subsystem::errors::Failure;
use uuid::Uuid;

use super::document::{Export, Host, Listener, Namespace, Subsystem, Volume};
use super::keys::resolve;
use super::text::{At, Mistake, Wanted};
use super::wrapped::Secrets;
use crate::audit::changed_fields;
use crate::scrub::ScrubSchedule;
use crate::snapshot_schedules::SnapshotSchedule;

/// What an import does, and what it tells.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) volumes: Vec<VolumeStep>,
    pub(super) listeners: Vec<ListenerStep>,
    pub(super) exports: Vec<ExportStep>,
    /// A schedule that is new or another one.
    pub(super) scrubs: Option<ScrubSchedule>,
    /// Those of snapshots, once all volumes are there.
    pub(super) schedules: Vec<(Uuid, SnapshotSchedule)>,
    /// Each change, as an order: 'create volume ...'.
    pub(super) changes: Vec<String>,
    /// What is left to do for the owner.
    pub(super) notes: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) enum VolumeStep {
    Create(VolumeSpec),
    /// A new size, and what becomes of what is written from then on.
    Change {
        name: String,
        size_bytes: u64,
        policy: PolicyChange,
    },
}

/// A listener, once the catalog has everything else.
#[derive(Clone, Debug)]
pub(super) struct ListenerStep {
    pub(super) address: TransportAddress,
    pub(super) act: ListenerAct,
    pub(super) change: PortChange,
}

/// An export, once everything else is there.
#[derive(Clone, Debug)]
pub(super) struct ExportStep {
    /// The number of the one that it takes the place of.
    pub(super) replaces: Option<u16>,
    pub(super) export: ExportConfig,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListenerAct {
    Add,
    /// One of the daemon's options, which the pool stores from now on.
    Keep,
    Set,
}

/// What the pool has, beside its catalog.
#[derive(Clone, Copy, Debug)]
pub(super) struct Present<'a> {
    pub(super) volumes: &'a [VolumeInfo],
    /// The serial number of the default subsystem as a new pool makes it.
    pub(super) serial: &'a str,
    pub(super) scrubs: Option<ScrubSchedule>,
    pub(super) schedules: &'a [(Uuid, SnapshotSchedule)],
}

/// What a file asks for, and how it may be brought in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Import<'a> {
    pub(super) wanted: &'a Wanted,
    pub(super) secrets: Option<&'a Secrets>,
    pub(super) replace: bool,
}

impl Import<'_> {
    /// Plans everything; nothing is changed.
    ///
    /// # Errors
    /// All mistakes, by their lines.
    pub(super) fn plan(
        self,
        present: Present<'_>,
        catalog: &Catalog,
    ) -> Result<Plan, Vec<Mistake>> {
        let mut merge = Merge::new(self);
        let mut trial = catalog.clone();
        let volumes = merge.volumes(present.volumes);
        merge.catalog(present, &mut trial);
        let listeners = merge.listeners(&mut trial);
        let exports = merge.exports(present.volumes, &mut trial);
        let scrubs = merge.scrubs(present.scrubs);
        let schedules = merge.schedules(present);
        if merge.mistakes.is_empty()
            && let Err(failure) = trial.check()
        {
            merge.wrong(1, failure.message);
        }
        let Merge {
            mut mistakes,
            changes,
            notes,
            ..
        } = merge;
        mistakes.sort_by_key(|mistake| mistake.line);
        match mistakes.is_empty() {
            true => Ok(Plan {
                volumes,
                listeners,
                exports,
                scrubs,
                schedules,
                changes,
                notes,
            }),
            false => Err(mistakes),
        }
    }

    /// Brings everything but volumes, listeners and exports into a catalog.
    ///
    /// # Errors
    /// What was changed since the plan contradicts it.
    pub(super) fn apply(self, present: Present<'_>, catalog: &mut Catalog) -> Result<(), Failure> {
        let mut merge = Merge::new(self);
        merge.catalog(present, catalog);
        match merge.mistakes.into_iter().next() {
            None => Ok(()),
            Some(mistake) => Err(Failure::invalid(format!(
                "the pool was changed during the import: {}; import the file again",
                mistake.what
            ))),
        }
    }
}

struct Merge<'a> {
    import: Import<'a>,
    /// Volumes there will be.
    volumes: usize,
    mistakes: Vec<Mistake>,
    changes: Vec<String>,
    notes: Vec<String>,
}

impl<'a> Merge<'a> {
    fn new(import: Import<'a>) -> Self {
        Self {
            import,
            volumes: 0,
            mistakes: Vec::new(),
            changes: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn wrong(&mut self, line: usize, what: impl Into<String>) {
        let what = what.into();
        self.mistakes.push(Mistake { line, what });
    }

    /// Whether something that differs may be replaced; it is noted as a change or as a mistake.
    fn may_replace(&mut self, line: usize, object: impl Display, differences: &str) -> bool {
        if differences.is_empty() {
            return false;
        }
        match self.import.replace {
            true => self.changes.push(format!("change {object}: {differences}")),
            false => {
                let what = format!(
                    "{object} is there and differs: the import would change {differences}; --replace allows that"
                );
                self.wrong(line, what);
            }
        }
        self.import.replace
    }

    /// Whether it is there for the first time in the file.
    fn is_first<T: Ord>(
        &mut self,
        seen: &mut BTreeSet<T>,
        key: T,
        line: usize,
        object: impl Display,
    ) -> bool {
        let is_first = seen.insert(key);
        if !is_first {
            self.wrong(line, format!("{object} is there twice: remove one of them"));
        }
        is_first
    }

    fn volumes(&mut self, present: &[VolumeInfo]) -> Vec<VolumeStep> {
        self.volumes = present.len();
        let mut steps = Vec::new();
        let (mut names, mut uuids) = (BTreeSet::new(), BTreeSet::new());
        for At {
            line,
            value: volume,
        } in &self.import.wanted.volumes
        {
            let (line, object) = (*line, format!("volume '{}'", volume.name));
            if !self.is_first(&mut names, volume.name.as_str(), line, &object)
                || !self.is_first(
                    &mut uuids,
                    volume.uuid,
                    line,
                    format!("UUID {}", volume.uuid),
                )
            {
                continue;
            }
            let known = present.iter().find(|info| info.uuid == volume.uuid);
            let namesake = present.iter().find(|info| info.name == volume.name);
            match (known, namesake) {
                (None, None) => steps.extend(self.new_volume(line, &object, volume)),
                (Some(known), _) => steps.extend(self.known_volume(line, &object, volume, known)),
                (None, Some(other)) => {
                    let what = format!(
                        "{object} is there, with the UUID {}: it is another volume; rename it in the file, or delete \
                         the one in the pool",
                        other.uuid
                    );
                    self.wrong(line, what);
                }
            }
        }
        steps
    }

    fn new_volume(&mut self, line: usize, object: &str, volume: &Volume) -> Option<VolumeStep> {
        self.volumes += 1;
        if self.volumes > VOLUMES_MAX {
            let what = format!(
                "{object} would be one more than the {VOLUMES_MAX} volumes that a pool can have: delete others first"
            );
            self.wrong(line, what);
            return None;
        }
        let spec = VolumeSpec {
            name: volume.name.clone(),
            size_bytes: volume.size_bytes,
            lba_bytes: volume.lba_bytes,
            nsid: None,
            uuid: Some(volume.uuid),
            dedup: volume.dedup,
            compression: volume.compression,
            verify: volume.verify,
            domain: volume.domain.clone(),
        };
        if let Err(error) = spec.check() {
            self.wrong(line, error.message);
            return None;
        }
        let size = volume.size_bytes;
        self.changes.push(format!(
            "create {object} of {size} bytes, UUID {}",
            volume.uuid
        ));
        Some(VolumeStep::Create(spec))
    }

    fn known_volume(
        &mut self,
        line: usize,
        object: &str,
        volume: &Volume,
        known: &VolumeInfo,
    ) -> Option<VolumeStep> {
        let there = Volume::of(known);
        let fixed = Volume {
            size_bytes: volume.size_bytes,
            dedup: volume.dedup,
            compression: volume.compression,
            verify: volume.verify,
            ..there.clone()
        };
        let differences = fields(&fixed, volume);
        if !differences.is_empty() {
            let what = format!(
                "{object} (UUID {}) is there, and an import cannot change {differences}: write what it is",
                volume.uuid
            );
            self.wrong(line, what);
            return None;
        }
        let (from, to) = (known.size_bytes, volume.size_bytes);
        if to < from {
            let what = format!(
                "{object} has {from} bytes, and an import makes none smaller: write size_bytes = {from}, or use \
                 `onefold volume resize {} --shrink` first",
                volume.name
            );
            self.wrong(line, what);
            return None;
        }
        let may = self.may_replace(line, object, &fields(&there, volume));
        may.then(|| VolumeStep::Change {
            name: volume.name.clone(),
            size_bytes: to,
            policy: PolicyChange {
                dedup: Some(volume.dedup),
                compression: Some(volume.compression),
                verify: Some(volume.verify),
                domain: None,
            },
        })
    }

    /// Everything but volumes, listeners and exports.
    fn catalog(&mut self, present: Present<'_>, catalog: &mut Catalog) {
        self.subsystems(present, catalog);
        self.namespaces(present, catalog);
        self.hosts(catalog);
        self.referrals(catalog);
        self.limits(present, catalog);
    }

    fn subsystems(&mut self, present: Present<'_>, catalog: &mut Catalog) {
        let mut seen = BTreeSet::new();
        for At {
            line,
            value: wanted,
        } in &self.import.wanted.subsystems
        {
            let (line, nqn) = (*line, &wanted.nqn);
            let object = format!("subsystem '{nqn}'");
            if !self.is_first(&mut seen, nqn, line, &object)
                || !self.are_names(line, wanted.hosts.iter().chain([nqn]))
            {
                continue;
            }
            let known = catalog.subsystems.get(nqn);
            let config = SubsystemConfig {
                serial: wanted.serial.clone(),
                allow_any_host: wanted.allow_any_host,
                hosts: wanted.hosts.clone(),
                namespace_management: wanted.namespace_management,
                namespaces: known
                    .map(|known| known.namespaces.clone())
                    .unwrap_or_default(),
                nqn: nqn.clone(),
            };
            if let Err(failure) = config.check() {
                self.wrong(line, failure.message);
                continue;
            }
            let is_taken = match known {
                None => {
                    self.changes.push(format!("create {object}"));
                    true
                }
                Some(known) => {
                    let differences = fields(&Subsystem::without_namespaces(known), wanted);
                    let new = SubsystemConfig::new(nqn.clone(), present.serial.to_owned());
                    let is_untouched =
                        nqn.as_str() == subsystem::DEFAULT_SUBSYSTEM_NQN && **known == new;
                    match is_untouched && !differences.is_empty() {
                        // Nobody configured it: every pool is made with it.
                        true => {
                            self.changes.push(format!("change {object}: {differences}"));
                            true
                        }
                        false => self.may_replace(line, &object, &differences),
                    }
                }
            };
            if is_taken {
                catalog.subsystems.insert(nqn.clone(), Arc::new(config));
            }
        }
    }

    /// The volume of that name in the file, or else in the pool.
    fn volume_uuid(&self, present: Present<'_>, name: &str) -> Option<Uuid> {
        let mut in_file = self.import.wanted.volumes.iter();
        let mut in_pool = present.volumes.iter();
        let in_file = in_file.find(|at| at.value.name == name);
        let in_pool = in_pool.find(|info| info.name == name);
        in_file
            .map(|at| at.value.uuid)
            .or(in_pool.map(|info| info.uuid))
    }

    fn namespaces(&mut self, present: Present<'_>, catalog: &mut Catalog) {
        let mut seen = BTreeSet::new();
        for At {
            line,
            value: (nqn, wanted),
        } in &self.import.wanted.namespaces
        {
            let (line, nsid) = (*line, wanted.nsid);
            let object = format!("namespace {nsid} of subsystem '{nqn}'");
            if !self.is_first(&mut seen, (nqn, nsid), line, &object)
                || !self.are_names(line, wanted.hosts.iter().flatten())
            {
                continue;
            }
            let Some(uuid) = self.volume_uuid(present, &wanted.volume) else {
                let what = format!(
                    "{object} shows volume '{}', which is neither in the file nor in the pool: add its [[volume]]",
                    wanted.volume
                );
                self.wrong(line, what);
                continue;
            };
            if let Err(failure) = self.namespace(line, &object, nqn, wanted, uuid, present, catalog)
            {
                self.wrong(line, failure.message);
            }
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the loop above has them all at hand"
    )]
    fn namespace(
        &mut self,
        line: usize,
        object: &str,
        nqn: &Nqn,
        wanted: &Namespace,
        uuid: Uuid,
        present: Present<'_>,
        catalog: &mut Catalog,
    ) -> Result<(), Failure> {
        let config = wanted.config(uuid);
        config.check(wanted.nsid)?;
        // A subsystem with a mistake is not there; that is told already.
        let Ok(subsystem) = catalog.subsystem(nqn) else {
            return Ok(());
        };
        let Some(known) = subsystem.namespaces.get(&wanted.nsid).cloned() else {
            catalog.attach(nqn, Some(wanted.nsid), config)?;
            self.changes
                .push(format!("attach volume '{}' as {object}", wanted.volume));
            return Ok(());
        };
        let name = present
            .volumes
            .iter()
            .find(|info| info.uuid == known.volume);
        let name = name.map_or_else(|| known.volume.to_string(), |info| info.name.clone());
        let differences = fields(&Namespace::of(wanted.nsid, &known, name), wanted);
        if differences.is_empty() {
            return Ok(());
        }
        if known.write_protect == WriteProtect::Permanent
            && wanted.write_protect != WriteProtect::Permanent
        {
            return Err(Failure::invalid(format!(
                "{object} is permanently write protected, and an import cannot end that: \
                 `onefold namespace detach {nqn} {}` does",
                wanted.nsid
            )));
        }
        if self.may_replace(line, object, &differences) {
            if known.volume != uuid {
                catalog.detach(nqn, wanted.nsid)?;
                catalog.attach(nqn, Some(wanted.nsid), config)?;
            } else {
                *catalog.namespace_mut(nqn, wanted.nsid)? = config;
            }
        }
        Ok(())
    }

    fn hosts(&mut self, catalog: &mut Catalog) {
        let mut seen = BTreeSet::new();
        for At {
            line,
            value: wanted,
        } in &self.import.wanted.hosts
        {
            let (line, nqn) = (*line, &wanted.nqn);
            let object = format!("host '{nqn}'");
            if !self.is_first(&mut seen, nqn, line, &object) || !self.are_names(line, [nqn]) {
                continue;
            }
            let known = catalog.hosts.get(nqn).cloned();
            let secrets = self
                .import
                .secrets
                .map(|all| all.hosts.get(nqn).cloned().unwrap_or_default());
            let auth = known.as_ref().map(|known| &known.auth);
            let (auth, notes) = match resolve(wanted, secrets.as_ref(), auth) {
                Ok(resolved) => resolved,
                Err(failure) => {
                    self.wrong(line, failure.message);
                    continue;
                }
            };
            let config = HostConfig {
                nqn: nqn.clone(),
                auth,
            };
            if let Err(failure) = config.check() {
                self.wrong(line, failure.message);
                continue;
            }
            let is_taken = match &known {
                None => {
                    self.changes.push(format!("add {object}"));
                    true
                }
                Some(known) if **known == config => false,
                Some(known) => {
                    let mut differences = fields(&Host::of(known), &Host::of(&config));
                    if differences.is_empty() {
                        differences = "its secrets".to_owned();
                    }
                    self.may_replace(line, &object, &differences)
                }
            };
            if is_taken {
                self.notes.extend(notes);
                catalog.hosts.insert(nqn.clone(), Arc::new(config));
            }
        }
    }

    fn referrals(&mut self, catalog: &mut Catalog) {
        let mut seen = BTreeSet::new();
        for At {
            line,
            value: wanted,
        } in &self.import.wanted.referrals
        {
            let (line, text) = (*line, wanted.address.to_string());
            let object = format!("referral to '{text}'");
            if !self.is_first(&mut seen, text, line, &object)
                || !self.are_names(line, [&wanted.nqn])
            {
                continue;
            }
            let mut known = catalog.referrals.values_mut();
            let known = known.find(|referral| referral.address == wanted.address);
            if let Some(known) = known {
                if known.nqn != wanted.nqn
                    && self.may_replace(
                        line,
                        &object,
                        &format!("nqn from {} to {}", known.nqn, wanted.nqn),
                    )
                {
                    Arc::make_mut(known).nqn = wanted.nqn.clone();
                }
                continue;
            }
            // There are fewer referrals than numbers, or the check of the whole refuses them.
            let Some(id) = (1..=u16::MAX).find(|id| !catalog.referrals.contains_key(id)) else {
                continue;
            };
            let referral = Referral {
                id,
                address: wanted.address,
                nqn: wanted.nqn.clone(),
            };
            self.changes.push(format!("add {object}"));
            catalog.referrals.insert(id, Arc::new(referral));
        }
    }

    fn listeners(&mut self, catalog: &mut Catalog) -> Vec<ListenerStep> {
        let mut steps = Vec::new();
        let mut seen = BTreeSet::new();
        for At {
            line,
            value: wanted,
        } in &self.import.wanted.listeners
        {
            let text = wanted.address.to_string();
            let object = format!("listener '{text}'");
            if self.is_first(&mut seen, text, *line, &object) {
                match self.listener(*line, &object, wanted, catalog) {
                    Ok(step) => steps.extend(step),
                    Err(failure) => self.wrong(*line, failure.message),
                }
            }
        }
        steps
    }

    fn listener(
        &mut self,
        line: usize,
        object: &str,
        wanted: &Listener,
        catalog: &mut Catalog,
    ) -> Result<Option<ListenerStep>, Failure> {
        let address = wanted.address;
        let known = catalog
            .ports
            .values()
            .find(|port| port.address == address)
            .cloned();
        let mut change = PortChange {
            tls: wanted.kept.then_some(wanted.tls),
            ana: wanted.ana.clone(),
        };
        let mut port = match &known {
            Some(known) => PortConfig::clone(known),
            None => PortConfig::new(catalog.free_port_id()?, address),
        };
        // What is optimized is not in the file.
        for group in port.ana.keys() {
            change.ana.entry(*group).or_insert(AnaState::Optimized);
        }
        change.apply(&mut port)?;
        port.check()?;
        let act = match &known {
            None if !wanted.kept => {
                return Err(Failure::invalid(format!(
                    "{object} is not there: start the daemon with it (--listen), or remove 'kept = false' to have the \
                     pool keep it"
                )));
            }
            None => {
                self.changes.push(format!("add {object}"));
                ListenerAct::Add
            }
            Some(known) => {
                let differences = fields(&Shape::of(known), &Shape::of(&port));
                let keeps = wanted.kept && known.is_transient;
                let may = self.may_replace(line, object, &differences);
                match (keeps, may) {
                    (true, _) => {
                        self.changes.push(format!("keep {object} in the pool"));
                        ListenerAct::Keep
                    }
                    (false, true) => ListenerAct::Set,
                    (false, false) => return Ok(None),
                }
            }
        };
        port.is_transient &= !wanted.kept;
        catalog.ports.insert(port.id, Arc::new(port));
        Ok(Some(ListenerStep {
            address,
            act,
            change,
        }))
    }

    fn exports(&mut self, volumes: &[VolumeInfo], catalog: &mut Catalog) -> Vec<ExportStep> {
        let mut steps = Vec::new();
        let mut seen = BTreeSet::new();
        for At {
            line,
            value: wanted,
        } in &self.import.wanted.exports
        {
            let (line, object) = (*line, format!("export '{}'", wanted.address));
            if !self.is_first(&mut seen, wanted.address.as_str(), line, &object) {
                continue;
            }
            let of_file = self.import.wanted.volumes.iter();
            let mut of_file = of_file.filter(|at| at.value.name == wanted.volume);
            let of_pool = volumes.iter().find(|info| info.name == wanted.volume);
            let uuid = of_file.next().map(|at| at.value.uuid);
            let Some(volume) = uuid.or_else(|| of_pool.map(|info| info.uuid)) else {
                let what = format!("{object}: there is no volume '{}'", wanted.volume);
                self.wrong(line, what);
                continue;
            };
            let mut known = catalog.exports.values();
            let known = known.find(|export| export.address == wanted.address);
            let replaces = known.map(|export| export.id);
            let free = (1..=u16::MAX).find(|id| !catalog.exports.contains_key(id));
            // There are fewer exports than numbers, or the check of the whole refuses them.
            let Some(id) = replaces.or(free) else {
                continue;
            };
            let export = ExportConfig {
                id,
                volume,
                kind: wanted.kind,
                address: wanted.address.clone(),
                read_only: wanted.read_only,
            };
            if let Err(failure) = export.check() {
                self.wrong(line, failure.message);
                continue;
            }
            match known {
                None => self.changes.push(format!("add {object}")),
                Some(known) => {
                    let names = volumes.iter().find(|info| info.uuid == known.volume);
                    let name = names.map_or_else(String::new, |info| info.name.clone());
                    let differences = fields(&Export::of(known, name), wanted);
                    if !self.may_replace(line, &object, &differences) {
                        continue;
                    }
                }
            }
            catalog.exports.insert(id, Arc::new(export.clone()));
            steps.push(ExportStep { replaces, export });
        }
        steps
    }

    fn scrubs(&mut self, known: Option<ScrubSchedule>) -> Option<ScrubSchedule> {
        let At {
            line,
            value: wanted,
        } = self.import.wanted.scrubs.clone()?;
        if let Err(failure) = wanted.check() {
            self.wrong(line, failure.message);
            return None;
        }
        let is_taken = match &known {
            None => {
                let days = wanted.every_days;
                self.changes
                    .push(format!("schedule a scrub every {days} days"));
                true
            }
            Some(known) => {
                self.may_replace(line, "the schedule of scrubs", &fields(known, &wanted))
            }
        };
        is_taken.then_some(wanted)
    }

    /// Whether names have the form that the specification asks for: one with a typing mistake would admit nobody.
    fn are_names<'n>(&mut self, line: usize, names: impl IntoIterator<Item = &'n Nqn>) -> bool {
        for nqn in names {
            if let Err(error) = nqn.check_form() {
                self.wrong(line, format!("'{nqn}' cannot be a name: {error}"));
                return false;
            }
        }
        true
    }
}

/// What can be set of a listener.
#[derive(Serialize)]
struct Shape<'a> {
    #[serde(with = "subsystem::catalog::text")]
    tls: fabric::TlsMode,
    ana: &'a BTreeMap<u32, AnaState>,
}

impl<'a> Shape<'a> {
    fn of(port: &'a PortConfig) -> Self {
        Self {
            tls: port.tls,
            ana: &port.ana,
        }
    }
}

/// The fields in which two values differ, each as 'NAME from A to B'.
fn fields<T: Serialize>(was: &T, is: &T) -> String {
    let value = |it| serde_json::to_value(it).unwrap_or_default();
    changed_fields(&value(was), &value(is))
}
