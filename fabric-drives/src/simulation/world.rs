//! Virtual time, the network, the machines and the sleds, on one thread. A task goes on when an answer comes, or a deadline has passed.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use nvme::Status;
use nvme::node_table::{NodeEntries, SentText};
use nvme::reservation::ReservationReport;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use reservations::{Access, HostId, Request, Reservations};
use sled::NodeTable;

use super::media::{Block, Folder, Media};
use super::truth::Truth;
use super::{Broken, is_broken};

/// Milliseconds.
pub(super) type Ms = u64;

/// What a process asks of a sled.
#[derive(Clone)]
pub(super) enum Op {
    Report,
    Reserve(Request),
    Read,
    Write(Block),
    Flush,
    Keep {
        number: u16,
        node: [u8; 16],
        lease: Ms,
        text: Rc<Vec<u8>>,
    },
    GiveUp {
        number: u16,
        node: [u8; 16],
    },
    List,
}

/// What it answers.
pub(super) enum Answer {
    /// The association that was asked for too.
    Report(ReservationReport, u64),
    Media(Rc<Media>),
    Entries(NodeEntries),
    Done,
    Refused(Status),
}

/// A question, and by which association; `None` makes one.
pub(super) struct Ask {
    pub(super) sled: usize,
    pub(super) host: HostId,
    pub(super) boot: Option<u64>,
    pub(super) op: Op,
}

struct Call {
    answers: Vec<Option<Answer>>,
    left: usize,
    is_over: bool,
    task: u64,
}

/// Answers, `None` where none came in time.
pub(super) struct Gather(Rc<RefCell<Call>>);

impl Future for Gather {
    type Output = Vec<Option<Answer>>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let mut call = self.0.borrow_mut();
        match call.is_over {
            true => Poll::Ready(std::mem::take(&mut call.answers)),
            false => Poll::Pending,
        }
    }
}

#[derive(Clone)]
struct Message {
    node: usize,
    process: u64,
    host: HostId,
    boot: Option<u64>,
    op: Op,
    call: Rc<RefCell<Call>>,
    at: usize,
}

/// Preempt and Abort is answered when these have ended.
struct Barrier {
    waits: Vec<u64>,
    message: Message,
}

pub(super) struct Sled {
    pub(super) is_up: bool,
    pub(super) is_gone: bool,
    /// Counts its starts; associations belong to one.
    pub(super) boot: u64,
    pub(super) slow: Ms,
    /// Its clock began at this moment, and goes so many percent as fast as others.
    clock: (Instant, u64),
    table: NodeTable,
    pub(super) reservations: Reservations,
    in_flight: BTreeMap<u64, Message>,
    barriers: Vec<Barrier>,
    pub(super) media: Media,
    stable: Media,
    unflushed: Vec<Block>,
}

impl Sled {
    /// The host that has the drive reserved.
    pub(super) fn holder(&self) -> Option<HostId> {
        let registrants = self.reservations.report().registrants.into_iter();
        let mut holders = registrants.filter(|one| one.is_holder);
        holders.next().map(|one| HostId::from_bytes(one.host))
    }

    fn now(&self, now: Ms) -> Instant {
        self.clock.0 + Duration::from_millis(now * self.clock.1 / 100)
    }
}

/// Which way a link is cut: the questions, or the answers.
pub(super) type Ways = [bool; 2];

pub(super) struct Machine {
    /// The process that it runs.
    pub(super) process: Option<u64>,
    pub(super) is_paused: bool,
    pub(super) is_gone: bool,
    /// Tasks that go on when it wakes.
    waiting: Vec<u64>,
    /// Its clock goes so many percent as fast as others.
    rate: u64,
    pub(super) is_cut: Vec<Ways>,
    /// The pool's folder, on the machine's own disk.
    pub(super) folder: Option<Folder>,
}

struct Task {
    process: u64,
    node: usize,
    future: Pin<Box<dyn Future<Output = ()>>>,
}

enum Event {
    Arrives(usize, Message),
    Ends(usize, u64, u64),
    Answers(Rc<RefCell<Call>>, usize, Answer),
    Deadline(Rc<RefCell<Call>>),
    Happens(Box<dyn FnOnce(&Sim)>),
}

struct Entry {
    at: Ms,
    number: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

pub(super) struct World {
    pub(super) rng: ChaCha8Rng,
    pub(super) now: Ms,
    events: BinaryHeap<Entry>,
    numbers: u64,
    tasks: BTreeMap<u64, Task>,
    current: u64,
    /// Nothing fails any more.
    pub(super) is_calm: bool,
    /// What happens is printed.
    pub(super) is_told: bool,
    pub(super) sleds: Vec<Sled>,
    pub(super) machines: Vec<Machine>,
    pub(super) truth: Truth,
}

/// The world, as its tasks have it.
#[derive(Clone)]
pub(super) struct Sim(Rc<RefCell<World>>);

thread_local! {
    /// The beginning of time; clocks of sleds begin at some moment after it.
    static BEGINNING: Cell<Instant> = Cell::new(Instant::now());
}

pub(super) fn beginning() -> Instant {
    BEGINNING.get()
}

impl World {
    fn push(&mut self, at: Ms, event: Event) {
        self.numbers += 1;
        let number = self.numbers;
        self.events.push(Entry { at, number, event });
    }

    /// For who replays a seed.
    pub(super) fn tell(&self, what: impl FnOnce() -> String) {
        if self.is_told {
            eprintln!("{:6} {}", self.now, what());
        }
    }

    pub(super) fn coin(&mut self, of: u64) -> bool {
        self.rng.random_range(0..of) == 0
    }

    /// How long a message takes. Some are late, and overtaken by others.
    fn travel(&mut self) -> Ms {
        match self.rng.random_range(0..100) {
            0 if !self.is_calm => self.rng.random_range(300..4000),
            1..6 if !self.is_calm => self.rng.random_range(10..300),
            _ => self.rng.random_range(1..4),
        }
    }

    /// How long a message takes by a link; `None`: it is lost.
    fn way(&mut self, node: usize, sled: usize, way: usize) -> Option<Ms> {
        let travel = self.travel();
        if !self.machines[node].is_cut[sled][way] {
            return Some(travel);
        }
        // Something in between keeps it, and delivers it later.
        match self.coin(3) {
            true => Some(travel + self.rng.random_range(200..4000)),
            false => None,
        }
    }

    fn send(&mut self, sled: usize, message: Message) {
        if let Some(travel) = self.way(message.node, sled, 0) {
            if travel > 300 {
                self.truth.seen.late += 1;
            }
            self.push(self.now + travel, Event::Arrives(sled, message));
        }
    }

    fn answer(&mut self, sled: usize, message: &Message, answer: Answer) {
        if let Some(travel) = self.way(message.node, sled, 1) {
            let event = Event::Answers(message.call.clone(), message.at, answer);
            self.push(self.now + travel, event);
        }
    }

    /// A command reaches its sled (sled/src/commands).
    fn arrives(&mut self, at: usize, message: Message) {
        let now = self.now;
        let sled = &mut self.sleds[at];
        if !sled.is_up || message.boot.is_some_and(|boot| boot != sled.boot) {
            return;
        }
        let clock = sled.now(now);
        let status = |done: Result<(), Status>| match done {
            Ok(()) => Answer::Done,
            Err(status) => Answer::Refused(status),
        };
        let access = match &message.op {
            Op::List => {
                let entries = sled.table.list(clock);
                return self.answer(at, &message, Answer::Entries(entries));
            }
            Op::Keep {
                number,
                node,
                lease,
                text,
            } => {
                let sent = SentText { uuid: *node, text };
                let lease = Duration::from_millis(*lease);
                let kept = sled.table.keep(*number, sent, lease, clock);
                return self.answer(at, &message, status(kept));
            }
            Op::GiveUp { number, node } => {
                let given = sled.table.give_up(*number, *node);
                return self.answer(at, &message, status(given));
            }
            Op::Report => {
                let answer = Answer::Report(sled.reservations.report(), sled.boot);
                return self.answer(at, &message, answer);
            }
            Op::Reserve(_) => None,
            Op::Read => Some(Access::Read),
            Op::Write(_) | Op::Flush => Some(Access::Write),
        };
        if access.is_some_and(|access| !sled.reservations.admits(&message.host, access)) {
            self.truth.seen.refused += 1;
            let refused = Answer::Refused(Status::RESERVATION_CONFLICT);
            return self.answer(at, &message, refused);
        }
        let slow = sled.slow;
        self.numbers += 1;
        let (id, boot) = (self.numbers, self.sleds[at].boot);
        self.sleds[at].in_flight.insert(id, message);
        let takes = match !self.is_calm && self.coin(15) {
            true => self.rng.random_range(20..900),
            false => self.rng.random_range(0..=1 + slow),
        };
        self.push(now + takes, Event::Ends(at, boot, id));
    }

    /// The drive has done a command.
    fn ends(&mut self, at: usize, boot: u64, id: u64) {
        let sled = &mut self.sleds[at];
        if sled.boot != boot {
            return;
        }
        let Some(message) = sled.in_flight.remove(&id) else {
            return;
        };
        let answer = match &message.op {
            Op::Reserve(request) => match sled.reservations.apply(message.host, *request) {
                Err(status) => Answer::Refused(status),
                Ok(effects) => {
                    let is_taken = matches!(request, Request::Acquire { .. });
                    let now = &sled.reservations;
                    let is_out = |host: &HostId| {
                        effects.abort.contains(host) || is_taken && !now.admits(host, Access::Write)
                    };
                    let theirs = sled.in_flight.iter();
                    let theirs = theirs.filter(|(_, other)| is_out(&other.host));
                    let waits: Vec<u64> = theirs.map(|(id, _)| *id).collect();
                    if !waits.is_empty() && !is_broken(Broken::AnsweredEarly) {
                        self.truth.seen.waited += 1;
                        sled.barriers.push(Barrier { waits, message });
                        return;
                    }
                    Answer::Done
                }
            },
            Op::Write(block) => {
                self.truth.written(at, message.process);
                sled.media.apply(block);
                sled.unflushed.push(block.clone());
                Answer::Done
            }
            Op::Flush => {
                sled.unflushed.clear();
                sled.stable = sled.media.clone();
                Answer::Done
            }
            _ => Answer::Media(Rc::new(sled.media.clone())),
        };
        self.answer(at, &message, answer);
        let barriers = &mut self.sleds[at].barriers;
        for barrier in &mut *barriers {
            barrier.waits.retain(|waits| *waits != id);
        }
        let (over, rest) = std::mem::take(barriers)
            .into_iter()
            .partition(|barrier| barrier.waits.is_empty());
        *barriers = rest;
        let over: Vec<Barrier> = over;
        for barrier in over {
            self.answer(at, &barrier.message, Answer::Done);
        }
    }

    /// The sled loses power: its table, its associations, and what was not flushed. Reservations that persist stay.
    pub(super) fn stop_sled(&mut self, at: usize) {
        let sled = &mut self.sleds[at];
        sled.is_up = false;
        sled.boot += 1;
        sled.table = NodeTable::default();
        sled.reservations = match sled.reservations.persists() {
            true => {
                let bytes = sled.reservations.to_bytes().expect("they can be stored");
                Reservations::from_bytes(&bytes).expect("they were stored")
            }
            false => Reservations::default(),
        };
        sled.barriers.clear();
        let mut unsure = std::mem::take(&mut sled.unflushed);
        for message in std::mem::take(&mut sled.in_flight).into_values() {
            if let Op::Write(block) = message.op {
                unsure.push(block);
            }
        }
        for block in unsure {
            if self.rng.random() {
                self.sleds[at].stable.apply(&block);
            }
        }
        let sled = &mut self.sleds[at];
        sled.media = sled.stable.clone();
        self.truth.seen.restarts += 1;
        self.tell(|| format!("sled {at} stops"));
    }

    /// The process ends where it is.
    pub(super) fn kill(&mut self, node: usize) {
        if let Some(process) = self.machines[node].process.take() {
            self.tell(|| format!("process {process} ends"));
            self.tasks.retain(|_, task| task.process != process);
            self.truth.seen.ended += 1;
        }
        self.machines[node].waiting.clear();
    }
}

impl Sim {
    pub(super) fn new(
        seed: u64,
        sleds: usize,
        nodes: usize,
        media: impl Fn(usize) -> Media,
    ) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let beginning = BEGINNING.get();
        let all = (0..sleds).map(|at| {
            let offset = Duration::from_secs(rng.random_range(0..1_000_000));
            Sled {
                is_up: true,
                is_gone: false,
                boot: 1,
                slow: 0,
                clock: (beginning + offset, rng.random_range(80..125)),
                table: NodeTable::default(),
                reservations: Reservations::default(),
                in_flight: BTreeMap::new(),
                barriers: Vec::new(),
                media: media(at),
                stable: media(at),
                unflushed: Vec::new(),
            }
        });
        let all = all.collect();
        let machines = (0..nodes).map(|_| Machine {
            process: None,
            is_paused: false,
            is_gone: false,
            waiting: Vec::new(),
            rate: rng.random_range(80..125),
            is_cut: vec![[false; 2]; sleds],
            folder: None,
        });
        let machines = machines.collect();
        Self(Rc::new(RefCell::new(World {
            rng,
            now: 0,
            events: BinaryHeap::new(),
            numbers: 0,
            tasks: BTreeMap::new(),
            current: 0,
            is_calm: false,
            is_told: false,
            sleds: all,
            machines,
            truth: Truth::new(sleds),
        })))
    }

    /// Looks at the world, or changes it.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut World) -> T) -> T {
        look(&mut self.0.borrow_mut())
    }

    pub(super) fn at(&self, at: Ms, happens: impl FnOnce(&Self) + 'static) {
        self.with(|world| world.push(at, Event::Happens(Box::new(happens))));
    }

    pub(super) fn after(&self, pause: Ms, happens: impl FnOnce(&Self) + 'static) {
        let now = self.with(|world| world.now);
        self.at(now + pause, happens);
    }

    pub(super) fn spawn(
        &self,
        node: usize,
        process: u64,
        future: impl Future<Output = ()> + 'static,
    ) {
        let id = self.with(|world| {
            world.numbers += 1;
            let future = Box::pin(future);
            let task = Task {
                process,
                node,
                future,
            };
            world.tasks.insert(world.numbers, task);
            world.numbers
        });
        // It begins now, and not within the task that began it.
        self.after(0, move |sim| sim.go_on(id));
    }

    /// Asks sleds, and waits for their answers, as long as that by the clock of the node. Nothing asked is a pause.
    pub(super) fn gather(&self, node: usize, process: u64, asks: Vec<Ask>, within: Ms) -> Gather {
        self.with(|world| {
            let call = Rc::new(RefCell::new(Call {
                answers: asks.iter().map(|_| None).collect(),
                left: asks.len(),
                is_over: false,
                task: world.current,
            }));
            let within = (within * world.machines[node].rate / 100).max(1);
            world.push(world.now + within, Event::Deadline(call.clone()));
            for (at, ask) in asks.into_iter().enumerate() {
                let message = Message {
                    node,
                    process,
                    host: ask.host,
                    boot: ask.boot,
                    op: ask.op,
                    call: call.clone(),
                    at,
                };
                world.send(ask.sled, message);
            }
            Gather(call)
        })
    }

    fn go_on(&self, id: u64) {
        let task = self.with(|world| {
            let node = world.tasks.get(&id)?.node;
            if world.machines[node].is_paused {
                world.machines[node].waiting.push(id);
                return None;
            }
            world.current = id;
            world.tasks.remove(&id)
        });
        let Some(mut task) = task else {
            return;
        };
        let polled = task
            .future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        self.with(|world| {
            let lives = world.machines[task.node].process == Some(task.process);
            if polled.is_pending() && lives {
                world.tasks.insert(id, task);
            }
        });
    }

    /// A machine goes on.
    pub(super) fn wake(&self, node: usize) {
        let waiting = self.with(|world| {
            world.machines[node].is_paused = false;
            std::mem::take(&mut world.machines[node].waiting)
        });
        for id in waiting {
            self.go_on(id);
        }
    }

    fn handle(&self, event: Event) {
        let over = |call: &Rc<RefCell<Call>>| {
            let mut call = call.borrow_mut();
            (!std::mem::replace(&mut call.is_over, true)).then_some(call.task)
        };
        let task = match event {
            Event::Happens(happens) => {
                happens(self);
                None
            }
            Event::Arrives(sled, message) => {
                self.with(|world| world.arrives(sled, message));
                None
            }
            Event::Ends(sled, boot, id) => {
                self.with(|world| world.ends(sled, boot, id));
                None
            }
            Event::Deadline(call) => over(&call),
            Event::Answers(call, at, answer) => {
                let is_last = {
                    let mut call = call.borrow_mut();
                    if call.is_over {
                        return;
                    }
                    call.left -= 1;
                    call.answers[at] = Some(answer);
                    call.left == 0
                };
                is_last.then(|| over(&call)).flatten()
            }
        };
        if let Some(task) = task {
            self.go_on(task);
        }
    }

    /// Goes on until then, or until `is_over`.
    pub(super) fn run(&self, until: Ms, is_over: impl Fn(&World) -> bool) -> bool {
        loop {
            if self.with(|world| is_over(world)) {
                return true;
            }
            let event = self.with(|world| {
                let entry = world.events.peek()?;
                if entry.at > until {
                    return None;
                }
                let entry = world.events.pop()?;
                world.now = entry.at;
                Some(entry.event)
            });
            match event {
                Some(event) => self.handle(event),
                None => return false,
            }
        }
    }

    /// Breaks the circle of world and tasks.
    pub(super) fn end(&self) {
        let (tasks, events) = self.with(|world| {
            let events = std::mem::take(&mut world.events);
            (std::mem::take(&mut world.tasks), events)
        });
        drop((tasks, events));
    }
}
