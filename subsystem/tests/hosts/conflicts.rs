//! Commands that reach beyond the blocks of one namespace, and what stands against them: reservations of other
//! hosts, write protection, masks and paths.

use std::collections::BTreeSet;

use nvme::Status;
use nvme::admin::{NamespaceAttachment, NamespaceManagement, SetFeatures};
use nvme::ana::AnaState;
use nvme::identify::{NSID_BROADCAST, encode_controller_list};
use nvme::io::IoCommand;
use nvme::reservation::ReservationType;
use subsystem::catalog::WriteProtect;

use crate::harness::{Attached, Lab, Reply, TestHost, VOLUME_BYTES, story, write};
use crate::reservations::Cast;
use crate::subsystems::name;

/// What the holder, another registrant and a host that is not registered may do, as in the table of I/O commands
/// (`reservations.rs`): Namespace Management and Namespace Attachment belong to the write commands, Set Features to
/// none. A Flush of all namespaces makes durable what they have, and takes nothing from anybody.
const TABLE: [(&str, [&str; 6]); 6] = [
    // Command         WE     EA     WERO   EARO   WEAR   EAAR
    ("delete", ["ACC", "ACC", "AAC", "AAC", "AAC", "AAC"]),
    ("delete all", ["ACC", "ACC", "AAC", "AAC", "AAC", "AAC"]),
    ("detach", ["ACC", "ACC", "AAC", "AAC", "AAC", "AAC"]),
    ("attach", ["ACC", "ACC", "AAC", "AAC", "AAC", "AAC"]),
    ("protect", ["AAA", "AAA", "AAA", "AAA", "AAA", "AAA"]),
    ("flush all", ["AAA", "AAA", "AAA", "AAA", "AAA", "AAA"]),
];

async fn allow_management(lab: &Lab) {
    lab.change(|catalog| {
        let default = catalog.subsystem_mut(&name(subsystem::DEFAULT_SUBSYSTEM_NQN))?;
        default.namespace_management = true;
        Ok(())
    })
    .await;
}

async fn delete(host: &Attached, nsid: u32) -> Reply {
    let sqe = NamespaceManagement::Delete { nsid }.to_sqe();
    host.admin.call(sqe).await
}

async fn attachment(host: &Attached, select: u8, of: &Attached) -> Reply {
    let sqe = NamespaceAttachment { nsid: 1, select }.to_sqe();
    let list = encode_controller_list(&[of.cntlid]).to_vec();
    host.admin.call_out(sqe, list).await
}

async fn protect(host: &Attached, state: u32) -> Reply {
    let command = SetFeatures {
        fid: 0x84,
        save: false,
        dwords: [state, 0, 0, 0, 0],
        nsid: 1,
    };
    host.admin.call(command.to_sqe()).await
}

#[test]
fn who_may_not_write_to_a_reserved_namespace_does_not_delete_attach_or_detach_it() {
    story(async |lab| {
        allow_management(&lab).await;
        let cast = Cast::new(&lab).await;
        let spare = lab.attach(4).await;
        let mut made = 0;
        for kind in ReservationType::ALL {
            for (command, row) in TABLE {
                let mut got = String::new();
                let queues = [&cast.holder, &cast.registrant, &cast.other];
                for (host, queue) in cast.attached.iter().zip(queues) {
                    cast.set(kind).await;
                    let reply = match command {
                        "delete" => delete(host, 1).await,
                        "delete all" => delete(host, NSID_BROADCAST).await,
                        "detach" => attachment(host, NamespaceAttachment::DETACH, &spare).await,
                        "attach" => {
                            let holder = &cast.attached[0];
                            attachment(holder, NamespaceAttachment::DETACH, &spare)
                                .await
                                .ok();
                            attachment(host, NamespaceAttachment::ATTACH, &spare).await
                        }
                        "protect" => protect(host, 1).await,
                        _ => {
                            let flush = IoCommand::Flush {
                                nsid: NSID_BROADCAST,
                            };
                            queue.call(flush.to_sqe()).await
                        }
                    };
                    got.push(match reply.status.is_success() {
                        true => 'A',
                        false => {
                            reply.refused(Status::RESERVATION_CONFLICT);
                            'C'
                        }
                    });
                    // As it was before.
                    protect(&cast.attached[0], 0).await;
                    if cast.attached[0].namespaces().await.is_empty() {
                        made += 1;
                        let name = format!("again{made}");
                        lab.create_volume(&name, VOLUME_BYTES, 4096).await;
                    }
                    if spare.namespaces().await.is_empty() {
                        attachment(&cast.attached[0], NamespaceAttachment::ATTACH, &spare)
                            .await
                            .ok();
                    }
                }
                let expected = row[usize::from(kind.as_u8()) - 1];
                assert_eq!(got, expected, "{command} under {}", kind.name());
            }
        }
    });
}

#[test]
fn a_protected_namespace_is_not_deleted_and_keeps_all_others_from_going_with_it() {
    story(async |lab| {
        allow_management(&lab).await;
        lab.create_volume("vol1", 1 << 20, 4096).await;
        let (host, other) = (lab.attach(1).await, lab.attach(2).await);
        let nqn = name(subsystem::DEFAULT_SUBSYSTEM_NQN);
        for state in [
            WriteProtect::On,
            WriteProtect::UntilPowerCycle,
            WriteProtect::Permanent,
        ] {
            lab.change(|catalog| {
                catalog.namespace_mut(&nqn, 1)?.write_protect = state;
                Ok(())
            })
            .await;
            for nsid in [1, NSID_BROADCAST] {
                let reply = delete(&host, nsid).await;
                reply.refused(Status::NAMESPACE_WRITE_PROTECTED);
            }
            assert_eq!(host.namespaces().await, [1, 2]);
            // Who sees it is no matter of its content.
            for select in [NamespaceAttachment::DETACH, NamespaceAttachment::ATTACH] {
                attachment(&host, select, &other).await.ok();
            }
        }
        lab.change(|catalog| {
            catalog.namespace_mut(&nqn, 1)?.write_protect = WriteProtect::Off;
            Ok(())
        })
        .await;
        delete(&host, NSID_BROADCAST).await.ok();
        assert!(host.namespaces().await.is_empty());
        assert!(lab.engine.volumes().is_empty());
    });
}

#[test]
fn a_flush_of_all_namespaces_leaves_nothing_behind_whatever_became_of_them() {
    story(async |lab| {
        for volume in ["masked", "inaccessible", "protected", "open"] {
            lab.create_volume(volume, 1 << 20, 4096).await;
        }
        let cast = Cast::new(&lab).await;
        let write_to = |nsid: u32| {
            cast.other
                .call_out(write(nsid, 0, 1), vec![nsid as u8; 4096])
        };
        for nsid in 1..=4 {
            write_to(nsid).await.ok();
        }
        // What the host wrote to goes out of its reach before it flushes.
        cast.set(ReservationType::ExclusiveAccess).await;
        lab.change(|catalog| {
            let nqn = name(subsystem::DEFAULT_SUBSYSTEM_NQN);
            let only = BTreeSet::from([TestHost::new(1).nqn]);
            catalog.namespace_mut(&nqn, 2)?.hosts = Some(only);
            catalog.namespace_mut(&nqn, 3)?.ana_group = 2;
            catalog.namespace_mut(&nqn, 4)?.write_protect = WriteProtect::On;
            catalog.set_ana("1", 2, AnaState::Inaccessible)?;
            Ok(())
        })
        .await;
        write_to(5).await.ok();
        let flush = |nsid| cast.other.call(IoCommand::Flush { nsid }.to_sqe());
        flush(1).await.refused(Status::RESERVATION_CONFLICT);
        flush(2).await.refused(Status::INVALID_NAMESPACE);
        let reply = flush(3).await;
        assert_eq!(reply.status.code(), Status::ASYMMETRIC_INACCESSIBLE);
        assert_ne!(
            lab.engine.status().unflushed_bytes,
            0,
            "nothing is flushed yet"
        );
        flush(NSID_BROADCAST).await.ok();
        assert_eq!(lab.engine.status().unflushed_bytes, 0);
        flush(4).await.ok();
    });
}
