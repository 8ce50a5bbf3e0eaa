//! Targets that break NVMe/RDMA: their host ends the queue with a reason, or hands the command an error. They
//! reach a command's memory only while it is under way, only in its direction, and only where it is.
//!
//! Completions of what was not asked are in `misbehaving_hosts.rs`; the same over TCP in `tcp/lying_targets.rs`.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use common::*;
use fabric::provider::{
    Completion, ConnectionParams, QueuePair, QueuePairHandler, RdmaListener, RegionKey, Work,
    WorkKind, WorkStatus,
};
use fabric::{
    CloseReason, Device, FabricMemory, HostData, HostError, HostQueue, QueueConnectError,
    SoftConfig,
};
use futures_util::future::join_all;
use nvme::rdma_cm::{RdmaCmAccept, RdmaCmReject};
use nvme::{Cqe, SglDescriptor, Sqe, Status};
use reactor::Buffer;

/// Bytes of a command's data here; more than a capsule takes.
const LEN: usize = 16 << 10;

/// A target's end of a queue, bare, and what happened on it.
#[derive(Default)]
struct Liar {
    qp: RefCell<Option<Rc<dyn QueuePair>>>,
    commands: RefCell<Vec<Sqe>>,
    /// How READs and WRITEs ended.
    accesses: RefCell<Vec<WorkStatus>>,
    closed: Cell<bool>,
}

impl QueuePairHandler for Liar {
    fn established(&self, _private_data: &[u8]) {}

    fn completed(&self, completion: Completion) {
        match completion.kind {
            WorkKind::Receive if completion.status == WorkStatus::Success => {
                let sqe = Sqe::from_capsule(completion.memory.bytes()).expect("a command");
                self.commands.borrow_mut().push(sqe);
            }
            WorkKind::Read | WorkKind::Write => {
                self.accesses.borrow_mut().push(completion.status);
            }
            WorkKind::Receive | WorkKind::Send => {}
        }
    }

    fn closed(&self, _reason: CloseReason) {
        self.qp.take();
        self.closed.set(true);
    }
}

impl Liar {
    fn post(&self, work: Work) {
        if let Some(qp) = &*self.qp.borrow() {
            qp.post_send(0, work).expect("posted");
        }
    }

    fn write(&self, remote: RegionKey, byte: u8, len: usize) {
        let from = FabricMemory::Capsule(vec![byte; len].into_boxed_slice());
        self.post(Work::Write { from, len, remote });
    }

    fn read(&self, remote: RegionKey, len: usize) {
        let into = FabricMemory::capsule(len);
        self.post(Work::Read {
            into,
            offset: 0,
            len,
            remote,
        });
    }

    fn answer(&self, cid: u16, status: Status, invalidate: Option<u32>) {
        let mut cqe = Cqe::new(status, 0);
        cqe.cid = cid;
        let data = FabricMemory::inline(&cqe.encode());
        self.post(Work::Send {
            data,
            len: 16,
            invalidate,
        });
    }

    /// The next command, and where its data are.
    async fn command(&self) -> (u16, RegionKey) {
        until(|| !self.commands.borrow().is_empty()).await;
        let sqe = self.commands.borrow_mut().remove(0);
        match sqe.sgl() {
            Ok(SglDescriptor::Keyed { address, key, .. }) => {
                (sqe.cid(), RegionKey { rkey: key, address })
            }
            _ => (
                sqe.cid(),
                RegionKey {
                    rkey: 0,
                    address: 0,
                },
            ),
        }
    }

    /// How the next READ or WRITE ended; None if the queue did first.
    async fn access(&self) -> Option<WorkStatus> {
        until(|| !self.accesses.borrow().is_empty() || self.closed.get()).await;
        let mut accesses = self.accesses.borrow_mut();
        (!accesses.is_empty()).then(|| accesses.remove(0))
    }
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        reactor::sleep(LOOK_AGAIN).await;
    }
}

/// What lives as long as a story.
struct Scene {
    queue: HostQueue,
    liar: Rc<Liar>,
    _devices: [Device; 2],
    _listener: Box<dyn RdmaListener>,
}

async fn scene() -> Scene {
    let (target, host) = (device(SoftConfig::default()), device(SoftConfig::default()));
    let listener = target.rdma().listen(None, PORT, 4).expect("free");
    let liar = Rc::new(Liar::default());
    let accepting = async {
        let pending = std::future::poll_fn(|cx| listener.poll_accept(cx)).await;
        let params = ConnectionParams {
            private_data: RdmaCmAccept { crqsize: 32 }.encode().to_vec(),
            receives: (0..8).map(|_| FabricMemory::capsule(64 + 4096)).collect(),
            receives_later: 0,
        };
        let handler: Rc<Liar> = liar.clone();
        let qp = pending.expect("open").accept(params, handler);
        *liar.qp.borrow_mut() = Some(qp.expect("accepted"));
    };
    let connector = host.clone().into();
    let connecting = HostQueue::connect(&connector, address(&target), IO);
    let (queue, ()) = futures_util::join!(connecting, accepting);
    Scene {
        queue: queue.expect("a queue"),
        liar,
        _devices: [target, host],
        _listener: listener,
    }
}

type Outcome = Result<(Cqe, Option<Buffer>), HostError>;

/// A command with data, whose memory is full of that byte.
async fn submit(queue: &HostQueue, opcode: u8, byte: u8) -> Outcome {
    let mut memory = buffer(LEN).await;
    memory.fill(byte);
    let data = match opcode {
        READ => HostData::FromTarget(memory, LEN),
        _ => HostData::ToTarget(memory, LEN),
    };
    let submitted = queue.submit(command(opcode, 0, LEN), data);
    let answered = reactor::timeout(Duration::from_secs(60), submitted).await;
    answered.expect("the host waits for ever")
}

/// The queue is over, and not because the host wanted it.
async fn over(what: &str, queue: &HostQueue, outcome: Outcome) {
    let error = outcome.expect_err(what);
    assert!(matches!(error, HostError::Closed { .. }), "{what}: {error}");
    let reason = queue.closed().await;
    assert!(!matches!(reason, CloseReason::Local), "{what}: {reason}");
}

#[test]
fn an_honest_target_reaches_what_it_should() {
    run(async {
        let Scene { queue, liar, .. } = &scene().await;
        let serving = async {
            let (cid, region) = liar.command().await;
            liar.write(region, 7, LEN);
            liar.answer(cid, Status::SUCCESS, Some(region.rkey));
            assert_eq!(liar.access().await, Some(WorkStatus::Success));
            let (cid, region) = liar.command().await;
            liar.read(region, LEN);
            assert_eq!(liar.access().await, Some(WorkStatus::Success));
            liar.answer(cid, Status::SUCCESS, None);
        };
        let asking = async {
            let (_, memory) = submit(queue, READ, 0).await.expect("read");
            assert!(
                memory.expect("it comes back")[..LEN]
                    .iter()
                    .all(|b| *b == 7)
            );
            submit(queue, WRITE, 9).await.expect("written");
        };
        futures_util::join!(serving, asking);
        assert!(!queue.is_closing());
    });
}

#[test]
fn a_target_reaches_memory_only_in_its_commands_direction_and_range() {
    type Access = fn(&Liar, RegionKey);
    fn moved(region: RegionKey, rkey: u32, by: i64) -> RegionKey {
        RegionKey {
            rkey: region.rkey.wrapping_add(rkey),
            address: region.address.wrapping_add_signed(by),
        }
    }
    let cases: [(&str, u8, Access); 9] = [
        ("it reads what a read gets", READ, |liar, region| {
            liar.read(region, LEN);
        }),
        ("it changes what a write has", WRITE, |liar, region| {
            liar.write(region, 1, LEN);
        }),
        ("it writes more than there is", READ, |liar, region| {
            liar.write(region, 1, LEN + 1);
        }),
        ("it writes in front of it", READ, |liar, region| {
            liar.write(moved(region, 0, -1), 1, LEN);
        }),
        ("it writes behind it", READ, |liar, region| {
            liar.write(moved(region, 0, LEN as i64), 1, 16);
        }),
        ("it writes far away", READ, |liar, region| {
            liar.write(moved(region, 0, i64::MIN), 1, 16);
        }),
        ("it reads more than there is", WRITE, |liar, region| {
            liar.read(region, LEN + 1);
        }),
        ("it reads behind it", WRITE, |liar, region| {
            liar.read(moved(region, 0, LEN as i64), 16);
        }),
        ("it has another key", READ, |liar, region| {
            liar.write(moved(region, 1, 0), 1, LEN);
        }),
    ];
    run(async {
        for (what, opcode, access) in cases {
            let Scene { queue, liar, .. } = &scene().await;
            let lying = async {
                let (cid, region) = liar.command().await;
                access(liar, region);
                // And it says that all is well.
                liar.answer(cid, Status::SUCCESS, None);
                let ended = liar.access().await;
                assert!(ended != Some(WorkStatus::Success), "{what}: {ended:?}");
            };
            let (outcome, ()) = futures_util::join!(submit(queue, opcode, 0x3c), lying);
            over(what, queue, outcome).await;
        }
        all_buffers_back().await;
    });
}

#[test]
fn a_target_does_not_reach_the_memory_of_a_command_that_is_over() {
    run(async {
        for status in [Status::SUCCESS, Status::INTERNAL] {
            for invalidates in [false, true] {
                let Scene { queue, liar, .. } = &scene().await;
                let region = Cell::new(None);
                let lying = async {
                    let (cid, key) = liar.command().await;
                    region.set(Some(key));
                    liar.write(key, 7, LEN);
                    liar.answer(cid, status, invalidates.then_some(key.rkey));
                    assert_eq!(liar.access().await, Some(WorkStatus::Success));
                };
                let (outcome, ()) = futures_util::join!(submit(queue, READ, 0), lying);
                let (cqe, memory) = outcome.expect("an answer");
                assert_eq!(cqe.status, status);
                // The caller looks at its data while the target writes once more.
                let memory = memory.expect("it comes back");
                liar.write(region.get().expect("a region"), 8, LEN);
                let ended = liar.access().await;
                assert!(ended != Some(WorkStatus::Success), "{ended:?}");
                assert!(memory[..LEN].iter().all(|byte| *byte == 7));
                assert!(!matches!(queue.closed().await, CloseReason::Local));
            }
        }
        all_buffers_back().await;
    });
}

#[test]
fn a_completion_of_another_command_ends_the_queue_whatever_the_command_was() {
    run(async {
        for opcode in [READ, WRITE] {
            for lie in 0..4 {
                let what = format!("opcode {opcode}, {lie}");
                let Scene { queue, liar, .. } = &scene().await;
                let lying = async {
                    let (cid, region) = liar.command().await;
                    match lie {
                        0 => liar.answer(cid ^ 1, Status::SUCCESS, None),
                        1 => liar.answer(cid ^ 1 << 10, Status::SUCCESS, Some(region.rkey)),
                        2 => liar.answer(cid ^ 0x3ff, Status::INTERNAL, None),
                        _ => liar.answer(cid, Status::SUCCESS, Some(region.rkey ^ 0x100)),
                    }
                };
                let (outcome, ()) = futures_util::join!(submit(queue, opcode, 0), lying);
                over(&what, queue, outcome).await;
            }
        }
        // The end of a command takes only its own memory from the target.
        let Scene { queue, liar, .. } = &scene().await;
        let lying = async {
            let (cid, _) = liar.command().await;
            let (_, region) = liar.command().await;
            liar.answer(cid, Status::INTERNAL, Some(region.rkey));
        };
        let submitted = [submit(queue, READ, 0), submit(queue, READ, 0)];
        let (outcomes, ()) = futures_util::join!(join_all(submitted), lying);
        for outcome in outcomes {
            over("the key of another command", queue, outcome).await;
        }
        // What ended is not answered twice.
        let Scene { queue, liar, .. } = &scene().await;
        let lying = async {
            let (cid, region) = liar.command().await;
            liar.write(region, 1, LEN);
            liar.answer(cid, Status::SUCCESS, None);
            liar.answer(cid, Status::SUCCESS, None);
        };
        let (outcome, ()) = futures_util::join!(submit(queue, READ, 0), lying);
        assert_eq!(outcome.expect("the first one").0.status, Status::SUCCESS);
        let reason = queue.closed().await;
        assert!(matches!(reason, CloseReason::Violation(_)), "{reason}");
    });
}

#[test]
fn a_target_that_goes_away_is_told_as_such() {
    run(async {
        for writes in [false, true] {
            let Scene { queue, liar, .. } = &scene().await;
            let lying = async {
                let (_, region) = liar.command().await;
                if writes {
                    liar.write(region, 1, LEN);
                }
                let qp = liar.qp.borrow().clone().expect("it stands");
                qp.disconnect();
            };
            let (outcome, ()) = futures_util::join!(submit(queue, READ, 0), lying);
            over("it went away", queue, outcome).await;
        }
        all_buffers_back().await;
    });
}

#[test]
fn a_target_that_accepts_or_refuses_without_sense_is_not_connected_to() {
    run(async {
        let other_format = [1, 0, 32, 0];
        let unknown = RdmaCmReject { status: 0x7777 }.encode();
        let other_reject = [9, 0, 1, 0];
        for (what, accepts, private_data) in [
            ("another format", true, &other_format[..]),
            ("a reason that nobody knows", false, &unknown[..]),
            ("a refusal in another format", false, &other_reject[..]),
            ("no reason", false, &[][..]),
        ] {
            let (target, host) = (device(SoftConfig::default()), device(SoftConfig::default()));
            let listener = target.rdma().listen(None, PORT, 4).expect("free");
            let answering = async {
                let pending = std::future::poll_fn(|cx| listener.poll_accept(cx)).await;
                let pending = pending.expect("open");
                if !accepts {
                    return pending.reject(private_data);
                }
                let params = ConnectionParams {
                    private_data: private_data.to_vec(),
                    receives: vec![FabricMemory::capsule(64)],
                    receives_later: 0,
                };
                let accepted = pending.accept(params, Rc::new(Liar::default()));
                drop(accepted.expect("accepted"));
            };
            let connector = host.clone().into();
            let connecting = HostQueue::connect(&connector, address(&target), IO);
            let (queue, ()) = futures_util::join!(connecting, answering);
            let error = queue.expect_err(what);
            assert!(
                matches!(
                    error,
                    QueueConnectError::Failed { .. } | QueueConnectError::Refused { .. }
                ),
                "{what}: {error}"
            );
        }
    });
}
