//! Outgoing packets, gathered into datagrams that leave with few system calls and without a copy.
//!
//! Packets of equal size to the same queue pair become one message for segmentation offload; the last one
//! of a message may be shorter. (A message can arrive in one piece, and the peer's queue pairs may have
//! sockets of their own.) The ICRC covers the IPv4 identification, so it is computed here,
//! where it is known which packet of its message each one is: the kernel numbers the segments of a
//! message 0, 1, 2..., and a packet alone is 0.
//!
//! Headers and short payloads are copied into an arena; longer payloads stay in the memory of their
//! work request or region until the kernel takes them. Guarantee: that memory is looked at only while
//! the endpoint that holds it is borrowed ([`Gathered`]); what has to wait longer is copied first.

#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::Instant;

use libc::c_void;
use roce::endpoint::{Endpoint, Path, Transmit};
use roce::wire::icrc::{self, Flow};

use super::socket::{CONTROL_WORDS, Control, Links, Socket, check, socket_name, write_control};
use crate::address::ROCE_PORT;
use crate::memory::{FabricMemory, INLINE_BYTES};

/// Segments in one message: the kernel's UDP_MAX_SEGMENTS was 64 for long.
const SEGMENTS_MAX: usize = 64;

/// Bytes in one message: what an IPv4 or IPv6 datagram holds, with room to spare.
const MESSAGE_BYTES_MAX: usize = 65_000;

/// Where a packet names its queue pair.
pub(super) const QPN_BYTES: Range<usize> = 5..8;

/// Messages given to the kernel in one system call.
const SEND_MESSAGES: usize = 64;

/// Pieces of memory given to the kernel in one system call. A message has at most two for each of its
/// segments and one more, so one always fits.
const SEND_PIECES: usize = 256;

/// Payloads up to this length are copied: that is cheaper than another piece.
const COPIED_BYTES_MAX: usize = 512;

const _: () = assert!(2 * SEGMENTS_MAX < SEND_PIECES);
// What lies inside of a `FabricMemory` moves with it; only what lies behind a pointer stays in place.
const _: () = assert!(COPIED_BYTES_MAX >= INLINE_BYTES);

/// One datagram, or several of the same size one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) path: Path,
    /// The queue pair that it is for, as packets say it.
    qpn: Option<[u8; 3]>,
    /// Its pieces are those from here to where the next message's begin.
    first_piece: usize,
    /// Bytes of all its segments.
    pub(crate) len: usize,
    /// Bytes of each segment but the last.
    pub(crate) segment: usize,
    /// How many segments.
    pub(crate) count: usize,
}

impl Message {
    /// Whether a packet of `len` bytes can be the next segment.
    fn takes(&self, path: Path, qpn: Option<[u8; 3]>, len: usize) -> bool {
        self.path == path
            && self.qpn == qpn
            && len <= self.segment
            && self.len == self.count * self.segment
            && self.count < SEGMENTS_MAX
            && self.len + len <= MESSAGE_BYTES_MAX
    }
}

/// Bytes of a message.
#[derive(Clone, Debug)]
enum Piece {
    /// A range of the arena.
    Arena(Range<usize>),
    /// Memory of the endpoint.
    Lent(*const u8, usize),
}

/// Packets on their way to the sockets.
#[derive(Debug, Default)]
pub(crate) struct SendBatch {
    arena: Vec<u8>,
    pieces: Vec<Piece>,
    messages: Vec<Message>,
    /// Some pieces are memory of an endpoint, which may be gone.
    lent: bool,
}

/// A batch whose pieces are all there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sendable<'a>(&'a SendBatch);

/// A batch with memory of an endpoint, which nobody can touch meanwhile.
pub(crate) struct Gathered<'a> {
    batch: &'a mut SendBatch,
    packets: usize,
    _endpoint: PhantomData<&'a mut Endpoint<FabricMemory>>,
}

impl SendBatch {
    /// Adds a packet, copied; with `offload` it may join the message before it.
    pub(crate) fn push(&mut self, packet: &Transmit<'_>, offload: bool) {
        self.add(packet, offload, false);
    }

    /// Takes at most `limit` packets from an endpoint in place of what was here. Those of local
    /// addresses that `offload` says yes to may be segments of one message.
    pub(crate) fn gather<'a>(
        &'a mut self,
        endpoint: &'a mut Endpoint<FabricMemory>,
        now: Instant,
        limit: usize,
        offload: &dyn Fn(IpAddr) -> bool,
    ) -> Gathered<'a> {
        self.clear();
        self.lent = true;
        let packets = endpoint.poll_transmit(now, limit, &mut |packet| {
            self.add(&packet, offload(packet.path.local), true);
        });
        Gathered {
            batch: self,
            packets,
            _endpoint: PhantomData,
        }
    }

    /// The batch, if everything in it was copied.
    pub(crate) fn copied(&self) -> Option<Sendable<'_>> {
        (!self.lent).then_some(Sendable(self))
    }

    fn clear(&mut self) {
        self.arena.clear();
        self.pieces.clear();
        self.messages.clear();
        self.lent = false;
    }

    fn add(&mut self, packet: &Transmit<'_>, offload: bool, lend: bool) {
        let pad = &[0; 3][..usize::from(packet.pad & 3)];
        let len = packet.header.len() + packet.payload.len() + pad.len() + icrc::LEN;
        let qpn = packet.header.get(QPN_BYTES).and_then(|b| b.try_into().ok());
        let joins = |m: &Message| offload && m.takes(packet.path, qpn, len);
        if !self.messages.last().is_some_and(joins) {
            self.messages.push(Message {
                path: packet.path,
                qpn,
                first_piece: self.pieces.len(),
                len: 0,
                segment: len,
                count: 0,
            });
        }
        let Some(message) = self.messages.last_mut() else {
            return;
        };
        let ip_id = message.count as u16;
        let begins = message.count == 0;
        message.len += len;
        message.count += 1;

        let flow = Flow::new(packet.path.local, packet.path.remote, ROCE_PORT);
        let crc = icrc::compute_parts(&flow, ip_id, [packet.header, packet.payload, pad]);
        let lend = lend && packet.payload.len() > COPIED_BYTES_MAX;
        let start = self.arena.len();
        self.arena.extend_from_slice(packet.header);
        if lend {
            self.add_arena(start, begins);
            let payload = Piece::Lent(packet.payload.as_ptr(), packet.payload.len());
            self.pieces.push(payload);
        } else {
            self.arena.extend_from_slice(packet.payload);
        }
        let (start, begins) = match lend {
            true => (self.arena.len(), true),
            false => (start, begins),
        };
        self.arena.extend_from_slice(pad);
        self.arena.extend_from_slice(&crc.to_le_bytes());
        self.add_arena(start, begins);
    }

    /// What the arena holds from `start` on belongs to the last message: as a piece of its own if it
    /// `begins` one.
    fn add_arena(&mut self, start: usize, begins: bool) {
        let end = self.arena.len();
        match self.pieces.last_mut() {
            Some(Piece::Arena(range)) if !begins && range.end == start => range.end = end,
            _ => self.pieces.push(Piece::Arena(start..end)),
        }
    }

    fn pieces_of(&self, index: usize) -> &[Piece] {
        let end = self.messages.get(index + 1).map(|next| next.first_piece);
        let first = self.messages[index].first_piece;
        &self.pieces[first..end.unwrap_or(self.pieces.len())]
    }
}

impl<'a> Gathered<'a> {
    /// How many packets were taken.
    pub(crate) fn packets(&self) -> usize {
        self.packets
    }

    /// To be given to sockets.
    pub(crate) fn sendable(&self) -> Sendable<'_> {
        Sendable(self.batch)
    }

    /// Lets go of the endpoint: what is left from the message `at` on is copied.
    pub(crate) fn keep(self, at: usize) {
        let mut kept = SendBatch::default();
        for index in at..self.batch.messages.len() {
            let start = kept.arena.len();
            for piece in self.batch.pieces_of(index) {
                kept.arena.extend_from_slice(self.sendable().bytes(piece));
            }
            let first_piece = kept.pieces.len();
            kept.pieces.push(Piece::Arena(start..kept.arena.len()));
            let message = self.batch.messages[index];
            kept.messages.push(Message {
                first_piece,
                ..message
            });
        }
        *self.batch = kept;
    }
}

impl Drop for Gathered<'_> {
    fn drop(&mut self) {
        if self.batch.lent {
            self.batch.clear();
        }
    }
}

impl<'a> Sendable<'a> {
    /// The messages, in the order in which they are to leave.
    pub(crate) fn messages(self) -> &'a [Message] {
        &self.0.messages
    }

    fn bytes(self, piece: &Piece) -> &'a [u8] {
        match piece {
            Piece::Arena(range) => &self.0.arena[range.clone()],
            // SAFETY: a `Sendable` with lent pieces comes from a `Gathered`, which borrows the
            // endpoint since it gave these bytes. It drops no memory while it is asked for packets
            // ([`Endpoint::poll_transmit`]), and nobody can ask it for anything else. The bytes lie
            // behind a pointer (a payload of more than COPIED_BYTES_MAX is never inline), so they
            // stay where they are when their owner moves within the endpoint.
            Piece::Lent(start, len) => unsafe { std::slice::from_raw_parts(*start, *len) },
        }
    }
}

impl Socket {
    /// Gives messages to the kernel, from the `at`-th on and at most `count` of them, and says how many
    /// it took. An error concerns the first of them. `links` knows the interfaces of link-local paths.
    pub(crate) fn send(
        &self,
        batch: Sendable<'_>,
        at: usize,
        count: usize,
        links: &Links,
    ) -> io::Result<usize> {
        let mut names = [const { MaybeUninit::<libc::sockaddr_storage>::uninit() }; SEND_MESSAGES];
        let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; SEND_PIECES];
        let mut controls = [const { MaybeUninit::<Control>::uninit() }; SEND_MESSAGES];
        let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; SEND_MESSAGES];
        let (mut used, mut filled) = (0, 0);
        let messages = batch.messages()[at..].iter().take(count.min(SEND_MESSAGES));
        for (index, message) in messages.enumerate() {
            let pieces = batch.0.pieces_of(at + index);
            if used + pieces.len() > SEND_PIECES {
                break;
            }
            let link = links.of(message.path);
            let (name, name_len) = socket_name(message.path.remote, ROCE_PORT, link);
            let source = self
                .address()
                .is_unspecified()
                .then_some(message.path.local);
            let segment = (message.count > 1).then_some(message.segment as u16);
            let control = controls[index].write([0; CONTROL_WORDS]);
            // SAFETY: all zeroes is a valid value: null pointers and zero lengths.
            let header = headers[index].write(unsafe { std::mem::zeroed() });
            let header = &mut header.msg_hdr;
            header.msg_name = names[index].write(name) as *mut _ as *mut c_void;
            header.msg_namelen = name_len;
            for (vector, piece) in vectors[used..].iter_mut().zip(pieces) {
                let bytes = batch.bytes(piece);
                vector.write(libc::iovec {
                    iov_base: bytes.as_ptr().cast_mut().cast(),
                    iov_len: bytes.len(),
                });
            }
            header.msg_iov = vectors[used].as_mut_ptr();
            header.msg_iovlen = pieces.len();
            used += pieces.len();
            header.msg_controllen = write_control(control, source, link, segment);
            if header.msg_controllen > 0 {
                header.msg_control = control.as_mut_ptr().cast();
            }
            filled += 1;
        }
        // SAFETY: the first `filled` headers are complete; what they point to (names, vectors, controls,
        // the batch's bytes) outlives the call, and sendmmsg only reads the data.
        let sent = check(unsafe {
            let headers = headers.as_mut_ptr().cast();
            libc::sendmmsg(self.fd().as_raw_fd(), headers, filled, 0)
        })?;
        Ok(usize::try_from(sent).unwrap_or(0))
    }

    /// Sends the first segment of a message as a message of its own.
    pub(crate) fn send_first(
        &self,
        batch: Sendable<'_>,
        at: usize,
        links: &Links,
    ) -> io::Result<()> {
        let mut alone = SendBatch::default();
        let message = batch.messages()[at];
        for piece in batch.0.pieces_of(at) {
            alone.arena.extend_from_slice(batch.bytes(piece));
        }
        let len = message.segment.min(message.len);
        alone.arena.truncate(len);
        alone.pieces.push(Piece::Arena(0..len));
        alone.messages.push(Message {
            first_piece: 0,
            len,
            count: 1,
            ..message
        });
        self.send(Sendable(&alone), 0, 1, links).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> Path {
        Path {
            local: IpAddr::from([127, 0, 0, 1]),
            remote: IpAddr::from([127, 0, 0, 2]),
        }
    }

    fn push(batch: &mut SendBatch, bytes: usize, offload: bool) {
        let packet = Transmit {
            path: path(),
            header: &[4; 12],
            payload: &vec![7; bytes - 16],
            pad: 0,
        };
        batch.push(&packet, offload);
    }

    fn shape(batch: &SendBatch) -> Vec<(usize, usize)> {
        batch
            .messages
            .iter()
            .map(|m| (m.segment, m.count))
            .collect()
    }

    /// All bytes of each message.
    fn bytes(batch: Sendable<'_>) -> Vec<Vec<u8>> {
        (0..batch.messages().len())
            .map(|at| {
                let pieces = batch.0.pieces_of(at).iter();
                pieces
                    .flat_map(|piece| batch.bytes(piece).to_vec())
                    .collect()
            })
            .collect()
    }

    #[test]
    fn a_run_of_equal_packets_and_a_shorter_last_one_are_one_message() {
        let mut batch = SendBatch::default();
        for bytes in [1000, 1000, 1000, 200, 200] {
            push(&mut batch, bytes, true);
        }
        assert_eq!(shape(&batch), [(1000, 4), (200, 1)]);
        assert_eq!(batch.arena.len(), 3400);
        assert_eq!(batch.pieces.len(), 2, "what is copied is one piece");
    }

    #[test]
    fn a_longer_packet_begins_a_message() {
        let mut batch = SendBatch::default();
        for bytes in [200, 1016, 1000, 1000] {
            push(&mut batch, bytes, true);
        }
        assert_eq!(shape(&batch), [(200, 1), (1016, 2), (1000, 1)]);
    }

    #[test]
    fn packets_to_another_queue_pair_begin_a_message() {
        let mut batch = SendBatch::default();
        for qpn in [4, 4, 5, 4] {
            let mut header = [0; 12];
            header[7] = qpn;
            let packet = Transmit {
                path: path(),
                header: &header,
                payload: &[7; 84],
                pad: 0,
            };
            batch.push(&packet, true);
        }
        assert_eq!(shape(&batch), [(100, 2), (100, 1), (100, 1)]);
    }

    #[test]
    fn messages_stay_within_what_the_kernel_takes() {
        let mut batch = SendBatch::default();
        (0..130).for_each(|_| push(&mut batch, 100, true));
        assert_eq!(shape(&batch), [(100, 64), (100, 64), (100, 2)]);
        batch.clear();
        (0..20).for_each(|_| push(&mut batch, 4112, true));
        assert_eq!(shape(&batch), [(4112, 15), (4112, 5)]);
    }

    #[test]
    fn without_offload_each_packet_goes_alone() {
        let mut batch = SendBatch::default();
        (0..3).for_each(|_| push(&mut batch, 100, false));
        assert_eq!(shape(&batch), [(100, 1); 3]);
    }

    #[test]
    fn every_segment_carries_the_icrc_of_its_place() {
        let mut batch = SendBatch::default();
        (0..3).for_each(|_| push(&mut batch, 100, true));
        let flow = Flow::new(path().local, path().remote, ROCE_PORT);
        for (index, packet) in batch.arena.chunks(100).enumerate() {
            let crc = icrc::compute(&flow, index as u16, &packet[..96]);
            assert_eq!(packet[96..], crc.to_le_bytes());
        }
    }

    #[test]
    fn packets_whose_payload_is_lent_have_the_bytes_of_copied_ones() {
        let (mut lent, mut copied) = (SendBatch::default(), SendBatch::default());
        let payloads: Vec<Vec<u8>> = [4096, 4096, 1021, 30, 4096, 0]
            .iter()
            .map(|len| (0..*len).map(|i| (i * 3 + len) as u8).collect())
            .collect();
        for payload in &payloads {
            let packet = Transmit {
                path: path(),
                header: &[4; 28],
                payload,
                pad: (payload.len().wrapping_neg() & 3) as u8,
            };
            lent.add(&packet, true, true);
            copied.add(&packet, true, false);
        }
        assert!(lent.arena.len() < 400, "only headers and what is short");
        assert_eq!(lent.messages.len(), copied.messages.len());
        assert_eq!(bytes(Sendable(&lent)), bytes(Sendable(&copied)));
        // What cannot be sent at once is copied, from any message on.
        lent.lent = true;
        let all = bytes(Sendable(&copied));
        let gathered = Gathered {
            batch: &mut lent,
            packets: 6,
            _endpoint: PhantomData,
        };
        gathered.keep(1);
        assert_eq!(bytes(lent.copied().expect("all is copied")), all[1..]);
    }

    #[test]
    fn lent_memory_is_not_looked_at_when_its_endpoint_is_free_again() {
        let mut endpoint = Endpoint::new(roce::endpoint::EndpointConfig::default(), [7; 32]);
        let mut batch = SendBatch::default();
        let no = |_: IpAddr| false;
        std::mem::forget(batch.gather(&mut endpoint, Instant::now(), 8, &no));
        assert!(batch.copied().is_none());
        drop(batch.gather(&mut endpoint, Instant::now(), 8, &no));
        assert!(batch.copied().is_some_and(|all| all.messages().is_empty()));
    }
}
