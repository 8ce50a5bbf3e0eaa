//! The RDMA connection manager: its event channel, and the identifiers of listeners and connections.
//!
//! Guarantees: an [`Id`] is destroyed exactly once, after its queue pair and before its channel; every
//! event is acknowledged before anybody sees it, so destroying an identifier never waits for one.

use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::abi::*;
use super::domain::{Context, Domain};
use super::library::Libraries;
use super::rings::Receiving;
use super::{check, set_nonblocking};

/// Where the connection manager's events arrive.
pub(in crate::verbs) struct EventChannel {
    raw: NonNull<rdma_event_channel>,
    pub(super) libraries: &'static Libraries,
}

// SAFETY: the library only uses a channel's descriptor, which does not change, and rdma_cm(7) lets any
// thread make its calls.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// Which identifier an event is about. Only compared, never followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::verbs) struct IdKey(usize);

/// Something that happened to an identifier.
pub(in crate::verbs) struct CmEvent {
    pub(in crate::verbs) id: IdKey,
    pub(in crate::verbs) what: CmEventKind,
}

/// What happened.
pub(in crate::verbs) enum CmEventKind {
    AddressResolved,
    RouteResolved,
    /// A peer asks a listener (the event's identifier) for a connection.
    Request {
        id: Id,
        private_data: Vec<u8>,
        /// READs that the peer wants to have in flight towards this side.
        responder_resources: u8,
        /// READs that this side may have in flight towards the peer.
        initiator_depth: u8,
    },
    Established {
        private_data: Vec<u8>,
        initiator_depth: u8,
    },
    Rejected {
        reason: u16,
        private_data: Vec<u8>,
    },
    /// The connection cannot be made; `error` is a system error where the manager gave one.
    Failed {
        step: &'static str,
        error: io::Error,
    },
    Disconnected,
    DeviceRemoved,
    TimewaitOver,
    Other(i32),
}

impl EventChannel {
    /// Opens a channel that never blocks.
    pub(in crate::verbs) fn open(libraries: &'static Libraries) -> io::Result<Arc<Self>> {
        // SAFETY: a call without arguments; the result is checked.
        let raw = unsafe { (libraries.cm.rdma_create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let channel = Arc::new(Self { raw, libraries });
        set_nonblocking(channel.fd())?;
        Ok(channel)
    }

    /// Readable when there is an event.
    pub(in crate::verbs) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel, which the borrow keeps.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    /// The next event, if there is one.
    pub(in crate::verbs) fn next(self: &Arc<Self>) -> io::Result<Option<CmEvent>> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is open, and the out-pointer is valid for the call.
        let result =
            unsafe { (self.libraries.cm.rdma_get_cm_event)(self.raw.as_ptr(), &raw mut raw) };
        match check(result) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: success gives an event that stays valid until it is acknowledged at the end of this
        // block; what `take` needs of it is copied.
        let event = unsafe {
            let event = self.take(&*raw);
            (self.libraries.cm.rdma_ack_cm_event)(raw);
            event
        };
        Ok(Some(event))
    }

    /// Copies what an event says.
    ///
    /// # Safety
    /// The event came from this channel and is not acknowledged yet.
    unsafe fn take(self: &Arc<Self>, event: &rdma_cm_event) -> CmEvent {
        let private_data = || match event.conn.private_data.is_null() {
            true => Vec::new(),
            // SAFETY: the event's private data has the length that it says, until the event is
            // acknowledged.
            false => unsafe {
                std::slice::from_raw_parts(
                    event.conn.private_data.cast::<u8>(),
                    usize::from(event.conn.private_data_len),
                )
                .to_vec()
            },
        };
        let failed = |step| CmEventKind::Failed {
            step,
            error: io::Error::from_raw_os_error(-event.status),
        };
        let mut key = IdKey(event.id as usize);
        let what = match event.event {
            RDMA_CM_EVENT_ADDR_RESOLVED => CmEventKind::AddressResolved,
            RDMA_CM_EVENT_ADDR_ERROR => failed("resolve the peer's address"),
            RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventKind::RouteResolved,
            RDMA_CM_EVENT_ROUTE_ERROR => failed("find a route to the peer"),
            RDMA_CM_EVENT_CONNECT_REQUEST => {
                key = IdKey(event.listen_id as usize);
                match NonNull::new(event.id) {
                    Some(raw) => CmEventKind::Request {
                        id: Id::new(raw, self.clone()),
                        private_data: private_data(),
                        responder_resources: event.conn.responder_resources,
                        initiator_depth: event.conn.initiator_depth,
                    },
                    None => CmEventKind::Other(event.event),
                }
            }
            RDMA_CM_EVENT_ESTABLISHED => CmEventKind::Established {
                private_data: private_data(),
                initiator_depth: event.conn.initiator_depth,
            },
            RDMA_CM_EVENT_REJECTED => CmEventKind::Rejected {
                reason: u16::try_from(event.status).unwrap_or(0),
                private_data: private_data(),
            },
            RDMA_CM_EVENT_CONNECT_ERROR => failed("connect"),
            RDMA_CM_EVENT_UNREACHABLE => failed("reach the peer"),
            RDMA_CM_EVENT_DISCONNECTED => CmEventKind::Disconnected,
            RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventKind::DeviceRemoved,
            RDMA_CM_EVENT_TIMEWAIT_EXIT => CmEventKind::TimewaitOver,
            other => CmEventKind::Other(other),
        };
        CmEvent { id: key, what }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: every identifier of the channel holds it, so none is left.
        unsafe { (self.libraries.cm.rdma_destroy_event_channel)(self.raw.as_ptr()) }
    }
}

/// What one side says when it connects or accepts.
pub(in crate::verbs) struct Parameters<'a> {
    pub(in crate::verbs) private_data: &'a [u8],
    /// READs that the peer may have in flight towards this side.
    pub(in crate::verbs) responder_resources: u8,
    /// READs that this side may have in flight.
    pub(in crate::verbs) initiator_depth: u8,
}

/// Attempts to repeat a packet that is not acknowledged. One less than the greatest value, which
/// software devices take as 'for ever'.
const RETRY_COUNT: u8 = 6;

/// Attempts after 'receiver not ready'; 7 means for ever.
const RNR_RETRY_COUNT: u8 = 7;

impl Parameters<'_> {
    fn raw(&self) -> rdma_conn_param {
        rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len: u8::try_from(self.private_data.len()).unwrap_or(u8::MAX),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: RETRY_COUNT,
            rnr_retry_count: RNR_RETRY_COUNT,
            srq: 0,
            qp_num: 0,
        }
    }
}

/// A listener, or one side of a connection with its queue pair.
pub(in crate::verbs) struct Id {
    raw: NonNull<rdma_cm_id>,
    /// Queues and protection domain of the queue pair, which must outlive it.
    domain: Cell<Option<Rc<Domain>>>,
    channel: Arc<EventChannel>,
}

/// An identifier without a queue pair, which may go to another thread. Dropping it destroys it.
pub(in crate::verbs) struct LooseId(Id);

// SAFETY: it has no queue pair, so there is no domain in it and nothing else that is of one thread; the
// library lets any thread make its calls, and ownership keeps them one after the other.
unsafe impl Send for LooseId {}

impl LooseId {
    /// For the thread that keeps it.
    pub(in crate::verbs) fn keep(self) -> Id {
        self.0
    }
}

impl Id {
    fn new(raw: NonNull<rdma_cm_id>, channel: Arc<EventChannel>) -> Self {
        Self {
            raw,
            domain: Cell::new(None),
            channel,
        }
    }

    pub(in crate::verbs) fn create(channel: &Arc<EventChannel>) -> io::Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: channel and out-pointer are valid; the context is never followed.
        check(unsafe {
            (channel.libraries.cm.rdma_create_id)(
                channel.raw.as_ptr(),
                &raw mut raw,
                ptr::null_mut(),
                RDMA_PS_TCP,
            )
        })?;
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self::new(raw, channel.clone()))
    }

    /// To be given to another thread; none if it has a queue pair, which stays where it is.
    pub(in crate::verbs) fn loose(self) -> Option<LooseId> {
        let domain = self.domain.take();
        let is_loose = domain.is_none();
        self.domain.set(domain);
        is_loose.then_some(LooseId(self))
    }

    /// Lets its events arrive at a channel from now on. What happened to it before and was taken from the
    /// other channel is not repeated there. Waits, if another thread is just about to take one of its
    /// events, until it has.
    pub(in crate::verbs) fn move_to(&mut self, channel: &Arc<EventChannel>) -> io::Result<()> {
        if Arc::ptr_eq(&self.channel, channel) {
            return Ok(());
        }
        // SAFETY: identifier and channel are valid, and both channels are held until the call is over.
        check(unsafe { (self.cm().rdma_migrate_id)(self.raw.as_ptr(), channel.raw.as_ptr()) })?;
        self.channel = channel.clone();
        Ok(())
    }

    pub(in crate::verbs) fn key(&self) -> IdKey {
        IdKey(self.raw.as_ptr() as usize)
    }

    /// The device that the identifier is bound to.
    pub(in crate::verbs) fn context(&self) -> Option<Context> {
        // SAFETY: the identifier is alive, and the library changes the field only within calls that
        // this thread makes.
        let context = unsafe { (*self.raw.as_ptr()).verbs };
        Context::new(context, self.channel.libraries)
    }

    pub(in crate::verbs) fn bind(&self, address: SocketAddr) -> io::Result<()> {
        let mut address = RawAddress::from(address);
        // SAFETY: identifier and address are valid for the call, which copies the address.
        check(unsafe { (self.cm().rdma_bind_addr)(self.raw.as_ptr(), address.as_mut_ptr()) })
    }

    pub(in crate::verbs) fn listen(&self, backlog: usize) -> io::Result<()> {
        let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
        // SAFETY: the identifier is valid.
        check(unsafe { (self.cm().rdma_listen)(self.raw.as_ptr(), backlog) })
    }

    /// Begins to find the way to a peer, from a local address if one is given.
    pub(in crate::verbs) fn resolve_address(
        &self,
        from: Option<IpAddr>,
        to: SocketAddr,
        limit: Duration,
    ) -> io::Result<()> {
        let mut from = from.map(|from| RawAddress::from(SocketAddr::new(from, 0)));
        let mut to = RawAddress::from(to);
        let source = from
            .as_mut()
            .map_or(ptr::null_mut(), RawAddress::as_mut_ptr);
        // SAFETY: identifier and addresses are valid for the call, which copies the addresses.
        check(unsafe {
            (self.cm().rdma_resolve_addr)(
                self.raw.as_ptr(),
                source,
                to.as_mut_ptr(),
                milliseconds(limit),
            )
        })
    }

    pub(in crate::verbs) fn resolve_route(&self, limit: Duration) -> io::Result<()> {
        // SAFETY: the identifier is valid.
        check(unsafe { (self.cm().rdma_resolve_route)(self.raw.as_ptr(), milliseconds(limit)) })
    }

    /// Makes the queue pair. Its completions go to `queue` of the domain.
    pub(super) fn create_queue_pair(
        &self,
        domain: &Rc<Domain>,
        queue: usize,
        sends: usize,
        receives: &Receiving,
        inline_bytes: usize,
    ) -> io::Result<u32> {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let completions = domain.queue(queue)?;
        let (srq, receives) = match receives {
            Receiving::Own { slab, .. } => (ptr::null_mut(), domain.receives_of(slab.slots())),
            Receiving::Shared(shared) => (shared.raw(), 0),
        };
        let mut attributes = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: completions,
            recv_cq: completions,
            srq,
            cap: ibv_qp_cap {
                max_send_wr: count(sends),
                max_recv_wr: count(receives),
                max_send_sge: 1,
                max_recv_sge: u32::from(receives > 0),
                max_inline_data: count(inline_bytes),
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: identifier, protection domain and completion queue are alive, and the attributes are
        // valid for the call. The domain is held until the queue pair is gone.
        check(unsafe {
            (self.cm().rdma_create_qp)(self.raw.as_ptr(), domain.pd(), &raw mut attributes)
        })?;
        self.domain.set(Some(domain.clone()));
        let qp = self.queue_pair().ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the queue pair was just made.
        Ok(unsafe { (*qp).qp_num })
    }

    /// Destroys the queue pair: afterwards the device touches no memory of its work requests.
    pub(in crate::verbs) fn destroy_queue_pair(&self) {
        if self.queue_pair().is_some() {
            // SAFETY: there is a queue pair, and the call makes the identifier forget it.
            unsafe { (self.cm().rdma_destroy_qp)(self.raw.as_ptr()) };
        }
        self.domain.set(None);
    }

    /// The queue pair, if there is one.
    pub(super) fn queue_pair(&self) -> Option<*mut ibv_qp> {
        // SAFETY: the identifier is alive; the library changes the field only within this thread's
        // calls.
        let qp = unsafe { (*self.raw.as_ptr()).qp };
        (!qp.is_null()).then_some(qp)
    }

    /// Sets after what time without an acknowledgement the queue pair repeats itself: 4.096 us * 2^code
    /// (InfiniBand specification, 9.7.6.1.3). Before the connection is made.
    pub(in crate::verbs) fn set_acknowledgement_timeout(&self, code: u8) -> io::Result<()> {
        let mut code = code;
        // SAFETY: the identifier is valid, and the option is one byte that the call copies.
        check(unsafe {
            (self.cm().rdma_set_option)(
                self.raw.as_ptr(),
                RDMA_OPTION_ID,
                RDMA_OPTION_ID_ACK_TIMEOUT,
                (&raw mut code).cast(),
                mem::size_of::<u8>(),
            )
        })
    }

    /// Sets how long a sender waits after 'receiver not ready'. The connection manager leaves it at 0,
    /// which means 655 milliseconds.
    pub(in crate::verbs) fn set_receiver_not_ready_timer(&self, code: u8) -> io::Result<()> {
        self.modify(IBV_QP_MIN_RNR_TIMER, |attributes| {
            attributes.min_rnr_timer = code
        })
    }

    /// Moves the queue pair into its error state: everything posted is flushed, and the peer reaches
    /// no memory through it any more.
    pub(in crate::verbs) fn fail_queue_pair(&self) -> io::Result<()> {
        self.modify(IBV_QP_STATE, |attributes| attributes.qp_state = IBV_QPS_ERR)
    }

    fn modify(&self, mask: i32, set: impl FnOnce(&mut ibv_qp_attr)) -> io::Result<()> {
        let qp = self
            .queue_pair()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
        // SAFETY: the structure is plain integers, for which zeros are valid.
        let mut attributes: ibv_qp_attr = unsafe { mem::zeroed() };
        set(&mut attributes);
        // SAFETY: the queue pair is alive, and the attributes are valid for the call.
        let code =
            unsafe { (self.channel.libraries.ib.ibv_modify_qp)(qp, &raw mut attributes, mask) };
        match code {
            0 => Ok(()),
            // This function of libibverbs returns the error itself.
            code if code > 0 => Err(io::Error::from_raw_os_error(code)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub(in crate::verbs) fn connect(&self, parameters: &Parameters<'_>) -> io::Result<()> {
        let mut raw = parameters.raw();
        // SAFETY: identifier, parameters and private data are valid for the call.
        check(unsafe { (self.cm().rdma_connect)(self.raw.as_ptr(), &raw mut raw) })
    }

    pub(in crate::verbs) fn accept(&self, parameters: &Parameters<'_>) -> io::Result<()> {
        let mut raw = parameters.raw();
        // SAFETY: identifier, parameters and private data are valid for the call.
        check(unsafe { (self.cm().rdma_accept)(self.raw.as_ptr(), &raw mut raw) })
    }

    pub(in crate::verbs) fn reject(&self, private_data: &[u8]) -> io::Result<()> {
        let len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
        let data: *const c_void = private_data.as_ptr().cast();
        // SAFETY: identifier and private data are valid for the call.
        check(unsafe { (self.cm().rdma_reject)(self.raw.as_ptr(), data, len) })
    }

    /// Asks the peer to disconnect, or agrees with it; the queue pair goes into its error state.
    pub(in crate::verbs) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: the identifier is valid.
        check(unsafe { (self.cm().rdma_disconnect)(self.raw.as_ptr()) })
    }

    /// This side's address, once there is one.
    pub(in crate::verbs) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is alive, and addresses are plain bytes.
        socket_addr(unsafe { &(*self.raw.as_ptr()).src_addr })
    }

    /// The peer's address, once there is one.
    pub(in crate::verbs) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier is alive, and addresses are plain bytes.
        socket_addr(unsafe { &(*self.raw.as_ptr()).dst_addr })
    }

    fn cm(&self) -> &'static super::library::Rdmacm {
        &self.channel.libraries.cm
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        self.destroy_queue_pair();
        // SAFETY: the identifier is destroyed once, here; its queue pair is gone, and none of its
        // events is unacknowledged.
        unsafe { (self.cm().rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

fn milliseconds(limit: Duration) -> i32 {
    i32::try_from(limit.as_millis()).unwrap_or(i32::MAX)
}

/// A socket address as the system's calls take it.
struct RawAddress(libc::sockaddr_storage);

impl RawAddress {
    fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> Self {
        // SAFETY: the structure is plain integers, for which zeros are valid.
        let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
        match address {
            SocketAddr::V4(v4) => {
                let raw = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(v4.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage is large enough and aligned for every socket address.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
            }
            SocketAddr::V6(v6) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: v6.ip().octets(),
                    },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: as above.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
            }
        }
        Self(storage)
    }
}

fn socket_addr(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let start: *const libc::sockaddr_storage = storage;
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which structure the storage holds, and it is large enough.
            let raw = unsafe { start.cast::<libc::sockaddr_in>().read() };
            let ip = raw.sin_addr.s_addr.to_ne_bytes();
            let port = u16::from_be(raw.sin_port);
            Some(SocketAddrV4::new(ip.into(), port).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let raw = unsafe { start.cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
            let port = u16::from_be(raw.sin6_port);
            // A listener of both families shows IPv4 peers as mapped addresses.
            Some(match ip.to_ipv4_mapped() {
                Some(v4) => SocketAddrV4::new(v4, port).into(),
                None => SocketAddrV6::new(ip, port, raw.sin6_flowinfo, raw.sin6_scope_id).into(),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_way_through_the_system() {
        for text in ["192.0.2.7:4420", "[2001:db8::5]:65535", "[fe80::1%3]:1"] {
            let address: SocketAddr = text.parse().expect("an address");
            let raw = RawAddress::from(address);
            assert_eq!(socket_addr(&raw.0), Some(address));
        }
        let mapped: SocketAddr = "[::ffff:192.0.2.7]:1".parse().expect("an address");
        let plain: SocketAddr = "192.0.2.7:1".parse().expect("an address");
        assert_eq!(socket_addr(&RawAddress::from(mapped).0), Some(plain));
    }
}
