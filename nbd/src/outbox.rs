//! What waits to be sent on a connection.
//!
//! Guarantees:
//! - Replies leave in the order in which they were given, each one whole.
//! - Data leave straight from the buffers that they were read to. A client that does not take them costs no buffer for
//!   long: they are copied to memory of which all connections of a thread together have a bound.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::rc::Rc;

use reactor::Buffer;
use reactor::sync::Permit;

/// Slices of one send at most.
pub(crate) const SLICES_MAX: usize = 64;

/// Bytes of replies to slow clients that a thread keeps.
const KEPT_BYTES_MAX: usize = 64 << 20;

thread_local! {
    static KEPT_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// Data of a reply.
enum Data {
    None,
    Buffer(Buffer),
    Kept(Kept),
}

/// Data in memory that is counted.
struct Kept(Vec<u8>);

impl Kept {
    fn new(bytes: &[u8]) -> Option<Self> {
        let kept = KEPT_BYTES.get() + bytes.len();
        if kept > KEPT_BYTES_MAX {
            return None;
        }
        KEPT_BYTES.set(kept);
        Some(Self(bytes.to_vec()))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        KEPT_BYTES.set(KEPT_BYTES.get() - self.0.len());
    }
}

/// A reply, or a part of one, and what is given back when it has left.
pub(crate) struct Message {
    head: Vec<u8>,
    data: Data,
    /// Of the connection's bytes.
    _room: Option<Permit>,
    /// Of the connection's requests.
    _place: Rc<Permit>,
}

impl Message {
    /// One of few bytes.
    pub(crate) fn short(head: Vec<u8>, room: Option<Permit>, place: Rc<Permit>) -> Self {
        Self {
            head,
            data: Data::None,
            _room: room,
            _place: place,
        }
    }

    /// One with data.
    pub(crate) fn with_data(head: Vec<u8>, data: Buffer, room: Permit, place: Rc<Permit>) -> Self {
        Self {
            head,
            data: Data::Buffer(data),
            _room: Some(room),
            _place: place,
        }
    }

    fn parts(&self) -> [&[u8]; 2] {
        let data: &[u8] = match &self.data {
            Data::None => &[],
            Data::Buffer(buffer) => buffer,
            Data::Kept(kept) => &kept.0,
        };
        [&self.head, data]
    }

    fn len(&self) -> usize {
        self.parts().map(<[u8]>::len).iter().sum()
    }
}

/// The line of messages.
#[derive(Default)]
pub(crate) struct Outbox {
    line: VecDeque<Message>,
    /// Those that wait until a long reply is told.
    held: VecDeque<Message>,
    is_telling: bool,
    /// Bytes of the first message that have left.
    sent: usize,
}

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty() && self.held.is_empty()
    }

    /// Whether there is nothing to send now.
    pub(crate) fn is_waiting(&self) -> bool {
        self.line.is_empty()
    }

    pub(crate) fn push(&mut self, message: Message) {
        match self.is_telling {
            true => self.held.push_back(message),
            false => self.line.push_back(message),
        }
    }

    /// A reply of several messages begins, which nothing may come between.
    pub(crate) fn begin_long(&mut self) {
        self.is_telling = true;
    }

    /// The next message of it.
    pub(crate) fn push_long(&mut self, message: Message) {
        self.line.push_back(message);
    }

    /// It is told.
    pub(crate) fn end_long(&mut self) {
        self.is_telling = false;
        self.line.append(&mut self.held);
    }

    /// Fills in what to send next; gives how many slices these are.
    pub(crate) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let mut skip = self.sent;
        let mut count = 0;
        for part in self.line.iter().flat_map(Message::parts) {
            let skipped = skip.min(part.len());
            skip -= skipped;
            let part = &part[skipped..];
            if part.is_empty() {
                continue;
            }
            let Some(slice) = slices.get_mut(count) else {
                break;
            };
            *slice = IoSlice::new(part);
            count += 1;
        }
        count
    }

    /// So many bytes have left.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        while let Some(first) = self.line.front() {
            let len = first.len();
            if self.sent < len {
                return;
            }
            self.sent -= len;
            self.line.pop_front();
        }
    }

    /// Gives all buffers back, because the client does not take what is in them. False if there is no memory either.
    pub(crate) fn leave_buffers(&mut self) -> bool {
        for message in self.line.iter_mut().chain(&mut self.held) {
            if let Data::Buffer(buffer) = &message.data {
                let Some(kept) = Kept::new(buffer) else {
                    return false;
                };
                message.data = Data::Kept(kept);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use reactor::BufferPool;
    use reactor::sync::Semaphore;

    use super::*;

    fn place() -> Rc<Permit> {
        Rc::new(Semaphore::new(1).try_acquire(1).expect("it is free"))
    }

    fn message(text: &str) -> Message {
        Message::short(text.as_bytes().to_vec(), None, place())
    }

    /// All that would be sent, so many bytes at a time.
    fn drained(outbox: &mut Outbox, step: usize) -> String {
        let mut all = Vec::new();
        while !outbox.is_waiting() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = outbox.slices(&mut slices);
            let bytes: Vec<u8> = slices[..count].iter().flat_map(|it| it.to_vec()).collect();
            let step = step.min(bytes.len());
            all.extend(&bytes[..step]);
            outbox.advance(step);
        }
        String::from_utf8(all).expect("a text")
    }

    #[test]
    fn messages_leave_whole_and_in_order_however_much_the_kernel_takes() {
        let pool = BufferPool::new(1 << 21).expect("a pool");
        for step in 1..12 {
            let mut outbox = Outbox::default();
            for at in 0..100 {
                outbox.push(message(&format!("<{at}>")));
            }
            let mut data = pool.try_alloc(5).expect("a buffer");
            data.copy_from_slice(b"data!");
            let room = Semaphore::new(5).try_acquire(5).expect("it is free");
            outbox.push(Message::with_data(b"head:".to_vec(), data, room, place()));
            let expected: String = (0..100).map(|at| format!("<{at}>")).collect();
            assert_eq!(drained(&mut outbox, step), expected + "head:data!");
        }
    }

    #[test]
    fn nothing_comes_between_the_messages_of_a_long_reply() {
        let mut outbox = Outbox::default();
        outbox.begin_long();
        outbox.push_long(message("a"));
        outbox.push(message("x"));
        outbox.push_long(message("b"));
        assert_eq!(drained(&mut outbox, 9), "ab");
        assert!(outbox.is_waiting() && !outbox.is_empty());
        outbox.push_long(message("c"));
        outbox.end_long();
        outbox.push(message("y"));
        assert_eq!(drained(&mut outbox, 9), "cxy");
    }

    #[test]
    fn a_slow_client_costs_no_buffers_and_its_memory_has_a_bound() {
        let pool = BufferPool::new(4 << 21).expect("a pool");
        let one = || {
            let data = pool.try_alloc(2 << 20);
            let room = Semaphore::new(1).try_acquire(1).expect("it is free");
            Message::with_data(Vec::new(), data.expect("a buffer"), room, place())
        };
        let mut outbox = Outbox::default();
        for _ in 0..KEPT_BYTES_MAX / (2 << 20) {
            outbox.push(one());
            assert!(outbox.leave_buffers());
            assert_eq!(pool.stats().free_bytes, pool.stats().total_bytes);
        }
        outbox.push(one());
        assert!(!outbox.leave_buffers(), "the bound");
        drop(outbox);
        assert_eq!(KEPT_BYTES.get(), 0);
    }
}
