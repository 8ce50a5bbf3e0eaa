//! Two managers, a host and a target, with a network between them and a clock that the tests turn.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::cm::{
    Accept, Config, ConnId, Connect, DisconnectReason, Dropped, Event, Local, Manager, Peer,
    Transmit,
};
use roce::wire::cm::{CmTimeout, Message, tcp_service_id};
use roce::wire::{Packet, Path, PathMtu, Psn};

pub(crate) const SERVICE: u64 = tcp_service_id(4420);
pub(crate) const HOST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
pub(crate) const TARGET: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

/// One side of the pair.
pub(crate) struct Side {
    pub(crate) manager: Manager,
    pub(crate) address: IpAddr,
}

impl Side {
    pub(crate) fn new(address: IpAddr, config: Config, seed: u8) -> Self {
        Self {
            manager: Manager::new(config, [seed; 32]),
            address,
        }
    }

    pub(crate) fn path_to(&self, remote: IpAddr) -> Path {
        Path {
            local: self.address,
            remote,
        }
    }

    pub(crate) fn connect(&mut self, now: Instant, local: Local) -> ConnId {
        self.manager
            .connect(now, request(self.path_to(TARGET), local))
            .expect("a connection")
    }

    /// The next event, which must exist.
    pub(crate) fn event(&mut self) -> Event {
        self.manager.poll_event().expect("an event")
    }

    /// The next event is the end of that connection, for that reason.
    #[track_caller]
    pub(crate) fn ended(&mut self, conn: ConnId, reason: DisconnectReason) {
        assert_eq!(self.event(), Event::Disconnected { conn, reason });
    }

    /// Takes a datagram as if it had been sent over the network: through the packet's bytes.
    pub(crate) fn take(&mut self, now: Instant, transmit: &Transmit) -> Result<(), Dropped> {
        let mut bytes = Vec::new();
        transmit.packet(Psn::new(7)).write(&mut bytes);
        let packet = Packet::parse(&bytes).expect("our own packets parse");
        assert_eq!(
            transmit.path.remote, self.address,
            "delivered to the right side"
        );
        let path = self.path_to(transmit.path.local);
        self.manager.handle_packet(now, path, &packet)
    }

    /// Everything that waits to be sent.
    pub(crate) fn sent(&mut self) -> Vec<Transmit> {
        std::iter::from_fn(|| self.manager.poll_transmit()).collect()
    }

    /// The one datagram that waits to be sent.
    pub(crate) fn sent_one(&mut self) -> Transmit {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "one datagram is to be sent");
        sent.remove(0)
    }
}

/// A request for [`SERVICE`].
pub(crate) fn request(path: Path, local: Local) -> Connect {
    let private_data = b"request".to_vec();
    Connect {
        path,
        service_id: SERVICE,
        local,
        mtu: PathMtu::Mtu1024,
        private_data,
    }
}

/// The values of a side with this queue pair; the sequence number is made from it.
pub(crate) fn local(qpn: u32) -> Local {
    Local {
        qpn,
        starting_psn: Psn::new(qpn.wrapping_mul(0x9e37)),
        responder_resources: 16,
        initiator_depth: 8,
        ack_timeout: CmTimeout::from_code(15),
        retry_count: 7,
        rnr_retry_count: 6,
    }
}

pub(crate) fn acceptance(qpn: u32) -> Accept {
    Accept {
        local: local(qpn),
        private_data: b"reply".to_vec(),
    }
}

/// The message in a datagram.
pub(crate) fn message(transmit: &Transmit) -> Message {
    Message::parse(&transmit.mad)
        .expect("our own messages parse")
        .1
}

/// A host and a target that listens on [`SERVICE`].
pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) host: Side,
    pub(crate) target: Side,
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::with_config(Config::default())
    }

    pub(crate) fn with_config(config: Config) -> Self {
        let mut pair = Self {
            now: Instant::now(),
            host: Side::new(HOST, config.clone(), 1),
            target: Side::new(TARGET, config, 2),
        };
        pair.target
            .manager
            .listen(SERVICE)
            .expect("nobody listens yet");
        pair
    }

    /// Delivers everything that waits, until nothing is sent any more. Says how many datagrams.
    pub(crate) fn exchange(&mut self) -> usize {
        let mut delivered = 0;
        loop {
            let (from_host, from_target) = (self.host.sent(), self.target.sent());
            if from_host.is_empty() && from_target.is_empty() {
                return delivered;
            }
            delivered += from_host.len() + from_target.len();
            for transmit in from_host {
                let _ = self.target.take(self.now, &transmit);
            }
            for transmit in from_target {
                let _ = self.host.take(self.now, &transmit);
            }
        }
    }

    /// Lets time pass; timers run out, but nothing is delivered.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.host.manager.handle_timeout(self.now);
        self.target.manager.handle_timeout(self.now);
    }

    /// A request that the target has not answered: the host's and the target's connection.
    pub(crate) fn requested(&mut self, host_qpn: u32) -> (ConnId, ConnId, Peer) {
        let host = self.host.connect(self.now, local(host_qpn));
        self.exchange();
        match self.target.event() {
            Event::ConnectRequest { conn, peer, .. } => (host, conn, peer),
            other => panic!("{other:?}"),
        }
    }

    /// The target accepts a request.
    #[track_caller]
    pub(crate) fn accept(&mut self, target: ConnId, target_qpn: u32) {
        self.target
            .manager
            .accept(self.now, target, &acceptance(target_qpn))
            .expect("it waits");
    }

    /// The host confirms a reply.
    #[track_caller]
    pub(crate) fn establish(&mut self, host: ConnId) {
        self.host
            .manager
            .establish(self.now, host)
            .expect("the reply came");
    }

    /// An established connection: the host's and the target's.
    pub(crate) fn established(&mut self, host_qpn: u32, target_qpn: u32) -> (ConnId, ConnId) {
        let (host, target, _) = self.requested(host_qpn);
        self.accept(target, target_qpn);
        self.exchange();
        assert!(matches!(self.host.event(), Event::ReplyReceived { conn, .. } if conn == host));
        self.establish(host);
        self.exchange();
        assert_eq!(self.target.event(), Event::Established { conn: target });
        (host, target)
    }

    /// Both sides have no event, nothing to be sent, and after the time wait no trace of anything.
    pub(crate) fn assert_quiet(&mut self) {
        assert_eq!(self.host.manager.poll_event(), None);
        assert_eq!(self.target.manager.poll_event(), None);
        self.exchange();
        self.pass(Config::default().time_wait);
        for side in [&self.host, &self.target] {
            assert_eq!(side.manager.live(), 0);
            assert_eq!(side.manager.pending(), 0);
            assert_eq!(side.manager.poll_timeout(), None, "no timer is left");
        }
    }
}
