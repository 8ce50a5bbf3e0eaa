//! A client that says what it likes.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nbd::wire::{self, Command, Request};

pub(crate) const EXPORT_NAME: u32 = 1;
pub(crate) const ABORT: u32 = 2;
pub(crate) const LIST: u32 = 3;
pub(crate) const GO: u32 = 7;
pub(crate) const STRUCTURED_REPLY: u32 = 8;
pub(crate) const LIST_META_CONTEXT: u32 = 9;
pub(crate) const SET_META_CONTEXT: u32 = 10;

pub(crate) const ACK: u32 = 1;
pub(crate) const INFO: u32 = 3;
pub(crate) const ERROR: u32 = 1 << 31;

pub(crate) const PERM: u32 = 1;
pub(crate) const INVALID: u32 = 22;
pub(crate) const NO_SPACE: u32 = 28;
pub(crate) const OVERFLOW: u32 = 75;
pub(crate) const SHUTDOWN: u32 = 108;

/// A connection.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    pub(crate) size_bytes: u64,
    pub(crate) flags: u16,
    structured: bool,
    cookie: u64,
}

/// A part of a structured reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) cookie: u64,
    pub(crate) is_last: bool,
    pub(crate) kind: u16,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A string with its length before it.
fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

impl Client {
    /// A connection whose handshake has begun.
    pub(crate) fn greet(path: &str) -> Self {
        let stream = UnixStream::connect(path).expect("somebody listens");
        let patience = Some(Duration::from_secs(60));
        stream.set_read_timeout(patience).expect("a bound");
        stream.set_write_timeout(patience).expect("a bound");
        let mut client = Self {
            stream,
            size_bytes: 0,
            flags: 0,
            structured: false,
            cookie: 100,
        };
        let greeting = client.take(18);
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        assert_eq!(greeting[16..], [0, 3]);
        client.send(&[0, 0, 0, 3]);
        client
    }

    /// A connection with structured replies and these contexts.
    pub(crate) fn with_contexts(path: &str, contexts: &[&str]) -> Self {
        let mut client = Self::greet(path);
        assert_eq!(client.option(STRUCTURED_REPLY, &[]).1, []);
        client.structured = true;
        if !contexts.is_empty() {
            let mut data = string("");
            data.extend((contexts.len() as u32).to_be_bytes());
            data.extend(contexts.iter().flat_map(|name| string(name)));
            let (kind, told) = client.option(SET_META_CONTEXT, &data);
            assert_eq!((kind, told.len()), (ACK, contexts.len()));
        }
        client.go();
        client
    }

    pub(crate) fn structured(path: &str) -> Self {
        Self::with_contexts(path, &[])
    }

    pub(crate) fn simple(path: &str) -> Self {
        let mut client = Self::greet(path);
        client.go();
        client
    }

    fn go(&mut self) {
        let (kind, told) = self.option(GO, &[0; 6]);
        assert_eq!(kind, ACK);
        self.size_bytes = number(&told[0].1[2..10]);
        self.flags = number(&told[0].1[10..12]) as u16;
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("it is taken");
    }

    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).expect("an answer");
        bytes
    }

    /// Asks for an option. Gives the kind of the last answer, and those before it.
    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> (u32, Vec<(u32, Vec<u8>)>) {
        self.send_option(option, data);
        let mut told = Vec::new();
        loop {
            let head = self.take(20);
            assert_eq!(number(&head[..8]), 0x0003_e889_0455_65a9);
            assert_eq!(number(&head[8..12]), u64::from(option));
            let kind = number(&head[12..16]) as u32;
            let data = self.take(number(&head[16..]) as usize);
            if kind == ACK || kind >= ERROR {
                return (kind, told);
            }
            told.push((kind, data));
        }
    }

    pub(crate) fn send_option(&mut self, option: u32, data: &[u8]) {
        self.send(b"IHAVEOPT");
        self.send(&option.to_be_bytes());
        self.send(&(data.len() as u32).to_be_bytes());
        self.send(data);
    }

    /// Sends a request, and the data of a write; gives its cookie.
    pub(crate) fn ask(
        &mut self,
        (command, flags): (Command, u16),
        (offset, len): (u64, u32),
        data: &[u8],
    ) -> u64 {
        self.cookie += 1;
        let request = Request {
            command,
            flags,
            cookie: self.cookie,
            offset,
            len,
        };
        self.send(&request.encode());
        self.send(data);
        self.cookie
    }

    /// A simple reply to this cookie: its error.
    pub(crate) fn simple_reply(&mut self, cookie: u64) -> u32 {
        let head = self.take(16);
        assert_eq!(number(&head[..4]), u64::from(wire::SIMPLE_REPLY_MAGIC));
        assert_eq!(number(&head[8..]), cookie);
        number(&head[4..8]) as u32
    }

    pub(crate) fn chunk(&mut self) -> Chunk {
        let magic = self.take(4);
        assert_eq!(number(&magic), u64::from(wire::CHUNK_MAGIC));
        self.rest_of_chunk()
    }

    fn rest_of_chunk(&mut self) -> Chunk {
        let head = self.take(16);
        let len = number(&head[12..]) as usize;
        Chunk {
            is_last: number(&head[..2]) & 1 != 0,
            kind: number(&head[2..4]) as u16,
            cookie: number(&head[4..12]),
            payload: self.take(len),
        }
    }

    /// The outcome of a request without data in its answer.
    pub(crate) fn outcome(&mut self, cookie: u64) -> Result<(), u32> {
        let magic = number(&self.take(4));
        if magic == u64::from(wire::SIMPLE_REPLY_MAGIC) {
            let rest = self.take(12);
            assert_eq!(number(&rest[4..]), cookie);
            return match number(&rest[..4]) as u32 {
                0 => Ok(()),
                error => Err(error),
            };
        }
        let chunk = self.rest_of_chunk();
        assert_eq!((chunk.cookie, chunk.is_last), (cookie, true));
        match chunk.kind {
            0 => Ok(()),
            0x8001 => Err(number(&chunk.payload[..4]) as u32),
            kind => panic!("a chunk of kind {kind}"),
        }
    }

    /// Does a request without data.
    pub(crate) fn run(&mut self, what: (Command, u16), range: (u64, u32)) -> Result<(), u32> {
        let cookie = self.ask(what, range, &[]);
        self.outcome(cookie)
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), u32> {
        self.write_with(0, offset, data)
    }

    pub(crate) fn write_with(&mut self, flags: u16, offset: u64, data: &[u8]) -> Result<(), u32> {
        let range = (offset, data.len() as u32);
        let cookie = self.ask((Command::Write, flags), range, data);
        self.outcome(cookie)
    }

    pub(crate) fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        let cookie = self.ask((Command::Read, 0), (offset, len), &[]);
        if self.structured {
            return self
                .structured_data(cookie, offset, len)
                .map(|(data, _)| data);
        }
        match self.simple_reply(cookie) {
            0 => Ok(self.take(len as usize)),
            error => Err(error),
        }
    }

    /// Puts a structured answer together; gives also the bytes that came as holes.
    pub(crate) fn structured_data(
        &mut self,
        cookie: u64,
        offset: u64,
        len: u32,
    ) -> Result<(Vec<u8>, usize), u32> {
        let mut data = vec![0xee; len as usize];
        let (mut come, mut holes, mut failed) = (0, 0, None);
        loop {
            let chunk = self.chunk();
            assert_eq!(chunk.cookie, cookie);
            let place = |payload: &[u8], len: usize| {
                let start = (number(&payload[..8]) - offset) as usize;
                start..start + len
            };
            match chunk.kind {
                0 => assert!(chunk.is_last),
                1 => {
                    let place = place(&chunk.payload, chunk.payload.len() - 8);
                    come += place.len();
                    data[place].copy_from_slice(&chunk.payload[8..]);
                }
                2 => {
                    let len = number(&chunk.payload[8..]) as usize;
                    data[place(&chunk.payload, len)].fill(0);
                    (come, holes) = (come + len, holes + len);
                }
                0x8001 => failed = Some(number(&chunk.payload[..4]) as u32),
                kind => panic!("a chunk of kind {kind}"),
            }
            if chunk.is_last {
                break;
            }
        }
        match failed {
            Some(error) => Err(error),
            None => {
                assert_eq!(come, len as usize, "all of it comes once");
                Ok((data, holes))
            }
        }
    }

    /// The extents of contexts, by their numbers.
    pub(crate) fn status(&mut self, flags: u16, range: (u64, u32)) -> Result<Vec<Extents>, u32> {
        let cookie = self.ask((Command::BlockStatus, flags), range, &[]);
        let mut all = Vec::new();
        loop {
            let chunk = self.chunk();
            assert_eq!(chunk.cookie, cookie);
            match chunk.kind {
                0 => return Ok(all),
                5 => {
                    assert_eq!(number(&chunk.payload[..4]), all.len() as u64);
                    let extents = chunk.payload[4..].chunks(8);
                    all.push(
                        extents
                            .map(|it| (number(&it[..4]) as u32, number(&it[4..]) as u32))
                            .collect(),
                    );
                }
                0x8001 => return Err(number(&chunk.payload[..4]) as u32),
                kind => panic!("a chunk of kind {kind}"),
            }
        }
    }

    /// Whether the server has ended the connection, after whatever it still had to say.
    pub(crate) fn is_ended(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

/// Lengths and flags.
pub(crate) type Extents = Vec<(u32, u32)>;
