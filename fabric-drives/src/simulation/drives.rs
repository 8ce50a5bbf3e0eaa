//! The drives as one process has them open: its associations, what is in doubt, and the fences of [`crate::fencing`] by what the simulated
//! sled answers. What `link.rs`, `transfer.rs` and `shared.rs` do around those is modelled here.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drives::DriveError;
use initiator::Error;
use nvme::reservation::{
    AcquireAction, KeyPair, RegisterAction, ReleaseAction, ReservationReport, ReservationType,
};
use nvme::{Nqn, Status};
use rand::Rng;
use reservations::{HostId, Request};
use uuid::Uuid;

use super::media::{Block, Read};
use super::world::{Answer, Ask, Gather, Ms, Op, Sim};
use crate::facts::Facts;
use crate::fencing::Reserves;
use crate::shared::{Shared, new_host_id};
use crate::{Claim, KeyFolder, OpenOptions};

pub(super) const POOL: Uuid = Uuid::from_u128(0x0f01d << 64 | 7);

/// How long a command may take.
const COMMAND: Ms = 600;

const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4420);

/// Why a process cannot go on, or not with this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// It ends: it lost a drive, or may lose something to another node.
    Ends,
    /// It does not have the pool, and may try again.
    NotTaken,
}

/// A process, and where it runs.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) sim: Sim,
    pub(super) node: usize,
    pub(super) process: u64,
    /// Another opening took a drive.
    is_over: Arc<AtomicBool>,
}

impl Place {
    pub(super) fn new(sim: &Sim, node: usize, process: u64) -> Self {
        Self {
            sim: sim.clone(),
            node,
            process,
            is_over: Arc::default(),
        }
    }

    pub(super) fn gather(&self, asks: Vec<Ask>, within: Ms) -> Gather {
        self.sim.gather(self.node, self.process, asks, within)
    }

    pub(super) async fn pause(&self, pause: Ms) {
        self.gather(Vec::new(), pause).await;
    }

    /// # Errors
    /// The process has ended: nothing comes after that.
    pub(super) fn check(&self) -> Result<(), Failed> {
        match self.is_over.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(Failed::Ends),
        }
    }
}

/// A drive that is open.
pub(super) struct Opening {
    place: Place,
    pub(super) sled: usize,
    shared: Arc<Shared>,
    /// The association; `None`: there is none.
    boot: Cell<Option<u64>>,
    is_claimed: Cell<bool>,
    /// A change without an answer may happen yet.
    is_in_doubt: Cell<bool>,
    is_dirty: Cell<bool>,
    /// What was written and not flushed may be lost.
    has_lost: Cell<bool>,
    /// Held by who changes the reservation.
    is_claiming: Cell<bool>,
}

impl Opening {
    fn new(place: &Place, sled: usize) -> Self {
        let node = place.node;
        let host = Nqn::new(&format!("nqn.2026-11.dev.onefold:node:{node}")).expect("a name");
        let over = place.is_over.clone();
        let options = OpenOptions {
            on_taken_over: Some(Arc::new(move |_: &str| over.store(true, Ordering::Relaxed))),
            ..OpenOptions::new(host, KeyFolder::new("/nowhere"))
        };
        let address = format!("nvme+tcp://192.0.2.1/nqn.2026-11.dev.onefold:sled:{sled}#1");
        let shared = Shared::new(address.parse().expect("an address"), options);
        shared.check(Facts::of_sled()).expect("a namespace");
        let opening = Self {
            place: place.clone(),
            sled,
            shared: Arc::new(shared),
            boot: Cell::new(None),
            is_claimed: Cell::new(false),
            is_in_doubt: Cell::new(false),
            is_dirty: Cell::new(false),
            has_lost: Cell::new(false),
            is_claiming: Cell::new(false),
        };
        opening.take_new_host_id();
        opening
    }

    /// One that a seed decides.
    fn take_new_host_id(&self) {
        let mut id = new_host_id(&self.shared.host);
        self.place.sim.with(|world| world.rng.fill(&mut id[8..]));
        self.shared.replace_host_id(id);
        self.boot.set(None);
    }

    fn host(&self) -> HostId {
        HostId::from_bytes(self.shared.state().host_id)
    }

    fn ask(&self, op: Op) -> Ask {
        Ask {
            sled: self.sled,
            host: self.host(),
            boot: self.boot.get(),
            op,
        }
    }

    /// The association is gone.
    fn lose(&self, is_in_doubt: bool) {
        self.boot.set(None);
        self.is_in_doubt.set(self.is_in_doubt.get() || is_in_doubt);
        self.has_lost
            .set(self.has_lost.get() || self.is_dirty.get());
    }

    async fn run(&self, op: Op) -> Result<Answer, Error> {
        let mut answers = self.place.gather(vec![self.ask(op)], COMMAND).await;
        match answers.pop().flatten() {
            Some(Answer::Refused(status)) => Err(Error::Status {
                peer: PEER,
                command: "a command",
                status,
                hint: "",
            }),
            Some(answer) => Ok(answer),
            None => {
                self.lose(false);
                Err(Error::Timeout {
                    peer: PEER,
                    command: "a command",
                    limit: Duration::from_millis(COMMAND),
                })
            }
        }
    }

    /// Waits until nobody else changes the reservation.
    async fn turn(&self) -> Turn<'_> {
        while self.is_claiming.replace(true) {
            self.place.pause(5).await;
        }
        Turn(&self.is_claiming)
    }

    /// An association that may write, if the drive was claimed.
    async fn live(&self) -> Result<(), DriveError> {
        if self.boot.get().is_some() {
            return Ok(());
        }
        let _turn = self.turn().await;
        match self.is_claimed.get() {
            true => self.shared.hold_again(self, POOL).await,
            false => self.report().await.map(drop).map_err(lost),
        }
    }

    async fn claim(&self, claim: Claim) -> Result<(), DriveError> {
        let _turn = self.turn().await;
        // Where nobody was registered, nobody had it: sleds keep that. So it waits for nothing.
        let (key, _) = self.shared.take_for(self, POOL, claim).await?;
        self.shared.claimed(POOL, key);
        self.is_claimed.set(true);
        let (drive, process, host) = (self.sled, self.place.process, self.host());
        self.place.sim.with(|world| {
            // Another one may have taken it before this answer came.
            if world.sleds[drive].holder() == Some(host) {
                world.truth.claim(drive, process);
            }
        });
        Ok(())
    }

    /// Nothing is in doubt afterwards.
    pub(super) async fn fence(&self) -> Result<(), DriveError> {
        let _turn = self.turn().await;
        if !self.is_in_doubt.get() {
            return Ok(());
        }
        self.take_new_host_id();
        self.shared.take_again(self, POOL).await?;
        self.is_in_doubt.set(false);
        self.place.sim.with(|world| world.truth.seen.fences += 1);
        Ok(())
    }

    /// Looks whether another opening has the drive.
    pub(super) async fn look(&self) {
        if !self.is_claimed.get() {
            return;
        }
        match self.boot.get() {
            Some(_) => drop(self.shared.conflict(self).await),
            None => drop(self.live().await),
        }
    }

    /// Gives the reservation up at the end.
    async fn release(&self) {
        if !self.is_claimed.get() || self.is_in_doubt.get() || self.boot.get().is_none() {
            return;
        }
        let generation = self.shared.state().generation;
        let Some(key) = self.shared.reservation.take(generation) else {
            return;
        };
        let request = Request::Release {
            action: ReleaseAction::Release,
            kind: ReservationType::WriteExclusive.as_u8(),
            key,
        };
        let _ = self.run(Op::Reserve(request)).await;
    }
}

fn lost(error: Error) -> DriveError {
    DriveError::new(drives::ErrorKind::Io, "a drive", error.to_string())
}

/// Who changes the reservation.
struct Turn<'a>(&'a Cell<bool>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Reserves for Opening {
    async fn report(&self) -> Result<ReservationReport, Error> {
        match self.run(Op::Report).await? {
            Answer::Report(report, boot) => {
                self.boot.set(Some(boot));
                Ok(report)
            }
            _ => unreachable!("a report was asked for"),
        }
    }

    async fn register(&self, persist: Option<bool>, key: u64) -> Result<(), Error> {
        let keys = KeyPair {
            current: 0,
            other: key,
        };
        let request = Request::Register {
            action: RegisterAction::Register,
            ignore_key: false,
            persist,
            keys,
        };
        self.run(Op::Reserve(request)).await.map(drop)
    }

    async fn acquire(&self, action: AcquireAction, keys: KeyPair) -> Result<(), Error> {
        let kind = ReservationType::WriteExclusive;
        let request = Request::Acquire { action, kind, keys };
        self.run(Op::Reserve(request)).await.map(drop)
    }
}

/// All drives of the pool, as a process has them.
pub(super) struct Drives {
    pub(super) place: Place,
    openings: Vec<Opening>,
}

impl Drives {
    pub(super) fn new(place: &Place) -> Rc<Self> {
        let sleds = place.sim.with(|world| world.sleds.len());
        let openings = (0..sleds).map(|sled| Opening::new(place, sled));
        Rc::new(Self {
            place: place.clone(),
            openings: openings.collect(),
        })
    }

    pub(super) fn all(&self) -> Vec<usize> {
        (0..self.openings.len()).collect()
    }

    pub(super) fn of(&self, drive: usize) -> &Opening {
        &self.openings[drive]
    }

    /// What they hold; those that do not answer are left out.
    pub(super) async fn read(&self, drives: &[usize]) -> Vec<Read> {
        let mut live = Vec::new();
        for drive in drives {
            if self.of(*drive).live().await.is_ok() {
                live.push(*drive);
            }
        }
        let asks = live.iter().map(|drive| self.of(*drive).ask(Op::Read));
        let answers = self.place.gather(asks.collect(), COMMAND).await;
        let read = live.into_iter().zip(answers);
        let read = read.filter_map(|(drive, answer)| match answer {
            Some(Answer::Media(media)) => Some((drive, media)),
            Some(_) => None,
            None => {
                self.of(drive).lose(false);
                None
            }
        });
        read.collect()
    }

    /// Makes a drive this process's.
    pub(super) async fn claim(&self, drive: usize, claim: Claim) -> Result<(), Failed> {
        let claimed = self.of(drive).claim(claim).await;
        self.place.check()?;
        claimed.map_err(|error| {
            let process = self.place.process;
            let told = || format!("process {process} does not get drive {drive}: {error}");
            self.place.sim.with(|world| world.tell(told));
            Failed::NotTaken
        })
    }

    /// Writes to drives at the same time, and flushes them; those that failed.
    pub(super) async fn write(&self, blocks: Vec<(usize, Block)>) -> Result<Vec<usize>, Failed> {
        let mut failed = Vec::new();
        let mut live = Vec::new();
        for (drive, block) in blocks {
            let opening = self.of(drive);
            let is_live = !opening.is_in_doubt.get() && opening.live().await.is_ok();
            self.place.check()?;
            match is_live {
                true => live.push((drive, Op::Write(block))),
                false => failed.push(drive),
            }
        }
        let written = self.change(live, &mut failed).await?;
        for drive in &written {
            self.of(*drive).is_dirty.set(true);
        }
        let flushes = written.into_iter().map(|drive| (drive, Op::Flush));
        let flushed = self.change(flushes.collect(), &mut failed).await?;
        for drive in flushed {
            let opening = self.of(drive);
            match opening.has_lost.get() {
                true => failed.push(drive),
                false => opening.is_dirty.set(false),
            }
        }
        Ok(failed)
    }

    /// Drives that did that; the others failed.
    async fn change(
        &self,
        ops: Vec<(usize, Op)>,
        failed: &mut Vec<usize>,
    ) -> Result<Vec<usize>, Failed> {
        let drives: Vec<usize> = ops.iter().map(|(drive, _)| *drive).collect();
        let asks = ops.into_iter().map(|(drive, op)| self.of(drive).ask(op));
        let answers = self.place.gather(asks.collect(), COMMAND).await;
        let mut done = Vec::new();
        for (drive, answer) in drives.into_iter().zip(answers) {
            let opening = self.of(drive);
            match answer {
                Some(Answer::Refused(status)) => {
                    if status.code() == Status::RESERVATION_CONFLICT {
                        let _ = opening.shared.conflict(opening).await;
                        self.place.check()?;
                    }
                    failed.push(drive);
                }
                Some(_) => done.push(drive),
                None => {
                    opening.lose(true);
                    failed.push(drive);
                }
            }
        }
        self.place.check()?;
        Ok(done)
    }

    /// Who compares, or writes again, all that the drive should have says that nothing of before matters.
    pub(super) fn forget_losses(&self, drive: usize) {
        self.of(drive).is_dirty.set(false);
        self.of(drive).has_lost.set(false);
    }

    /// Gives all of them up.
    pub(super) async fn release(&self) {
        for opening in &self.openings {
            opening.release().await;
        }
    }
}
