//! A raw socket that shows the IPv4 headers of RoCE packets, which UDP sockets hide: the identification
//! that the ICRC covers. The packets themselves are received by the UDP socket; of each only the
//! beginning is looked at here. Needs CAP_NET_RAW.
//!
//! Guarantees: no pointer given to the kernel outlives the call it was given to; what the kernel
//! reports is checked against the buffers before it is used.

#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::c_int;
use roce::endpoint::Part;
use roce::wire::GSI_QPN;

use super::socket::{BPF_ALU_MOD_K, BTH_QPN_WORD, QPN_MASK, step};
use crate::address::ROCE_PORT;

/// Headers taken with one system call.
const BATCH: usize = 64;

/// Bytes looked at: the longest IPv4 header, the UDP header and the base transport header.
const SNAP_BYTES: usize = 60 + 8 + BTH_BYTES;

/// Bytes of the base transport header.
pub(super) const BTH_BYTES: usize = 12;

/// What a packet, or a run of them that is still in one piece, says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) source: SocketAddr,
    pub(crate) local: IpAddr,
    /// Of the first packet of the run.
    pub(crate) ip_id: u16,
    /// Bytes behind the UDP header.
    pub(crate) len: usize,
    /// The first packet's base transport header.
    pub(crate) bth: [u8; BTH_BYTES],
}

impl Header {
    /// Reads an IP packet that begins with these bytes; nothing if it is not a RoCE packet.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let be16 = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
        let address = |at: usize| Some(Ipv4Addr::from(*bytes.get(at..)?.first_chunk::<4>()?));
        let first = *bytes.first()?;
        let udp = usize::from(first & 0x0f) * 4;
        let fragment = be16(6)? & 0x3fff != 0;
        if first >> 4 != 4 || udp < 20 || *bytes.get(9)? != 17 || fragment {
            return None;
        }
        if be16(udp + 2)? != ROCE_PORT {
            return None;
        }
        Some(Self {
            source: SocketAddr::new(address(12)?.into(), be16(udp)?),
            local: address(16)?.into(),
            ip_id: be16(4)?,
            len: usize::from(be16(2)?).checked_sub(udp + 8)?,
            bth: *bytes.get(udp + 8..)?.first_chunk()?,
        })
    }
}

/// A raw socket for the headers of RoCE packets to one address, or to all, and to one part of a device.
#[derive(Debug)]
pub(crate) struct RawSocket(OwnedFd);

impl RawSocket {
    /// Opens it. Fails with `PermissionDenied` without CAP_NET_RAW.
    pub(crate) fn open(address: Ipv4Addr, receive_buffer: usize, part: Part) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: takes no pointers.
        let fd = check(unsafe { libc::socket(libc::AF_INET, kind, libc::IPPROTO_UDP) })?;
        // SAFETY: the descriptor was just made and nobody else has it.
        let socket = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        socket.filter(part)?;
        let bytes = c_int::try_from(receive_buffer).unwrap_or(c_int::MAX);
        // With less room than asked for it loses headers sooner, and their packets are repeated.
        if socket.set(libc::SO_RCVBUFFORCE, &bytes).is_err() {
            socket.set(libc::SO_RCVBUF, &bytes)?;
        }
        let name = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: 0,
            sin_addr: libc::in_addr {
                s_addr: u32::from_ne_bytes(address.octets()),
            },
            sin_zero: [0; 8],
        };
        let len = size_of::<libc::sockaddr_in>() as u32;
        // SAFETY: `name` is an initialised socket address of `len` bytes.
        check(unsafe { libc::bind(socket.0.as_raw_fd(), (&raw const name).cast(), len) })?;
        Ok(socket)
    }

    /// Lets the kernel drop what is not for the RoCE port and the part, and cut off what is not looked at.
    fn filter(&self, part: Part) -> io::Result<()> {
        let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let returns = libc::BPF_RET | libc::BPF_K;
        let mut program = [
            // X = bytes of the IP header; A = the UDP destination port.
            step(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0),
            step(libc::BPF_LD | libc::BPF_H | libc::BPF_IND, 0, 0, 2),
            step(equals, 0, 7, u32::from(ROCE_PORT)),
            // A = the part that the queue pair's number names; of management it is the first.
            step(
                libc::BPF_LD | libc::BPF_W | libc::BPF_IND,
                0,
                0,
                8 + BTH_QPN_WORD,
            ),
            step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, QPN_MASK),
            step(equals, 0, 1, GSI_QPN),
            step(libc::BPF_LD | libc::BPF_IMM, 0, 0, 0),
            step(BPF_ALU_MOD_K, 0, 0, part.count() as u32),
            step(equals, 0, 1, part.index() as u32),
            step(returns, 0, 0, SNAP_BYTES as u32),
            step(returns, 0, 0, 0),
        ];
        let program = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_mut_ptr(),
        };
        // The kernel copies the program, which outlives the call.
        self.set(libc::SO_ATTACH_FILTER, &program)
    }

    fn set<T>(&self, name: c_int, value: &T) -> io::Result<()> {
        let len = size_of::<T>() as u32;
        // SAFETY: `value` is a live value of `len` bytes, which the kernel only reads.
        check(unsafe {
            let value = std::ptr::from_ref(value).cast();
            libc::setsockopt(self.0.as_raw_fd(), libc::SOL_SOCKET, name, value, len)
        })?;
        Ok(())
    }

    /// Gives what waits to `take`, in the order in which it came.
    pub(crate) fn receive(&self, mut take: impl FnMut(Header)) -> io::Result<()> {
        let mut data = [[0_u8; SNAP_BYTES]; BATCH];
        loop {
            let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH];
            // SAFETY: all zeroes is a valid value: null pointers and zero lengths.
            let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
            for ((header, vector), data) in headers.iter_mut().zip(&mut vectors).zip(&mut data) {
                header.msg_hdr.msg_iov = vector.write(libc::iovec {
                    iov_base: data.as_mut_ptr().cast(),
                    iov_len: data.len(),
                });
                header.msg_hdr.msg_iovlen = 1;
            }
            // SAFETY: every header is complete and points to memory of the stated length that nothing
            // else uses during the call.
            let count = check(unsafe {
                libc::recvmmsg(
                    self.0.as_raw_fd(),
                    headers.as_mut_ptr(),
                    BATCH as u32,
                    libc::MSG_DONTWAIT,
                    std::ptr::null_mut(),
                )
            });
            let count = match count {
                Ok(count) => usize::try_from(count).unwrap_or(0).min(BATCH),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            for (header, data) in headers[..count].iter().zip(&data) {
                let len = (header.msg_len as usize).min(data.len());
                if let Some(header) = Header::parse(&data[..len]) {
                    take(header);
                }
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet() -> Vec<u8> {
        let mut bytes = vec![0x45, 0, 0, 20 + 8 + 44, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0];
        bytes.extend([10, 0, 0, 1, 10, 0, 0, 2, 0xc0, 1, 0x12, 0xb7, 0, 52, 0, 0]);
        bytes.extend(0..12);
        bytes
    }

    #[test]
    fn a_header_is_read_with_its_identification() {
        let header = Header::parse(&packet()).expect("a RoCE packet");
        assert_eq!((header.ip_id, header.len), (0x1234, 44));
        assert_eq!(header.source, "10.0.0.1:49153".parse().expect("an address"));
        assert_eq!(header.local, IpAddr::from([10, 0, 0, 2]));
        assert_eq!(header.bth[..], (0..12).collect::<Vec<u8>>()[..]);
    }

    #[test]
    fn what_is_not_a_whole_roce_packet_is_no_header() {
        for (at, value) in [(0, 0x65), (0, 0x44), (3, 27), (6, 0x20), (9, 6), (23, 0)] {
            let mut bytes = packet();
            bytes[at] = value;
            assert_eq!(Header::parse(&bytes), None, "byte {at}");
        }
        for len in 0..packet().len() {
            assert_eq!(Header::parse(&packet()[..len]), None, "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_header_or_none(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Some(header) = Header::parse(&bytes) {
                prop_assert!(header.len <= 65_535 - 28);
            }
        }
    }
}
