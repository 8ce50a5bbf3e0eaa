//! Reading from an NBD server (doc/proto.md of the NBD project), as much of it as an image needs: one connection, one
//! request at a time, holes told as such.
//!
//! Guarantee: whatever the server sends, no more is taken than was asked for.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const GREETING: u64 = 0x4e42_444d_4147_4943;
const OPTION: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const STRUCTURED_REPLY: u32 = 0x668e_33ef;

const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REP_ERROR: u32 = 1 << 31;
const INFO_EXPORT: u16 = 0;
const CMD_READ: u16 = 0;
const CMD_DISC: u16 = 2;
/// Fixed newstyle, and no padding; the same bits for server and client.
const FLAGS: u16 = 3;

const CHUNK_DONE: u16 = 1;
const CHUNK_DATA: u16 = 1;
const CHUNK_HOLE: u16 = 2;
const CHUNK_ERROR: u16 = 1 << 15;

/// The longest text or option that a server sends.
const TEXT_BYTES_MAX: u32 = 8192;

/// A connection.
#[derive(Debug)]
pub(super) struct Nbd<S: Read + Write = UnixStream> {
    stream: S,
    bytes: u64,
    cookie: u64,
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn take<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn take_u16(stream: &mut impl Read) -> io::Result<u16> {
    take(stream).map(u16::from_be_bytes)
}

fn take_u32(stream: &mut impl Read) -> io::Result<u32> {
    take(stream).map(u32::from_be_bytes)
}

fn take_u64(stream: &mut impl Read) -> io::Result<u64> {
    take(stream).map(u64::from_be_bytes)
}

fn take_text(stream: &mut impl Read, bytes: u32) -> io::Result<Vec<u8>> {
    if bytes > TEXT_BYTES_MAX {
        return Err(wrong("it sends too long a text"));
    }
    let mut text = vec![0; bytes as usize];
    stream.read_exact(&mut text)?;
    Ok(text)
}

impl Nbd {
    /// Connects to the one export of a server.
    pub(super) fn connect(socket: &Path) -> io::Result<Self> {
        Self::greet(UnixStream::connect(socket)?)
    }
}

impl<S: Read + Write> Nbd<S> {
    fn greet(mut stream: S) -> io::Result<Self> {
        if take_u64(&mut stream)? != GREETING || take_u64(&mut stream)? != OPTION {
            return Err(wrong("it does not speak NBD"));
        }
        if take_u16(&mut stream)? & FLAGS != FLAGS {
            return Err(wrong("it speaks an old NBD"));
        }
        stream.write_all(&u32::from(FLAGS).to_be_bytes())?;
        let mut nbd = Self {
            stream,
            bytes: 0,
            cookie: 0,
        };
        // Without it holes come as zeros, which works too.
        nbd.option(OPT_STRUCTURED_REPLY, &[])?;
        // The export without a name, and no information about it is asked for.
        if !nbd.option(OPT_GO, &[0; 6])? {
            return Err(wrong("it has no export without a name"));
        }
        Ok(nbd)
    }

    /// The length of the export.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Asks for an option. Returns whether the server grants it.
    fn option(&mut self, option: u32, data: &[u8]) -> io::Result<bool> {
        let mut request = OPTION.to_be_bytes().to_vec();
        request.extend(option.to_be_bytes());
        request.extend((data.len() as u32).to_be_bytes());
        request.extend(data);
        self.stream.write_all(&request)?;
        loop {
            let stream = &mut self.stream;
            if take_u64(stream)? != OPTION_REPLY || take_u32(stream)? != option {
                return Err(wrong("its answer is to something else"));
            }
            let (kind, bytes) = (take_u32(stream)?, take_u32(stream)?);
            let answer = take_text(stream, bytes)?;
            match kind {
                REP_ACK => return Ok(true),
                REP_INFO => {
                    if let Some((kind, rest)) = answer.split_first_chunk::<2>()
                        && u16::from_be_bytes(*kind) == INFO_EXPORT
                    {
                        let bytes = rest.first_chunk::<8>();
                        let bytes = bytes.ok_or_else(|| wrong("its answer is too short"))?;
                        self.bytes = u64::from_be_bytes(*bytes);
                    }
                }
                kind if kind & REP_ERROR != 0 => return Ok(false),
                _ => return Err(wrong("its answer is unknown")),
            }
        }
    }

    /// Fills `data`, which is zeros, with what is there from `offset` on.
    pub(super) fn read(&mut self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let len = u32::try_from(data.len()).map_err(|_| wrong("that is too much at a time"))?;
        self.cookie += 1;
        let mut request = REQUEST.to_be_bytes().to_vec();
        request.extend([0; 2]);
        request.extend(CMD_READ.to_be_bytes());
        request.extend(self.cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        self.stream.write_all(&request)?;
        let mut come = 0;
        loop {
            match take_u32(&mut self.stream)? {
                SIMPLE_REPLY => {
                    let error = take_u32(&mut self.stream)?;
                    self.check_cookie()?;
                    return match error {
                        0 => self.stream.read_exact(data),
                        error => Err(io::Error::from_raw_os_error(error.cast_signed())),
                    };
                }
                STRUCTURED_REPLY => {}
                _ => return Err(wrong("its answer has no beginning")),
            }
            let (flags, kind) = (take_u16(&mut self.stream)?, take_u16(&mut self.stream)?);
            self.check_cookie()?;
            let bytes = take_u32(&mut self.stream)?;
            come += self.chunk(kind, bytes, offset, data)?;
            if flags & CHUNK_DONE != 0 {
                return match come == u64::from(len) {
                    true => Ok(()),
                    false => Err(wrong("it sent another length than was asked for")),
                };
            }
            if come > u64::from(len) {
                return Err(wrong("it sends more than was asked for"));
            }
        }
    }

    fn check_cookie(&mut self) -> io::Result<()> {
        match take_u64(&mut self.stream)? == self.cookie {
            true => Ok(()),
            false => Err(wrong("its answer is to something else")),
        }
    }

    /// Takes a part of an answer; returns how many bytes of the data it is.
    fn chunk(&mut self, kind: u16, bytes: u32, offset: u64, data: &mut [u8]) -> io::Result<u64> {
        let stream = &mut self.stream;
        let place = |at: u64, len: u64| {
            let start = usize::try_from(at.checked_sub(offset)?).ok()?;
            let end = start.checked_add(usize::try_from(len).ok()?)?;
            (end <= data.len()).then_some(start..end)
        };
        let outside = || wrong("it sends what was not asked for");
        match kind {
            CHUNK_DATA if bytes > 8 => {
                let len = u64::from(bytes) - 8;
                let place = place(take_u64(stream)?, len).ok_or_else(outside)?;
                stream.read_exact(&mut data[place])?;
                Ok(len)
            }
            CHUNK_HOLE if bytes == 12 => {
                let (at, len) = (take_u64(stream)?, u64::from(take_u32(stream)?));
                let place = place(at, len).ok_or_else(outside)?;
                data[place].fill(0);
                Ok(len)
            }
            // Nothing but that it is the last.
            0 if bytes == 0 => Ok(0),
            kind if kind & CHUNK_ERROR != 0 => {
                let text = take_text(stream, bytes)?;
                let number = text.first_chunk::<4>().map(|it| u32::from_be_bytes(*it));
                let told = text.get(6..).unwrap_or_default();
                let told = String::from_utf8_lossy(told);
                Err(match told.is_empty() {
                    true => io::Error::from_raw_os_error(number.unwrap_or(5).cast_signed()),
                    false => io::Error::other(told.escape_default().to_string()),
                })
            }
            _ => Err(wrong("a part of its answer is unknown")),
        }
    }
}

impl<S: Read + Write> Drop for Nbd<S> {
    fn drop(&mut self) {
        let mut request = REQUEST.to_be_bytes().to_vec();
        request.extend([0; 2]);
        request.extend(CMD_DISC.to_be_bytes());
        request.extend([0; 20]);
        // It ends with the connection anyway.
        let _ = self.stream.write_all(&request);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a server says, whatever it is asked.
    struct Script(io::Cursor<Vec<u8>>);

    impl Read for Script {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0.read(buf)
        }
    }

    impl Write for Script {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            Ok(buf.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn nbd(says: Vec<u8>) -> Nbd<Script> {
        Nbd {
            stream: Script(io::Cursor::new(says)),
            bytes: 1 << 20,
            cookie: 0,
        }
    }

    fn chunk(flags: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = STRUCTURED_REPLY.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(1u64.to_be_bytes());
        bytes.extend((payload.len() as u32).to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    fn data_at(at: u64, data: &[u8]) -> Vec<u8> {
        [&at.to_be_bytes()[..], data].concat()
    }

    fn hole_at(at: u64, len: u32) -> Vec<u8> {
        [&at.to_be_bytes()[..], &len.to_be_bytes()].concat()
    }

    #[test]
    fn data_and_holes_of_an_answer_come_to_their_places() {
        let says = [
            chunk(0, CHUNK_HOLE, &hole_at(4096, 100)),
            chunk(0, CHUNK_DATA, &data_at(4196, &[7; 50])),
            chunk(CHUNK_DONE, CHUNK_HOLE, &hole_at(4246, 50)),
        ];
        let mut data = [9; 200];
        nbd(says.concat()).read(4096, &mut data).expect("an answer");
        assert_eq!((data[99], data[100], data[149], data[150]), (0, 7, 7, 0));
    }

    #[test]
    fn an_answer_that_is_short_long_or_elsewhere_is_an_error() {
        let read = |says: Vec<u8>| {
            let mut data = [0; 200];
            let read = nbd(says).read(4096, &mut data);
            read.expect_err("it is wrong").to_string()
        };
        let short = chunk(CHUNK_DONE, CHUNK_DATA, &data_at(4096, &[7; 199]));
        assert!(read(short).contains("another length"));
        let before = chunk(CHUNK_DONE, CHUNK_DATA, &data_at(4000, &[7; 200]));
        assert!(read(before).contains("not asked for"));
        let behind = chunk(CHUNK_DONE, CHUNK_HOLE, &hole_at(4097, 200));
        assert!(read(behind).contains("not asked for"));
        let told = chunk(CHUNK_DONE, CHUNK_ERROR | 1, b"\0\0\0\x05\0\x04oops");
        assert!(read(told).contains("oops"));
    }

    proptest! {
        #[test]
        fn whatever_a_server_says_ends(
            kinds in proptest::collection::vec((0u16..4, any::<bool>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..6),
            noise in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let chunks = kinds.into_iter().map(|(kind, is_error, payload)| {
                let kind = if is_error { kind | CHUNK_ERROR } else { kind };
                chunk(0, kind, &payload)
            });
            let mut says: Vec<u8> = chunks.flatten().collect();
            says.extend(noise);
            let mut data = [0; 200];
            let _ = nbd(says.clone()).read(0, &mut data);
            drop(Nbd::greet(Script(io::Cursor::new(says))));
        }
    }
}
