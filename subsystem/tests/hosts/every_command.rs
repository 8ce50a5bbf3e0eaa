//! Every command, against everything that may keep it from a namespace: reservations, write protection,
//! masks, paths, the end of the volume; and what Force Unit Access makes durable.
//!
//! The commands are those that the parsers take of all 256 opcodes, and what each does is said by an
//! exhaustive match over the typed commands: a new command does not compile until its row is here, and from
//! then on is tried against all of this.

use std::collections::BTreeSet;

use nvme::admin::{GetFeatures, Identify, SetFeatures};
use nvme::ana::AnaState;
use nvme::features::HostBehavior;
use nvme::identify::{
    Cns, IdentifyNamespace, decode_controller_list, decode_namespace_list, encode_controller_list,
};
use nvme::io::{CopyFormat, CopyRange, DsmRange, IoCommand, LbaRange};
use nvme::reservation::{ReservationCommand, ReservationType};
use nvme::{Sqe, Status};
use subsystem::catalog::WriteProtect;

use crate::admin::{identify, set_feature};
use crate::harness::{Attached, FakeQueue, Lab, Reply, TestHost, VOLUME_BYTES, read, story, write};
use crate::reservations::Cast;
use crate::subsystems::name;

/// Blocks of every volume here.
const BLOCKS: u64 = VOLUME_BYTES / 4096;

/// The two namespaces of a command: the one that it names, and another one (of a Copy its source).
const HERE: u32 = 1;
const THERE: u32 = 2;

/// What a command does to a namespace (the command groups of Base 2.0, section 8.19; Flush is in that of
/// writes, and not a write to write protection).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Read,
    Write,
    Flush,
}

/// A way to ask for a command: what it does to which namespace, at which blocks.
struct Attempt {
    name: String,
    sqe: Sqe,
    data: Vec<u8>,
    room: usize,
    /// What it does to [`HERE`], and to [`THERE`].
    here: Option<Does>,
    there: Option<Does>,
    /// It names blocks.
    has_range: bool,
    /// What it writes is durable when it is answered (FUA).
    durable: bool,
}

impl Attempt {
    async fn run(&self, queue: &FakeQueue) -> Reply {
        match self.room {
            0 => queue.call_out(self.sqe, self.data.clone()).await,
            room => queue.call_in(self.sqe, room).await,
        }
    }

    async fn refused(&self, queue: &FakeQueue, status: Status, why: &str) {
        let reply = self.run(queue).await;
        assert_eq!(reply.code(), status, "{}: {why}", self.name);
        // A path that does not reach the namespace is no reason to give up: there may be another.
        let retried = status.bits() >> 8 == 3;
        assert_eq!(reply.status.is_dnr(), !retried, "{}: {why}", self.name);
        assert!(reply.data.is_empty(), "{}: {why}", self.name);
    }
}

/// The I/O commands that the target parses, of all opcodes.
fn io_commands() -> Vec<IoCommand> {
    let all = (0..=u8::MAX).map(|opcode| Sqe::new(opcode).with_nsid(HERE));
    all.filter(|sqe| ReservationCommand::parse(sqe).is_none())
        .filter_map(|sqe| IoCommand::parse(&sqe).ok())
        .collect()
}

/// Every way to ask for every command, at one block. Exhaustive: see the module's head.
fn attempts(slba: u64) -> Vec<Attempt> {
    let commands = io_commands();
    assert_eq!(commands.len(), 9, "{commands:?}");
    let ways = commands.iter().flat_map(|command| ways(command, slba));
    ways.collect()
}

fn ways(command: &IoCommand, slba: u64) -> Vec<Attempt> {
    let (nsid, range) = (HERE, LbaRange { slba, blocks: 1 });
    let one = |command: IoCommand, data: Vec<u8>, room, here| Attempt {
        name: format!("{command:?}"),
        sqe: command.to_sqe(),
        data,
        room,
        here: Some(here),
        there: None,
        has_range: true,
        durable: false,
    };
    let block = || vec![0x5a; 4096];
    let with_fua = |way: &dyn Fn(bool) -> Attempt| {
        [false, true].map(|fua| Attempt {
            durable: fua,
            ..way(fua)
        })
    };
    match *command {
        IoCommand::Flush { .. } => vec![Attempt {
            has_range: false,
            durable: true,
            ..one(IoCommand::Flush { nsid }, Vec::new(), 0, Does::Flush)
        }],
        IoCommand::Read { .. } => with_fua(&|fua| {
            let command = IoCommand::Read { nsid, range, fua };
            one(command, Vec::new(), 4096, Does::Read)
        })
        .into(),
        IoCommand::Compare { .. } => {
            let command = IoCommand::Compare { nsid, range };
            // Equal to what [`scene`] wrote.
            vec![one(command, vec![1; 4096], 0, Does::Read)]
        }
        IoCommand::Verify { .. } => {
            let command = IoCommand::Verify { nsid, range };
            vec![one(command, Vec::new(), 0, Does::Read)]
        }
        IoCommand::Write { .. } => with_fua(&|fua| {
            let command = IoCommand::Write { nsid, range, fua };
            one(command, block(), 0, Does::Write)
        })
        .into(),
        IoCommand::WriteZeroes { .. } => with_fua(&|fua| {
            let command = IoCommand::WriteZeroes {
                nsid,
                range,
                fua,
                deallocate: fua,
            };
            one(command, Vec::new(), 0, Does::Write)
        })
        .into(),
        IoCommand::WriteUncorrectable { .. } => {
            let command = IoCommand::WriteUncorrectable { nsid, range };
            // What was made unreadable does not come back when the power goes.
            vec![Attempt {
                durable: true,
                ..one(command, Vec::new(), 0, Does::Write)
            }]
        }
        IoCommand::DatasetManagement { .. } => [false, true]
            .map(|deallocate| {
                let command = IoCommand::DatasetManagement {
                    nsid,
                    ranges: 1,
                    deallocate,
                };
                let data = DsmRange { slba, blocks: 1 }.encode().to_vec();
                one(command, data, 0, Does::Write)
            })
            .into(),
        IoCommand::Copy { .. } => {
            let copy = |fua, from_nsid: Option<u32>, (to, from): (u64, u64)| {
                let format = match from_nsid {
                    None => CopyFormat::SameNamespace,
                    Some(_) => CopyFormat::AnyNamespace,
                };
                let range = CopyRange {
                    nsid: from_nsid.unwrap_or(0),
                    slba: from,
                    blocks: 1,
                    fast_only: false,
                };
                let command = IoCommand::Copy {
                    nsid,
                    slba: to,
                    ranges: 1,
                    format,
                    fua,
                };
                Attempt {
                    name: format!("{command:?} of {range:?}"),
                    there: from_nsid.map(|_| Does::Read),
                    ..one(command, range.encode(format).to_vec(), 0, Does::Write)
                }
            };
            let other = if slba == 8 { 9 } else { 8 };
            let mut all = Vec::new();
            // Within the namespace, where either end is at the block; and from another one.
            all.extend(with_fua(&|fua| copy(fua, None, (slba, other))));
            all.extend(with_fua(&|fua| copy(fua, None, (other, slba))));
            all.extend(with_fua(&|fua| copy(fua, Some(THERE), (slba, other))));
            all.extend(with_fua(&|fua| copy(fua, Some(THERE), (other, slba))));
            all
        }
    }
}

/// Two namespaces with something in their first blocks, and a host that may copy between them.
async fn prepare(lab: &Lab) -> (Attached, FakeQueue) {
    lab.create_volume("there", VOLUME_BYTES, 4096).await;
    let host = lab.attach(1).await;
    let queue = lab.io_queue(&host, 1).await;
    for nsid in [HERE, THERE] {
        fill(&queue, nsid).await;
    }
    copies_between_namespaces(&host).await;
    (host, queue)
}

async fn fill(queue: &FakeQueue, nsid: u32) {
    let data = vec![1; 16 * 4096];
    queue.call_out(write(nsid, 0, 16), data).await.ok();
}

async fn copies_between_namespaces(host: &Attached) {
    let behavior = HostBehavior {
        copy_formats: CopyFormat::AnyNamespace.bit(),
        ..HostBehavior::default()
    };
    let set = SetFeatures {
        fid: 0x16,
        save: false,
        dwords: [0; 5],
        nsid: 0,
    };
    let data = behavior.encode().to_vec();
    host.admin.call_out(set.to_sqe(), data).await.ok();
}

async fn protect(lab: &Lab, nsid: u32, state: WriteProtect) {
    lab.change(|catalog| {
        let nqn = name(subsystem::DEFAULT_SUBSYSTEM_NQN);
        catalog.namespace_mut(&nqn, nsid)?.write_protect = state;
        Ok(())
    })
    .await;
}

#[test]
fn every_command_works_when_nothing_keeps_it_back() {
    story(async |lab| {
        let (_, queue) = prepare(&lab).await;
        for attempt in attempts(3) {
            fill(&queue, HERE).await;
            let status = attempt.run(&queue).await.status;
            assert!(status.is_success(), "{}: {status}", attempt.name);
        }
        lab.all_buffers_are_back().await;
    });
}

/// What a host may do, by the order of the types' numbers; for each type the holder, another registrant, and
/// a host that is not registered: A is allowed, C a conflict. From the figure 'Command Behavior in the
/// Presence of a Reservation' of Base 2.0.
const fn reservation_row(does: Does) -> [&'static str; 6] {
    match does {
        //                      WE     EA     WERO   EARO   WEAR   EAAR
        Does::Read => ["AAA", "ACC", "AAA", "AAC", "AAA", "AAC"],
        Does::Write | Does::Flush => ["ACC", "ACC", "AAC", "AAC", "AAC", "AAC"],
    }
}

#[test]
fn every_command_meets_every_type_of_reservation_as_the_specification_says() {
    story(async |lab| {
        let (_, own) = prepare(&lab).await;
        // Reservations are of the namespace that the cast reserves: `HERE`. What a copy reads is tried by copying
        // from it, too.
        let cast = Cast::new(&lab).await;
        for attached in &cast.attached {
            copies_between_namespaces(attached).await;
        }
        let mut tried: Vec<(Attempt, Does)> = Vec::new();
        for attempt in attempts(3) {
            let does = attempt.here.expect("every command names a namespace");
            if attempt.there.is_some() {
                // The same with the reserved namespace as the source.
                let mut swapped = attempts_named(&attempt.name);
                swapped.sqe = swapped.sqe.with_nsid(THERE);
                swapped.data[..4].copy_from_slice(&HERE.to_le_bytes());
                swapped.name.push_str(", the other way");
                tried.push((swapped, Does::Read));
            }
            tried.push((attempt, does));
        }
        for kind in ReservationType::ALL {
            cast.set(kind).await;
            for (attempt, does) in &tried {
                let mut got = String::new();
                for queue in [&cast.holder, &cast.registrant, &cast.other] {
                    // The holder may always write: so that Compare and Verify find what they expect.
                    fill(&cast.holder, HERE).await;
                    got.push(match attempt.run(queue).await {
                        reply if reply.status.is_success() => 'A',
                        reply => {
                            let code = reply.code();
                            assert_eq!(code, Status::RESERVATION_CONFLICT, "{}", attempt.name);
                            assert!(reply.status.is_dnr(), "{}", attempt.name);
                            'C'
                        }
                    });
                }
                let expected = reservation_row(*does)[usize::from(kind.as_u8()) - 1];
                assert_eq!(got, expected, "{} under {}", attempt.name, kind.name());
            }
        }
        drop(own);
    });
}

fn attempts_named(name: &str) -> Attempt {
    let mut all = attempts(3).into_iter();
    all.find(|attempt| attempt.name == name).expect("the same")
}

#[test]
fn no_command_changes_a_protected_namespace_and_all_others_work() {
    story(async |lab| {
        let (_, queue) = prepare(&lab).await;
        let content = async |nsid| queue.call_in(read(nsid, 0, 16), 16 * 4096).await.ok().data;
        for state in [
            WriteProtect::On,
            WriteProtect::UntilPowerCycle,
            WriteProtect::Permanent,
        ] {
            protect(&lab, HERE, state).await;
            let before = content(HERE).await;
            for attempt in attempts(3) {
                match attempt.here {
                    Some(Does::Write) => {
                        let status = Status::NAMESPACE_WRITE_PROTECTED;
                        attempt.refused(&queue, status, "protected").await;
                    }
                    _ => {
                        attempt.run(&queue).await.ok();
                    }
                }
            }
            assert_eq!(content(HERE).await, before);
        }
        // A protected source is no reason against a copy.
        protect(&lab, HERE, WriteProtect::Off).await;
        protect(&lab, THERE, WriteProtect::On).await;
        for attempt in attempts(3) {
            fill(&queue, HERE).await;
            let status = attempt.run(&queue).await.status;
            assert!(status.is_success(), "{}: {status}", attempt.name);
        }
    });
}

#[test]
fn no_command_reaches_a_namespace_that_is_masked_or_on_no_path() {
    story(async |lab| {
        let (host, queue) = prepare(&lab).await;
        let nqn = name(subsystem::DEFAULT_SUBSYSTEM_NQN);
        let masks = async |nsid: u32, on: bool| {
            lab.change(|catalog| {
                let other = BTreeSet::from([TestHost::new(9).nqn]);
                catalog.namespace_mut(&nqn, nsid)?.hosts = on.then_some(other);
                Ok(())
            })
            .await;
        };
        let path = async |nsid: u32, state: AnaState| {
            lab.change(|catalog| {
                catalog.namespace_mut(&nqn, nsid)?.ana_group = nsid;
                catalog.set_ana("1", nsid, state)?;
                Ok(())
            })
            .await;
        };
        for nsid in [HERE, THERE] {
            // Of the other namespace, only what looks at it: copies from there.
            let concerned = |attempt: &Attempt| nsid == HERE || attempt.there.is_some();
            masks(nsid, true).await;
            for attempt in attempts(3).iter().filter(|attempt| concerned(attempt)) {
                let status = Status::INVALID_NAMESPACE;
                attempt.refused(&queue, status, "masked").await;
            }
            masks(nsid, false).await;
            for (state, status) in [
                (AnaState::Inaccessible, Status::ASYMMETRIC_INACCESSIBLE),
                (AnaState::PersistentLoss, Status::ASYMMETRIC_PERSISTENT_LOSS),
                (AnaState::Change, Status::ASYMMETRIC_TRANSITION),
            ] {
                path(nsid, state).await;
                for attempt in attempts(3).iter().filter(|attempt| concerned(attempt)) {
                    attempt.refused(&queue, status, state.name()).await;
                }
            }
            path(nsid, AnaState::NonOptimized).await;
        }
        for attempt in attempts(3) {
            fill(&queue, HERE).await;
            attempt.run(&queue).await.ok();
        }
        drop(host);
    });
}

#[test]
fn no_command_reaches_beyond_the_end_of_a_volume() {
    story(async |lab| {
        let (_, queue) = prepare(&lab).await;
        let last = vec![1; 4096];
        for attempt in attempts(BLOCKS - 1) {
            queue
                .call_out(write(HERE, BLOCKS - 1, 1), last.clone())
                .await
                .ok();
            let status = attempt.run(&queue).await.status;
            assert!(status.is_success(), "{}: {status}", attempt.name);
        }
        for beyond in [BLOCKS, BLOCKS + 1, 1 << 52, u64::MAX] {
            for attempt in attempts(beyond).iter().filter(|attempt| attempt.has_range) {
                let status = Status::LBA_OUT_OF_RANGE;
                attempt.refused(&queue, status, "beyond the end").await;
            }
        }
    });
}

/// Leaves something that a loss of power would take: a content that nobody has written before.
async fn leave_unflushed(lab: &Lab, queue: &FakeQueue, number: &mut u64) {
    *number += 1;
    let mut data = vec![0; 4096];
    data[..8].copy_from_slice(&number.to_le_bytes());
    queue.call_out(write(HERE, 12, 1), data).await.ok();
    assert_ne!(lab.engine.status().unflushed_bytes, 0);
}

#[test]
fn force_unit_access_and_no_write_cache_make_every_write_durable() {
    story(async |lab| {
        let (host, queue) = prepare(&lab).await;
        let other = lab.attach(2).await;
        let other = lab.io_queue(&other, 1).await;
        let (is_durable, mut number) = (|| lab.engine.status().unflushed_bytes == 0, 1000);
        for attempt in attempts(3) {
            fill(&queue, HERE).await;
            leave_unflushed(&lab, &other, &mut number).await;
            attempt.run(&queue).await.ok();
            assert_eq!(is_durable(), attempt.durable, "{}", attempt.name);
        }
        // A host without a write cache need not ask: what can be asked for by FUA is done. Deallocated and unreadable
        // blocks are no data.
        set_feature(&host, 6, 0).await.ok();
        let asks = |name: &str| name.contains("fua") && !name.starts_with("Read");
        let of_data = |attempt: &&Attempt| asks(&attempt.name) || attempt.name.starts_with("Flush");
        for attempt in attempts(3).iter().filter(of_data) {
            leave_unflushed(&lab, &other, &mut number).await;
            attempt.run(&queue).await.ok();
            assert!(is_durable(), "{}", attempt.name);
        }
    });
}

#[test]
fn what_was_acknowledged_is_durable_when_the_host_hears_that_the_namespace_is_protected() {
    story(async |lab| {
        let (host, queue) = prepare(&lab).await;
        let mut number = 1000;
        for state in [WriteProtect::On, WriteProtect::UntilPowerCycle] {
            leave_unflushed(&lab, &queue, &mut number).await;
            let set = SetFeatures {
                fid: 0x84,
                save: false,
                dwords: [state.feature_value(), 0, 0, 0, 0],
                nsid: HERE,
            };
            host.admin.call(set.to_sqe()).await.ok();
            assert_eq!(lab.engine.status().unflushed_bytes, 0, "{state}");
            let get = GetFeatures {
                fid: 0x84,
                select: 0,
                cdw11: 0,
                nsid: HERE,
            };
            let told = host.admin.call(get.to_sqe()).await.ok().result;
            assert_eq!(told, u64::from(state.feature_value()));
            protect(&lab, HERE, WriteProtect::Off).await;
        }
    });
}

/// What Identify may tell a host about a namespace that it may not see.
enum Tells {
    /// Nothing about namespaces.
    Nothing,
    /// That there is none of that number.
    InvalidNamespace,
    /// The page of one that is not active: zeros.
    Zeros,
    /// A list of namespaces, without it.
    Namespaces,
    /// A list of controllers, of the host's own.
    Controllers,
}

/// Exhaustive: a new page does not compile until it is said here what it tells.
const fn told_of_masked(cns: Cns) -> Tells {
    match cns {
        Cns::Controller | Cns::CsiController | Cns::CommandSets => Tells::Nothing,
        Cns::Namespace | Cns::AllocatedNamespace => Tells::Zeros,
        Cns::ActiveNamespaces | Cns::CsiActiveNamespaces | Cns::AllocatedNamespaces => {
            Tells::Namespaces
        }
        Cns::NamespaceDescriptors
        | Cns::CsiNamespace
        | Cns::CsiIndependentNamespace
        | Cns::AttachedControllers => Tells::InvalidNamespace,
        Cns::Controllers => Tells::Controllers,
    }
}

#[test]
fn no_identify_page_tells_a_host_of_masked_namespaces_or_of_other_hosts() {
    story(async |lab| {
        let (_, _queue) = prepare(&lab).await;
        let nqn = name(subsystem::DEFAULT_SUBSYSTEM_NQN);
        lab.change(|catalog| {
            let only = BTreeSet::from([TestHost::new(1).nqn]);
            catalog.namespace_mut(&nqn, THERE)?.hosts = Some(only);
            Ok(())
        })
        .await;
        let (host, second_path) = (lab.attach(2).await, lab.attach(2).await);
        let own = vec![host.cntlid, second_path.cntlid];
        for cns in (0..=u8::MAX).filter_map(Cns::from_u8) {
            let reply = identify(&host, cns.as_u8(), THERE).await;
            match told_of_masked(cns) {
                Tells::Nothing => {
                    reply.ok();
                }
                Tells::InvalidNamespace => {
                    reply.refused(Status::INVALID_NAMESPACE);
                }
                Tells::Zeros => {
                    let inactive = IdentifyNamespace::default().encode();
                    assert_eq!(reply.ok().data, &inactive[..], "{cns:?}");
                }
                Tells::Namespaces => {
                    let all = identify(&host, cns.as_u8(), 0).await.ok().data;
                    let all = decode_namespace_list(&all);
                    assert_eq!(all, Some(vec![HERE]), "{cns:?}");
                }
                Tells::Controllers => {
                    let all = decode_controller_list(&reply.ok().data);
                    assert_eq!(all, Some(own.clone()), "{cns:?}");
                }
            }
        }
        // Who sees a namespace of everybody: of other hosts no controller either.
        let seen_by = identify(&host, Cns::AttachedControllers.as_u8(), HERE).await;
        let page = seen_by.ok().data;
        assert_eq!(page, encode_controller_list(&own));
        // Lists go on behind the identifier that is asked for.
        let from = Identify {
            cns: Cns::Controllers.as_u8(),
            cntid: second_path.cntlid,
            nsid: 0,
            csi: 0,
            specific_id: 0,
        };
        let page = host.admin.call_in(from.to_sqe(), 4096).await.ok().data;
        assert_eq!(page, encode_controller_list(&own[1..]));
    });
}
