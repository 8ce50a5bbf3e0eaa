//! The full check of the ICRC on IPv4, and the test at the start that what we send can pass it.
//!
//! The ICRC covers the IP identification, which UDP sockets do not show; it can be worked out from the
//! ICRC itself, but that leaves 16 of its 32 bits. With a raw socket the identification is known. The
//! raw socket sees each packet just before the UDP socket does, so by the time a packet was received
//! its header waits here.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use roce::endpoint::{Part, Path, Transmit};
use roce::wire::icrc::Verified;
use roce::wire::{Bth, Opcode, Psn, QPN_MAX};

use super::socket::{Links, ReceiveBatch, Socket};
use super::socket_raw::{BTH_BYTES, Header, RawSocket};
use super::socket_send::SendBatch;

/// Headers that wait for their packets; the oldest are forgotten first. More than the UDP socket's
/// buffer holds of them would wait in vain.
const WAITING_MAX: usize = 16 << 10;

/// Headers before the one that was looked for which are kept: the queues of several processors can
/// swap neighbours. What is older than that lost its packet.
const SWAPPED_MAX: usize = 64;

/// Knows the identification of what was received.
#[derive(Debug)]
pub(super) struct Headers {
    raw: RawSocket,
    waiting: VecDeque<Header>,
}

impl Headers {
    pub(super) fn open(address: Ipv4Addr, receive_buffer: usize, part: Part) -> io::Result<Self> {
        Ok(Self {
            raw: RawSocket::open(address, receive_buffer, part)?,
            waiting: VecDeque::new(),
        })
    }

    /// Takes the headers of everything that came so far. Call it after the packets were received.
    pub(super) fn refill(&mut self) -> io::Result<()> {
        let waiting = &mut self.waiting;
        self.raw.receive(|header| {
            if waiting.len() >= WAITING_MAX {
                waiting.pop_front();
            }
            waiting.push_back(header);
        })
    }

    /// The identification of a run of packets: its beginning, and its length in bytes.
    pub(super) fn take(
        &mut self,
        source: SocketAddr,
        local: IpAddr,
        begin: &[u8],
        len: usize,
    ) -> Option<u16> {
        let bth = begin.first_chunk::<BTH_BYTES>()?;
        let at = self.waiting.iter().position(|header| {
            header.bth == *bth
                && header.len == len
                && header.source == source
                && header.local == local
        })?;
        let header = self.waiting.remove(at)?;
        if at > SWAPPED_MAX {
            self.waiting.drain(..at - SWAPPED_MAX);
        }
        Some(header.ip_id)
    }
}

/// Whether the packets of a run have the identifications that they must have: the first the one in
/// its header, each other one more than the one before it, or 0 where the kernel put a second run of
/// the same peer behind the first. Where the header is not known, any will do.
#[derive(Debug)]
pub(super) struct Sequence {
    header: Option<u16>,
    last: Option<u16>,
}

impl Sequence {
    /// Of a run whose header is known.
    pub(super) fn new(header: u16) -> Self {
        Self {
            header: Some(header),
            last: None,
        }
    }

    /// Of a run whose header is not known.
    pub(super) fn unknown() -> Self {
        Self {
            header: None,
            last: None,
        }
    }

    /// What the next packet should have. Our own stack begins each run with 0.
    pub(super) fn expected(&self) -> u16 {
        let header = self.header.unwrap_or(0);
        self.last.map_or(header, |last| last.wrapping_add(1))
    }

    /// Whether a packet's identification, as its ICRC says it, is right.
    pub(super) fn accepts(&mut self, verified: Verified) -> bool {
        let Some(id) = verified.ip_id else {
            return true;
        };
        let right = id == self.expected() || (self.last.is_some() && id == 0);
        self.last = Some(id);
        right || self.header.is_none()
    }
}

/// What the test at the start found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Packets carry the identification that their ICRC was computed for.
    Right,
    /// They carry another one: peers that check the ICRC drop them.
    Wrong { ip_id: u16 },
    /// They did not arrive: nothing is known.
    Nothing,
}

/// How long a packet to this machine itself may take. It is there at once if it comes at all.
const PROBE_TIME: Duration = Duration::from_millis(200);

/// Sends a packet, and a run of two, from a socket to its own address, and looks at the
/// identifications with which they arrive. They name a queue pair that never exists.
///
/// # Errors
/// Without CAP_NET_RAW, or if nothing can be sent.
pub(super) fn probe(socket: &Socket, receiving: &mut ReceiveBatch) -> io::Result<Found> {
    let own = match socket.address() {
        IpAddr::V4(own) if own.is_unspecified() => Ipv4Addr::LOCALHOST,
        IpAddr::V4(own) => own,
        IpAddr::V6(_) => return Ok(Found::Right),
    };
    let raw = RawSocket::open(own, 1 << 16, Part::WHOLE)?;
    let path = Path {
        local: own.into(),
        remote: own.into(),
    };
    let mut batch = SendBatch::default();
    let mut headers = Vec::new();
    for (number, offload) in [(1, false), (2, false), (3, true)] {
        let header = Bth::new(Opcode::SendOnly, QPN_MAX - 1, Psn::new(number)).to_bytes();
        headers.push(header);
        let packet = Transmit {
            path,
            header: &header,
            payload: &[0; 16],
            pad: 0,
        };
        batch.push(&packet, offload && socket.offload());
    }
    let start = Instant::now();
    let (mut sent, mut messages) = (0, 0);
    if let Some(batch) = batch.copied() {
        messages = batch.messages().len();
        while sent < messages && start.elapsed() < PROBE_TIME {
            sent += socket.send(batch, sent, messages - sent, &Links::default())?;
        }
    }
    let mut seen = 0;
    let mut found = Found::Nothing;
    while seen < messages && start.elapsed() < PROBE_TIME {
        raw.receive(|header| {
            if header.source.ip() == IpAddr::from(own) && headers.contains(&header.bth) {
                seen += 1;
                found = match found {
                    Found::Wrong { .. } => found,
                    _ if header.ip_id != 0 => Found::Wrong {
                        ip_id: header.ip_id,
                    },
                    _ => Found::Right,
                };
            }
        })?;
        if seen < messages {
            // The device is being opened and serves nobody yet: its reactor may stand still for a moment.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // They are in the UDP socket's buffer, too, and mean nothing there.
    receiving.receive(socket)?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verified(id: u16) -> Verified {
        Verified { ip_id: Some(id) }
    }

    #[test]
    fn a_run_counts_up_from_its_header() {
        let mut run = Sequence::new(7);
        assert!(run.accepts(verified(7)) && run.accepts(verified(8)) && run.accepts(verified(9)));
        assert!(run.accepts(verified(0)), "a second run of the same peer");
        assert!(run.accepts(verified(1)));
        assert!(!run.accepts(verified(3)));
        let mut unknown = Sequence::unknown();
        assert!(unknown.accepts(verified(9)) && unknown.accepts(verified(4)));
        let mut other = Sequence::new(7);
        assert!(!other.accepts(verified(0)), "the header says 7");
    }

    /// A socket on an address of its own, if raw sockets are allowed here.
    fn socket() -> Option<Socket> {
        if let Err(error) = RawSocket::open(Ipv4Addr::LOCALHOST, 4096, Part::WHOLE) {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            return None;
        }
        let random = getrandom::u32().expect("randomness").to_le_bytes();
        let own = Ipv4Addr::new(127, 60, random[0], random[1].clamp(1, 254));
        Some(Socket::open(own.into(), 1 << 20, 1 << 20, true).expect("free"))
    }

    #[test]
    fn a_machine_that_sends_what_the_icrc_says_passes_and_another_does_not() {
        let Some(socket) = socket() else { return };
        let mut receiving = ReceiveBatch::new();
        assert_eq!(probe(&socket, &mut receiving).expect("sent"), Found::Right);
        // Where packets may be fragmented the kernel numbers them.
        socket.allow_fragments().expect("an option");
        let found = probe(&socket, &mut receiving).expect("sent");
        assert!(matches!(found, Found::Wrong { .. }), "{found:?}");
    }
}
