//! TLS on TCP: keys are found by what hosts call them, and who proved one gets what it is for and nothing
//! else.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fabric::{
    Connector, TargetQueue, TcpHostConfig, TcpListener, TcpListenerConfig, TlsFailure,
    TlsHostConfig, TlsMode, TlsSession, TlsSuite, Transport,
};
use initiator::{ConnectOptions, Controller};
use nvme::auth::{
    Concatenation, ConfiguredPsk, Derivation, Exchange, Explanation, Group, Hash, KeyPair, Message,
    Negotiate, Party, PskVersion, TlsPsk,
};
use nvme::fabrics::{CNTLID_DYNAMIC, ConnectCommand, FabricsCommand};
use nvme::{Nqn, Status, properties};
use subsystem::DEFAULT_SUBSYSTEM_NQN;
use subsystem::catalog::HostAuth;
use subsystem::catalog::TlsKey;
use subsystem::catalog::{HostConfig, SubsystemConfig};
use subsystem::limits::Limits;
use subsystem::serve::serve_queue;
use subsystem::target::tls_keys::HostKeyring;

use crate::auth::{failed_with, hear, secret, tell};
use crate::harness::{
    Attached, CC_ENABLE, FakeQueue, Lab, Reply, TestHost, connect, connect_data, story, story_with,
};

const OTHER: &str = "nqn.2026-11.x:other";
const SUITES: [Hash; 2] = [Hash::Sha256, Hash::Sha384];

fn psk(number: u8, hash: Hash) -> ConfiguredPsk {
    ConfiguredPsk::from_random(hash, &[number; 64])
}

fn key(number: u8, hash: Hash) -> TlsKey {
    TlsKey {
        id: number.into(),
        psk: psk(number, hash),
        compat: false,
        since: None,
    }
}

/// Gives the target a host's TLS keys, as an administrator does.
async fn keep(lab: &Lab, nqn: &Nqn, tls_keys: Vec<TlsKey>) {
    let host = HostConfig {
        nqn: nqn.clone(),
        auth: HostAuth {
            tls_keys,
            ..HostAuth::default()
        },
    };
    let changed = lab.target.change(|catalog| {
        catalog.hosts.insert(host.nqn.clone(), Arc::new(host));
        Ok(())
    });
    changed.await.expect("a catalog with another host");
}

/// What a host makes of a key that its administrator gave it.
fn derived(psk: &ConfiguredPsk, host: &Nqn, subsystem: &str, version: PskVersion) -> TlsPsk {
    derived_so(psk, host, subsystem, version, Derivation::Standard)
}

fn derived_so(
    psk: &ConfiguredPsk,
    host: &Nqn,
    subsystem: &str,
    version: PskVersion,
    derivation: Derivation,
) -> TlsPsk {
    psk.derive(host.as_str(), subsystem, version, derivation)
        .expect("OpenSSL works")
        .expect("short names")
}

fn peer() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 7], 50_000))
}

fn session(psk: &TlsPsk) -> TlsSession {
    TlsSession {
        identity: psk.identity.as_str().into(),
        suite: TlsSuite::Aes128Gcm,
    }
}

/// What a host is told that came by TLS with that key and says these names.
async fn ask(lab: &Lab, key: Option<&TlsPsk>, host: &TestHost, subsystem: &str) -> Reply {
    let queue = lab.queue_by_tls(0, 32, key.map(session));
    ask_on(&queue, host, subsystem, 0, CNTLID_DYNAMIC).await
}

async fn ask_on(
    queue: &FakeQueue,
    host: &TestHost,
    subsystem: &str,
    qid: u16,
    cntlid: u16,
) -> Reply {
    let command = ConnectCommand {
        record_format: 0,
        qid,
        sqsize: 31,
        attributes: 0,
        kato_ms: 0,
    };
    let mut data = connect_data(host, cntlid);
    data.subsystem = subsystem.parse().expect("a name");
    connect(queue, command, data).await
}

/// An association of that host by TLS with that key, or in clear.
async fn admin_of(lab: &Lab, host: &TestHost, tls: Option<&TlsSession>) -> Attached {
    let admin = lab.queue_by_tls(0, 32, tls.cloned());
    let reply = ask_on(&admin, host, DEFAULT_SUBSYSTEM_NQN, 0, CNTLID_DYNAMIC).await;
    let attached = Attached {
        host: host.clone(),
        admin,
        cntlid: reply.ok().result as u16,
    };
    attached.set_property(properties::CC, CC_ENABLE).await.ok();
    attached
}

/// A TCP port of a target.
struct Port {
    listener: Rc<TcpListener>,
}

impl Port {
    fn open(lab: &Lab, tls: TlsMode) -> Self {
        let config = TcpListenerConfig {
            tls,
            ..TcpListenerConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)))
        };
        let listener = TcpListener::bind_with_keys(config, HostKeyring::of(&lab.target));
        let listener = Rc::new(listener.expect("a free port"));
        let (target, taking) = (lab.target.clone(), listener.clone());
        drop(reactor::spawn(async move {
            while let Some(queue) = TargetQueue::accept_tcp(&taking).await {
                drop(reactor::spawn(serve_queue(target.clone(), queue)));
            }
        }));
        Self { listener }
    }

    /// Attaches a host with these keys, or in clear with none.
    async fn attach(
        &self,
        host: &TestHost,
        subsystem: &str,
        psks: &[TlsPsk],
    ) -> Result<Controller, initiator::Error> {
        let connector = Connector::tcp(TcpHostConfig {
            tls: (!psks.is_empty()).then(|| TlsHostConfig {
                psks: psks.to_vec(),
            }),
            ..TcpHostConfig::default()
        });
        let host = initiator::Host {
            nqn: host.nqn.clone(),
            id: host.id,
        };
        let subsystem = subsystem.parse().expect("a name");
        let options = ConnectOptions::new(self.listener.local_addr(), subsystem, host);
        Controller::connect(&connector, options).await
    }

    /// The host gets no connection.
    async fn turns_away(&self, host: &TestHost, psks: &[TlsPsk]) {
        let outcome = self.attach(host, DEFAULT_SUBSYSTEM_NQN, psks).await;
        assert!(matches!(outcome, Err(initiator::Error::Connect(_))));
    }
}

/// Data go there and back.
async fn serves(controller: &Controller) {
    let namespace = controller.namespace(1).await.expect("a namespace");
    let mut buffer = initiator::buffer(64 << 10).await;
    buffer.fill(0x5a);
    let (written, buffer) = namespace.write(0, buffer, false).await;
    written.expect("written");
    drop(buffer);
    let (read, buffer) = namespace.read(0, initiator::buffer(64 << 10).await).await;
    read.expect("read");
    assert!(buffer[..64 << 10].iter().all(|byte| *byte == 0x5a));
}

#[test]
fn hosts_get_in_by_tls_with_their_own_keys_alone() {
    story(async |lab| {
        let (host, other) = (TestHost::new(1), TestHost::new(2));
        let both = SUITES.map(|hash| key(1, hash));
        keep(&lab, &host.nqn, both.to_vec()).await;
        keep(&lab, &other.nqn, vec![key(2, Hash::Sha256)]).await;
        let port = Port::open(&lab, TlsMode::Required);
        for (hash, suite) in SUITES
            .into_iter()
            .zip(["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"])
        {
            for version in [PskVersion::V0, PskVersion::V1] {
                let own = derived(&psk(1, hash), &host.nqn, DEFAULT_SUBSYSTEM_NQN, version);
                let attached = port.attach(&host, DEFAULT_SUBSYSTEM_NQN, &[own]).await;
                let attached = attached.expect("its own key");
                serves(&attached).await;
                let shown = &lab.target.attached_hosts()[0];
                assert_eq!(shown.tls.as_deref(), Some(suite));
                attached.disconnect().await;
            }
        }
        assert_eq!(lab.target.tls_figures().failed, 0);
        let of = |number, host: &TestHost| {
            let key = psk(number, Hash::Sha256);
            derived(&key, &host.nqn, DEFAULT_SUBSYSTEM_NQN, PskVersion::V0)
        };
        // Nobody's key, another's key, another's name, and no key at all.
        port.turns_away(&host, &[of(3, &host)]).await;
        port.turns_away(&host, &[of(2, &host)]).await;
        port.turns_away(&host, &[of(1, &other)]).await;
        port.turns_away(&TestHost::new(3), &[of(1, &TestHost::new(3))])
            .await;
        port.turns_away(&host, &[]).await;
        assert_eq!(lab.target.tls_figures().failed, 5);
        // With its own key as another host, or to another subsystem.
        for (as_host, subsystem) in [
            (&other, DEFAULT_SUBSYSTEM_NQN),
            (&host, nvme::nqn::DISCOVERY),
        ] {
            let outcome = port.attach(as_host, subsystem, &[of(1, &host)]).await;
            assert!(matches!(outcome, Err(initiator::Error::Status { .. })));
        }
        assert_eq!(lab.target.tls_figures().refused, 2);
        lab.nobody_is_attached().await;
        lab.all_buffers_are_back().await;
    });
}

#[test]
fn a_port_takes_tls_or_not_from_the_next_connection_on() {
    story(async |lab| {
        let host = TestHost::new(1);
        keep(&lab, &host.nqn, vec![key(1, Hash::Sha256)]).await;
        let own = derived(
            &psk(1, Hash::Sha256),
            &host.nqn,
            DEFAULT_SUBSYSTEM_NQN,
            PskVersion::V1,
        );
        let port = Port::open(&lab, TlsMode::Allowed);
        let by_tls = std::slice::from_ref(&own);
        let secure = port.attach(&host, DEFAULT_SUBSYSTEM_NQN, by_tls).await;
        let clear = port
            .attach(&TestHost::new(2), DEFAULT_SUBSYSTEM_NQN, &[])
            .await;
        let (secure, clear) = (secure.expect("by TLS"), clear.expect("in clear"));
        port.listener.set_tls(TlsMode::Off);
        port.turns_away(&host, by_tls).await;
        port.listener.set_tls(TlsMode::Required);
        port.turns_away(&host, &[]).await;
        // And the key goes, while those that are there stay.
        keep(&lab, &host.nqn, Vec::new()).await;
        port.turns_away(&host, by_tls).await;
        serves(&secure).await;
        serves(&clear).await;
    });
}

#[test]
fn a_key_is_found_by_every_name_that_hosts_give_it() {
    story(async |lab| {
        let host = TestHost::new(1).nqn;
        let ring = HostKeyring::of(&lab.target);
        let own_discovery = lab.target.discovery.nqn.to_string();
        let subsystems = [DEFAULT_SUBSYSTEM_NQN, nvme::nqn::DISCOVERY, &own_discovery];
        for hash in SUITES {
            for compat in [false, true] {
                keep(
                    &lab,
                    &host,
                    vec![TlsKey {
                        compat,
                        ..key(1, hash)
                    }],
                )
                .await;
                for subsystem in subsystems {
                    for version in [PskVersion::V0, PskVersion::V1] {
                        for derivation in [Derivation::Standard, Derivation::Compat] {
                            let asked =
                                derived_so(&psk(1, hash), &host, subsystem, version, derivation);
                            let found = ring.find(&asked.identity, peer()).expect("its key");
                            // Names alone do not tell how the host derives.
                            let told = version == PskVersion::V1
                                || compat == (derivation == Derivation::Compat);
                            assert_eq!(found == asked, told, "{version:?} {derivation:?} {compat}");
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn what_no_host_has_a_key_for_has_none() {
    story(async |lab| {
        let (host, other) = (TestHost::new(1).nqn, TestHost::new(2).nqn);
        keep(&lab, &host, vec![key(1, Hash::Sha256)]).await;
        let ring = HostKeyring::of(&lab.target);
        let of = |key: &ConfiguredPsk, host: &Nqn, subsystem| {
            derived(key, host, subsystem, PskVersion::V1).identity
        };
        let right = psk(1, Hash::Sha256);
        assert!(
            ring.find(&of(&right, &host, DEFAULT_SUBSYSTEM_NQN), peer())
                .is_some()
        );
        let unknown = [
            of(&right, &other, DEFAULT_SUBSYSTEM_NQN),
            of(&right, &host, "nqn.2026-11.x:none"),
            of(&psk(2, Hash::Sha256), &host, DEFAULT_SUBSYSTEM_NQN),
            of(&psk(1, Hash::Sha384), &host, DEFAULT_SUBSYSTEM_NQN),
            derived(&right, &other, DEFAULT_SUBSYSTEM_NQN, PskVersion::V0).identity,
            of(&right, &host, DEFAULT_SUBSYSTEM_NQN).replace("1R", "1G"),
            String::new(),
            "NVMe0R01".to_owned(),
            "x".repeat(70_000),
        ];
        for identity in unknown {
            assert!(ring.find(&identity, peer()).is_none(), "{identity:.100}");
        }
    });
}

#[test]
fn a_key_is_changed_without_a_disconnect() {
    story(async |mut lab| {
        lab.transport = Transport::Tcp;
        let host = TestHost::new(1);
        let ring = HostKeyring::of(&lab.target);
        let of = |number, version| {
            derived(
                &psk(number, Hash::Sha256),
                &host.nqn,
                DEFAULT_SUBSYSTEM_NQN,
                version,
            )
        };
        let find = |key: &TlsPsk| ring.find(&key.identity, peer());
        keep(&lab, &host.nqn, vec![key(1, Hash::Sha256)]).await;
        let (old, new) = (of(1, PskVersion::V1), of(2, PskVersion::V1));
        let attached = admin_of(&lab, &host, Some(&session(&old))).await;
        keep(
            &lab,
            &host.nqn,
            vec![key(1, Hash::Sha256), key(2, Hash::Sha256)],
        )
        .await;
        // Both work, each under its own name; by the names alone it is the one that came last.
        assert_eq!(find(&old), Some(old.clone()));
        assert_eq!(find(&new), Some(new.clone()));
        assert_eq!(find(&of(1, PskVersion::V0)), Some(of(2, PskVersion::V0)));
        keep(&lab, &host.nqn, vec![key(2, Hash::Sha256)]).await;
        assert_eq!(find(&old), None);
        // The association is there still, and takes queues by the new key.
        let io = lab.queue_by_tls(1, 32, Some(session(&new)));
        ask_on(&io, &host, DEFAULT_SUBSYSTEM_NQN, 1, attached.cntlid)
            .await
            .ok();
        lab.attached_hosts_are(1).await;
    });
}

#[test]
fn who_proved_a_key_joins_what_it_is_for_and_nothing_else() {
    story(async |mut lab| {
        lab.transport = Transport::Tcp;
        let other = SubsystemConfig::new(OTHER.parse().expect("a name"), "S".into());
        let created = lab.target.change(|catalog| catalog.create_subsystem(other));
        created.await.expect("a subsystem");
        let (host, victim) = (TestHost::new(1), TestHost::new(2));
        keep(&lab, &host.nqn, vec![key(1, Hash::Sha256)]).await;
        keep(&lab, &victim.nqn, vec![key(2, Hash::Sha256)]).await;
        for version in [PskVersion::V0, PskVersion::V1] {
            let of = |subsystem| derived(&psk(1, Hash::Sha256), &host.nqn, subsystem, version);
            let own = of(DEFAULT_SUBSYSTEM_NQN);
            ask(&lab, Some(&own), &victim, DEFAULT_SUBSYSTEM_NQN)
                .await
                .refused(Status::CONNECT_INVALID_HOST);
            for elsewhere in [OTHER, nvme::nqn::DISCOVERY] {
                ask(&lab, Some(&own), &host, elsewhere)
                    .await
                    .refused(Status::CONNECT_INVALID_PARAMETERS);
            }
            ask(
                &lab,
                Some(&of(nvme::nqn::DISCOVERY)),
                &host,
                DEFAULT_SUBSYSTEM_NQN,
            )
            .await
            .refused(Status::CONNECT_INVALID_PARAMETERS);
            ask(&lab, Some(&own), &host, DEFAULT_SUBSYSTEM_NQN)
                .await
                .ok();
            ask(&lab, Some(&of(OTHER)), &host, OTHER).await.ok();
        }
        let figures = lab.target.tls_figures();
        assert_eq!((figures.succeeded, figures.refused), (4, 8));
    });
}

#[test]
fn queues_join_a_controller_by_tls_if_and_only_if_its_admin_queue_did() {
    story(async |mut lab| {
        lab.transport = Transport::Tcp;
        let (host, other) = (TestHost::new(1), TestHost::new(2));
        keep(&lab, &host.nqn, vec![key(1, Hash::Sha256)]).await;
        keep(&lab, &other.nqn, vec![key(2, Hash::Sha256)]).await;
        let of = |number, host: &TestHost| {
            let key = psk(number, Hash::Sha256);
            derived(&key, &host.nqn, DEFAULT_SUBSYSTEM_NQN, PskVersion::V1)
        };
        let (own, others) = (session(&of(1, &host)), session(&of(2, &other)));
        for by_tls in [true, false] {
            let attached = admin_of(&lab, &host, by_tls.then_some(&own)).await;
            let io = async |tls: Option<&TlsSession>| {
                let queue = lab.queue_by_tls(1, 32, tls.cloned());
                ask_on(&queue, &host, DEFAULT_SUBSYSTEM_NQN, 1, attached.cntlid).await
            };
            let (same, different) = match by_tls {
                true => (Some(&own), None),
                false => (None, Some(&own)),
            };
            io(different)
                .await
                .refused(Status::CONNECT_INVALID_PARAMETERS);
            io(Some(&others))
                .await
                .refused(Status::CONNECT_INVALID_HOST);
            io(same).await.ok();
            let shown = lab.target.attached_hosts();
            assert_eq!(shown[0].tls.is_some(), by_tls);
            attached.admin.close_from_host();
            lab.nobody_is_attached().await;
        }
    });
}

#[test]
fn an_address_from_which_handshakes_fail_has_to_wait_and_others_do_not() {
    let limits = Limits {
        auth_failures_max: 2,
        auth_failures_window: Duration::from_secs(3600),
        ..Limits::default()
    };
    story_with(limits, async |lab| {
        let ring = HostKeyring::of(&lab.target);
        let other = SocketAddr::from(([192, 0, 2, 8], 50_000));
        // Who comes in clear where that is not taken costs nothing.
        for _ in 0..5 {
            ring.failed(peer(), &TlsFailure::Clear);
        }
        assert!(!ring.holds_off(peer()));
        let unknown = TlsFailure::UnknownIdentity {
            identity: "x".into(),
        };
        let wrong = TlsFailure::WrongKey {
            identity: "x".into(),
        };
        ring.failed(peer(), &unknown);
        assert!(!ring.holds_off(peer()));
        ring.failed(peer(), &wrong);
        assert!(ring.holds_off(peer()));
        assert!(!ring.holds_off(other));
        let figures = lab.target.tls_figures();
        assert_eq!((figures.failed, figures.held_off), (7, 1));
        // Keys are nobody's when the target is gone.
        let identity = derived(
            &psk(1, Hash::Sha256),
            &TestHost::new(1).nqn,
            DEFAULT_SUBSYSTEM_NQN,
            PskVersion::V0,
        )
        .identity;
        drop(lab);
        assert!(ring.find(&identity, peer()).is_none());
    });
}

/// The host lets a key be made, as Linux does: it answers the challenge, and sends one of its own for the key
/// alone, to which the controller need not answer.
async fn concatenate(
    queue: &FakeQueue,
    host: &TestHost,
    negotiate: Negotiate,
    host_challenge: bool,
) -> Option<TlsPsk> {
    let (transaction, secure_channel) = (negotiate.transaction, negotiate.secure_channel);
    tell(queue, &Message::Negotiate(negotiate)).await;
    let Ok(Message::Challenge(challenge)) = Message::parse(&hear(queue).await) else {
        panic!("no challenge");
    };
    let pair = KeyPair::from_random(challenge.group, &[5; 64]).expect("OpenSSL works");
    let pair = pair.expect("a group");
    let shared = pair.shared_secret(&challenge.public).expect("a value");
    let exchange = Exchange {
        hash: challenge.hash,
        transaction,
        secure_channel,
        host: host.nqn.as_str(),
        subsystem: DEFAULT_SUBSYSTEM_NQN,
    };
    let answer = exchange.answer(
        Party::Host,
        &secret(1),
        &challenge.value,
        challenge.sequence,
        Some(&shared),
    );
    let host_value = vec![6; challenge.hash.len()];
    let reply = nvme::auth::Reply {
        transaction,
        answer: answer.expect("OpenSSL works").to_vec(),
        challenge: host_challenge.then(|| (host_value.clone(), 0)),
        public: pair.public().to_vec(),
    };
    tell(queue, &Message::Reply(reply)).await;
    if !host_challenge {
        return None;
    }
    let Ok(Message::Success1(success)) = Message::parse(&hear(queue).await) else {
        panic!("no success");
    };
    assert_eq!(success.answer, None, "nothing was asked");
    let concatenation = Concatenation {
        hash: challenge.hash,
        shared: &shared,
        controller_challenge: &challenge.value,
        host_challenge: &host_value,
        host: host.nqn.as_str(),
        subsystem: DEFAULT_SUBSYSTEM_NQN,
    };
    Some(concatenation.psk().expect("OpenSSL works"))
}

fn negotiate(secure_channel: u8, hashes: &[Hash], groups: &[Group]) -> Negotiate {
    Negotiate {
        transaction: 9,
        secure_channel,
        hashes: hashes.iter().map(|hash| hash.id()).collect(),
        groups: groups.iter().map(|group| group.id()).collect(),
    }
}

/// A lab whose TCP listener has that mode, with a host that has a secret.
async fn with_secret(lab: &mut Lab, host: &TestHost, mode: TlsMode) {
    let auth = HostAuth {
        dhchap_secret: Some(secret(1)),
        ..HostAuth::default()
    };
    with_auth(lab, host, mode, auth).await;
}

/// The same with any keys.
async fn with_auth(lab: &mut Lab, host: &TestHost, mode: TlsMode, auth: HostAuth) {
    lab.transport = Transport::Tcp;
    let nqn = host.nqn.clone();
    let changed = lab.target.change(|catalog| {
        let mut ports = catalog.ports.values_mut();
        let port = ports.find(|port| port.address.scheme == fabric::Scheme::Tcp);
        Arc::make_mut(port.expect("a TCP listener")).tls = mode;
        let host = HostConfig {
            nqn: nqn.clone(),
            auth,
        };
        catalog.hosts.insert(nqn, Arc::new(host));
        Ok(())
    });
    changed.await.expect("a catalog");
}

#[test]
fn a_host_authenticates_in_clear_and_comes_again_by_tls_with_the_key_that_this_made() {
    story(async |mut lab| {
        let host = TestHost::new(1);
        with_secret(&mut lab, &host, TlsMode::Allowed).await;
        let ring = HostKeyring::of(&lab.target);
        let port = Port::open(&lab, TlsMode::Allowed);
        // Whatever else is offered: there is no cipher suite of SHA-512, and no key without an exchange.
        for hashes in [&[Hash::Sha256][..], &Hash::ALL] {
            let admin = lab.queue(0, 32);
            let reply = ask_on(&admin, &host, DEFAULT_SUBSYSTEM_NQN, 0, CNTLID_DYNAMIC).await;
            reply.ok();
            let negotiate = negotiate(
                Negotiate::NEW_TLS_PSK,
                hashes,
                &[Group::Null, Group::Ffdhe2048],
            );
            let made = concatenate(&admin, &host, negotiate, true).await;
            let made = made.expect("a key");
            // In clear there is nothing more to be had, and nobody takes the host for attached.
            let refused = admin.call(FabricsCommand::property_get(properties::CAP, true));
            refused.await.refused(Status::AUTHENTICATION_REQUIRED);
            assert!(lab.target.attached_hosts().is_empty());
            assert!(made.identity.starts_with("NVMe1G"), "{}", made.identity);
            assert_eq!(ring.find(&made.identity, peer()), Some(made.clone()));
            admin.close_from_host();
            lab.nobody_is_attached().await;
            // Its identity says who it is: it need not authenticate again, and nobody else can use it.
            let by_tls = std::slice::from_ref(&made);
            let attached = port.attach(&host, DEFAULT_SUBSYSTEM_NQN, by_tls).await;
            let attached = attached.expect("a key that was made");
            serves(&attached).await;
            let other = TestHost::new(2);
            let refused = port.attach(&other, DEFAULT_SUBSYSTEM_NQN, by_tls).await;
            assert!(matches!(refused, Err(initiator::Error::Status { .. })));
            attached.disconnect().await;
            lab.nobody_is_attached().await;
        }
        assert_eq!(lab.target.auth_figures().succeeded, 2);
    });
}

#[test]
fn a_key_is_made_only_where_the_host_can_come_again_by_it() {
    story(async |mut lab| {
        let host = TestHost::new(1);
        let (new, replace) = (Negotiate::NEW_TLS_PSK, Negotiate::REPLACE_TLS_PSK);
        let everything = |secure_channel| negotiate(secure_channel, &Hash::ALL, &Group::ALL);
        let connected = async |lab: &Lab| {
            let admin = lab.queue(0, 32);
            let reply = ask_on(&admin, &host, DEFAULT_SUBSYSTEM_NQN, 0, CNTLID_DYNAMIC).await;
            (admin, reply.ok().result as u16)
        };
        let mismatch = Explanation::SecureChannelMismatch;
        for (mode, messages) in [
            (TlsMode::Off, vec![(everything(new), mismatch)]),
            (
                TlsMode::Allowed,
                vec![
                    (everything(replace), mismatch),
                    (everything(1), mismatch),
                    (everything(4), mismatch),
                    (
                        negotiate(new, &[Hash::Sha512], &Group::ALL),
                        Explanation::HashUnusable,
                    ),
                    (
                        negotiate(new, &Hash::ALL, &[Group::Null]),
                        Explanation::GroupUnusable,
                    ),
                ],
            ),
        ] {
            with_secret(&mut lab, &host, mode).await;
            for (message, explanation) in messages {
                let (admin, _) = connected(&lab).await;
                tell(&admin, &Message::Negotiate(message)).await;
                assert_eq!(failed_with(&admin).await, explanation);
            }
        }
        // Without a challenge of the host there is nothing that only both know.
        let (admin, _) = connected(&lab).await;
        concatenate(&admin, &host, everything(new), false).await;
        assert_eq!(failed_with(&admin).await, Explanation::IncorrectPayload);
        lab.nobody_is_attached().await;
    });
}

#[test]
fn a_made_key_ends_with_the_secret_of_its_host() {
    story(async |mut lab| {
        let host = TestHost::new(1);
        let ring = HostKeyring::of(&lab.target);
        let everything = || negotiate(Negotiate::NEW_TLS_PSK, &Hash::ALL, &Group::ALL);
        for change in ["another secret", "no secret", "no host"] {
            with_secret(&mut lab, &host, TlsMode::Allowed).await;
            let admin = lab.queue(0, 32);
            let reply = ask_on(&admin, &host, DEFAULT_SUBSYSTEM_NQN, 0, CNTLID_DYNAMIC).await;
            reply.ok();
            let made = concatenate(&admin, &host, everything(), true).await;
            let made = made.expect("a key");
            admin.close_from_host();
            // An association that came by it is there: it goes on, and no connection is made by the key any more.
            let _attached = admin_of(&lab, &host, Some(&session(&made))).await;
            assert!(ring.find(&made.identity, peer()).is_some(), "{change}");
            let changed = lab.target.change(|catalog| {
                let mut now = HostConfig::clone(&catalog.hosts[&host.nqn]);
                now.auth.dhchap_secret = (change == "another secret").then(|| secret(2));
                catalog.hosts.insert(host.nqn.clone(), Arc::new(now));
                if change == "no host" {
                    catalog.hosts.remove(&host.nqn);
                }
                Ok(())
            });
            changed.await.expect("a catalog");
            assert!(ring.find(&made.identity, peer()).is_none(), "{change}");
        }
    });
}

#[test]
fn a_host_that_may_come_by_tls_alone_has_nothing_in_clear() {
    story(async |mut lab| {
        let host = TestHost::new(1);
        let auth = |tls_only, with_secret: bool| HostAuth {
            dhchap_secret: with_secret.then(|| secret(1)),
            tls_keys: vec![key(1, Hash::Sha256)],
            tls_only,
            ..HostAuth::default()
        };
        with_auth(&mut lab, &host, TlsMode::Allowed, auth(false, false)).await;
        let clear = admin_of(&lab, &host, None).await;
        let own = psk(1, Hash::Sha256);
        let own = derived(&own, &host.nqn, DEFAULT_SUBSYSTEM_NQN, PskVersion::V1);
        let secure = admin_of(&lab, &host, Some(&session(&own))).await;
        // What is there in clear ends at once, the rest goes on.
        with_auth(&mut lab, &host, TlsMode::Allowed, auth(true, false)).await;
        lab.attached_hosts_are(1).await;
        clear.admin.closed().await;
        secure.property(properties::CAP, true).await.ok();
        let refused = ask(&lab, None, &host, DEFAULT_SUBSYSTEM_NQN).await;
        refused.refused(Status::CONNECT_INVALID_HOST);
        ask(&lab, Some(&own), &host, DEFAULT_SUBSYSTEM_NQN)
            .await
            .ok();
        // Where subsystems are it may ask, and over RDMA there is no TLS.
        lab.discover(1).await;
        lab.transport = Transport::Rdma;
        let refused = ask(&lab, None, &host, DEFAULT_SUBSYSTEM_NQN).await;
        refused.refused(Status::CONNECT_INVALID_HOST);
        // With a secret it may have a key made, where TLS is taken, and nothing else.
        for (mode, is_taken) in [(TlsMode::Off, false), (TlsMode::Allowed, true)] {
            with_auth(&mut lab, &host, mode, auth(true, true)).await;
            let admin = lab.queue(0, 32);
            let reply = ask_on(&admin, &host, DEFAULT_SUBSYSTEM_NQN, 0, CNTLID_DYNAMIC).await;
            if !is_taken {
                reply.refused(Status::CONNECT_INVALID_HOST);
                continue;
            }
            reply.ok();
            let plain = negotiate(0, &Hash::ALL, &Group::ALL);
            tell(&admin, &Message::Negotiate(plain)).await;
            assert_eq!(
                failed_with(&admin).await,
                Explanation::SecureChannelMismatch
            );
            let admin = lab.queue(0, 32);
            let reply = ask_on(&admin, &host, DEFAULT_SUBSYSTEM_NQN, 0, CNTLID_DYNAMIC).await;
            reply.ok();
            let everything = negotiate(Negotiate::NEW_TLS_PSK, &Hash::ALL, &Group::ALL);
            let made = concatenate(&admin, &host, everything, true).await;
            made.expect("a key");
        }
    });
}
