//! What a client asks for, and how it is done.
//!
//! Guarantees:
//! - A request is admitted before any of its data are read or written, and waits for the volume's limits before it has a
//!   buffer.
//! - Every request is answered once, when all of it is done, also if the work on it panics.
//! - A write is answered when it survives a crash of this program; with FUA, when it survives a loss of power.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;

use futures_util::future::{Either, select};
use reactor::Buffer;
use reactor::sync::Permit;
use subsystem::export::{ErrorKind, ExportError, ExportedVolume, PIECE_BYTES_MAX, Pass};

use crate::context::{self, describe};
use crate::handshake::Context;
use crate::outbox::Message;
use crate::session::Connection;
use crate::wire::{self, Command, Errno, Refused, Request, command_flag};

/// Data that are read or written at once. Whole blocks of 4 KiB stay whole.
const PIECE_BYTES: usize = 256 << 10;

/// Ranges that one context finds for one answer.
const RANGES_MAX: usize = 4096;

/// Bytes of such an answer.
const STATUS_BYTES_MAX: usize = 2 * RANGES_MAX * 8 + 64;

/// What became of a request, or of a piece of it.
type Outcome = Result<(), Refused>;

impl Refused {
    /// What a request on the volume failed for.
    fn of(command: Command, error: &ExportError) -> Self {
        let adds = matches!(command, Command::Write | Command::WriteZeroes);
        let errno = match error {
            ExportError::Gone => Errno::Shutdown,
            ExportError::ReadOnly | ExportError::Reserved => Errno::Perm,
            ExportError::OutOfRange if adds => Errno::NoSpace,
            ExportError::OutOfRange => Errno::Invalid,
            ExportError::Engine(ErrorKind::NoSpace) => Errno::NoSpace,
            ExportError::Engine(ErrorKind::Invalid) => Errno::Invalid,
            ExportError::Engine(_) => Errno::Io,
        };
        Self {
            errno,
            text: error.to_string(),
        }
    }

    pub(crate) fn leaving() -> Self {
        Self {
            errno: Errno::Shutdown,
            text: "the export ends".to_owned(),
        }
    }
}

/// The answer that a request has to get.
pub(crate) struct Reply {
    connection: Rc<Connection>,
    command: Command,
    cookie: u64,
    place: Rc<Permit>,
    refused: RefCell<Option<Refused>>,
    /// Kept until the answer, if there are guarantees.
    pass: Cell<Option<Pass>>,
    /// All of the request was begun.
    is_whole: Cell<bool>,
    /// The last part of the answer is given.
    is_given: Cell<bool>,
}

/// A piece of a request under way.
pub(crate) struct Piece {
    reply: Rc<Reply>,
    is_done: bool,
}

impl Reply {
    pub(crate) fn new(connection: Rc<Connection>, request: &Request, place: Permit) -> Rc<Self> {
        connection.began();
        Rc::new(Self {
            connection,
            command: request.command,
            cookie: request.cookie,
            place: Rc::new(place),
            refused: RefCell::default(),
            pass: Cell::default(),
            is_whole: Cell::new(false),
            is_given: Cell::new(false),
        })
    }

    /// Nothing more is begun. It is answered when all pieces are done.
    pub(crate) fn end(&self, outcome: Outcome) {
        self.is_whole.set(true);
        if let Err(refused) = outcome {
            self.refuse(refused);
        }
    }

    /// The first reason stays.
    fn refuse(&self, refused: Refused) {
        self.refused.borrow_mut().get_or_insert(refused);
    }

    pub(crate) fn piece(self: &Rc<Self>) -> Piece {
        Piece {
            reply: self.clone(),
            is_done: false,
        }
    }

    fn failed(&self, error: &ExportError) -> Refused {
        Refused::of(self.command, error)
    }

    /// The answer when all pieces are done.
    fn answer(&self) -> Option<Vec<u8>> {
        if self.is_given.get() {
            return None;
        }
        let refused = self.refused.take();
        let refused = match self.is_whole.get() {
            true => refused,
            false => Some(Refused {
                errno: Errno::Io,
                text: "it was not done to its end".to_owned(),
            }),
        };
        let structured = self.connection.agreed.structured;
        Some(match (refused, structured) {
            (Some(refused), true) => wire::error_chunk(self.cookie, &refused),
            (Some(refused), false) => wire::simple_reply(self.cookie, Some(refused.errno)),
            (None, true) if matches!(self.command, Command::Read | Command::BlockStatus) => {
                wire::done_chunk(self.cookie)
            }
            (None, _) => wire::simple_reply(self.cookie, None),
        })
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(answer) = self.answer() {
            let message = Message::short(answer, None, self.place.clone());
            self.connection.push(message);
        }
        self.connection.ended();
    }
}

impl Piece {
    fn done(mut self, outcome: Outcome) {
        self.is_done = true;
        if let Err(refused) = outcome {
            self.reply.refuse(refused);
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if !self.is_done {
            self.reply.refuse(Refused {
                errno: Errno::Io,
                text: "a part of it was not done to its end".to_owned(),
            });
        }
    }
}

/// Bytes of the next piece: up to the end of a block, if there are more.
pub(crate) fn piece(at: u64, left: u64) -> usize {
    let whole = PIECE_BYTES as u64 - at % 4096;
    left.min(whole) as usize
}

pub(crate) async fn buffer(volume: &ExportedVolume, len: usize) -> Buffer {
    match volume.buffers().try_alloc(len) {
        Some(buffer) => buffer,
        None => volume.buffers().alloc(len).await,
    }
}

/// Waits until the volume's limits allow so many bytes, or nobody waits for them any more.
async fn hold_back(reply: &Reply, bytes: u64) -> Outcome {
    let connection = &reply.connection;
    let held = pin!(connection.volume.hold_back(bytes));
    let left = pin!(connection.leaving.wait());
    match select(held, left).await {
        Either::Left((pass, _)) => {
            reply.pass.set(pass);
            Ok(())
        }
        Either::Right(_) => Err(Refused::leaving()),
    }
}

/// Whether a write may begin; waits for the volume's limits.
pub(crate) async fn begin_write(request: &Request, reply: &Reply) -> Outcome {
    let len = u64::from(request.len);
    let admitted = reply.connection.volume.check(true, request.offset, len);
    admitted.map_err(|error| reply.failed(&error))?;
    hold_back(reply, len).await
}

/// Writes a piece.
pub(crate) fn write_piece(piece: Piece, request: &Request, at: u64, data: Buffer, room: Permit) {
    let durable = request.has(command_flag::FUA);
    drop(reactor::spawn(async move {
        let reply = &piece.reply;
        let (outcome, data) = reply.connection.volume.write(at, data, durable).await;
        let outcome = outcome.map_err(|error| reply.failed(&error));
        // Before the answer: the next request may wait for them.
        drop((data, room));
        piece.done(outcome);
    }));
}

/// Does what a request without data asks for, and answers it.
pub(crate) async fn run(request: Request, reply: Rc<Reply>) {
    let outcome = match request.command {
        Command::Read => read(&request, &reply).await,
        Command::BlockStatus => tell_status(&request, &reply).await,
        _ => change(&request, &reply).await,
    };
    reply.end(outcome);
}

/// Flush, Trim and Write Zeroes.
async fn change(request: &Request, reply: &Reply) -> Outcome {
    let volume = &reply.connection.volume;
    let (at, len) = (request.offset, u64::from(request.len));
    let durable = request.has(command_flag::FUA);
    let failed = |error| reply.failed(&error);
    match request.command {
        Command::Flush => volume.flush().await.map_err(failed),
        Command::Trim => {
            volume.check(true, at, len).map_err(failed)?;
            hold_back(reply, 0).await?;
            volume.trim(at, len).await.map_err(failed)?;
            match durable {
                true => volume.flush().await.map_err(failed),
                false => Ok(()),
            }
        }
        Command::WriteZeroes => {
            // Zeros are never stored, so NO_HOLE changes nothing, and every one of them is fast.
            volume.check(true, at, len).map_err(failed)?;
            hold_back(reply, 0).await?;
            volume.write_zeroes(at, len, durable).await.map_err(failed)
        }
        _ => Err(Refused::invalid("no such command")),
    }
}

async fn read(request: &Request, reply: &Rc<Reply>) -> Outcome {
    let connection = &reply.connection;
    let len = u64::from(request.len);
    let admitted = connection.volume.check(false, request.offset, len);
    admitted.map_err(|error| reply.failed(&error))?;
    hold_back(reply, len).await?;
    let whole = request.len as usize;
    let is_one = request.has(command_flag::DF);
    match connection.agreed.structured {
        _ if whole == 0 => Ok(()),
        true if whole <= piece(request.offset, len) || is_one && whole <= PIECE_BYTES_MAX => {
            let room = connection.room.acquire(whole).await;
            read_chunk(reply, (request.offset, whole), room, (true, is_one)).await
        }
        true if is_one => Err(Refused {
            errno: Errno::Overflow,
            text: "more than one chunk holds".to_owned(),
        }),
        true => read_chunks(request, reply).await,
        false if whole <= PIECE_BYTES_MAX => {
            let room = connection.room.acquire(whole).await;
            let data = read_data(reply, request.offset, whole).await?;
            let head = wire::simple_reply(reply.cookie, None);
            reply.is_given.set(true);
            connection.push(Message::with_data(head, data, room, reply.place.clone()));
            Ok(())
        }
        false => read_long(request, reply).await,
    }
}

async fn read_data(reply: &Reply, at: u64, len: usize) -> Result<Buffer, Refused> {
    let volume = &reply.connection.volume;
    let data = buffer(volume, len).await;
    let (outcome, data) = volume.read(at, data).await;
    outcome.map_err(|error| reply.failed(&error))?;
    Ok(data)
}

/// Whether all bytes are zeros; of data that are not, the first of them say so.
fn is_zero(data: &[u8]) -> bool {
    let mut parts = data.chunks(512);
    parts.all(|part| part.iter().fold(0, |all, byte| all | byte) == 0)
}

/// Reads what one chunk holds, and gives it: the last one of the answer, or one that must be of data.
async fn read_chunk(
    reply: &Reply,
    (at, len): (u64, usize),
    room: Permit,
    (is_last, is_data): (bool, bool),
) -> Outcome {
    let data = read_data(reply, at, len).await?;
    let is_hole = !is_data && is_zero(&data);
    let place = reply.place.clone();
    if is_last {
        reply.is_given.set(true);
    }
    reply.connection.push(match is_hole {
        // A chunk is at most as long as a request, whose length has 32 bits.
        true => {
            let head = wire::hole_chunk(reply.cookie, is_last, at, len as u32);
            Message::short(head, None, place)
        }
        false => {
            let head = wire::data_chunk(reply.cookie, is_last, at, len);
            Message::with_data(head, data, room, place)
        }
    });
    Ok(())
}

/// Reads pieces at the same time, each of them a chunk.
async fn read_chunks(request: &Request, reply: &Rc<Reply>) -> Outcome {
    let (mut at, mut left) = (request.offset, u64::from(request.len));
    while left > 0 {
        if reply.connection.leaving.is_set() {
            return Err(Refused::leaving());
        }
        let len = piece(at, left);
        let room = reply.connection.room.acquire(len).await;
        let piece = reply.piece();
        drop(reactor::spawn(async move {
            let outcome = read_chunk(&piece.reply, (at, len), room, (false, false)).await;
            piece.done(outcome);
        }));
        (at, left) = (at + len as u64, left - len as u64);
    }
    Ok(())
}

/// Reads piece by piece for one long answer, whose head says that all is well: if it is not in the end, the connection has
/// to end.
async fn read_long(request: &Request, reply: &Rc<Reply>) -> Outcome {
    let connection = &reply.connection;
    let turn = connection.long.acquire(1).await;
    let (mut at, mut left) = (request.offset, u64::from(request.len));
    let mut long = None;
    let mut turn = Some(turn);
    while left > 0 {
        let len = piece(at, left);
        // Of its own, because what others hold is not sent before this is.
        let room = reactor::sync::Semaphore::new(1);
        let data = read_data(reply, at, len).await?;
        let mut head = Vec::new();
        if let Some(turn) = turn.take() {
            head = wire::simple_reply(reply.cookie, None);
            reply.is_given.set(true);
            long = Some(connection.begin_long(turn));
        }
        if let (Some(long), Some(held)) = (&long, room.try_acquire(1)) {
            long.push(Message::with_data(head, data, held, reply.place.clone()));
        }
        // It has left.
        let left_room = pin!(room.acquire(1));
        let gone = pin!(connection.leaving.wait());
        if let Either::Right(_) = select(left_room, gone).await {
            return Err(Refused::leaving());
        }
        (at, left) = (at + len as u64, left - len as u64);
    }
    if let Some(long) = long {
        long.end();
    }
    Ok(())
}

/// Tells what the contexts say of a range, as much of it as one answer has room for.
async fn tell_status(request: &Request, reply: &Reply) -> Outcome {
    let connection = &reply.connection;
    let contexts = &connection.agreed.contexts;
    if contexts.is_empty() {
        return Err(Refused::invalid("no metadata context was chosen"));
    }
    if request.len == 0 {
        return Err(Refused::invalid("the status of nothing"));
    }
    let (at, len) = (request.offset, u64::from(request.len));
    let failed = |error| reply.failed(&error);
    connection.volume.check(false, at, len).map_err(failed)?;
    hold_back(reply, 0).await?;
    let one = request.has(command_flag::REQ_ONE);
    let ranges_max = if one { 2 } else { RANGES_MAX };
    for (id, chosen) in contexts.iter().enumerate() {
        let room = connection.room.acquire(STATUS_BYTES_MAX).await;
        let (found, flags) = match chosen {
            Context::Allocation => {
                let found = connection.volume.extents(at, len, ranges_max).await;
                (found.map_err(failed)?, (0, context::HOLE_OF_ZEROS))
            }
            Context::ChangedSince(snapshot) => {
                let found = connection
                    .volume
                    .changes(*snapshot, at, len, ranges_max)
                    .await;
                (found.map_err(failed)?, (context::CHANGED, 0))
            }
        };
        let upto = found.upto.min(at + len);
        let told = describe((at, upto), &found.ranges, flags, one);
        if told.is_empty() {
            return Err(Refused {
                errno: Errno::Io,
                text: "nothing is known of that range now".to_owned(),
            });
        }
        let chunk = wire::status_chunk(reply.cookie, id as u32, &told);
        connection.push(Message::short(chunk, Some(room), reply.place.clone()));
    }
    Ok(())
}
