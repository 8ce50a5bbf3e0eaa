//! Round trips and mistakes of exported configurations, on catalogs alone.

mod schedules;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabric::TlsMode;
use meta::{Compression, VerifyPolicy, VolumeInfo, VolumeState};
use nvme::Nqn;
use nvme::ana::AnaState;
use nvme::auth::{ConfiguredPsk, Group, Hash, Secret};
use proptest::prelude::*;
use subsystem::catalog::{
    Catalog, ExportConfig, ExportKind, HostAuth, HostConfig, NamespaceConfig, PortConfig, Referral,
    SubsystemConfig, TlsKey, WriteProtect,
};
use subsystem::throttle::{IoLimits, Limited};
use uuid::Uuid;

use super::document::{Document, END, Schedule};
use super::merge::{Import, ListenerAct, Plan, Present, VolumeStep};
use super::text::{self, Mistake};
use super::wrapped::Secrets;
use crate::scrub::ScrubSchedule;
use crate::snapshot_schedules::SnapshotSchedule;

/// A pool, as far as its configuration goes.
#[derive(Clone, Debug)]
struct Pool {
    volumes: Vec<VolumeInfo>,
    catalog: Catalog,
    serial: &'static str,
    scrubs: Option<ScrubSchedule>,
    schedules: Vec<(Uuid, SnapshotSchedule)>,
}

fn nqn(text: &str) -> Nqn {
    text.parse().expect("a name")
}

fn volume(name: &str, uuid: Uuid, size_bytes: u64) -> VolumeInfo {
    VolumeInfo {
        snapshot: None,
        id: 1,
        map: 1,
        name: name.to_owned(),
        nsid: 1,
        uuid,
        nguid: *uuid.as_bytes(),
        size_bytes,
        lba_bytes: 4096,
        state: VolumeState::Active,
        dedup: true,
        verify: VerifyPolicy::Trust,
        domain: String::new(),
        compression: Compression::Off,
        trimming: Vec::new(),
    }
}

impl Pool {
    fn new(serial: &'static str) -> Self {
        let default = nqn(subsystem::DEFAULT_SUBSYSTEM_NQN);
        Self {
            volumes: Vec::new(),
            catalog: Catalog::new(SubsystemConfig::new(default, serial.to_owned())),
            serial,
            scrubs: None,
            schedules: Vec::new(),
        }
    }

    fn present(&self) -> Present<'_> {
        Present {
            volumes: &self.volumes,
            serial: self.serial,
            scrubs: self.scrubs,
            schedules: &self.schedules,
        }
    }

    fn export(&self) -> String {
        let document = Document {
            scrubs: self.scrubs,
            schedules: Schedule::all(&self.volumes, &self.schedules),
            ..Document::of(&self.volumes, &self.catalog)
        };
        document.to_text().expect("a text")
    }

    fn plan(
        &self,
        text: &str,
        secrets: Option<&Secrets>,
        replace: bool,
    ) -> Result<Plan, Vec<Mistake>> {
        let wanted = text::read(text)?;
        let import = Import {
            wanted: &wanted,
            secrets,
            replace,
        };
        import.plan(self.present(), &self.catalog)
    }

    /// Does the first steps of an import, as many as are allowed; the rest is lost. Returns how many there were.
    fn import(&mut self, text: &str, secrets: Option<&Secrets>, steps_max: usize) -> usize {
        let plan = self.plan(text, secrets, false).expect("no mistakes");
        let wanted = text::read(text).expect("no mistakes");
        let import = Import {
            wanted: &wanted,
            secrets,
            replace: false,
        };
        let mut done = 0;
        let mut may = || {
            done += 1;
            done <= steps_max
        };
        for step in plan.volumes {
            if !may() {
                continue;
            }
            match step {
                VolumeStep::Create(spec) => {
                    let uuid = spec.uuid.expect("the file has it");
                    self.volumes.push(VolumeInfo {
                        snapshot: None,
                        lba_bytes: spec.lba_bytes,
                        dedup: spec.dedup,
                        verify: spec.verify,
                        domain: spec.domain,
                        compression: spec.compression,
                        ..volume(&spec.name, uuid, spec.size_bytes)
                    });
                    self.catalog.unattached.insert(uuid);
                }
                VolumeStep::Change {
                    name,
                    size_bytes,
                    policy,
                } => {
                    let known = self.volumes.iter_mut().find(|info| info.name == name);
                    let known = known.expect("it is there");
                    known.size_bytes = size_bytes;
                    known.dedup = policy.dedup.expect("all of a policy");
                    known.compression = policy.compression.expect("all of a policy");
                    known.verify = policy.verify.expect("all of a policy");
                }
            }
        }
        if may() {
            let volumes = self.volumes.clone();
            let present = Present {
                volumes: &volumes,
                serial: self.serial,
                scrubs: None,
                schedules: &[],
            };
            import
                .apply(present, &mut self.catalog)
                .expect("as planned");
        }
        if may() {
            self.scrubs = plan.scrubs.or(self.scrubs);
        }
        if may() {
            for (uuid, schedule) in plan.schedules {
                self.schedules.retain(|(of, _)| *of != uuid);
                self.schedules.push((uuid, schedule));
            }
        }
        for step in plan.listeners {
            if !may() {
                continue;
            }
            let known = self
                .catalog
                .ports
                .values()
                .find(|port| port.address == step.address);
            let id = match known {
                Some(known) => known.id,
                None => self.catalog.free_port_id().expect("one is free"),
            };
            let port = self
                .catalog
                .ports
                .entry(id)
                .or_insert_with(|| Arc::new(PortConfig::new(id, step.address)));
            let port = Arc::make_mut(port);
            port.is_transient &= step.act != ListenerAct::Keep;
            step.change.apply(port).expect("as planned");
        }
        for step in plan.exports {
            if may() {
                let id = step.export.id;
                self.catalog.exports.insert(id, Arc::new(step.export));
            }
        }
        self.catalog.check().expect("a sound catalog");
        done
    }
}

/// Any pool that could be, small enough that names meet.
fn pools() -> impl Strategy<Value = Pool> {
    let volumes = prop::collection::vec(
        (1_u64..1 << 40, any::<[bool; 2]>(), 0_u8..9, "[a-z]{0,3}"),
        0..5,
    );
    let subsystems = prop::collection::vec((any::<[bool; 3]>(), "[!-~]{1,20}", 0_u8..4), 0..4);
    let namespaces = prop::collection::vec(
        (
            0_usize..5,
            0_usize..5,
            1_u32..1025,
            1_u32..129,
            any::<[bool; 4]>(),
        ),
        0..12,
    );
    let hosts = prop::collection::vec((any::<[bool; 6]>(), any::<u8>(), 0_u32..3), 0..5);
    let ports = prop::collection::vec((any::<[bool; 3]>(), 1_u16..200, 0_u32..129), 0..5);
    (volumes, subsystems, namespaces, hosts, ports).prop_map(|parts| {
        let (volumes, subsystems, namespaces, hosts, ports) = parts;
        let mut pool = Pool::new("00112233445566778899");
        for (at, (blocks, [small, dedup], choice, domain)) in volumes.into_iter().enumerate() {
            let info = volume(
                &format!("v{at}"),
                Uuid::from_u128(at as u128 + 1),
                blocks << 12,
            );
            pool.volumes.push(VolumeInfo {
                snapshot: None,
                lba_bytes: if small { 512 } else { 4096 },
                dedup,
                compression: [Compression::Off, Compression::Lz4, Compression::Zstd]
                    [usize::from(choice % 3)],
                verify: [
                    VerifyPolicy::Trust,
                    VerifyPolicy::Compare,
                    VerifyPolicy::Background,
                ][usize::from(choice / 3)],
                domain,
                ..info
            });
        }
        let names = |count: u8| (0..count).map(|at| nqn(&format!("nqn.2026-11.x:host{at}")));
        for (at, ([any, manages, is_default], serial, count)) in subsystems.into_iter().enumerate()
        {
            let name = match is_default {
                true => nqn(subsystem::DEFAULT_SUBSYSTEM_NQN),
                false => nqn(&format!("nqn.2026-11.x:s{at}")),
            };
            let subsystem = SubsystemConfig {
                allow_any_host: any,
                namespace_management: manages,
                hosts: names(count).collect(),
                ..SubsystemConfig::new(name.clone(), serial)
            };
            pool.catalog.subsystems.insert(name, Arc::new(subsystem));
        }
        let nqns: Vec<Nqn> = pool.catalog.subsystems.keys().cloned().collect();
        for (of, shows, nsid, group, [eui64, shared, protected, masked]) in namespaces {
            let Some(info) = pool.volumes.get(shows) else {
                continue;
            };
            let namespace = NamespaceConfig {
                eui64,
                shared,
                ana_group: group,
                write_protect: match (protected, nsid % 3) {
                    (false, _) => WriteProtect::Off,
                    (true, 0) => WriteProtect::On,
                    (true, 1) => WriteProtect::UntilPowerCycle,
                    (true, _) => WriteProtect::Permanent,
                },
                hosts: masked.then(|| names((nsid % 3) as u8).collect::<BTreeSet<_>>()),
                ..NamespaceConfig::new(info.uuid)
            };
            // What is taken is left out.
            let _ = pool
                .catalog
                .attach(&nqns[of % nqns.len()], Some(nsid), namespace);
        }
        for (at, ([secret, both, strict, tls_only, compat, plain], byte, keys)) in
            hosts.into_iter().enumerate()
        {
            let name = nqn(&format!("nqn.2026-11.x:h{at}"));
            let hash = (!plain).then_some(Hash::Sha384);
            let made = |salt: u8| Secret::from_random(hash, &[byte ^ salt; 64]);
            let auth = HostAuth {
                dhchap_secret_since: secret.then_some(1_795_359_855),
                dhchap_ctrl_secret_since: None,
                dhchap_secret: secret.then(|| made(1)),
                dhchap_ctrl_secret: (secret && both).then(|| made(2)),
                dhchap_hashes: if strict {
                    vec![Hash::Sha256, Hash::Sha512]
                } else {
                    Vec::new()
                },
                dhchap_groups: if strict {
                    vec![Group::Ffdhe4096]
                } else {
                    Vec::new()
                },
                tls_keys: (1..=keys)
                    .map(|id| TlsKey {
                        id: id * 2,
                        since: Some(u64::from(id)),
                        psk: ConfiguredPsk::from_random(Hash::Sha256, &[byte ^ id as u8; 64]),
                        compat,
                    })
                    .collect(),
                tls_keys_made: keys * 2 + u32::from(compat),
                tls_only,
            };
            let host = HostConfig {
                nqn: name.clone(),
                auth,
            };
            pool.catalog.hosts.insert(name, Arc::new(host));
        }
        for (at, ([tcp, tls, refers], port, group)) in (1_u16..).zip(ports) {
            let scheme = if tcp { "tcp" } else { "rdma" };
            let address = format!("{scheme}://192.0.2.{at}:{port}")
                .parse()
                .expect("an address");
            if refers {
                let referral = Referral {
                    id: at * 3,
                    address,
                    nqn: nqn(nvme::nqn::DISCOVERY),
                };
                pool.catalog
                    .referrals
                    .insert(referral.id, Arc::new(referral));
                continue;
            }
            let listener = PortConfig {
                tls: if tcp && tls {
                    TlsMode::Required
                } else {
                    TlsMode::Off
                },
                ana: (group > 0)
                    .then_some((group, AnaState::NonOptimized))
                    .into_iter()
                    .collect(),
                ..PortConfig::new(at * 2, address)
            };
            pool.catalog.ports.insert(listener.id, Arc::new(listener));
        }
        for (at, info) in (1_u16..).zip(&pool.volumes) {
            if at % 2 == 1 {
                let (kind, address) = match at % 4 {
                    1 => (ExportKind::Vhost, format!("/run/{at}.sock")),
                    _ => (ExportKind::Nbd, format!("tcp://127.0.0.1:{at}")),
                };
                let export = ExportConfig {
                    id: at * 5,
                    volume: info.uuid,
                    kind,
                    address,
                    read_only: at % 3 == 0,
                };
                pool.catalog.exports.insert(export.id, Arc::new(export));
            }
        }
        pool.scrubs = (!pool.catalog.hosts.is_empty()).then_some(ScrubSchedule {
            every_days: 30,
            rate_bytes_per_second: dedup::SCRUB_RATE_DEFAULT,
        });
        for (at, info) in (1_u32..).zip(&pool.volumes) {
            if at % 2 == 0 {
                let schedule = SnapshotSchedule {
                    every_seconds: u64::from(at) * 3600,
                    keep: at,
                };
                pool.schedules.push((info.uuid, schedule));
            }
        }
        let limits = IoLimits {
            iops: Some(1000),
            ..IoLimits::default()
        };
        for info in pool.volumes.iter().take(1) {
            let of = Limited::Volume(info.uuid);
            pool.catalog.limits.insert(of, Arc::new(limits));
        }
        for nqn in pool.catalog.hosts.keys().take(1) {
            let limits = IoLimits {
                bandwidth_bytes: Some(1 << 30),
                burst_ms: 2000,
                guarantee_iops: Some(500),
                guarantee_bandwidth_bytes: Some(1 << 20),
                ..limits
            };
            let of = Limited::Host(nqn.clone());
            pool.catalog.limits.insert(of, Arc::new(limits));
        }
        pool.catalog.check().expect("a sound catalog");
        pool
    })
}

/// A new pool, with a listener of the daemon's options.
fn new_pool() -> Pool {
    let mut pool = Pool::new("99887766554433221100");
    let port = PortConfig {
        is_transient: true,
        ..PortConfig::new(1, "rdma://192.0.2.200:4420".parse().expect("an address"))
    };
    pool.catalog.ports.insert(1, Arc::new(port));
    pool
}

/// What hosts have, without the dates: a key that an import brings in is as old as the import.
fn undated(catalog: &Catalog) -> Vec<(Nqn, HostAuth)> {
    let undated = |(name, host): (&Nqn, &Arc<HostConfig>)| {
        let mut auth = host.auth.clone();
        auth.dhchap_secret_since = None;
        auth.dhchap_ctrl_secret_since = None;
        for key in &mut auth.tls_keys {
            key.since = None;
        }
        (name.clone(), auth)
    };
    catalog.hosts.iter().map(undated).collect()
}

proptest! {
    #[test]
    fn an_export_imported_into_a_new_pool_and_exported_again_is_the_same(pool in pools()) {
        let text = pool.export();
        let mut new = new_pool();
        new.import(&text, None, usize::MAX);
        prop_assert_eq!(new.export(), text.clone());
        let again = new.plan(&text, None, false).expect("no mistakes");
        prop_assert_eq!(again.changes, Vec::<String>::new(), "an import of what is there changes nothing");
    }

    #[test]
    fn an_import_that_ends_anywhere_is_finished_by_the_next(pool in pools(), cut in 0_usize..12) {
        let text = pool.export();
        let mut new = new_pool();
        new.import(&text, None, cut);
        new.import(&text, None, usize::MAX);
        prop_assert_eq!(new.export(), text);
    }

    #[test]
    fn with_its_secrets_a_pool_has_the_same_keys(pool in pools()) {
        let secrets = Secrets::of(&pool.catalog);
        let mut new = new_pool();
        new.import(&pool.export(), Some(&secrets), usize::MAX);
        prop_assert_eq!(undated(&new.catalog), undated(&pool.catalog));
        prop_assert_eq!(&new.catalog.subsystems, &pool.catalog.subsystems);
    }

    #[test]
    fn without_its_secret_a_host_has_to_have_one_that_nobody_knows(pool in pools()) {
        let mut new = new_pool();
        new.import(&pool.export(), None, usize::MAX);
        for (name, host) in &pool.catalog.hosts {
            let (was, is) = (&host.auth.dhchap_secret, &new.catalog.hosts[name].auth.dhchap_secret);
            prop_assert_eq!(was.is_some(), is.is_some());
            prop_assert!(was.is_none() || was != is);
        }
    }

    #[test]
    fn any_text_is_read_or_refused_with_lines_that_it_has(text in "(\\[\\[(volume|subsystem|host|listener|subsystem.namespace)\\]\\]\n|version = [0-2]\n|nqn = \"nqn.2026-11.x:a\"\n|nsid = -?[0-9]\n|.{0,20}\n){0,20}") {
        if let Err(mistakes) = text::read(&text) {
            prop_assert!(!mistakes.is_empty());
            let lines = text.lines().count().max(1);
            for mistake in mistakes {
                prop_assert!((1..=lines + 1).contains(&mistake.line), "{:?}", mistake);
            }
        }
    }
}

#[test]
fn wrapped_secrets_need_their_passphrase_and_tell_of_every_change() {
    let mut pool = Pool::new("1");
    let name = nqn("nqn.2026-11.x:h");
    let auth = HostAuth {
        dhchap_secret: Some(Secret::from_random(None, &[7; 64])),
        ..HostAuth::default()
    };
    let host = HostConfig {
        nqn: name.clone(),
        auth,
    };
    pool.catalog.hosts.insert(name, Arc::new(host));
    let secrets = Secrets::of(&pool.catalog);
    let wrapped = secrets.wrap("correct horse").expect("wrapped");
    let mut document = Document::of(&pool.volumes, &pool.catalog);
    document.secrets = Some(wrapped.clone());
    let text = document.to_text().expect("a text");
    assert!(!text.contains("DHHC") && !text.contains("BwcH"), "{text}");
    let read = text::read(&text)
        .expect("no mistakes")
        .secrets
        .expect("secrets")
        .value;
    assert_eq!(read, wrapped);
    assert_eq!(read.unwrap("correct horse").expect("unwrapped"), secrets);
    assert_ne!(
        secrets.wrap("correct horse").expect("wrapped"),
        wrapped,
        "another salt"
    );
    let refused = read.unwrap("battery staple").unwrap_err().message;
    assert!(refused.contains("passphrase is another one"), "{refused}");
    for (from, to) in [
        ("passes = 3", "passes = 2"),
        ("data = \"", "data = \"AAAA"),
        ("salt = \"", "salt = \"!"),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text);
        let read = text::read(&changed)
            .expect("no mistakes")
            .secrets
            .expect("secrets")
            .value;
        assert!(read.unwrap("correct horse").is_err(), "{to}");
    }
    for (from, to) in [
        ("memory_kib = 65536", "memory_kib = 4294967295"),
        ("passes = 3", "passes = 4000000000"),
    ] {
        let greedy = text::read(&text.replace(from, to))
            .expect("no mistakes")
            .secrets
            .expect("secrets")
            .value;
        let refused = greedy.unwrap("correct horse").unwrap_err().message;
        assert!(refused.contains("use up to"), "{refused}");
    }
    assert!(secrets.wrap("").is_err());
}

/// A pool with one of everything.
fn small_pool() -> Pool {
    let mut pool = Pool::new("1");
    let uuid = Uuid::from_u128(7);
    pool.volumes.push(volume("a", uuid, 1 << 20));
    let default = nqn(subsystem::DEFAULT_SUBSYSTEM_NQN);
    pool.catalog
        .attach(&default, Some(1), NamespaceConfig::new(uuid))
        .expect("attached");
    let port = PortConfig::new(1, "tcp://192.0.2.1:4420".parse().expect("an address"));
    pool.catalog.ports.insert(1, Arc::new(port));
    pool
}

/// A text with its last line at its end.
fn ended(text: &str) -> String {
    text.replace(END, "").trim_end().to_owned() + &format!("\n{END}\n")
}

/// The mistakes of a text for that pool, as 'LINE: WHAT'.
fn mistakes(pool: &Pool, text: &str, replace: bool) -> Vec<String> {
    let planned = pool.plan(&ended(text), None, replace);
    let mistakes = planned.expect_err("it has mistakes");
    mistakes
        .iter()
        .map(|mistake| format!("{}: {}", mistake.line, mistake.what))
        .collect()
}

#[test]
fn every_mistake_is_told_by_its_line() {
    let text = small_pool().export();
    let line_of = |words: &str| 1 + text.lines().position(|line| line == words).expect("a line");
    let wrong = text
        .replace("dedup = true", "dedup = 1")
        .replace("eui64 = true", "eui46 = true")
        .replace("tcp://192.0.2.1:4420", "udp://192.0.2.1:4420")
        + "\n[volumes]\nname = \"b\"\n";
    let told = mistakes(&Pool::new("2"), &wrong, false);
    let lines = [
        line_of("dedup = true"),
        line_of("eui64 = true"),
        line_of("address = \"tcp://192.0.2.1:4420\""),
    ];
    assert_eq!(told.len(), 4, "{told:#?}");
    for (told, line) in told.iter().zip(lines) {
        assert!(
            told.starts_with(&format!("{line}: ")),
            "{told} is not at {line} of\n{wrong}"
        );
    }
    assert!(told[1].contains("unknown field `eui46`"), "{told:#?}");
    assert!(told[3].contains("there is no 'volumes' here"), "{told:#?}");

    let wrong = text
        .replace("lba_bytes = 4096", "lba_bytes = 17")
        .replace("ana_group = 1", "ana_group = 129");
    let told = mistakes(&Pool::new("2"), &wrong, false);
    let lines = [line_of("[[volume]]"), line_of("[[subsystem.namespace]]")];
    assert_eq!(told.len(), 2, "{told:#?}");
    for (told, line) in told.iter().zip(lines) {
        assert!(
            told.starts_with(&format!("{line}: ")),
            "{told} is not at {line}"
        );
    }
    let told = mistakes(
        &Pool::new("2"),
        &text.replace("version = 1", "version = 2"),
        false,
    );
    assert!(told[0].contains("reads version 1"), "{told:#?}");
    let told = mistakes(&Pool::new("2"), "[[volume\nx", false);
    assert!(told[0].contains("this is not TOML"), "{told:#?}");
    let told = mistakes(
        &Pool::new("2"),
        &(text.clone() + &text.replace("version = 1", "")),
        false,
    );
    assert!(told.iter().all(|told| told.contains("twice")), "{told:#?}");
}

#[test]
fn a_file_that_was_cut_off_is_no_smaller_configuration() {
    let mut pool = small_pool();
    let host = nqn("nqn.2026-11.x:h");
    let auth = HostAuth {
        dhchap_secret: Some(Secret::from_random(None, &[7; 64])),
        ..HostAuth::default()
    };
    let config = HostConfig {
        nqn: host.clone(),
        auth,
    };
    pool.catalog.hosts.insert(host, Arc::new(config));
    let text = pool.export();
    let whole = text.trim_end().len();
    for end in (0..whole).filter(|end| text.is_char_boundary(*end)) {
        let planned = Pool::new("2").plan(&text[..end], None, true);
        let mistakes = planned.expect_err("it is refused");
        let is_told = |mistake: &Mistake| mistake.what.contains("the file is not whole");
        assert!(mistakes.iter().any(is_told), "{end}: {mistakes:?}");
    }
    Pool::new("2")
        .plan(&text[..whole], None, true)
        .expect("the last line's end may be missing");
}

#[test]
fn what_differs_is_replaced_only_if_that_is_asked_for_and_nothing_is_lost() {
    let pool = small_pool();
    let text = pool.export();
    let changed = text
        .replace("allow_any_host = true", "allow_any_host = false")
        .replace("size_bytes = 1048576", "size_bytes = 2097152")
        .replace("write_protect = \"off\"", "write_protect = \"on\"")
        .replace(
            "address = \"tcp://192.0.2.1:4420\"",
            "address = \"tcp://192.0.2.1:4420\"\ntls = \"required\"",
        );
    let told = mistakes(&pool, &changed, false);
    assert_eq!(told.len(), 4, "{told:#?}");
    assert!(
        told.iter()
            .all(|told| told.contains("--replace allows that")),
        "{told:#?}"
    );
    let plan = pool.plan(&changed, None, true).expect("no mistakes");
    assert_eq!(plan.changes.len(), 4, "{:#?}", plan.changes);
    assert!(
        plan.changes
            .iter()
            .any(|change| change.contains("allow_any_host from yes to no"))
    );

    let mut full = pool.clone();
    let others = 2..=dedup::VOLUMES_MAX as u128;
    full.volumes
        .extend(others.map(|at| volume(&format!("v{at}"), Uuid::from_u128(at << 64), 4096)));
    let more = text
        .replace("\"a\"", "\"more\"")
        .replace("0007\"", "0008\"");
    let told = mistakes(&full, &more, true);
    assert!(told[0].contains("more than the 1024 volumes"), "{told:#?}");

    for (from, to, words) in [
        (
            "size_bytes = 1048576",
            "size_bytes = 4096",
            "makes none smaller",
        ),
        (
            "lba_bytes = 4096",
            "lba_bytes = 512",
            "cannot change lba_bytes",
        ),
        ("name = \"a\"", "name = \"b\"", "cannot change name"),
        (
            "verify = \"trust\"",
            "verify = \"trust\"\ndomain = \"b\"",
            "cannot change domain",
        ),
        (
            "uuid = \"00000000-0000-0000-0000-000000000007\"",
            "uuid = \"00000000-0000-0000-0000-000000000008\"",
            "another volume",
        ),
        ("nsid = 1", "nsid = 2", "is namespace 1 of subsystem"),
        (
            "volume = \"a\"",
            "volume = \"c\"",
            "neither in the file nor in the pool",
        ),
    ] {
        let told = mistakes(&pool, &text.replacen(from, to, 1), true);
        assert!(told[0].contains(words), "{to}: {told:#?}");
    }
    // A volume's policy can change.
    let stricter = text.replacen("verify = \"trust\"", "verify = \"compare\"", 1);
    assert_ne!(stricter, text);
    let told = mistakes(&pool, &stricter, false);
    assert!(
        told[0].contains("would change verify from trust to compare"),
        "{told:#?}"
    );
    let plan = pool.plan(&stricter, None, true).expect("no mistakes");
    assert_eq!(
        plan.changes,
        ["change volume 'a': verify from trust to compare"]
    );
    let [VolumeStep::Change { policy, .. }] = &plan.volumes[..] else {
        panic!("{:?}", plan.volumes)
    };
    assert_eq!(policy.verify, Some(meta::VerifyPolicy::Compare));
    // What the file does not have stays.
    let plan = pool
        .plan(&ended("version = 1\n"), None, true)
        .expect("no mistakes");
    assert_eq!(plan.changes, Vec::<String>::new());

    let mut protected = pool.clone();
    let default = nqn(subsystem::DEFAULT_SUBSYSTEM_NQN);
    protected
        .catalog
        .namespace_mut(&default, 1)
        .expect("there")
        .write_protect = WriteProtect::Permanent;
    let told = mistakes(&protected, &text, true);
    assert!(told[0].contains("permanently write protected"), "{told:#?}");
}

#[test]
fn a_listener_of_the_options_is_kept_and_the_states_of_one_that_is_not_there_are_refused() {
    let mut pool = small_pool();
    let text = pool.export();
    let port = pool.catalog.ports.get_mut(&1).expect("there");
    Arc::make_mut(port).is_transient = true;
    let plan = pool.plan(&text, None, false).expect("no mistakes");
    assert_eq!(
        plan.changes,
        ["keep listener 'tcp://192.0.2.1:4420' in the pool"]
    );
    assert_eq!(plan.listeners[0].act, ListenerAct::Keep);

    let port = pool.catalog.ports.get_mut(&1).expect("there");
    Arc::make_mut(port).ana = BTreeMap::from([(2, AnaState::Inaccessible)]);
    let text = pool.export();
    assert!(text.contains("kept = false"), "{text}");
    let told = mistakes(&Pool::new("2"), &text, false);
    assert!(told[0].contains("remove 'kept = false'"), "{told:#?}");
}
