//! The network between a pool and a target, which a story cuts: nothing passes, and nobody is told.
//!
//! What was sent before the cut and has not arrived waits, and arrives when the network is mended, as a retransmission does.
//! So the story meets what is old and late.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Bytes that are on their way at one time, in each direction.
const ON_THE_WAY: usize = 64 << 10;

/// What passes.
#[derive(Default)]
struct Gate {
    /// Connections that were made before the one of this number are cut.
    cut_before: Mutex<usize>,
    mended: Condvar,
    /// Directions of connections in which something may pass yet.
    open: AtomicUsize,
}

impl Gate {
    fn cut_before(&self, number: usize) {
        let mut cut_before = self
            .cut_before
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *cut_before = number;
        self.mended.notify_all();
    }

    /// Waits until something may pass on the connection of this number.
    fn pass(&self, number: usize) {
        let mut cut_before = self
            .cut_before
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while number < *cut_before {
            let waited = self.mended.wait(cut_before);
            cut_before = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// See the module. What is on its way when the story ends is lost with the process.
pub(crate) struct Wire(Arc<Gate>);

impl Wire {
    /// Listens at the first address, `tcp://IP:PORT`, and leads to the second one.
    pub(crate) fn new(from: &str, to: &str) -> Self {
        let place = |address: &str| address.trim_start_matches("tcp://").to_owned();
        let listener = TcpListener::bind(place(from)).expect("the address is free");
        let (gate, to) = (Arc::new(Gate::default()), place(to));
        let wire = Self(gate.clone());
        std::thread::spawn(move || {
            for (number, host) in (0..).zip(listener.incoming().map_while(Result::ok)) {
                let (gate, to) = (gate.clone(), to.clone());
                std::thread::spawn(move || {
                    gate.pass(number);
                    // A host whose target is not there is told so by the end of its connection.
                    if let Ok(target) = TcpStream::connect(to) {
                        connect(&gate, number, &host, &target);
                    }
                });
            }
        });
        wire
    }

    /// Nothing passes any more.
    pub(crate) fn cut(&self) {
        self.0.cut_before(usize::MAX);
    }

    /// What was sent passes on the connections but for this many, the first ones: each has waiting times of its own.
    pub(crate) fn mend_but_for(&self, first: usize) {
        self.0.cut_before(first);
    }

    pub(crate) fn mend(&self) {
        self.0.cut_before(0);
    }

    /// Directions of connections in which something may pass yet.
    pub(crate) fn open(&self) -> usize {
        self.0.open.load(Ordering::Acquire)
    }
}

/// Carries bytes both ways.
fn connect(gate: &Arc<Gate>, number: usize, host: &TcpStream, target: &TcpStream) {
    for (from, to) in [(host, target), (target, host)] {
        let (gate, from, to) = (gate.clone(), from.try_clone(), to.try_clone());
        let (from, to) = (from.expect("a socket"), to.expect("a socket"));
        to.set_nodelay(true).expect("a TCP socket");
        gate.open.fetch_add(1, Ordering::AcqRel);
        std::thread::spawn(move || {
            carry(&gate, number, from, to);
            gate.open.fetch_sub(1, Ordering::AcqRel);
        });
    }
}

fn carry(gate: &Gate, number: usize, mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = vec![0; ON_THE_WAY];
    loop {
        let read = from.read(&mut bytes).unwrap_or(0);
        gate.pass(number);
        if read == 0 || to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    // Whoever sends on learns that nobody listens; both ends may be gone already.
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
