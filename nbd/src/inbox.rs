//! What has arrived on a connection and was not used yet.
//!
//! Guarantee: memory for it is the thread's: a connection on which nothing waits has none.

use std::cell::RefCell;
use std::io::{self, ErrorKind};

use crate::socket::Socket;

/// Bytes that can wait: a piece of a write, and requests behind it.
pub(crate) const INBOX_BYTES: usize = 320 << 10;
/// Spare memory that a thread keeps.
const SPARES_MAX: usize = 4;

thread_local! {
    static SPARES: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes of a connection, in order.
#[derive(Default)]
pub(crate) struct Inbox {
    /// Empty, or [`INBOX_BYTES`] long.
    memory: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// What waits.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.end]
    }

    /// So many of the first bytes are used.
    pub(crate) fn used(&mut self, bytes: usize) {
        self.start = (self.start + bytes).min(self.end);
    }

    /// Waits until so many bytes are there, at most [`INBOX_BYTES`]. False if the peer ends before the first of them.
    pub(crate) async fn fill(&mut self, socket: &Socket, bytes: usize) -> io::Result<bool> {
        while self.bytes().len() < bytes {
            let is_empty = self.bytes().is_empty();
            if is_empty {
                self.rest();
            }
            match self.receive(socket).await? {
                0 if is_empty => return Ok(false),
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
        Ok(true)
    }

    /// Gives the memory back while nothing is in it.
    fn rest(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        (self.start, self.end) = (0, 0);
        SPARES.with_borrow_mut(|spares| {
            if !memory.is_empty() && spares.len() < SPARES_MAX {
                spares.push(memory);
            }
        });
    }

    /// Receives behind what waits.
    async fn receive(&mut self, socket: &Socket) -> io::Result<usize> {
        if self.memory.is_empty() {
            socket.readable().await?;
            let spare = SPARES.with_borrow_mut(Vec::pop);
            self.memory = spare.unwrap_or_else(|| vec![0; INBOX_BYTES].into_boxed_slice());
        }
        if self.start > 0 {
            self.memory.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let bytes = socket.receive(&mut self.memory[self.end..]).await?;
        self.end += bytes;
        Ok(bytes)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.rest();
    }
}
