//! What a drive needs of a cluster: a client with one pool of it, whose objects it reads and changes.
//!
//! Guarantees of every client:
//! - The changes of one call happen together or not at all, and a change that was answered survives what the pool's
//!   replication survives.
//! - A client that was shut out ([`Client::shut_out`]) changes nothing that the one who did it, or who connects later, reads or
//!   changes afterwards: such a client is told [`Errno::SHUT_OUT`].
//! - A call ends, in the time that the client was made with ([`Times`]). What is a change, and ended with
//!   [`Errno::TIMED_OUT`], may still happen.

use std::sync::Arc;
use std::time::Duration;

use reactor::Buffer;
use reactor::sync::{Permit, oneshot};

/// An error number of errno(3), as librados gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", std::io::Error::from_raw_os_error(*.0))]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    /// There is no such object, attribute, pool or file.
    pub(crate) const NOT_FOUND: Self = Self(libc::ENOENT);
    /// The attribute is not there.
    pub(crate) const NO_DATA: Self = Self(libc::ENODATA);
    /// Another client has the lock.
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    /// What was expected of an attribute is not so.
    pub(crate) const NOT_AS_EXPECTED: Self = Self(libc::ECANCELED);
    /// It took too long: what it was to change may change yet.
    pub(crate) const TIMED_OUT: Self = Self(libc::ETIMEDOUT);
    /// Somebody shut this client out (`EBLOCKLISTED` of Ceph's include/types.h).
    pub(crate) const SHUT_OUT: Self = Self(libc::ESHUTDOWN);
    /// The cluster or the pool is full.
    pub(crate) const NO_SPACE: Self = Self(libc::ENOSPC);
    /// The pool's quota is used up.
    pub(crate) const NO_QUOTA: Self = Self(libc::EDQUOT);
    /// The user may not do that.
    pub(crate) const NOT_PERMITTED: Self = Self(libc::EPERM);
    /// The key is wrong, or the user may not do that.
    pub(crate) const NO_ACCESS: Self = Self(libc::EACCES);
    /// The client has ended.
    pub(crate) const ENDED: Self = Self(libc::ENOTCONN);

    /// Nothing is there: an object or an attribute.
    pub(crate) fn is_missing(self) -> bool {
        self == Self::NOT_FOUND || self == Self::NO_DATA
    }
}

/// What is to be changed in one object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'a> {
    /// Nothing is changed if an attribute is not this; empty: not there.
    Expect(&'a str, &'a [u8]),
    /// An attribute.
    Set(&'a str, &'a [u8]),
    /// All data.
    Replace(&'a [u8]),
    /// Data at a byte.
    Write(u64, &'a [u8]),
    /// So many bytes at a byte become zeros.
    Zero(u64, u64),
    /// The whole object goes.
    Remove,
}

/// Who has a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Such as `client.4123`.
    pub(crate) client: String,
    /// What it said of itself.
    pub(crate) cookie: String,
    /// How it is shut out.
    pub(crate) address: String,
}

/// What comes of a call that does not block.
pub(crate) type Pending<T> = oneshot::Receiver<Result<T, Errno>>;

/// What a read fills. The client has it meanwhile, also if nobody waits for the read any more.
#[derive(Debug)]
pub(crate) enum Memory {
    /// A buffer of the caller's, from its first byte to its last.
    Buffer(Buffer),
    /// For one of several pieces.
    Piece(Vec<u8>),
}

impl Memory {
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Piece(bytes) => bytes,
        }
    }
}

/// How many bytes a read found, which are the first ones of its memory.
pub(crate) type Filled = (Result<usize, Errno>, Memory);

/// See the module. Calls that return no [`Pending`] block, and are not made on a reactor.
pub(crate) trait Client: Send + Sync {
    /// How this client is shut out.
    fn addresses(&self) -> &[String];

    /// As many bytes at a byte as the memory has; fewer, where the object ends. `room` is given back when the call has ended, also
    /// if nobody waits for that any more.
    fn read(
        &self,
        object: &str,
        at: u64,
        memory: Memory,
        room: Permit,
    ) -> oneshot::Receiver<Filled>;

    /// Changes an object; `room` as above. The data are copied before it returns.
    fn change(&self, object: &str, changes: &[Change<'_>], room: Permit) -> Pending<()>;

    /// The same, and waits.
    fn change_now(&self, object: &str, changes: &[Change<'_>]) -> Result<(), Errno>;

    /// At most so many bytes at a byte, as [`Client::read`], and waits.
    fn read_now(&self, object: &str, at: u64, len: usize) -> Result<Vec<u8>, Errno>;

    /// An attribute, of at most 4096 bytes.
    fn attribute(&self, object: &str, name: &str) -> Result<Vec<u8>, Errno>;

    /// Locks an object, or renews the lock that has this cookie, for so long. The object is made if it is not there.
    fn lock(&self, object: &str, cookie: &str, lease: Duration) -> Result<(), Errno>;

    /// Gives the lock up.
    fn unlock(&self, object: &str, cookie: &str) -> Result<(), Errno>;

    /// Who has the lock, if somebody has, and its lease is not over.
    fn holder(&self, object: &str) -> Result<Option<Holder>, Errno>;

    /// Takes the lock from who has it.
    fn break_lock(&self, object: &str, holder: &Holder) -> Result<(), Errno>;

    /// Shuts another client out.
    fn shut_out(&self, address: &str) -> Result<(), Errno>;

    /// An error if the cluster does not permit this client to shut others out. Changes nothing.
    fn check_may_shut_out(&self) -> Result<(), Errno>;
}

/// How long a client waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// For the cluster's monitors, when it connects.
    pub(crate) connect: Duration,
    /// For an answer.
    pub(crate) command: Duration,
}

/// Makes clients of a cluster.
pub(crate) trait Cluster: Send + Sync {
    /// A new client. Blocks.
    ///
    /// # Errors
    /// What failed, in words, with the remedy.
    fn connect(&self, times: Times) -> Result<Arc<dyn Client>, Refusal>;
}

/// Why there is no client.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) kind: drives::ErrorKind,
    pub(crate) text: String,
}
