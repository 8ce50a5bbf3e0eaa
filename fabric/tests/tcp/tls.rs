//! TLS between our host and our target: who gets in, and what crosses the wire.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use fabric::{
    CloseReason, Connector, HostData, HostError, HostQueue, QueueConnectError, TcpHostConfig,
    TcpListener, TcpListenerConfig, TlsFailure, TlsHostConfig, TlsKeys, TlsMode, TlsSuite,
};
use nvme::auth::{ConfiguredPsk, Derivation, Hash, PskVersion, TlsPsk};

use crate::common::{LOOK_AGAIN, buffer, command, run};
use crate::harness::{IO, NO_DIGESTS, Raw, Target, attach, config, goes_on, ic_req};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:host";
const SUBSYSTEM: &str = "nqn.2026-01.io.onefold:subsystem";

/// The keys of a target, and what it was told.
#[derive(Default)]
pub(crate) struct Keys {
    pub(crate) known: Mutex<Vec<TlsPsk>>,
    pub(crate) failures: Mutex<Vec<TlsFailure>>,
    pub(crate) holds_off: Mutex<bool>,
}

impl TlsKeys for Keys {
    fn find(&self, identity: &str, _: SocketAddr) -> Option<TlsPsk> {
        let known = self.known.lock().unwrap();
        known.iter().find(|psk| psk.identity == identity).cloned()
    }

    fn failed(&self, _: SocketAddr, failure: &TlsFailure) {
        self.failures.lock().unwrap().push(failure.clone());
    }

    fn holds_off(&self, _: SocketAddr) -> bool {
        *self.holds_off.lock().unwrap()
    }
}

/// The key that comes of so many ones.
pub(crate) fn psk(hash: Hash, version: PskVersion, seed: u8) -> TlsPsk {
    ConfiguredPsk::from_random(hash, &[seed; 64])
        .derive(HOST, SUBSYSTEM, version, Derivation::Standard)
        .expect("OpenSSL")
        .expect("short names")
}

pub(crate) fn good_psk() -> TlsPsk {
    psk(Hash::Sha256, PskVersion::V1, 1)
}

/// A target that knows these keys.
pub(crate) fn start(mode: TlsMode, known: &[TlsPsk]) -> (Target, Arc<Keys>) {
    start_with(
        TcpListenerConfig {
            tls: mode,
            ..config()
        },
        known,
    )
}

pub(crate) fn start_with(config: TcpListenerConfig, known: &[TlsPsk]) -> (Target, Arc<Keys>) {
    let keys = Arc::new(Keys {
        known: Mutex::new(known.to_vec()),
        ..Keys::default()
    });
    let listener = TcpListener::bind_with_keys(config, keys.clone()).expect("a free port");
    (Target::serve(listener), keys)
}

pub(crate) fn by_tls<const N: usize>(psks: [TlsPsk; N]) -> TcpHostConfig {
    let psks = psks.to_vec();
    TcpHostConfig {
        tls: Some(TlsHostConfig { psks }),
        ..TcpHostConfig::default()
    }
}

/// Why a host does not get in.
async fn refused(target: &Target, host: TcpHostConfig) -> CloseReason {
    let error = HostQueue::connect(&Connector::tcp(host), target.address(), IO).await;
    match error.expect_err("it is refused") {
        QueueConnectError::Failed { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

#[test]
fn a_host_with_a_key_gets_in_with_either_suite_and_either_form_of_its_identity() {
    run(async {
        for (hash, suite) in [
            (Hash::Sha256, TlsSuite::Aes128Gcm),
            (Hash::Sha384, TlsSuite::Aes256Gcm),
        ] {
            for version in [PskVersion::V0, PskVersion::V1] {
                let psk = psk(hash, version, 7);
                let (target, keys) = start(TlsMode::Required, &[good_psk(), psk.clone()]);
                let queue = attach(&target, by_tls([psk.clone()]), true).await;
                goes_on(&queue).await;
                let proven = target.queues.borrow()[0].tls().expect("by TLS");
                assert_eq!(&*proven.identity, psk.identity);
                assert_eq!(proven.suite, suite);
                assert_eq!(target.listener.counters().tls_handshakes, 1);
                assert!(keys.failures.lock().unwrap().is_empty());
            }
        }
    });
}

#[test]
fn an_unknown_identity_and_a_wrong_key_get_the_same_answer_and_the_target_knows_which_it_was() {
    run(async {
        let (target, keys) = start(TlsMode::Required, &[good_psk()]);
        let wrong = TlsPsk {
            identity: good_psk().identity,
            ..psk(Hash::Sha256, PskVersion::V1, 2)
        };
        let answer = refused(&target, by_tls([wrong.clone()])).await;
        assert!(
            matches!(answer, CloseReason::Tls(TlsFailure::Alert(_))),
            "{answer}"
        );
        let unknown = psk(Hash::Sha256, PskVersion::V1, 3);
        assert_eq!(refused(&target, by_tls([unknown.clone()])).await, answer);
        let identity = |psk: &TlsPsk| psk.identity.as_str().into();
        assert_eq!(
            *keys.failures.lock().unwrap(),
            [
                TlsFailure::WrongKey {
                    identity: identity(&wrong)
                },
                TlsFailure::UnknownIdentity {
                    identity: identity(&unknown)
                },
            ]
        );
        assert_eq!(target.listener.counters().tls_failures, 2);
        while target.listener.counters().handshakes_failed < 2 {
            reactor::sleep(LOOK_AGAIN).await;
        }
        // A host that has several keys tries them in its order.
        let queue = attach(&target, by_tls([wrong, unknown, good_psk()]), true).await;
        goes_on(&queue).await;
    });
}

#[test]
fn a_port_that_requires_tls_hangs_up_on_who_comes_in_clear() {
    run(async {
        let (target, keys) = start(TlsMode::Required, &[good_psk()]);
        let queue = attach(&target, by_tls([good_psk()]), true).await;
        let mut clear = Raw::open(&target);
        clear.send(&ic_req(NO_DIGESTS)).await;
        assert_eq!(clear.ended().await, None);
        assert_eq!(*keys.failures.lock().unwrap(), [TlsFailure::Clear]);
        goes_on(&queue).await;
    });
}

#[test]
fn a_port_that_allows_tls_serves_both_and_one_without_it_tells_a_host_where_to_look() {
    run(async {
        let (target, keys) = start(TlsMode::Allowed, &[good_psk()]);
        let sealed = attach(&target, by_tls([good_psk()]), true).await;
        let clear = attach(&target, TcpHostConfig::default(), true).await;
        goes_on(&sealed).await;
        goes_on(&clear).await;
        let proven: Vec<bool> = target
            .queues
            .borrow()
            .iter()
            .map(|queue| queue.tls().is_some())
            .collect();
        assert_eq!(proven, [true, false]);
        // The mode can be changed; who is attached stays so.
        target.listener.set_tls(TlsMode::Required);
        assert_eq!(
            refused(&target, TcpHostConfig::default()).await,
            CloseReason::Peer
        );
        target.listener.set_tls(TlsMode::Off);
        let answer = refused(&target, by_tls([good_psk()])).await;
        assert_eq!(answer, CloseReason::Tls(TlsFailure::Ended));
        assert!(answer.to_string().contains("speaks TLS"), "{answer}");
        goes_on(&sealed).await;
        goes_on(&clear).await;
        assert_eq!(*keys.failures.lock().unwrap(), [TlsFailure::Clear]);
    });
}

#[test]
fn an_address_that_has_to_wait_costs_no_handshake() {
    run(async {
        let (target, keys) = start(TlsMode::Required, &[good_psk()]);
        *keys.holds_off.lock().unwrap() = true;
        let answer = refused(&target, by_tls([good_psk()])).await;
        assert_eq!(answer, CloseReason::Tls(TlsFailure::Ended));
        assert!(keys.failures.lock().unwrap().is_empty());
        *keys.holds_off.lock().unwrap() = false;
        attach(&target, by_tls([good_psk()]), true).await;
    });
}

#[test]
fn a_connection_goes_on_with_new_keys_and_one_whose_host_changes_none_ends() {
    run(async {
        const KEY_BYTES: u64 = 256 << 10;
        let listener = TcpListenerConfig {
            tls: TlsMode::Required,
            tls_key_bytes_max: KEY_BYTES,
            ..config()
        };
        let (target, keys) = start_with(listener, &[good_psk()]);
        let changing = TcpHostConfig {
            tls_key_bytes_max: KEY_BYTES,
            ..by_tls([good_psk()])
        };
        let queue = attach(&target, changing, true).await;
        for _ in 0..500 {
            goes_on(&queue).await;
        }
        // One that does not, as Linux: its connection ends, and it comes again.
        for _ in 0..2 {
            let queue = attach(&target, by_tls([good_psk()]), true).await;
            let mut rounds = 0;
            let reason = loop {
                rounds += 1;
                assert!(rounds < 500, "its keys are used up");
                let mut data = buffer(16 << 10).await;
                data.fill(rounds as u8);
                let sqe = command(1, 0, 16 << 10);
                let sent = queue.submit(sqe, HostData::ToTarget(data, 16 << 10));
                match sent.await {
                    Ok(_) => {}
                    Err(HostError::Closed { reason, .. }) => break reason,
                    Err(other) => panic!("{other}"),
                }
            };
            assert_eq!(reason, CloseReason::Peer);
        }
        goes_on(&queue).await;
        // Nobody did anything wrong.
        assert!(keys.failures.lock().unwrap().is_empty());
    });
}
