//! A connection's records: sealed bytes in, bytes of PDUs out, and the other way round. No sockets, no clock.
//!
//! Guarantees: bytes come out only of records that are whole and right; whatever is wrong ends the session, once,
//! and nothing comes out of it or goes into it after that; all that is given is taken, so that nothing but the
//! beginning of a record waits; nothing is sealed before the handshake is done.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use nvme::auth::TlsPsk;
use openssl::error::{Error as Reason, ErrorStack};
use openssl::ssl::{
    Error, ErrorCode, Ssl, SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslRef,
    SslSessionCacheMode, SslStream, SslVersion,
};

use super::exchange::Exchange;
use super::{TlsKeys, TlsSession, TlsSuite, raw};
use crate::error::TlsFailure;

/// Data of a record at most (RFC 8446, section 5.1).
pub(in crate::tcp) const RECORD_BYTES: usize = 16 << 10;
/// What AES-GCM has to do for a record beside its data: the type, the tag, and what is missing in the last block.
const RECORD_OVERHEAD: usize = 32;
/// Type, version and length of a record (RFC 8446, section 5.1).
const HEADER_BYTES: usize = 5;
/// Sealed bytes that wait at most: a peer that asks for new keys over and over gets an answer each time, and may
/// not read them. Whoever seals data stays below that.
pub(super) const OUTPUT_BYTES_MAX: usize = 256 << 10;
/// Bytes of a handshake from the peer: a ClientHello with an identity of 520 bytes has 900.
const HANDSHAKE_BYTES_MAX: usize = 16 << 10;

/// OpenSSL's reason for a binder of a pre-shared key that is not right (`SSL_R_BINDER_DOES_NOT_VERIFY`).
const BINDER_DOES_NOT_VERIFY: i32 = 253;
/// Behind this number OpenSSL's reasons are alerts of the peer (`SSL_AD_REASON_OFFSET`).
const ALERT_REASONS: i32 = 1000;

/// What a look at the records gave.
#[derive(Debug)]
pub(in crate::tcp) enum Opened {
    /// So many bytes of data.
    Data(usize),
    /// The handshake is done, with this.
    Secured(TlsSession),
    /// Nothing: more has to be received.
    Nothing,
    /// The peer has said that nothing more comes.
    End,
}

/// The records of a connection.
pub(in crate::tcp) struct Session {
    pub(super) stream: SslStream<Wire>,
    state: State,
    keys: KeyUse,
}

/// What the keys of a connection have protected.
#[derive(Debug)]
struct KeyUse {
    /// Bytes of records that a key may protect.
    bytes_max: u64,
    /// Bytes that were sealed with the key of now, and opened with the peer's.
    sealed: u64,
    opened: u64,
    /// Changes of keys that were seen: own ones, and the peer's.
    own_changes: u64,
    peer_changes: u64,
    /// The peer was asked for a new key, and has not changed it yet.
    asked: bool,
    /// A target waits until its host has shown that it knows of new keys.
    may_begin: bool,
}

impl KeyUse {
    fn new(bytes_max: u64, may_begin: bool) -> Self {
        Self {
            bytes_max,
            sealed: 0,
            opened: 0,
            own_changes: 0,
            peer_changes: 0,
            asked: false,
            may_begin,
        }
    }

    /// Whether keys are to be changed: half of what they are good for is left for the change to take place.
    fn is_change_due(&self) -> bool {
        let enough = self.bytes_max / 2;
        let may = self.may_begin || self.peer_changes > 0;
        may && (self.sealed > enough || (self.opened > enough && !self.asked))
    }

    fn is_used_up(&self) -> bool {
        self.sealed > self.bytes_max || self.opened > self.bytes_max
    }
}

/// Bytes that AES-GCM works on for so much data: each record has a type and a tag, and a block that is not full.
fn protected(bytes: usize) -> u64 {
    let records = bytes.div_ceil(RECORD_BYTES).max(1);
    (bytes + records * RECORD_OVERHEAD) as u64
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Handshake,
    Open,
    /// It failed, or this side has said that nothing more comes.
    Ended,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// What lies between OpenSSL and the socket.
#[derive(Debug, Default)]
pub(super) struct Wire {
    /// Received bytes: those from `taken` to `given` are there.
    input: Vec<u8>,
    taken: usize,
    given: usize,
    /// What the handshake may still take; usize::MAX when it is done.
    allowance: usize,
    /// The header of the record that is being taken, and what is missing behind it.
    header: [u8; HEADER_BYTES],
    header_bytes: usize,
    body_left: usize,
    /// Sealed bytes: those before `sent` have left.
    output: Vec<u8>,
    sent: usize,
}

impl Wire {
    /// Follows the records in the bytes that are taken.
    fn note(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let part = match self.header_bytes {
                HEADER_BYTES => self.body_left.min(bytes.len()),
                have => (HEADER_BYTES - have).min(bytes.len()),
            };
            if self.header_bytes == HEADER_BYTES {
                self.body_left -= part;
            } else {
                let have = self.header_bytes;
                self.header[have..have + part].copy_from_slice(&bytes[..part]);
                self.header_bytes += part;
                self.body_left = u16::from_be_bytes([self.header[3], self.header[4]]).into();
            }
            if self.header_bytes == HEADER_BYTES && self.body_left == 0 {
                self.header_bytes = 0;
            }
            bytes = &bytes[part..];
        }
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.allowance == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let bytes = into.len().min(self.given - self.taken).min(self.allowance);
        if bytes == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        into[..bytes].copy_from_slice(&self.input[self.taken..self.taken + bytes]);
        self.taken += bytes;
        self.note(&into[..bytes]);
        if self.allowance != usize::MAX {
            self.allowance -= bytes;
        }
        Ok(bytes)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.output.len() + bytes.len() > OUTPUT_BYTES_MAX {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.output.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What all connections of a side have in common.
fn context(prepare: impl FnOnce(&mut SslContextBuilder)) -> Result<SslContext, ErrorStack> {
    let mut context = SslContextBuilder::new(SslMethod::tls())?;
    context.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_max_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_ciphersuites("TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256")?;
    context.set_options(SslOptions::NO_TICKET | SslOptions::NO_RENEGOTIATION);
    context.set_session_cache_mode(SslSessionCacheMode::OFF);
    context.set_num_tickets(0)?;
    // An idle connection keeps no memory for records.
    context.set_mode(SslMode::RELEASE_BUFFERS);
    raw::follow_keys(&mut context);
    prepare(&mut context);
    Ok(context.build())
}

type Shared = OnceLock<Result<SslContext, ErrorStack>>;

fn targets() -> Result<SslContext, ErrorStack> {
    static CONTEXT: Shared = Shared::new();
    let made = CONTEXT.get_or_init(|| context(raw::find_keys));
    made.clone()
}

fn hosts() -> Result<SslContext, ErrorStack> {
    static CONTEXT: Shared = Shared::new();
    let made = CONTEXT.get_or_init(|| context(raw::offer_keys));
    made.clone()
}

/// What OpenSSL calls the first of its errors.
fn reason(stack: &ErrorStack) -> &'static str {
    let first = stack.errors().first();
    first.and_then(Reason::reason).unwrap_or("no reason given")
}

fn library(stack: ErrorStack) -> TlsFailure {
    TlsFailure::Library(reason(&stack))
}

impl Session {
    /// A target's, of which a key protects so many bytes at most.
    pub(in crate::tcp) fn accept(
        keys: Arc<dyn TlsKeys>,
        peer: SocketAddr,
        key_bytes_max: u64,
    ) -> Result<Self, TlsFailure> {
        let prepare = |ssl: &mut SslRef| {
            ssl.set_accept_state();
            Ok(())
        };
        let use_of_keys = KeyUse::new(key_bytes_max, false);
        let exchange = Exchange::finding(keys, peer);
        Self::new(targets(), prepare, exchange, use_of_keys).map_err(library)
    }

    /// A host's, with this key; what it says first is in the output. A key that it makes of that protects so many
    /// bytes at most.
    pub(in crate::tcp) fn connect(psk: TlsPsk, key_bytes_max: u64) -> Result<Self, TlsFailure> {
        let suite = TlsSuite::of(psk.hash).name();
        let prepare = |ssl: &mut SslRef| {
            ssl.set_connect_state();
            ssl.set_ciphersuites(suite)
        };
        let use_of_keys = KeyUse::new(key_bytes_max, true);
        let session = Self::new(hosts(), prepare, Exchange::offering(psk), use_of_keys);
        let mut session = session.map_err(library)?;
        session.shake_hands()?;
        Ok(session)
    }

    fn new(
        context: Result<SslContext, ErrorStack>,
        prepare: impl FnOnce(&mut SslRef) -> Result<(), ErrorStack>,
        exchange: Exchange,
        keys: KeyUse,
    ) -> Result<Self, ErrorStack> {
        let context = context?;
        let mut ssl = Ssl::new(&context)?;
        ssl.set_ex_data(raw::place()?, exchange);
        prepare(&mut ssl)?;
        let wire = Wire {
            allowance: HANDSHAKE_BYTES_MAX,
            ..Wire::default()
        };
        Ok(Self {
            stream: SslStream::new(ssl, wire)?,
            state: State::Handshake,
            keys,
        })
    }

    /// Whether the handshake goes on.
    pub(in crate::tcp) fn is_handshaking(&self) -> bool {
        self.state == State::Handshake
    }

    /// Whether bytes can be sealed.
    pub(in crate::tcp) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Received bytes: the first `bytes` of `buffer`, which is kept until [`take_back`](Self::take_back).
    pub(in crate::tcp) fn give(&mut self, buffer: Vec<u8>, bytes: usize) {
        // OpenSSL takes an error that somebody else left on this thread for one of the connection.
        drop(ErrorStack::get());
        let wire = self.stream.get_mut();
        (wire.taken, wire.given) = (0, bytes.min(buffer.len()));
        wire.input = buffer;
    }

    /// The memory of the received bytes.
    pub(in crate::tcp) fn take_back(&mut self) -> Vec<u8> {
        let wire = self.stream.get_mut();
        (wire.taken, wire.given) = (0, 0);
        std::mem::take(&mut wire.input)
    }

    /// Whether a record has arrived in part.
    pub(in crate::tcp) fn is_within_record(&self) -> bool {
        self.stream.get_ref().header_bytes > 0
    }

    /// Opens records: data goes to `into`, at most that of one record.
    pub(in crate::tcp) fn open(&mut self, into: &mut [u8]) -> Result<Opened, TlsFailure> {
        match self.state {
            State::Ended => return Ok(Opened::End),
            State::Open => {}
            State::Handshake => {
                return match self.shake_hands()? {
                    Some(proven) => Ok(Opened::Secured(proven)),
                    None => Ok(Opened::Nothing),
                };
            }
        }
        match self.stream.ssl_read(into) {
            Ok(bytes) => {
                self.follow_keys();
                self.keys.opened += protected(bytes);
                if self.keys.is_change_due() && self.change_keys() {
                    // There may be nothing to be sealed: it leaves by itself. What fails shows at the next record.
                    let _ = self.stream.do_handshake();
                    self.follow_keys();
                }
                Ok(Opened::Data(bytes))
            }
            Err(error) if error.code() == ErrorCode::WANT_READ => Ok(Opened::Nothing),
            Err(error) if error.code() == ErrorCode::ZERO_RETURN => Ok(Opened::End),
            Err(error) => {
                self.state = State::Ended;
                Err(alert_of(&error).unwrap_or_else(|| TlsFailure::Record(reason_of(&error))))
            }
        }
    }

    /// Goes on with the handshake, as far as what was received allows it; what is to be said is in the output.
    pub(in crate::tcp) fn shake_hands(&mut self) -> Result<Option<TlsSession>, TlsFailure> {
        if self.state != State::Handshake {
            return Ok(None);
        }
        let error = match self.stream.do_handshake() {
            Ok(()) => {
                self.state = State::Open;
                self.stream.get_mut().allowance = usize::MAX;
                let proven = self.exchange().and_then(Exchange::finish);
                return proven.map(Some).ok_or(TlsFailure::NoIdentity);
            }
            Err(error) => error,
        };
        if error.code() == ErrorCode::WANT_READ {
            return Ok(None);
        }
        self.state = State::Ended;
        let identity = self.exchange().and_then(Exchange::identity);
        let too_long = self.stream.get_ref().allowance == 0;
        Err(match (alert_of(&error), identity) {
            (Some(alert), _) => alert,
            (None, _) if too_long => TlsFailure::TooLong,
            (None, None) => TlsFailure::NoIdentity,
            (None, Some((identity, known))) => match (is_wrong_key(&error), known) {
                (true, true) => TlsFailure::WrongKey { identity },
                (true, false) => TlsFailure::UnknownIdentity { identity },
                (false, _) => TlsFailure::Handshake(reason_of(&error)),
            },
        })
    }

    fn exchange(&self) -> Option<&Exchange> {
        self.stream.ssl().ex_data(raw::place().ok()?)
    }

    /// Seals bytes into the output: all of them, or none before the handshake is done.
    pub(in crate::tcp) fn seal(&mut self, bytes: &[u8]) -> Result<usize, TlsFailure> {
        if self.state != State::Open {
            return Ok(0);
        }
        if self.keys.is_change_due() {
            self.change_keys();
        }
        let sealed = self.stream.ssl_write(bytes).map_err(|error| {
            self.state = State::Ended;
            TlsFailure::Record(reason_of(&error))
        })?;
        // A new key was used for these already.
        self.follow_keys();
        self.keys.sealed += protected(sealed);
        Ok(sealed)
    }

    /// Whether a key has protected as much as it may: the connection has to end.
    pub(in crate::tcp) fn is_used_up(&self) -> bool {
        self.keys.is_used_up()
    }

    /// Takes a new key for what is sealed next, and asks the peer for one.
    fn change_keys(&mut self) -> bool {
        let changes = raw::update_key(&mut self.stream);
        self.keys.asked |= changes;
        changes
    }

    /// Begins to count anew for keys that have changed.
    fn follow_keys(&mut self) {
        let Some(exchange) = self.exchange() else {
            return;
        };
        let (own, peer) = (exchange.key_changes(true), exchange.key_changes(false));
        let keys = &mut self.keys;
        if own != keys.own_changes {
            (keys.own_changes, keys.sealed) = (own, 0);
        }
        if peer != keys.peer_changes {
            (keys.peer_changes, keys.opened, keys.asked) = (peer, 0, false);
        }
    }

    /// Says that nothing more comes; false if that was said, or cannot be.
    pub(in crate::tcp) fn say_end(&mut self) -> bool {
        let says = self.state == State::Open;
        if says {
            self.state = State::Ended;
            // Fails only if the session has failed: then the peer was told that.
            let _ = self.stream.shutdown();
        }
        says
    }

    /// What waits to be sent.
    pub(in crate::tcp) fn output(&self) -> &[u8] {
        let wire = self.stream.get_ref();
        &wire.output[wire.sent..]
    }

    /// So many bytes of the output have left.
    pub(in crate::tcp) fn sent(&mut self, bytes: usize) {
        let wire = self.stream.get_mut();
        wire.sent += bytes.min(wire.output.len() - wire.sent);
        if wire.sent == wire.output.len() {
            wire.output.clear();
            wire.sent = 0;
        }
    }

    /// The memory of the output, while nothing waits in it: to be shared with other connections.
    pub(in crate::tcp) fn output_memory(&mut self) -> Option<&mut Vec<u8>> {
        let output = &mut self.stream.get_mut().output;
        output.is_empty().then_some(output)
    }
}

/// The alert with which the peer ended it.
fn alert_of(error: &Error) -> Option<TlsFailure> {
    let first = error.ssl_error()?.errors().first()?;
    let alert = u8::try_from(first.reason_code().checked_sub(ALERT_REASONS)?).ok()?;
    Some(TlsFailure::Alert(alert))
}

fn is_wrong_key(error: &Error) -> bool {
    let first = error.ssl_error().and_then(|stack| stack.errors().first());
    first.is_some_and(|first| first.reason_code() == BINDER_DOES_NOT_VERIFY)
}

fn reason_of(error: &Error) -> &'static str {
    error.ssl_error().map_or("the stream ended", reason)
}
