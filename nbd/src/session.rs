//! A connection: its handshake, and then its requests.
//!
//! Guarantees:
//! - Requests under way, bytes of data, options, and the time for the handshake have bounds. Who reaches one waits for
//!   itself, or is hung up on; nobody else notices.
//! - What is no NBD ends this connection alone; the requests that came before it are done.
//! - When [`serve`] returns, no request of the connection is under way.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use reactor::sync::{Event, Notify, Permit, Semaphore};
use subsystem::export::ExportedVolume;
use subsystem::target::Target;
use tokio::sync::watch;

use crate::handshake::{
    self, Agreed, GREETING_BYTES, Handshake, Next, OPTION_BYTES_MAX, OPTION_HEADER_BYTES, Offer,
};
use crate::inbox::Inbox;
use crate::outbox::{Message, Outbox, SLICES_MAX};
use crate::request::{self, Reply};
use crate::server::Bounds;
use crate::socket::Socket;
use crate::wire::{Command, REQUEST_BYTES, Refused, Request};

/// How long replies may keep buffers when their client does not take them.
const BUFFERS_TIME: Duration = Duration::from_millis(50);

/// What a connection is made of.
pub(crate) struct Parts {
    pub(crate) target: Arc<Target>,
    pub(crate) export: u16,
    pub(crate) bounds: Bounds,
    pub(crate) stop: watch::Receiver<bool>,
}

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The client went before it had chosen the export.
    Early,
    /// The client went.
    Gone,
    /// The export ends.
    Stopped,
}

/// A connection that has its export.
pub(crate) struct Connection {
    pub(crate) volume: ExportedVolume,
    pub(crate) agreed: Agreed,
    /// Bytes of data that are read or written.
    pub(crate) room: Semaphore,
    /// For replies of several parts that nothing may come between.
    pub(crate) long: Semaphore,
    /// Requests that wait shall give up.
    pub(crate) leaving: Event,
    /// Requests that have no answer that is sent.
    places: Semaphore,
    socket: Socket,
    out: RefCell<Outbox>,
    /// Rings when there is something to send, or the end came nearer.
    bell: Notify,
    underway: Cell<usize>,
    /// No more requests come.
    is_closing: Cell<bool>,
    /// What was said cannot be ended as it was begun.
    is_broken: Cell<bool>,
    /// Nothing is sent any more.
    is_over: Cell<bool>,
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// Serves a connection until its end.
///
/// # Errors
/// What ended it, if it was neither the client's wish nor this program's.
pub(crate) async fn serve(fd: OwnedFd, mut parts: Parts, ready: impl FnOnce()) -> io::Result<End> {
    let socket = Socket::new(fd)?;
    let mut inbox = Inbox::default();
    let agreed = {
        let shaking = pin!(shake_hands(&socket, &mut inbox, &parts));
        let shaking = pin!(reactor::timeout(parts.bounds.handshake_time, shaking));
        let mut stop = parts.stop.clone();
        let stopped = pin!(stop.wait_for(|stop| *stop));
        match select(stopped, shaking).await {
            Either::Left(_) => return Ok(End::Stopped),
            Either::Right((Ok(agreed), _)) => agreed?,
            Either::Right((Err(_), _)) => {
                let text = "a handshake that does not come to its end";
                return Err(io::Error::new(ErrorKind::TimedOut, text));
            }
        }
    };
    let Some(agreed) = agreed else {
        return Ok(End::Early);
    };
    let volume = parts.target.open_export(parts.export);
    let volume = volume.map_err(|failure| io::Error::other(failure.to_string()))?;
    ready();
    let connection = Rc::new(Connection {
        volume,
        agreed,
        room: Semaphore::new(parts.bounds.bytes_max),
        long: Semaphore::new(1),
        leaving: Event::new(),
        places: Semaphore::new(parts.bounds.requests_max),
        socket,
        out: RefCell::default(),
        bell: Notify::new(),
        underway: Cell::new(0),
        is_closing: Cell::new(false),
        is_broken: Cell::new(false),
        is_over: Cell::new(false),
    });
    let end = connection.run(&mut inbox, &mut parts).await;
    connection.leaving.set();
    connection.is_over.set(true);
    connection.out.take();
    connection.drained().await;
    end
}

/// What there is now.
fn offer(parts: &Parts, option: u32) -> Option<Offer> {
    let shape = parts.target.export_shape(parts.export)?;
    let names = parts
        .target
        .export_names(parts.export, handshake::asks_for_snapshots(option))?;
    Some(Offer {
        name: names.volume,
        size_bytes: shape.size_bytes,
        read_only: shape.read_only,
        snapshots: names.snapshots,
    })
}

/// Agrees with a client; `None` if it goes.
async fn shake_hands(
    socket: &Socket,
    inbox: &mut Inbox,
    parts: &Parts,
) -> io::Result<Option<Agreed>> {
    let greeting: [u8; GREETING_BYTES] = handshake::greeting();
    socket.send_all(&greeting).await?;
    let Some(flags) = take::<4>(socket, inbox).await? else {
        return Ok(None);
    };
    let mut handshake = Handshake::begin(flags).map_err(invalid)?;
    let mut answers = Vec::new();
    loop {
        let Some(header) = take::<OPTION_HEADER_BYTES>(socket, inbox).await? else {
            return Ok(None);
        };
        let (option, len) = handshake::parse_option(&header).map_err(invalid)?;
        let offer = offer(parts, option);
        answers.clear();
        let next = if len > OPTION_BYTES_MAX {
            skip(socket, inbox, len as usize).await?;
            handshake.option(option, None, offer.as_ref(), &mut answers)
        } else {
            need(socket, inbox, len as usize).await?;
            let data = &inbox.bytes()[..len as usize];
            let next = handshake.option(option, Some(data), offer.as_ref(), &mut answers);
            inbox.used(len as usize);
            next
        };
        let next = next.map_err(invalid)?;
        socket.send_all(&answers).await?;
        match next {
            Next::Option => {}
            Next::Requests(agreed) => return Ok(Some(agreed)),
            Next::Goodbye => return Ok(None),
        }
    }
}

/// The next bytes; `None` if the client went before the first of them.
async fn take<const N: usize>(socket: &Socket, inbox: &mut Inbox) -> io::Result<Option<[u8; N]>> {
    if !inbox.fill(socket, N).await? {
        return Ok(None);
    }
    let bytes = inbox.bytes().first_chunk().copied();
    inbox.used(N);
    Ok(bytes)
}

/// Waits for bytes that must come.
async fn need(socket: &Socket, inbox: &mut Inbox, bytes: usize) -> io::Result<()> {
    match bytes == 0 || inbox.fill(socket, bytes).await? {
        true => Ok(()),
        false => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// Takes bytes that nobody wants.
async fn skip(socket: &Socket, inbox: &mut Inbox, mut bytes: usize) -> io::Result<()> {
    while bytes > 0 {
        need(socket, inbox, 1).await?;
        let some = inbox.bytes().len().min(bytes);
        inbox.used(some);
        bytes -= some;
    }
    Ok(())
}

impl Connection {
    async fn run(self: &Rc<Self>, inbox: &mut Inbox, parts: &mut Parts) -> io::Result<End> {
        let patience = parts.bounds.patience;
        let mut writing = pin!(self.send_replies());
        let end = {
            let reading = pin!(self.take_requests(inbox));
            let stopped = pin!(parts.stop.wait_for(|stop| *stop));
            let until = pin!(select(stopped, reading));
            match select(until, writing.as_mut()).await {
                Either::Left((Either::Left(_), _)) => Ok(End::Stopped),
                Either::Left((Either::Right((read, _)), _)) => read.map(|()| End::Gone),
                Either::Right((sent, _)) => return sent.map(|()| End::Gone),
            }
        };
        // Replies to what came before are still sent.
        self.is_closing.set(true);
        self.bell.notify_one();
        if matches!(end, Ok(End::Gone)) {
            let stopped = pin!(parts.stop.wait_for(|stop| *stop));
            if let Either::Right(_) = select(stopped, writing.as_mut()).await {
                return end;
            }
        }
        self.leaving.set();
        let _ = reactor::timeout(patience, writing).await;
        end
    }

    /// Takes requests until the client goes.
    async fn take_requests(self: &Rc<Self>, inbox: &mut Inbox) -> io::Result<()> {
        loop {
            let place = self.places.acquire(1).await;
            let Some(header) = take::<REQUEST_BYTES>(&self.socket, inbox).await? else {
                // It may have gone without a word: nobody waits for what its limits hold back.
                self.leaving.set();
                return Ok(());
            };
            let request = Request::parse(&header).map_err(invalid)?;
            if request.command == Command::Disconnect {
                return Ok(());
            }
            let reply = Reply::new(self.clone(), &request, place);
            if let Err(refused) = request.check(self.agreed.structured) {
                reply.end(Err(refused));
                skip(&self.socket, inbox, request.payload() as usize).await?;
                continue;
            }
            match request.command {
                Command::Write => self.take_write(inbox, &request, reply).await?,
                _ => drop(reactor::spawn(request::run(request, reply))),
            }
        }
    }

    /// Takes the data of a write, and writes them piece by piece.
    async fn take_write(
        &self,
        inbox: &mut Inbox,
        request: &Request,
        reply: Rc<Reply>,
    ) -> io::Result<()> {
        let begun = {
            let begun = pin!(request::begin_write(request, &reply));
            let gone = pin!(self.socket.ended());
            match select(begun, gone).await {
                Either::Left((begun, _)) => begun,
                Either::Right(_) => {
                    // What its limits hold back waits for nobody.
                    self.leaving.set();
                    Err(Refused::leaving())
                }
            }
        };
        if let Err(refused) = begun {
            reply.end(Err(refused));
            return skip(&self.socket, inbox, request.payload() as usize).await;
        }
        let (mut at, mut left) = (request.offset, u64::from(request.len));
        while left > 0 {
            let len = request::piece(at, left);
            let room = self.room.acquire(len).await;
            need(&self.socket, inbox, len).await?;
            let mut buffer = request::buffer(&self.volume, len).await;
            buffer.copy_from_slice(&inbox.bytes()[..len]);
            inbox.used(len);
            request::write_piece(reply.piece(), request, at, buffer, room);
            (at, left) = (at + len as u64, left - len as u64);
        }
        reply.end(Ok(()));
        Ok(())
    }

    /// Sends replies until all are sent and no more come.
    async fn send_replies(&self) -> io::Result<()> {
        loop {
            if self.is_broken.get() {
                return Err(io::Error::other(
                    "data that were begun to be sent cannot be read",
                ));
            }
            if self.out.borrow().is_waiting() {
                let is_over = self.underway.get() == 0 && self.out.borrow().is_empty();
                if self.is_closing.get() && is_over {
                    return Ok(());
                }
                self.bell.notified().await;
                continue;
            }
            if !self.socket.is_writable() {
                self.wait_for_client().await?;
                continue;
            }
            let sent = {
                let out = self.out.borrow();
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let count = out.slices(&mut slices);
                self.socket.send(&slices[..count])?
            };
            self.out.borrow_mut().advance(sent);
        }
    }

    /// Waits until the client takes more. If that is long, or others need memory, its replies leave their buffers.
    async fn wait_for_client(&self) -> io::Result<()> {
        let others_wait = self.volume.buffers().stats().waiting > 0;
        if !others_wait {
            let writable = pin!(self.socket.writable());
            let late = pin!(reactor::sleep(BUFFERS_TIME));
            if let Either::Left((ready, _)) = select(writable, late).await {
                return ready;
            }
        }
        if !self.out.borrow_mut().leave_buffers() {
            let text = "a client does not take its replies, and there is no memory to keep them";
            return Err(io::Error::other(text));
        }
        let writable = pin!(self.socket.writable());
        let again = pin!(reactor::sleep(BUFFERS_TIME));
        match select(writable, again).await {
            Either::Left((ready, _)) => ready,
            Either::Right(_) => Ok(()),
        }
    }

    /// Waits until no request is under way.
    async fn drained(&self) {
        while self.underway.get() > 0 {
            self.bell.notified().await;
        }
    }

    pub(crate) fn push(&self, message: Message) {
        if !self.is_over.get() {
            self.out.borrow_mut().push(message);
            self.bell.notify_one();
        }
    }

    /// Begins a reply of several parts; the permit of [`Self::long`] goes with it.
    pub(crate) fn begin_long(self: &Rc<Self>, turn: Permit) -> Long {
        self.out.borrow_mut().begin_long();
        Long {
            connection: self.clone(),
            is_whole: false,
            _turn: turn,
        }
    }

    pub(crate) fn began(&self) {
        self.underway.set(self.underway.get() + 1);
    }

    pub(crate) fn ended(&self) {
        self.underway.set(self.underway.get() - 1);
        self.bell.notify_one();
    }
}

/// A reply of several parts that is being told. If it is not told to its end, the connection ends.
pub(crate) struct Long {
    connection: Rc<Connection>,
    is_whole: bool,
    _turn: Permit,
}

impl Long {
    pub(crate) fn push(&self, message: Message) {
        if !self.connection.is_over.get() {
            self.connection.out.borrow_mut().push_long(message);
            self.connection.bell.notify_one();
        }
    }

    pub(crate) fn end(mut self) {
        self.is_whole = true;
    }
}

impl Drop for Long {
    fn drop(&mut self) {
        if !self.is_whole {
            self.connection.is_broken.set(true);
        }
        self.connection.out.borrow_mut().end_long();
        self.connection.bell.notify_one();
    }
}
