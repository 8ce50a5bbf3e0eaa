//! The invariant CRC that ends every RoCEv2 packet (annex A17.3.3).
//!
//! It is CRC-32 (ISO-HDLC) over eight bytes of ones, the IP header, the UDP header and the packet,
//! with everything that a router may change replaced by ones. It is sent least significant byte
//! first.
//!
//! A UDP socket does not show the IPv4 identification of what it received, and the CRC covers it.
//! But the CRC is linear: with `d` the difference between the received CRC and the one for
//! identification 0, the identification as a polynomial is `d * x^-(8n + 32)` modulo the CRC's
//! polynomial, `n` being the bytes that follow it. That product is a number of 32 bits of which 16
//! must be zero: so on IPv4 the check has the strength of 16 bits, and yields the identification.
//! On IPv6 nothing is hidden, and the check has its full 32 bits.

use std::net::IpAddr;

use super::{Bth, UDP_PORT};

/// Bytes of the ICRC at the end of a packet.
pub const LEN: usize = 4;

/// The addresses and ports in the IP and UDP headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The sender's address.
    pub src: IpAddr,
    /// The receiver's address.
    pub dst: IpAddr,
    /// The sender's UDP port.
    pub src_port: u16,
    /// The receiver's UDP port; RoCEv2's is [`UDP_PORT`].
    pub dst_port: u16,
}

impl Flow {
    /// A flow to RoCEv2's port.
    pub const fn new(src: IpAddr, dst: IpAddr, src_port: u16) -> Self {
        Self {
            src,
            dst,
            src_port,
            dst_port: UDP_PORT,
        }
    }
}

/// A packet whose ICRC is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// On IPv4, the identification that the packet was sent with.
    pub ip_id: Option<u16>,
}

/// Why a packet's ICRC was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IcrcError {
    /// The packet is too short to have one, or too long for a UDP datagram.
    #[error("a packet of {0} bytes cannot carry an ICRC; the shortest has 16 bytes")]
    Length(usize),
    /// The packet was damaged, or sent with another header than it arrived with (as address
    /// translation does).
    #[error(
        "the ICRC is wrong: the packet was damaged or its addresses were translated on the way"
    )]
    Mismatch,
}

/// The polynomial of CRC-32, reflected: bit 31 stands for x^0, bit 0 for x^31.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// 1, that is x^0.
const ONE: u32 = 1 << 31;

/// The most bytes that a UDP datagram on IPv4 can carry.
const UDP_PAYLOAD_MAX: usize = 65_507;

/// Bytes of the IPv4 header after the identification, and of the UDP header.
const AFTER_ID: usize = 14 + 8;

/// What four powers of x that leave the register at the high end stand for.
const CARRIES: [u32; 16] = {
    let mut table = [0; 16];
    let mut nibble = 0;
    while nibble < 16 {
        let (mut rest, mut bit) = (nibble as u32, 0);
        while bit < 4 {
            rest = (rest >> 1) ^ (POLYNOMIAL & (rest & 1).wrapping_neg());
            bit += 1;
        }
        table[nibble] = rest;
        nibble += 1;
    }
    table
};

/// The product of two polynomials, modulo the CRC's: four bits of `a` at a time, those with the
/// highest powers (the lowest bits) first. About 20 ns.
const fn multiply(a: u32, b: u32) -> u32 {
    // `b` times each polynomial of degree 3: index bit 3 is x^0, bit 0 is x^3.
    let mut multiples = [0_u32; 16];
    let (mut power, mut bit) = (b, 8_usize);
    while bit > 0 {
        multiples[bit] = power;
        power = (power >> 1) ^ (POLYNOMIAL & (power & 1).wrapping_neg());
        bit >>= 1;
    }
    let mut index = 3_usize;
    while index < 16 {
        let lowest = index & index.wrapping_neg();
        multiples[index] = multiples[index ^ lowest] ^ multiples[lowest];
        index += 1;
    }
    let (mut product, mut shift) = (0_u32, 0);
    while shift < 32 {
        let nibble = (a >> shift) & 15;
        product = (product >> 4) ^ CARRIES[(product & 15) as usize] ^ multiples[nibble as usize];
        shift += 4;
    }
    product
}

/// Divides by x^8, modulo the CRC's polynomial: takes one zero byte out of a CRC.
const fn divide_by_byte(mut a: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        let carry = a >> 31;
        a = ((a ^ (POLYNOMIAL & carry.wrapping_neg())) << 1) | carry;
        bit += 1;
    }
    a
}

/// How far [`UNSHIFT_BYTES`] goes: beyond the longest packet of the largest path MTU, so that
/// packets in use need one multiplication.
const BLOCK_BYTES: usize = 4608;

/// x to the power of -8 times the index.
static UNSHIFT_BYTES: [u32; BLOCK_BYTES] = {
    let mut table = [ONE; BLOCK_BYTES];
    let mut index = 1;
    while index < BLOCK_BYTES {
        table[index] = divide_by_byte(table[index - 1]);
        index += 1;
    }
    table
};

/// x to the power of -8 times [`BLOCK_BYTES`].
const UNSHIFT_BLOCK: u32 = {
    let (mut power, mut byte) = (ONE, 0);
    while byte < BLOCK_BYTES {
        power = divide_by_byte(power);
        byte += 1;
    }
    power
};

/// The identification that makes the difference `difference` in the ICRC of a packet of that length
/// (without its ICRC), if there is one.
fn recover_ip_id(difference: u32, packet_len: usize) -> Option<u16> {
    let bytes = AFTER_ID + packet_len + 4;
    let mut field = multiply(difference, UNSHIFT_BYTES[bytes % BLOCK_BYTES]);
    for _ in 0..bytes / BLOCK_BYTES {
        field = multiply(field, UNSHIFT_BLOCK);
    }
    let id = u16::try_from(field >> 16).unwrap_or(0).swap_bytes();
    (field & 0xffff == 0).then_some(id)
}

/// Bytes of a header that are hashed together with what stands before it: the longest header that
/// packets with data have.
const HEAD_BYTES: usize = Bth::LEN + 16;

/// The CRC of a packet that is long enough and not too long: `head` with its first bytes, `rest` with
/// the others.
fn crc(flow: &Flow, ip_id: u16, head: &[u8; Bth::LEN], rest: &[&[u8]]) -> u32 {
    let rest_len: usize = rest.iter().map(|part| part.len()).sum();
    // A UDP datagram's length field has 16 bits; longer packets were refused before.
    let udp_len = (8 + Bth::LEN + rest_len + LEN) as u16;
    // Pieces below 128 bytes are dear to hash: a short first part of the rest goes with the prefix.
    let (first, rest) = match rest.split_first() {
        Some((first, others)) if first.len() <= HEAD_BYTES - Bth::LEN => (*first, others),
        _ => (&[][..], rest),
    };
    let mut hasher = crc32fast::Hasher::new();
    match (flow.src.to_canonical(), flow.dst.to_canonical()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            // Eight ones, then the IP header: type of service, time to live and checksum are
            // masked. Linux sends RoCEv2 with "don't fragment" set, and so do we.
            let mut prefix = [0xff; 8 + 20 + 8 + HEAD_BYTES];
            prefix[8] = 0x45;
            prefix[10..12].copy_from_slice(&(20 + udp_len).to_be_bytes());
            prefix[12..14].copy_from_slice(&ip_id.to_be_bytes());
            prefix[14..16].copy_from_slice(&[0x40, 0x00]);
            prefix[17] = 17;
            prefix[20..24].copy_from_slice(&src.octets());
            prefix[24..28].copy_from_slice(&dst.octets());
            hasher.update(put_udp_and_head(
                &mut prefix,
                28,
                flow,
                udp_len,
                head,
                first,
            ));
        }
        (src, dst) => {
            // Traffic class, flow label and hop limit are masked.
            let mut prefix = [0xff; 8 + 40 + 8 + HEAD_BYTES];
            prefix[8] = 0x6f;
            prefix[12..14].copy_from_slice(&udp_len.to_be_bytes());
            prefix[14] = 17;
            prefix[16..32].copy_from_slice(&super::path::gid_of(src));
            prefix[32..48].copy_from_slice(&super::path::gid_of(dst));
            hasher.update(put_udp_and_head(
                &mut prefix,
                48,
                flow,
                udp_len,
                head,
                first,
            ));
        }
    }
    rest.iter()
        .filter(|part| !part.is_empty())
        .for_each(|part| hasher.update(part));
    hasher.finalize()
}

/// Fills in what follows the IP header, which ends at `at`, into a prefix of ones, and gives the filled
/// part. The UDP checksum and the byte of the base transport header that holds congestion marks are
/// masked.
#[inline(always)]
fn put_udp_and_head<'a, const N: usize>(
    prefix: &'a mut [u8; N],
    at: usize,
    flow: &Flow,
    udp_len: u16,
    head: &[u8; Bth::LEN],
    first: &[u8],
) -> &'a [u8] {
    prefix[at..at + 2].copy_from_slice(&flow.src_port.to_be_bytes());
    prefix[at + 2..at + 4].copy_from_slice(&flow.dst_port.to_be_bytes());
    prefix[at + 4..at + 6].copy_from_slice(&udp_len.to_be_bytes());
    prefix[at + 8..at + 12].copy_from_slice(&head[..4]);
    prefix[at + 13..at + 20].copy_from_slice(&head[5..]);
    let end = at + 20 + first.len();
    prefix[at + 20..end].copy_from_slice(first);
    &prefix[..end]
}

/// The ICRC of a packet that is about to be sent: `packet` is the UDP payload without it, padding
/// included. Append it with `to_le_bytes`.
///
/// `ip_id` is the identification in the IPv4 header (sockets that may not fragment send 0;
/// segmentation offload counts up from 0); it does not matter on IPv6.
///
/// A packet shorter than a base transport header, or longer than a UDP datagram, is not a packet:
/// the result for it is 0.
pub fn compute(flow: &Flow, ip_id: u16, packet: &[u8]) -> u32 {
    compute_parts(flow, ip_id, [packet, &[], &[]])
}

/// As [`compute`], of a packet that lies in three pieces of memory: the first has the base transport
/// header at least.
pub fn compute_parts(flow: &Flow, ip_id: u16, [begin, payload, pad]: [&[u8]; 3]) -> u32 {
    let len = begin.len() + payload.len() + pad.len();
    match begin.split_first_chunk::<{ Bth::LEN }>() {
        Some((head, begin)) if len + LEN <= UDP_PAYLOAD_MAX => {
            crc(flow, ip_id, head, &[begin, payload, pad])
        }
        _ => 0,
    }
}

/// Checks the ICRC that ends `packet`, a whole UDP payload as it was received.
///
/// # Errors
/// [`IcrcError::Length`] if the packet cannot carry an ICRC, [`IcrcError::Mismatch`] if it is wrong.
pub fn verify(flow: &Flow, packet: &[u8]) -> Result<Verified, IcrcError> {
    verify_expecting(flow, packet, 0)
}

/// Checks the ICRC as [`verify`] does; on IPv4 cheaper if the identification is the one expected.
///
/// # Errors
/// As [`verify`].
pub fn verify_expecting(flow: &Flow, packet: &[u8], expected: u16) -> Result<Verified, IcrcError> {
    let (body, received) = packet
        .split_last_chunk::<LEN>()
        .ok_or(IcrcError::Length(packet.len()))?;
    let (head, rest) = body
        .split_first_chunk::<{ Bth::LEN }>()
        .ok_or(IcrcError::Length(packet.len()))?;
    if packet.len() > UDP_PAYLOAD_MAX {
        return Err(IcrcError::Length(packet.len()));
    }
    let difference = u32::from_le_bytes(*received) ^ crc(flow, expected, head, &[rest]);
    let v4 = flow.src.to_canonical().is_ipv4() && flow.dst.to_canonical().is_ipv4();
    match (v4, difference) {
        (true, 0) => Ok(Verified {
            ip_id: Some(expected),
        }),
        // The CRC is linear: what is recovered is the difference to what was expected.
        (true, _) => match recover_ip_id(difference, body.len()) {
            Some(id) => Ok(Verified {
                ip_id: Some(id ^ expected),
            }),
            None => Err(IcrcError::Mismatch),
        },
        (false, 0) => Ok(Verified { ip_id: None }),
        (false, _) => Err(IcrcError::Mismatch),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(src: &str, dst: &str) -> Flow {
        Flow::new(src.parse().unwrap(), dst.parse().unwrap(), 0xd872)
    }

    fn sealed(flow: &Flow, ip_id: u16, body: &[u8]) -> Vec<u8> {
        let mut packet = body.to_vec();
        packet.extend_from_slice(&compute(flow, ip_id, body).to_le_bytes());
        packet
    }

    #[test]
    fn the_ip_identification_is_recovered_for_every_length() {
        let flow = flow("10.0.0.1", "10.0.0.2");
        let lengths = (12..600).chain([1024 + 28, 4096 + 28, 9000, 16_384, 65_000, 65_503]);
        for len in lengths {
            let body: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
            for ip_id in [0, 1, 0x8000, 0xffff, 0x1234, (len * 31) as u16] {
                let packet = sealed(&flow, ip_id, &body);
                assert_eq!(
                    verify(&flow, &packet),
                    Ok(Verified { ip_id: Some(ip_id) }),
                    "{len}"
                );
                assert_eq!(
                    verify_expecting(&flow, &packet, 0x4711),
                    Ok(Verified { ip_id: Some(ip_id) }),
                    "{len}"
                );
            }
        }
    }

    #[test]
    fn a_packet_in_pieces_has_the_icrc_of_the_whole() {
        let body: Vec<u8> = (0..4200).map(|i| (i * 13) as u8).collect();
        for flow in [flow("10.0.0.1", "10.0.0.2"), flow("fd00::1", "fd00::2")] {
            for begin in [12, 16, 28, 29, 64, 300] {
                for payload in [begin, begin + 1, 200.max(begin), 4199, 4200] {
                    let parts = [&body[..begin], &body[begin..payload], &body[payload..]];
                    let whole = compute(&flow, 3, &body);
                    assert_eq!(compute_parts(&flow, 3, parts), whole, "{begin} {payload}");
                }
            }
            assert_eq!(compute_parts(&flow, 0, [&body[..11], &body, &[]]), 0);
        }
    }

    #[test]
    fn on_ipv6_a_single_flipped_bit_is_always_noticed() {
        let flow = flow("fd00::1", "fd00::2");
        let body: Vec<u8> = (0..64).collect();
        let packet = sealed(&flow, 0, &body);
        assert_eq!(verify(&flow, &packet), Ok(Verified { ip_id: None }));
        for bit in 0..packet.len() * 8 {
            let mut damaged = packet.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // Byte 4 of the base header is masked.
            let expected = if bit / 8 == 4 {
                Ok(Verified { ip_id: None })
            } else {
                Err(IcrcError::Mismatch)
            };
            assert_eq!(verify(&flow, &damaged), expected, "bit {bit}");
        }
    }

    #[test]
    fn on_ipv4_a_single_flipped_bit_is_noticed() {
        // A flip passes only if it looks like another identification: about one in 2^16.
        let flow = flow("10.0.0.1", "10.0.0.2");
        let body: Vec<u8> = (0..64).collect();
        let packet = sealed(&flow, 7, &body);
        let passed = (0..packet.len() * 8)
            .filter(|bit| bit / 8 != 4)
            .filter(|bit| {
                let mut damaged = packet.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                verify(&flow, &damaged).is_ok()
            })
            .count();
        assert_eq!(passed, 0);
    }

    #[test]
    fn another_address_or_port_makes_the_icrc_wrong() {
        let right = flow("fd00::1", "fd00::2");
        let packet = sealed(&right, 0, &[9; 32]);
        assert!(verify(&flow("fd00::3", "fd00::2"), &packet).is_err());
        assert!(
            verify(
                &Flow {
                    src_port: 1,
                    ..right
                },
                &packet
            )
            .is_err()
        );
        let right = flow("10.0.0.1", "10.0.0.2");
        let packet = sealed(&right, 0, &[9; 32]);
        assert!(verify(&flow("10.0.0.1", "10.0.1.2"), &packet).is_err());
        assert!(
            verify(
                &Flow {
                    src_port: 1,
                    ..right
                },
                &packet
            )
            .is_err()
        );
    }

    #[test]
    fn mapped_addresses_are_those_that_they_map() {
        let packet = sealed(&flow("10.0.0.1", "10.0.0.2"), 5, &[3; 24]);
        let mapped = flow("::ffff:10.0.0.1", "::ffff:10.0.0.2");
        assert_eq!(verify(&mapped, &packet), Ok(Verified { ip_id: Some(5) }));
    }

    #[test]
    fn packets_of_impossible_length_are_refused() {
        let flow = flow("10.0.0.1", "10.0.0.2");
        for len in 0..16 {
            assert_eq!(verify(&flow, &vec![0; len]), Err(IcrcError::Length(len)));
        }
        assert_eq!(
            verify(&flow, &vec![0; 65_508]),
            Err(IcrcError::Length(65_508))
        );
        assert_eq!(compute(&flow, 0, &[0; 11]), 0);
        assert_eq!(compute(&flow, 0, &vec![0; 70_000]), 0);
    }
}
