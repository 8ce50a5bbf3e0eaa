//! Outgoing packets, gathered into datagrams that leave with few system calls.
//!
//! Packets of equal size to the same peer become one message for segmentation offload; the last one
//! of a message may be shorter. The ICRC covers the IPv4 identification, so it is computed here,
//! where it is known which packet of its message each one is: the kernel numbers the segments of a
//! message 0, 1, 2..., and a packet alone is 0.

use roce::endpoint::{Path, Transmit};
use roce::wire::icrc::{self, Flow};

use super::ROCE_PORT;

/// Bytes of the ICRC.
pub(super) const ICRC_BYTES: usize = 4;

/// Segments in one message: the kernel's UDP_MAX_SEGMENTS was 64 for long.
const SEGMENTS_MAX: usize = 64;

/// Bytes in one message: what an IPv4 or IPv6 datagram holds, with room to spare.
const MESSAGE_BYTES_MAX: usize = 65_000;

/// One datagram, or several of the same size one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) path: Path,
    /// Where in the arena it begins.
    pub(crate) start: usize,
    /// Bytes of all its segments.
    pub(crate) len: usize,
    /// Bytes of each segment but the last.
    pub(crate) segment: usize,
    /// How many segments.
    pub(crate) count: usize,
}

/// Packets on their way to the sockets.
#[derive(Debug, Default)]
pub(crate) struct SendBatch {
    arena: Vec<u8>,
    messages: Vec<Message>,
}

impl SendBatch {
    /// Adds a packet; with `offload` it may join the message before it.
    pub(crate) fn push(&mut self, packet: &Transmit<'_>, offload: bool) {
        let len = packet.header.len() + packet.payload.len() + usize::from(packet.pad) + ICRC_BYTES;
        let joined = offload
            && self
                .messages
                .last()
                .is_some_and(|m| m.takes(packet.path, len));
        if !joined {
            let start = self.arena.len();
            self.messages.push(Message {
                path: packet.path,
                start,
                len: 0,
                segment: len,
                count: 0,
            });
        }
        let Some(message) = self.messages.last_mut() else {
            return;
        };
        let ip_id = message.count as u16;
        message.len += len;
        message.count += 1;

        let start = self.arena.len();
        self.arena.extend_from_slice(packet.header);
        self.arena.extend_from_slice(packet.payload);
        self.arena
            .resize(self.arena.len() + usize::from(packet.pad), 0);
        let flow = Flow {
            src: packet.path.local,
            dst: packet.path.remote,
            src_port: ROCE_PORT,
            dst_port: ROCE_PORT,
        };
        let crc = icrc::compute(&flow, ip_id, &self.arena[start..]);
        self.arena.extend_from_slice(&crc.to_le_bytes());
    }

    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The bytes that the messages lie in.
    pub(crate) fn arena(&self) -> &[u8] {
        &self.arena
    }

    pub(crate) fn clear(&mut self) {
        self.arena.clear();
        self.messages.clear();
    }
}

impl Message {
    /// Its first packet, as a message of its own.
    pub(crate) fn alone(&self) -> Self {
        Self {
            len: self.segment.min(self.len),
            count: 1,
            ..*self
        }
    }

    /// Whether a packet of `len` bytes can be the next segment.
    fn takes(&self, path: Path, len: usize) -> bool {
        self.path == path
            && len <= self.segment
            && self.len == self.count * self.segment
            && self.count < SEGMENTS_MAX
            && self.len + len <= MESSAGE_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

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
            .messages()
            .iter()
            .map(|m| (m.segment, m.count))
            .collect()
    }

    #[test]
    fn a_run_of_equal_packets_and_a_shorter_last_one_are_one_message() {
        let mut batch = SendBatch::default();
        for bytes in [1000, 1000, 1000, 200, 200] {
            push(&mut batch, bytes, true);
        }
        assert_eq!(shape(&batch), [(1000, 4), (200, 1)]);
        assert_eq!(batch.arena().len(), 3400);
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
        let flow = Flow {
            src: path().local,
            dst: path().remote,
            src_port: ROCE_PORT,
            dst_port: ROCE_PORT,
        };
        for (index, packet) in batch.arena().chunks(100).enumerate() {
            let crc = icrc::compute(&flow, index as u16, &packet[..96]);
            assert_eq!(packet[96..], crc.to_le_bytes());
        }
    }
}
