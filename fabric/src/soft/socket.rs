//! The UDP sockets of the soft provider: everything that needs system calls without a safe wrapper.
//!
//! Guarantees: no pointer given to the kernel outlives the call it was given to; what the kernel
//! reports is checked against the buffers before it is used.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::c_int;
use roce::endpoint::Path;
use roce::wire::GSI_QPN;

use crate::address::ROCE_PORT;

/// Datagrams, or runs of them that the kernel merged, taken with one system call.
const RECEIVE_MESSAGES: usize = 32;

/// Bytes of one message at most: what the kernel merges into one fits an IP packet's length.
const RECEIVE_BYTES: usize = 65_536;

/// From the buffer of one message to that of the next: not a power of two, so that the beginnings of
/// short messages do not fight for the same places of the processor's caches.
const RECEIVE_STRIDE: usize = RECEIVE_BYTES + 4096 + 64;

/// Bytes taken with one system call, about: what was received must still be in the cache when it is
/// checked and copied to where it belongs.
const RECEIVE_BYTES_AT_ONCE: usize = 384 << 10;

/// Words of space for control messages: packet information (at most 20 bytes), a segment size, a
/// traffic class, and their headers (16 bytes each), aligned.
pub(super) const CONTROL_WORDS: usize = 12;

pub(super) type Control = [u64; CONTROL_WORDS];

/// The bits of the type of service or traffic class that routers mark congestion in (RFC 3168).
const ECN_MASK: u8 = 3;
/// Sent: marks are understood.
const ECN_CAPABLE: c_int = 2;
/// Received: congestion was met.
const ECN_CONGESTION: u8 = 3;

/// Byte of a packet at which the word with the queue pair's number begins, and the number's bits in it.
pub(super) const BTH_QPN_WORD: u32 = 4;
pub(super) const QPN_MASK: u32 = 0x00ff_ffff;
/// Classic BPF: A = A modulo a constant.
pub(super) const BPF_ALU_MOD_K: u32 = libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K;

/// One step of a classic BPF program.
pub(super) fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    let code = code as u16;
    libc::sock_filter { code, jt, jf, k }
}

/// A UDP socket on the RoCE port of one address, or of all addresses of one family.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    /// As bound; unspecified if bound to all addresses.
    address: IpAddr,
    /// Whether runs of packets are given to the kernel as one message.
    offload: Cell<bool>,
    /// Bytes of the receive buffer, as the kernel counts them.
    receive_buffer: usize,
}

/// Where packets of this machine to a peer come from, and how large they may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The local address that the system would choose.
    pub(crate) local: IpAddr,
    /// The path's MTU in bytes, IP header included.
    pub(crate) mtu: usize,
}

/// Asks the system for the way to a peer.
pub(crate) fn route(peer: IpAddr) -> io::Result<Route> {
    let any: IpAddr = match peer {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let probe = UdpSocket::bind((any, 0))?;
    probe.connect((peer, ROCE_PORT))?;
    let (level, name) = match peer {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mtu = option(probe.as_fd(), level, name)?;
    Ok(Route {
        local: probe.local_addr()?.ip(),
        mtu: usize::try_from(mtu).unwrap_or(0),
    })
}

impl Socket {
    /// Opens and binds. The buffers are asked for in bytes; the kernel may give less.
    pub(crate) fn open(
        address: IpAddr,
        receive_buffer: usize,
        send_buffer: usize,
        offload: bool,
    ) -> io::Result<Self> {
        let family = if address.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: takes no pointers.
        let fd = check(unsafe { libc::socket(family, kind, 0) })?;
        // SAFETY: the descriptor was just made and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let borrowed = fd.as_fd();
        set_option(borrowed, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        let (receive, send) = (to_int(receive_buffer), to_int(send_buffer));
        if set_option(borrowed, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, receive).is_err() {
            set_option(borrowed, libc::SOL_SOCKET, libc::SO_RCVBUF, receive)?;
        }
        if set_option(borrowed, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, send).is_err() {
            set_option(borrowed, libc::SOL_SOCKET, libc::SO_SNDBUF, send)?;
        }
        if address.is_ipv4() {
            set_option(borrowed, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
            set_option(borrowed, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
            set_option(borrowed, libc::IPPROTO_IP, libc::IP_TOS, ECN_CAPABLE)?;
            // Don't-fragment makes the kernel number lone packets 0, which the ICRC relies on.
            let discover = libc::IP_PMTUDISC_PROBE;
            set_option(borrowed, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, discover)?;
        } else {
            set_option(borrowed, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
            set_option(borrowed, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
            set_option(borrowed, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
            set_option(borrowed, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, ECN_CAPABLE)?;
            let discover = libc::IPV6_PMTUDISC_PROBE;
            set_option(
                borrowed,
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                discover,
            )?;
            // The kernel's rxe sends checksum 0, which IPv6 sockets drop unless asked not to.
            set_option(borrowed, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
        }
        // Without it every datagram comes alone: slower, not wrong.
        let _ = set_option(borrowed, libc::IPPROTO_UDP, libc::UDP_GRO, 1);
        // Kernels before 4.18 do not know segments, and would refuse each message that has some.
        let offload = offload && option(borrowed, libc::IPPROTO_UDP, libc::UDP_SEGMENT).is_ok();
        let (name, name_len) = socket_name(address, ROCE_PORT, 0);
        // SAFETY: `name` is an initialised socket address of at least `name_len` bytes.
        check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), name_len) })?;
        let receive_buffer = option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF)?;
        let receive_buffer = usize::try_from(receive_buffer).unwrap_or(0);
        Ok(Self {
            fd,
            address,
            offload: Cell::new(offload),
            receive_buffer,
        })
    }

    /// Divides the packets to this socket's address among the sockets bound to it, in the order in which
    /// they were bound: each to the part that its queue pair's number names
    /// ([`roce::endpoint::Part::of`]).
    pub(crate) fn spread(&self, parts: usize) -> io::Result<()> {
        // The program sees the UDP payload; a packet too short to name a queue pair goes to the first.
        let mut program = [
            step(
                libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
                0,
                0,
                BTH_QPN_WORD,
            ),
            step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, QPN_MASK),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, GSI_QPN),
            step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
            step(BPF_ALU_MOD_K, 0, 0, parts as u32),
            step(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
        ];
        let program = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_mut_ptr(),
        };
        let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF);
        let len = size_of::<libc::sock_fprog>() as u32;
        // SAFETY: `program` is a live value of `len` bytes and points to its steps, which outlive the
        // call; the kernel copies them.
        check(unsafe {
            let value = (&raw const program).cast();
            libc::setsockopt(self.fd.as_raw_fd(), level, name, value, len)
        })?;
        Ok(())
    }

    /// Lets the kernel number packets as those that may be fragmented.
    #[cfg(test)]
    pub(crate) fn allow_fragments(&self) -> io::Result<()> {
        let discover = libc::IP_PMTUDISC_DONT;
        set_option(self.fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, discover)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    pub(crate) fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    pub(crate) fn offload(&self) -> bool {
        self.offload.get()
    }

    /// From now on each packet goes alone: the kernel or the device refused a segmented message.
    pub(crate) fn disable_offload(&self) {
        self.offload.set(false);
    }
}

/// The interfaces of paths with a link-local address (fe80::/10): such an address says nothing without
/// one, so answers go out where the packets came in.
#[derive(Debug, Default)]
pub(crate) struct Links(HashMap<Path, u32>);

/// More link-local paths than this are forgotten, all at once, and learned again as packets come.
const LINKS_MAX: usize = 4096;

impl Links {
    /// Remembers where a packet came in.
    pub(crate) fn learn(&mut self, path: Path, link: u32) {
        if link != 0 && is_link_local(path) {
            if self.0.len() >= LINKS_MAX {
                self.0.clear();
            }
            self.0.insert(path, link);
        }
    }

    /// The index of the interface for a path; 0 lets the system choose.
    pub(super) fn of(&self, path: Path) -> u32 {
        if !is_link_local(path) {
            return 0;
        }
        self.0.get(&path).copied().unwrap_or(0)
    }
}

fn is_link_local(path: Path) -> bool {
    [path.local, path.remote]
        .iter()
        .any(|address| match address {
            IpAddr::V4(_) => false,
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        })
}

/// Buffers for one `recvmmsg`, used again for each.
pub(crate) struct ReceiveBatch {
    data: Box<[u8]>,
    names: Box<[libc::sockaddr_storage; RECEIVE_MESSAGES]>,
    controls: Box<[Control; RECEIVE_MESSAGES]>,
    received: Vec<Received>,
    /// Messages to ask for next: fewer if they were long lately.
    asking: usize,
}

#[derive(Clone, Copy, Debug)]
struct Received {
    slot: usize,
    len: usize,
    segment: usize,
    source: SocketAddr,
    local: IpAddr,
    link: u32,
    marked: bool,
}

/// What came from one peer in one piece: one datagram, or several of the same size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagrams<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) local: IpAddr,
    /// The index of the interface that it came in on; 0 if that is not known.
    pub(crate) link: u32,
    /// The network marked it as having met congestion.
    pub(crate) marked: bool,
    bytes: &'a [u8],
    segment: usize,
}

impl<'a> Datagrams<'a> {
    /// All of them.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The single datagrams.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.bytes.chunks(self.segment)
    }
}

impl ReceiveBatch {
    pub(crate) fn new() -> Self {
        let data = vec![0; RECEIVE_MESSAGES * RECEIVE_STRIDE].into_boxed_slice();
        // SAFETY: all zeroes is a valid value of this plain C structure.
        let names = Box::new(unsafe { std::mem::zeroed() });
        Self {
            data,
            names,
            controls: Box::new([[0; CONTROL_WORDS]; RECEIVE_MESSAGES]),
            received: Vec::with_capacity(RECEIVE_MESSAGES),
            asking: RECEIVE_MESSAGES,
        }
    }

    /// Takes what waits in the socket, as much as one system call gives. True if more may wait.
    pub(crate) fn receive(&mut self, socket: &Socket) -> io::Result<bool> {
        self.received.clear();
        let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; RECEIVE_MESSAGES];
        // SAFETY: all zeroes is a valid value: null pointers and zero lengths.
        let mut headers: [libc::mmsghdr; RECEIVE_MESSAGES] = unsafe { std::mem::zeroed() };
        let asking = self.asking;
        for (index, data) in self
            .data
            .chunks_exact_mut(RECEIVE_STRIDE)
            .enumerate()
            .take(asking)
        {
            let data = &mut data[..RECEIVE_BYTES];
            let header = &mut headers[index].msg_hdr;
            header.msg_name = (&raw mut self.names[index]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
            header.msg_iov = vectors[index].write(libc::iovec {
                iov_base: data.as_mut_ptr().cast(),
                iov_len: data.len(),
            });
            header.msg_iovlen = 1;
            header.msg_control = self.controls[index].as_mut_ptr().cast();
            header.msg_controllen = size_of::<Control>();
        }
        // SAFETY: the first `asking` headers are complete and point to memory of the stated length that nothing
        // else uses during the call.
        let count = unsafe {
            libc::recvmmsg(
                socket.fd.as_raw_fd(),
                headers.as_mut_ptr(),
                asking as u32,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let count = match check(count) {
            Ok(count) => usize::try_from(count).unwrap_or(0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        for (slot, header) in headers[..count].iter().enumerate() {
            let len = (header.msg_len as usize).min(RECEIVE_BYTES);
            let Some(source) = socket_address(&self.names[slot]) else {
                continue;
            };
            let ControlInfo {
                local,
                link,
                segment,
                ecn,
            } = read_control(&header.msg_hdr);
            let local = local.unwrap_or(socket.address);
            if len == 0 || header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 {
                continue;
            }
            let segment = segment.filter(|&segment| segment > 0).unwrap_or(len);
            self.received.push(Received {
                slot,
                len,
                segment,
                source,
                local,
                link,
                marked: ecn & ECN_MASK == ECN_CONGESTION,
            });
        }
        let bytes: usize = self.received.iter().map(|received| received.len).sum();
        let each = (bytes / count.max(1)).max(1);
        self.asking = (RECEIVE_BYTES_AT_ONCE / each).clamp(1, RECEIVE_MESSAGES);
        Ok(count == asking)
    }

    /// What the last [`receive`](Self::receive) took.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Datagrams<'_>> {
        self.received.iter().map(|received| Datagrams {
            source: received.source,
            local: received.local,
            link: received.link,
            marked: received.marked,
            bytes: &self.data[received.slot * RECEIVE_STRIDE..][..received.len],
            segment: received.segment,
        })
    }
}

pub(super) fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn to_int(value: usize) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as u32;
    // SAFETY: `value` is a live integer of `len` bytes, which the kernel only reads.
    check(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len)
    })?;
    Ok(())
}

fn option(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as u32;
    // SAFETY: `value` is a live integer of `len` bytes, and the kernel writes no more than that.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &mut len,
        )
    })?;
    Ok(value)
}

/// `link` is the interface of a link-local IPv6 address; the system ignores it for others.
pub(super) fn socket_name(address: IpAddr, port: u16, link: u32) -> (libc::sockaddr_storage, u32) {
    // SAFETY: all zeroes is a valid value of this plain C structure.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let len = match address {
        IpAddr::V4(v4) => {
            let name = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: port.to_be(),
                sin_addr: to_in_addr(v4),
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger than, and aligned for, every socket address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(name) };
            size_of::<libc::sockaddr_in>()
        }
        IpAddr::V6(v6) => {
            let name = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: port.to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.octets(),
                },
                sin6_scope_id: link,
            };
            // SAFETY: the storage is larger than, and aligned for, every socket address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(name) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, len as u32)
}

fn socket_address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage is larger than, aligned for, and by its family a sockaddr_in.
            let name = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = from_in_addr(name.sin_addr);
            Some(SocketAddr::new(ip.into(), u16::from_be(name.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: the storage is larger than, aligned for, and by its family a sockaddr_in6.
            let name = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(name.sin6_addr.s6_addr);
            Some(SocketAddr::new(ip.into(), u16::from_be(name.sin6_port)))
        }
        _ => None,
    }
}

fn to_in_addr(address: Ipv4Addr) -> libc::in_addr {
    libc::in_addr {
        s_addr: u32::from_ne_bytes(address.octets()),
    }
}

fn from_in_addr(address: libc::in_addr) -> Ipv4Addr {
    Ipv4Addr::from(address.s_addr.to_ne_bytes())
}

/// Writes the control messages of an outgoing message and gives their length in bytes.
pub(super) fn write_control(
    control: &mut Control,
    source: Option<IpAddr>,
    link: u32,
    segment: Option<u16>,
) -> usize {
    let mut used = 0;
    match source {
        Some(IpAddr::V4(source)) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: to_in_addr(source),
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            used = put_control(control, used, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        Some(IpAddr::V6(source)) => {
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr {
                    s6_addr: source.octets(),
                },
                ipi6_ifindex: link,
            };
            used = put_control(control, used, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
        None => {}
    }
    if let Some(segment) = segment {
        used = put_control(control, used, libc::SOL_UDP, libc::UDP_SEGMENT, segment);
    }
    used
}

/// Appends one control message at byte `at` and gives where the next one goes.
fn put_control<T: Copy>(
    control: &mut Control,
    at: usize,
    level: c_int,
    kind: c_int,
    value: T,
) -> usize {
    // SAFETY: these only compute sizes.
    let (space, len, data) = unsafe {
        let size = size_of::<T>() as u32;
        (
            libc::CMSG_SPACE(size) as usize,
            libc::CMSG_LEN(size),
            libc::CMSG_LEN(0) as usize,
        )
    };
    assert!(
        at + space <= size_of::<Control>(),
        "CONTROL_WORDS holds every control message"
    );
    // SAFETY: the space was checked; `at` is a multiple of 8 because CMSG_SPACE is, so the header is
    // aligned, and the value is written without asking for alignment.
    unsafe {
        let header = control
            .as_mut_ptr()
            .cast::<u8>()
            .add(at)
            .cast::<libc::cmsghdr>();
        (*header).cmsg_len = len as usize;
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        header
            .cast::<u8>()
            .add(data)
            .cast::<T>()
            .write_unaligned(value);
    }
    at + space
}

/// What the kernel says about a message.
#[derive(Default)]
struct ControlInfo {
    /// The address that it was sent to.
    local: Option<IpAddr>,
    /// The interface that it came in on, of IPv6 only.
    link: u32,
    /// The size of its segments, if it was merged.
    segment: Option<usize>,
    /// Its type of service or traffic class.
    ecn: u8,
}

fn read_control(header: &libc::msghdr) -> ControlInfo {
    let mut info = ControlInfo::default();
    // SAFETY: the header comes from recvmmsg, with its control buffer still alive; these macros stay
    // within its msg_controllen.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: not null, so it is a whole control message within the buffer.
        let (level, kind) = unsafe { ((*next).cmsg_level, (*next).cmsg_type) };
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                info.local = control_data::<libc::in_pktinfo>(next)
                    .map(|info| from_in_addr(info.ipi_addr).into());
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some(packet) = control_data::<libc::in6_pktinfo>(next) {
                    info.local = Some(Ipv6Addr::from(packet.ipi6_addr.s6_addr).into());
                    info.link = packet.ipi6_ifindex;
                }
            }
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                info.ecn = control_data::<u8>(next).unwrap_or(0);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                info.ecn = control_data::<c_int>(next).map_or(0, |class| class as u8);
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                info.segment = control_data::<c_int>(next).and_then(|s| usize::try_from(s).ok());
            }
            _ => {}
        }
        // SAFETY: as for the first one.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
    info
}

/// The value of a control message, if it is as long as a `T`. For `read_control` alone: `message` is
/// one that CMSG_FIRSTHDR or CMSG_NXTHDR gave.
fn control_data<T: Copy>(message: *const libc::cmsghdr) -> Option<T> {
    // SAFETY: `message` is a whole control message, as above; CMSG_LEN only computes a size.
    let (len, whole) = unsafe { ((*message).cmsg_len, libc::CMSG_LEN(size_of::<T>() as u32)) };
    if len < whole as usize {
        return None;
    }
    // SAFETY: the message holds a whole T behind its header, and the kernel wrote it there; reading
    // does not ask for alignment.
    Some(unsafe { libc::CMSG_DATA(message).cast::<T>().read_unaligned() })
}
