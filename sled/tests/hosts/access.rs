//! Hosts that have to prove who they are: by a secret, by a key for TLS, or by both.

use std::collections::BTreeMap;
use std::sync::Arc;

use drives::BLOCK_BYTES;
use fabric::{Connector, HostData, HostQueue, HostQueueParams, TcpHostConfig, TlsHostConfig};
use initiator::{ConnectOptions, Controller, Error, Host};
use nvme::auth::{ConfiguredPsk, Group, Hash, HostKeys as OwnKeys, Message, Negotiate, Secret};
use nvme::fabrics::{AuthTransfer, FabricsCommand};
use nvme::io::{IoCommand, LbaRange};
use nvme::properties::CC;
use nvme::reservation::{AcquireAction, KeyPair, RegisterAction, ReservationType};
use nvme::{Nqn, Status};
use sled::{HostKeys, Limits};

use crate::harness::{
    Connect, Stage, assert_blocks, memory, nqn, story, submit, submit_to, write_blocks,
};

/// AUTHREQ of the result of Connect.
const AUTH_REQUIRED: u64 = 1 << 17;

fn secret(number: u8) -> Secret {
    Secret::from_random(Some(Hash::Sha256), &[number; 64])
}

fn psk(number: u8) -> ConfiguredPsk {
    ConfiguredPsk::from_random(Hash::Sha256, &[number; 64])
}

/// What a host has that proves itself by that secret, and knows the controller by that one.
fn own(secret_number: u8, controller: Option<u8>) -> OwnKeys {
    OwnKeys {
        // Quickly computed.
        groups: vec![Group::Null, Group::Ffdhe2048],
        ..OwnKeys::new(secret(secret_number), controller.map(secret))
    }
}

fn with_secret(number: u8) -> HostKeys {
    HostKeys {
        dhchap_secret: Some(secret(number)),
        ..HostKeys::default()
    }
}

fn with_tls(number: u8) -> HostKeys {
    HostKeys {
        tls_key: Some(psk(number)),
        ..HostKeys::default()
    }
}

fn stage(hosts: &[(&Host, HostKeys)]) -> Stage {
    let hosts = hosts
        .iter()
        .map(|(host, keys)| (host.nqn.clone(), keys.clone()));
    Stage::to_hosts(vec![memory()], Some(hosts.collect()), Limits::default())
}

/// Attaches a host with this secret, and by TLS with this key.
async fn attach(
    stage: &Stage,
    host: &Host,
    keys: Option<OwnKeys>,
    tls: Option<&ConfiguredPsk>,
) -> Result<Controller, Error> {
    let tls = tls.map(|key| TlsHostConfig::of(key, host.nqn.as_str(), nqn().as_str()).unwrap());
    let connector = Connector::tcp(TcpHostConfig {
        tls,
        ..TcpHostConfig::default()
    });
    let options = ConnectOptions {
        keys: keys.map(Arc::new),
        ..ConnectOptions::new(stage.address, nqn(), host.clone())
    };
    Controller::connect(&connector, options).await
}

/// Data go there and back, and the host leaves.
async fn works(controller: Controller) {
    let namespace = controller.namespace(1).await.unwrap();
    write_blocks(&namespace, 3, 2, 9, false).await.unwrap();
    assert_blocks(&namespace, 3, 2, 9).await;
    controller.disconnect().await;
}

fn status(refused: Result<Controller, Error>) -> Status {
    refused.unwrap_err().status().unwrap().code()
}

#[test]
fn a_host_with_a_secret_gets_in_by_it_alone() {
    story(async {
        let host = Host::generate();
        let stage = stage(&[(&host, with_secret(1))]);
        works(
            attach(&stage, &host, Some(own(1, None)), None)
                .await
                .unwrap(),
        )
        .await;
        let wrong = attach(&stage, &host, Some(own(2, None)), None).await;
        assert!(matches!(wrong.unwrap_err(), Error::Authentication { .. }));
        let none = attach(&stage, &host, None, None).await;
        assert!(matches!(none.unwrap_err(), Error::NoSecret { .. }));
        works(
            attach(&stage, &host, Some(own(1, None)), None)
                .await
                .unwrap(),
        )
        .await;
    });
}

#[test]
fn a_sled_proves_itself_to_a_host_that_asks_for_it() {
    story(async {
        let (both, one) = (Host::generate(), Host::generate());
        let keys = HostKeys {
            dhchap_ctrl_secret: Some(secret(7)),
            ..with_secret(1)
        };
        let stage = stage(&[(&both, keys), (&one, with_secret(2))]);
        works(
            attach(&stage, &both, Some(own(1, Some(7))), None)
                .await
                .unwrap(),
        )
        .await;
        for (host, keys) in [(&both, own(1, Some(8))), (&one, own(2, Some(2)))] {
            let refused = attach(&stage, host, Some(keys), None).await;
            assert!(matches!(refused.unwrap_err(), Error::Authentication { .. }));
        }
    });
}

/// Sets CC.EN, which needs nothing but an admin queue that is open.
async fn enable(admin: &HostQueue) -> Status {
    submit(admin, FabricsCommand::property_set(CC, false, 0x0046_0001)).await
}

#[test]
fn nothing_is_done_on_a_queue_whose_host_has_not_proved_itself_and_that_is_each_queue() {
    story(async {
        let host = Host::generate();
        let stage = stage(&[(&host, with_secret(1))]);
        let admin = stage.queue(0).await;
        let (connected, result) = Connect::of(&host).send(&admin).await;
        assert_eq!(connected, Status::SUCCESS);
        assert_eq!(result & AUTH_REQUIRED, AUTH_REQUIRED);
        assert_eq!(enable(&admin).await, Status::AUTHENTICATION_REQUIRED);
        // The same on an I/O queue of an association whose admin queue is open.
        let options = ConnectOptions {
            keys: Some(Arc::new(own(1, None))),
            io_queues: 0,
            ..ConnectOptions::new(stage.address, nqn(), host.clone())
        };
        let attached = Controller::connect(&Stage::connector(), options)
            .await
            .unwrap();
        let io = stage.queue(1).await;
        let connect = Connect {
            qid: 1,
            cntlid: attached.identify().cntlid,
            ..Connect::of(&host)
        };
        let (connected, result) = connect.send(&io).await;
        assert_eq!(connected, Status::SUCCESS);
        assert_eq!(result & AUTH_REQUIRED, AUTH_REQUIRED);
        let write = IoCommand::Write {
            nsid: 1,
            range: LbaRange { slba: 0, blocks: 1 },
            fua: false,
        };
        let written = submit_to(&io, write.to_sqe(), BLOCK_BYTES).await;
        assert_eq!(written, Status::AUTHENTICATION_REQUIRED);
        attached.disconnect().await;
    });
}

#[test]
fn a_host_that_fails_again_and_again_has_to_wait_and_no_other_host_does() {
    story(async {
        let (host, other) = (Host::generate(), Host::generate());
        let stage = stage(&[(&host, with_secret(1)), (&other, with_secret(2))]);
        let mut failures = 0;
        let held_off = loop {
            match attach(&stage, &host, Some(own(9, None)), None).await {
                Err(Error::Authentication { .. }) => failures += 1,
                refused => break refused,
            }
            assert!(failures < 100, "it is never held off");
        };
        assert_eq!(status(held_off), Status::CONNECT_CONTROLLER_BUSY);
        let right = attach(&stage, &host, Some(own(1, None)), None).await;
        assert_eq!(status(right), Status::CONNECT_CONTROLLER_BUSY);
        works(
            attach(&stage, &other, Some(own(2, None)), None)
                .await
                .unwrap(),
        )
        .await;
    });
}

#[test]
fn hosts_that_never_prove_themselves_leave_places_to_others() {
    story(async {
        let (host, other) = (Host::generate(), Host::generate());
        let hosts = BTreeMap::from([
            (host.nqn.clone(), with_secret(1)),
            (other.nqn.clone(), HostKeys::default()),
        ]);
        let limits = Limits {
            controllers: 8,
            ..Limits::default()
        };
        let stage = Stage::to_hosts(vec![memory()], Some(hosts), limits);
        let mut silent = Vec::new();
        for _ in 0..20 {
            let queue = stage.queue(0).await;
            Connect::of(&host).send(&queue).await;
            silent.push(queue);
        }
        works(attach(&stage, &other, None, None).await.unwrap()).await;
    });
}

#[test]
fn no_key_for_tls_is_made_by_an_authentication() {
    story(async {
        let host = Host::generate();
        let stage = stage(&[(&host, with_secret(1))]);
        let admin = stage.queue(0).await;
        Connect::of(&host).send(&admin).await;
        let message = Message::Negotiate(Negotiate {
            transaction: 7,
            secure_channel: Negotiate::NEW_TLS_PSK,
            hashes: vec![Hash::Sha256.id()],
            groups: vec![Group::Ffdhe2048.id()],
        });
        let transfer = |length| AuthTransfer {
            protocol: AuthTransfer::PROTOCOL,
            length,
        };
        let bytes = message.encode();
        let mut buffer = initiator::buffer(bytes.len()).await;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        let sqe = FabricsCommand::auth_send(transfer(bytes.len() as u32));
        let data = HostData::ToTarget(buffer, bytes.len());
        assert!(admin.submit(sqe, data).await.unwrap().0.status.is_success());
        let buffer = initiator::buffer(4096).await;
        let sqe = FabricsCommand::auth_receive(transfer(4096));
        let data = HostData::FromTarget(buffer, 4096);
        let (_, answer) = admin.submit(sqe, data).await.unwrap();
        let answer = Message::parse(&answer.unwrap()[..4096]).unwrap();
        assert!(matches!(answer, Message::Failure1(_)), "{answer:?}");
        admin.closed().await;
    });
}

#[test]
fn a_sled_whose_hosts_all_have_keys_for_tls_takes_nobody_in_clear() {
    story(async {
        let (host, other) = (Host::generate(), Host::generate());
        let stage = stage(&[(&host, with_tls(1)), (&other, with_tls(2))]);
        works(attach(&stage, &host, None, Some(&psk(1))).await.unwrap()).await;
        for (host, key) in [
            (&host, None),
            (&host, Some(psk(2))),
            (&other, Some(psk(1))),
            (&Host::generate(), Some(psk(1))),
        ] {
            let refused = attach(&stage, host, None, key.as_ref()).await;
            assert!(matches!(refused.unwrap_err(), Error::Connect(_)));
        }
    });
}

#[test]
fn a_host_with_a_key_for_tls_comes_by_tls_alone_though_another_one_comes_in_clear() {
    story(async {
        let (host, clear) = (Host::generate(), Host::generate());
        let stage = stage(&[(&host, with_tls(1)), (&clear, HostKeys::default())]);
        works(attach(&stage, &clear, None, None).await.unwrap()).await;
        let refused = attach(&stage, &host, None, None).await;
        assert_eq!(status(refused), Status::CONNECT_INVALID_HOST);
        let attached = attach(&stage, &host, None, Some(&psk(1))).await.unwrap();
        // A queue in clear joins no association that has TLS.
        let io = stage.queue(1).await;
        let connect = Connect {
            qid: 1,
            cntlid: attached.identify().cntlid,
            ..Connect::of(&host)
        };
        assert_eq!(
            connect.send(&io).await.0.code(),
            Status::CONNECT_INVALID_PARAMETERS
        );
        works(attached).await;
    });
}

#[test]
fn a_key_for_tls_is_one_hosts_alone() {
    story(async {
        let (host, other) = (Host::generate(), Host::generate());
        let stage = stage(&[(&host, with_tls(1)), (&other, with_tls(2))]);
        let tls = TlsHostConfig::of(&psk(1), host.nqn.as_str(), nqn().as_str()).unwrap();
        let connector = Connector::tcp(TcpHostConfig {
            tls: Some(tls),
            ..TcpHostConfig::default()
        });
        let params = HostQueueParams {
            qid: 0,
            depth: 32,
            cntlid: 0,
            in_capsule_bytes: 0,
        };
        let queue = HostQueue::connect(&connector, stage.address, params).await;
        let queue = queue.unwrap();
        let (refused, _) = Connect::of(&other).send(&queue).await;
        assert_eq!(refused.code(), Status::CONNECT_INVALID_HOST);
        assert_eq!(Connect::of(&host).send(&queue).await.0, Status::SUCCESS);
    });
}

#[test]
fn a_host_with_both_has_to_have_both() {
    story(async {
        let host = Host::generate();
        let keys = HostKeys {
            tls_key: Some(psk(2)),
            ..with_secret(1)
        };
        let stage = stage(&[(&host, keys)]);
        let right = Some(own(1, None));
        works(
            attach(&stage, &host, right.clone(), Some(&psk(2)))
                .await
                .unwrap(),
        )
        .await;
        let refused = attach(&stage, &host, None, Some(&psk(2))).await;
        assert!(matches!(refused.unwrap_err(), Error::NoSecret { .. }));
        let refused = attach(&stage, &host, right, None).await;
        assert!(matches!(refused.unwrap_err(), Error::Connect(_)));
    });
}

#[test]
fn new_keys_count_from_the_next_connection_on_and_end_none() {
    story(async {
        let host = Host::generate();
        let stage = stage(&[(&host, with_secret(1))]);
        let attached = attach(&stage, &host, Some(own(1, None)), None)
            .await
            .unwrap();
        let hosts: BTreeMap<Nqn, _> = BTreeMap::from([(host.nqn.clone(), with_secret(2))]);
        stage.sled.set_hosts(Some(hosts));
        let refused = attach(&stage, &host, Some(own(1, None)), None).await;
        assert!(matches!(refused.unwrap_err(), Error::Authentication { .. }));
        works(attached).await;
        works(
            attach(&stage, &host, Some(own(2, None)), None)
                .await
                .unwrap(),
        )
        .await;
    });
}

#[test]
fn the_identifier_of_a_host_that_proved_its_name_and_reserved_a_drive_is_no_other_hosts() {
    story(async {
        let owner = Host::generate();
        let other = Host {
            id: owner.id,
            ..Host::generate()
        };
        let stage = stage(&[(&owner, with_secret(1)), (&other, with_secret(2))]);
        let earlier = attach(&stage, &other, Some(own(2, None)), None)
            .await
            .unwrap();
        let earlier = earlier.namespace(1).await.unwrap();
        let controller = attach(&stage, &owner, Some(own(1, None)), None)
            .await
            .unwrap();
        let namespace = controller.namespace(1).await.unwrap();
        let (register, kind) = (RegisterAction::Register, ReservationType::WriteExclusive);
        let keys = |current, other| KeyPair { current, other };
        let registered = namespace.register(register, false, None, keys(0, 1)).await;
        registered.unwrap();
        let acquired = namespace
            .acquire(AcquireAction::Acquire, kind, keys(1, 0))
            .await;
        acquired.unwrap();
        // Whoever came before under that identifier is sent away.
        write_blocks(&earlier, 0, 1, 9, false).await.unwrap_err();
        let refused = attach(&stage, &other, Some(own(2, None)), None).await;
        assert_eq!(status(refused), Status::CONNECT_INVALID_HOST);
        write_blocks(&namespace, 0, 1, 9, false).await.unwrap();
        controller.disconnect().await;
    });
}
