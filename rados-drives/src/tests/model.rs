//! A cluster in memory, with the rules of RADOS that drives rely on: the changes of one operation happen together; a client on
//! the blocklist is refused, whenever what it sent arrives; a lock has a lease.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use reactor::sync::{Permit, oneshot};

use crate::client::{
    Change, Client, Cluster, Errno, Filled, Holder, Memory, Pending, Refusal, Times,
};

#[derive(Default)]
struct Object {
    data: Vec<u8>,
    attributes: BTreeMap<String, Vec<u8>>,
    lock: Option<(Holder, Instant)>,
}

/// A change that outlives the call.
#[derive(Clone)]
enum Owned {
    Expect(String, Vec<u8>),
    Set(String, Vec<u8>),
    Replace(Vec<u8>),
    Write(u64, Vec<u8>),
    Zero(u64, u64),
    Remove,
}

impl From<&Change<'_>> for Owned {
    fn from(change: &Change<'_>) -> Self {
        match *change {
            Change::Expect(name, value) => Self::Expect(name.to_owned(), value.to_vec()),
            Change::Set(name, value) => Self::Set(name.to_owned(), value.to_vec()),
            Change::Replace(data) => Self::Replace(data.to_vec()),
            Change::Write(at, data) => Self::Write(at, data.to_vec()),
            Change::Zero(at, len) => Self::Zero(at, len),
            Change::Remove => Self::Remove,
        }
    }
}

/// An operation of a client that did not arrive yet.
struct Late {
    client: String,
    object: String,
    changes: Vec<Owned>,
}

#[derive(Default)]
struct World {
    objects: BTreeMap<String, Object>,
    blocklist: BTreeSet<String>,
    clients: u64,
    /// All operations fail with it, when so many changes more were made.
    failure: Option<Errno>,
    fails_after: u64,
    /// Operations that read or change data.
    operations: u64,
    /// There is no room for changes that make an object larger.
    is_full: bool,
    /// Changes of that object fail.
    refused: Option<(String, Errno)>,
    /// Nobody may shut others out.
    forbids_shutting_out: bool,
    /// Clients from which nothing arrives.
    cut_off: BTreeSet<String>,
    /// Changes time out, and arrive later.
    holds_changes: bool,
    late: Vec<Late>,
}

/// What somebody else does at a moment.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// See the module.
#[derive(Default)]
pub(super) struct Model {
    world: Mutex<World>,
    /// Before the next lock is taken.
    before_lock: Mutex<Option<Meanwhile>>,
}

impl Model {
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("no panic")
    }

    /// Somebody does that just before the next lock is taken.
    pub(super) fn before_lock(&self, run: impl FnOnce() + Send + 'static) {
        *self.before_lock.lock().expect("no panic") = Some(Box::new(run));
    }

    pub(super) fn fail(&self, failure: Option<Errno>) {
        let mut world = self.world();
        (world.fails_after, world.failure) = (0, failure);
    }

    /// All operations fail when so many changes more were made.
    pub(super) fn fail_after(&self, operations: u64, failure: Errno) {
        let mut world = self.world();
        (world.fails_after, world.failure) = (operations, Some(failure));
    }

    /// Operations that read or change data so far.
    pub(super) fn operations(&self) -> u64 {
        self.world().operations
    }

    /// Changes of an object fail, or do not any more.
    pub(super) fn refuse_objects(&self, object: &str, failure: Option<Errno>) {
        self.world().refused = failure.map(|failure| (object.to_owned(), failure));
    }

    /// Changes that make an object larger find no room, or do again.
    pub(super) fn refuse_growth(&self, is_full: bool) {
        self.world().is_full = is_full;
    }

    /// Nobody may shut others out, or everybody may again.
    pub(super) fn forbid_shutting_out(&self, forbids: bool) {
        self.world().forbids_shutting_out = forbids;
    }

    /// A byte of an object's data.
    pub(super) fn data(&self, object: &str, at: usize) -> Option<u8> {
        let world = self.world();
        world.objects.get(object)?.data.get(at).copied()
    }

    /// Changes a bit of an object's data.
    pub(super) fn flip(&self, object: &str, at: usize) {
        let mut world = self.world();
        let object = world.objects.get_mut(object).expect("it is there");
        object.data[at] ^= 1;
    }

    /// Nothing of the clients so far arrives any more.
    pub(super) fn cut_off_all(&self) {
        let mut world = self.world();
        world.cut_off = (1..=world.clients).map(address_of).collect();
    }

    pub(super) fn connect_again(&self) {
        self.world().cut_off.clear();
    }

    /// From now on changes time out, and stay on their way.
    pub(super) fn hold_changes(&self, holds: bool) {
        self.world().holds_changes = holds;
    }

    /// What was on its way arrives. How many were taken, and how many refused.
    pub(super) fn deliver(&self) -> (usize, usize) {
        let mut world = self.world();
        let late = std::mem::take(&mut world.late);
        let ended = late
            .into_iter()
            .map(|late| world.change(&late.client, &late.object, &late.changes));
        let (taken, refused): (Vec<_>, Vec<_>) = ended.partition(Result::is_ok);
        assert!(
            refused
                .iter()
                .all(|refused| *refused == Err(Errno::SHUT_OUT)),
            "{refused:?}"
        );
        (taken.len(), refused.len())
    }

    pub(super) fn blocklist(&self) -> usize {
        self.world().blocklist.len()
    }

    pub(super) fn objects(&self) -> Vec<String> {
        self.world().objects.keys().cloned().collect()
    }

    pub(super) fn set_attribute(&self, object: &str, name: &str, value: &[u8]) {
        let mut world = self.world();
        let object = world.objects.entry(object.to_owned()).or_default();
        object.attributes.insert(name.to_owned(), value.to_vec());
    }
}

fn address_of(number: u64) -> String {
    format!("10.0.0.1:0/{number}")
}

impl World {
    /// What a client is told whatever it asks.
    fn check(&self, client: &str) -> Result<(), Errno> {
        if self.cut_off.contains(client) {
            return Err(Errno::TIMED_OUT);
        }
        if self.blocklist.contains(client) {
            return Err(Errno::SHUT_OUT);
        }
        match self.failure {
            Some(failure) if self.fails_after == 0 => Err(failure),
            _ => Ok(()),
        }
    }

    fn read(&mut self, client: &str, object: &str, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
        self.operations += 1;
        self.check(client)?;
        let data = &self.objects.get(object).ok_or(Errno::NOT_FOUND)?.data;
        let from = data.len().min(at as usize);
        Ok(data[from..data.len().min(from + len)].to_vec())
    }

    fn change(&mut self, client: &str, object: &str, changes: &[Owned]) -> Result<(), Errno> {
        self.operations += 1;
        self.check(client)?;
        self.fails_after = self.fails_after.saturating_sub(1);
        if let Some((refused, failure)) = &self.refused
            && refused == object
        {
            return Err(*failure);
        }
        let found = self.objects.get(object);
        let size = found.map_or(0, |found| found.data.len() as u64);
        let grows = |change: &Owned| match change {
            Owned::Write(at, data) => at + data.len() as u64 > size,
            _ => false,
        };
        if self.is_full && changes.iter().any(grows) {
            return Err(Errno::NO_SPACE);
        }
        for change in changes {
            if let Owned::Expect(name, value) = change {
                // As `rados_write_op_cmpxattr` of Ceph 16.
                let is = found.ok_or(Errno::NOT_FOUND)?.attributes.get(name);
                if is.map_or(&[][..], Vec::as_slice) != value {
                    return Err(Errno::NOT_AS_EXPECTED);
                }
            }
        }
        for change in changes {
            match change {
                Owned::Expect(..) => {}
                Owned::Set(name, value) => {
                    let object = self.objects.entry(object.to_owned()).or_default();
                    object.attributes.insert(name.clone(), value.clone());
                }
                Owned::Replace(data) => {
                    let object = self.objects.entry(object.to_owned()).or_default();
                    object.data.clone_from(data);
                }
                Owned::Write(at, data) => {
                    let object = self.objects.entry(object.to_owned()).or_default();
                    let (at, end) = (*at as usize, *at as usize + data.len());
                    object.data.resize(object.data.len().max(end), 0);
                    object.data[at..end].copy_from_slice(data);
                }
                Owned::Zero(at, len) => {
                    if let Some(object) = self.objects.get_mut(object) {
                        let (at, end) = (*at as usize, (*at + *len) as usize);
                        let end = end.min(object.data.len());
                        object.data[at.min(end)..end].fill(0);
                    }
                }
                Owned::Remove => {
                    self.objects.remove(object).ok_or(Errno::NOT_FOUND)?;
                }
            }
        }
        Ok(())
    }
}

/// Clusters are made of shared models.
pub(super) struct Shared(pub(super) Arc<Model>);

impl Cluster for Shared {
    fn connect(&self, _times: Times) -> Result<Arc<dyn Client>, Refusal> {
        let mut world = self.0.world();
        world.clients += 1;
        let number = world.clients;
        drop(world);
        let (jobs, work) = mpsc::channel::<Job>();
        // Answers come from another thread, as those of librados do.
        thread::spawn(move || work.into_iter().for_each(|job| job()));
        Ok(Arc::new(ModelClient {
            model: self.0.clone(),
            name: format!("client.{number}"),
            addresses: vec![address_of(number)],
            jobs: Mutex::new(jobs),
        }))
    }
}

type Job = Box<dyn FnOnce() + Send>;

struct ModelClient {
    model: Arc<Model>,
    name: String,
    addresses: Vec<String>,
    jobs: Mutex<mpsc::Sender<Job>>,
}

impl ModelClient {
    fn address(&self) -> &str {
        &self.addresses[0]
    }

    fn later<T: Send + 'static>(
        &self,
        room: Permit,
        job: impl FnOnce(&mut World) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        let model = self.model.clone();
        let job: Job = Box::new(move || {
            let result = job(&mut model.world());
            drop(room);
            let _ = sender.send(result);
        });
        self.jobs
            .lock()
            .expect("no panic")
            .send(job)
            .expect("it works");
        receiver
    }
}

impl Client for ModelClient {
    fn addresses(&self) -> &[String] {
        &self.addresses
    }

    fn read(
        &self,
        object: &str,
        at: u64,
        mut memory: Memory,
        room: Permit,
    ) -> oneshot::Receiver<Filled> {
        let (object, client) = (object.to_owned(), self.address().to_owned());
        self.later(room, move |world| {
            let len = memory.bytes().len();
            let read = world.read(&client, &object, at, len).map(|found| {
                memory.bytes()[..found.len()].copy_from_slice(&found);
                found.len()
            });
            (read, memory)
        })
    }

    fn change(&self, object: &str, changes: &[Change<'_>], room: Permit) -> Pending<()> {
        let (object, client) = (object.to_owned(), self.address().to_owned());
        let changes: Vec<Owned> = changes.iter().map(Owned::from).collect();
        self.later(room, move |world| {
            if world.holds_changes {
                world.late.push(Late {
                    client,
                    object,
                    changes,
                });
                return Err(Errno::TIMED_OUT);
            }
            world.change(&client, &object, &changes)
        })
    }

    fn change_now(&self, object: &str, changes: &[Change<'_>]) -> Result<(), Errno> {
        let changes: Vec<Owned> = changes.iter().map(Owned::from).collect();
        self.model.world().change(self.address(), object, &changes)
    }

    fn read_now(&self, object: &str, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
        self.model.world().read(self.address(), object, at, len)
    }

    fn attribute(&self, object: &str, name: &str) -> Result<Vec<u8>, Errno> {
        let world = self.model.world();
        world.check(self.address())?;
        let object = world.objects.get(object).ok_or(Errno::NOT_FOUND)?;
        object.attributes.get(name).cloned().ok_or(Errno::NO_DATA)
    }

    fn lock(&self, object: &str, cookie: &str, lease: Duration) -> Result<(), Errno> {
        let meanwhile = self.model.before_lock.lock().expect("no panic").take();
        if let Some(run) = meanwhile {
            run();
        }
        let mut world = self.model.world();
        world.check(self.address())?;
        let own = Holder {
            client: self.name.clone(),
            cookie: cookie.to_owned(),
            address: self.address().to_owned(),
        };
        let lock = &mut world.objects.entry(object.to_owned()).or_default().lock;
        if lock
            .as_ref()
            .is_some_and(|(holder, until)| *holder != own && *until > Instant::now())
        {
            return Err(Errno::BUSY);
        }
        *lock = Some((own, Instant::now() + lease));
        Ok(())
    }

    fn unlock(&self, object: &str, cookie: &str) -> Result<(), Errno> {
        let mut world = self.model.world();
        world.check(self.address())?;
        let lock = world.objects.get_mut(object).map(|object| &mut object.lock);
        let lock = lock.ok_or(Errno::NOT_FOUND)?;
        match lock {
            Some((holder, _)) if holder.client == self.name && holder.cookie == cookie => {
                *lock = None;
                Ok(())
            }
            _ => Err(Errno::NOT_FOUND),
        }
    }

    fn holder(&self, object: &str) -> Result<Option<Holder>, Errno> {
        let world = self.model.world();
        world.check(self.address())?;
        let lock = world
            .objects
            .get(object)
            .and_then(|object| object.lock.as_ref());
        let lives = lock.filter(|(_, until)| *until > Instant::now());
        Ok(lives.map(|(holder, _)| holder.clone()))
    }

    fn break_lock(&self, object: &str, holder: &Holder) -> Result<(), Errno> {
        let mut world = self.model.world();
        world.check(self.address())?;
        let lock = world.objects.get_mut(object).map(|object| &mut object.lock);
        match lock {
            Some(lock) if lock.as_ref().is_some_and(|(it, _)| it == holder) => {
                *lock = None;
                Ok(())
            }
            _ => Err(Errno::NOT_FOUND),
        }
    }

    fn shut_out(&self, address: &str) -> Result<(), Errno> {
        self.check_may_shut_out()?;
        self.model.world().blocklist.insert(address.to_owned());
        Ok(())
    }

    fn check_may_shut_out(&self) -> Result<(), Errno> {
        let world = self.model.world();
        world.check(self.address())?;
        match world.forbids_shutting_out {
            true => Err(Errno::NO_ACCESS),
            false => Ok(()),
        }
    }
}
