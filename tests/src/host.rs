//! A host that stays attached whatever the daemon does: it connects again, and repeats what was not answered, as Linux does.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fabric::{Connector, TransportAddress};
use futures_util::future::{join_all, select, try_join_all};
use initiator::{ConnectOptions, Controller, Host, Namespace};

/// The subsystem of a node that nobody configured.
const NQN: &str = "nqn.2026-11.dev.onefold:default";

/// Writes in flight: a load, and little enough for a machine that is busy with other tests.
const WRITERS: u64 = 8;

/// Bytes of a write.
const WRITE_BYTES: u64 = 4096;

/// Places of one writer. It comes round, so that overwrites are among its writes.
const PLACES: u64 = 1024;

/// How soon a host whose connection is lost tries again. Linux waits for 10 s unless it is told
/// otherwise (`nvme connect --reconnect-delay`); that comes on top.
const RECONNECT: Duration = Duration::from_millis(20);

/// What the host did so far, and whether it goes on.
#[derive(Debug, Default)]
pub struct Seen {
    /// It ends when this is true: it reads again what it wrote.
    pub enough: AtomicBool,
    /// Writes that were answered.
    pub writes: AtomicU64,
    /// The longest time from a write's first try to its answer, in milliseconds.
    pub longest_ms: AtomicU64,
}

/// Writes to the first namespace, from this byte on, until it is enough; then proves all that was answered. `first` is
/// called with the time of the first answer on each association.
///
/// # Panics
/// What was answered is not there.
pub async fn stay_attached(
    address: TransportAddress,
    base: u64,
    seen: &Seen,
    mut first: impl FnMut(Instant),
) {
    let connector = Connector::to_reach(&address).expect("a connector");
    let host = Host::generate();
    let mut writers: Vec<Writer> = (0..WRITERS)
        .map(|number| Writer::new(number, base))
        .collect();
    let mut is_proven = false;
    while !is_proven {
        let nqn = NQN.parse().expect("a name");
        let options = ConnectOptions::new(address.socket_addr(), nqn, host.clone());
        let Ok(controller) = Controller::connect(&connector, options).await else {
            reactor::sleep(RECONNECT).await;
            continue;
        };
        if let Ok(namespace) = controller.namespace(1).await {
            run_all(&mut writers, &namespace, seen, &mut first).await;
            if seen.enough.load(Ordering::Relaxed) {
                let proofs = writers.iter().map(|writer| writer.prove(&namespace));
                is_proven = try_join_all(proofs).await.is_ok();
            }
        }
        controller.disconnect().await;
    }
    connector.shutdown().await;
}

/// All writers, until it is enough or the association ends.
async fn run_all(
    writers: &mut [Writer],
    namespace: &Namespace,
    seen: &Seen,
    first: &mut impl FnMut(Instant),
) {
    let before = seen.writes.load(Ordering::Relaxed);
    let writing = join_all(writers.iter_mut().map(|writer| writer.run(namespace, seen)));
    let answered = async {
        while seen.writes.load(Ordering::Relaxed) == before {
            reactor::sleep(Duration::from_millis(1)).await;
        }
        first(Instant::now());
        pending::<()>().await;
    };
    select(std::pin::pin!(writing), std::pin::pin!(answered)).await;
}

/// One place after the other.
#[derive(Debug)]
struct Writer {
    number: u64,
    base: u64,
    /// Writes that were answered: the next one has this number.
    answered: u64,
    /// When that one was tried first.
    tried: Option<Instant>,
}

impl Writer {
    fn new(number: u64, base: u64) -> Self {
        Self {
            number,
            base,
            answered: 0,
            tried: None,
        }
    }

    fn offset(&self, write: u64) -> u64 {
        self.base + (write % PLACES * WRITERS + self.number) * WRITE_BYTES
    }

    fn mark(&self, write: u64) -> [u8; 8] {
        (self.number << 48 | (write + 1)).to_le_bytes()
    }

    /// Writes until it is enough or the association ends.
    async fn run(&mut self, namespace: &Namespace, seen: &Seen) {
        while !seen.enough.load(Ordering::Relaxed) {
            let mut buffer = initiator::buffer(WRITE_BYTES as usize).await;
            buffer[..8].copy_from_slice(&self.mark(self.answered));
            let tried = *self.tried.get_or_insert_with(Instant::now);
            let offset = self.offset(self.answered);
            if namespace.write(offset, buffer, false).await.0.is_err() {
                return;
            }
            self.tried = None;
            self.answered += 1;
            seen.writes.fetch_add(1, Ordering::Relaxed);
            let took = u64::try_from(tried.elapsed().as_millis()).unwrap_or(u64::MAX);
            seen.longest_ms.fetch_max(took, Ordering::Relaxed);
        }
    }

    /// Reads each place. An error is the association's end; wrong content is a panic.
    async fn prove(&self, namespace: &Namespace) -> Result<(), ()> {
        for write in self.answered.saturating_sub(PLACES)..self.answered {
            let buffer = initiator::buffer(WRITE_BYTES as usize).await;
            let (read, buffer) = namespace.read(self.offset(write), buffer).await;
            read.map_err(drop)?;
            let is = &buffer[..8];
            // The last write may have been done twice, or its follower begun.
            let follower = self.mark(write + PLACES);
            let wanted = self.mark(write);
            assert!(
                is == wanted || is == follower,
                "writer {}: write {write} was answered, and {is:?} is there",
                self.number
            );
        }
        Ok(())
    }
}
