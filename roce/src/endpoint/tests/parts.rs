//! A device in three parts, a host, and a network that loses packets: on virtual time.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::endpoint::{
    AcceptParams, ConnectParams, DisconnectReason, Endpoint, EndpointConfig, Event, Part, Path,
    PathMtu, QpId, RejectReason, RequestId, SendWork, WcStatus,
};
use crate::wire::Packet;

const PARTS: usize = 3;
const HOST: usize = PARTS;
const SERVICE: u64 = 0x0106_1144;

/// What an endpoint reported.
#[derive(Debug, PartialEq)]
enum Seen {
    Request(RequestId),
    Connected(QpId),
    Established(QpId),
    Rejected(QpId),
    Ended(QpId, DisconnectReason),
    Done(QpId, WcStatus, Vec<u8>),
}

/// The parts of the device, and behind them the host.
struct Net {
    now: Instant,
    endpoints: Vec<Endpoint<Vec<u8>>>,
    seen: Vec<VecDeque<Seen>>,
    /// Every so many packets one is lost.
    lose_every: usize,
    packets: usize,
    dealt: usize,
}

impl Net {
    fn new(lose_every: usize) -> Self {
        let config = EndpointConfig::default();
        let mut endpoints: Vec<_> = Part::all(PARTS)
            .map(|part| Endpoint::with_part(config.clone(), [part.index() as u8; 32], part))
            .collect();
        endpoints[0].listen(SERVICE).expect("nobody listens");
        endpoints.push(Endpoint::new(config, [99; 32]));
        Self {
            now: Instant::now(),
            seen: endpoints.iter().map(|_| VecDeque::new()).collect(),
            endpoints,
            lose_every,
            packets: 0,
            dealt: 0,
        }
    }

    fn path(from: usize) -> Path {
        let (device, host) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        match from == HOST {
            true => Path {
                local: host,
                remote: device,
            },
            false => Path {
                local: device,
                remote: host,
            },
        }
    }

    /// Delivers every packet that is under way, then goes to the next timer.
    fn step(&mut self) {
        let mut quiet = false;
        while !quiet {
            quiet = true;
            for from in 0..=HOST {
                let mut sent = Vec::new();
                self.endpoints[from].poll_transmit(self.now, 64, &mut |packet| {
                    let mut bytes = [packet.header, packet.payload].concat();
                    bytes.resize(bytes.len() + usize::from(packet.pad), 0);
                    sent.push(bytes);
                });
                for bytes in sent {
                    quiet = false;
                    self.packets += 1;
                    if self.packets.is_multiple_of(self.lose_every) {
                        continue;
                    }
                    let qpn = Packet::parse(&bytes).expect("a packet").bth.dest_qpn;
                    let to = match from == HOST {
                        true => self.endpoints[0].part().of(qpn),
                        false => HOST,
                    };
                    self.endpoints[to].handle_packet(self.now, Self::path(to), &bytes);
                }
                while let Some((to, relay)) = self.endpoints[from].poll_relay() {
                    quiet = false;
                    self.endpoints[to].handle_relay(self.now, relay);
                }
                while let Some(event) = self.endpoints[from].poll_event() {
                    quiet = false;
                    self.take(from, event);
                }
            }
        }
        let next = self.endpoints.iter().filter_map(Endpoint::poll_timeout);
        if let Some(next) = next.min() {
            self.now = self.now.max(next) + Duration::from_nanos(1);
            for endpoint in &mut self.endpoints {
                endpoint.handle_timeout(self.now);
            }
        }
    }

    fn take(&mut self, at: usize, event: Event<Vec<u8>>) {
        let seen = match event {
            Event::ConnectRequest {
                request,
                service_id,
                private_data,
                ..
            } => {
                // In turns over all parts.
                let turn = self.dealt % PARTS;
                if at == 0 && turn != 0 {
                    self.dealt += 1;
                    let first = &mut self.endpoints[0];
                    return first.hand_over(request, turn, service_id, private_data);
                }
                self.dealt += usize::from(at == 0);
                Seen::Request(request)
            }
            Event::Connected { qp, .. } => Seen::Connected(qp),
            Event::Established { qp } => Seen::Established(qp),
            Event::Rejected { qp, .. } => Seen::Rejected(qp),
            Event::Disconnected { qp, reason } => Seen::Ended(qp, reason),
            Event::Completion {
                qp, status, memory, ..
            } => Seen::Done(qp, status, memory),
        };
        self.seen[at].push_back(seen);
    }

    /// Waits for something that one endpoint reports; what comes before it is passed over.
    fn until<T>(&mut self, at: usize, mut wanted: impl FnMut(&Seen) -> Option<T>) -> T {
        for _ in 0..10_000 {
            while let Some(seen) = self.seen[at].pop_front() {
                if let Some(found) = wanted(&seen) {
                    return found;
                }
            }
            self.step();
        }
        panic!("it never came");
    }

    fn ask(&mut self) -> QpId {
        let params = ConnectParams::new(SERVICE, vec![7; 8], PathMtu::Mtu1024);
        let host = &mut self.endpoints[HOST];
        host.connect(self.now, Self::path(HOST), params)
            .expect("room")
    }

    fn request(&mut self, part: usize) -> RequestId {
        self.until(part, |seen| match seen {
            Seen::Request(request) => Some(*request),
            _ => None,
        })
    }

    /// A connection to the part whose turn it is: the host's queue pair and the part's.
    fn connect(&mut self, part: usize) -> (QpId, QpId) {
        let asked = self.ask();
        let request = self.request(part);
        let answer = AcceptParams::default();
        let accepted = self.endpoints[part].accept(self.now, request, answer);
        let accepted = accepted.expect("it still waits");
        let posted = self.endpoints[part].post_receive(accepted, 0, vec![0; 4096]);
        posted.expect("room");
        let of_host = |seen: &Seen| (*seen == Seen::Connected(asked)).then_some(());
        self.until(HOST, of_host);
        (asked, accepted)
    }

    fn send(&mut self, at: usize, qp: QpId, data: Vec<u8>) {
        let len = data.len();
        let work = SendWork::Send {
            data,
            len,
            invalidate: None,
        };
        let posted = self.endpoints[at].post_send(self.now, qp, 1, work);
        posted.expect("connected");
    }
}

#[test]
fn each_part_has_its_connections_and_their_numbers_say_so() {
    for lose_every in [usize::MAX, 5, 7] {
        let mut net = Net::new(lose_every);
        for round in 0..2 {
            for part in 0..PARTS {
                let (host, here) = net.connect(part);
                assert_eq!(here.number() as usize % PARTS, part);
                let data = vec![(round * PARTS + part) as u8; 3000];
                net.send(HOST, host, data.clone());
                net.until(part, |seen| match seen {
                    Seen::Done(qp, WcStatus::Success, got) if *qp == here => {
                        assert_eq!(got[..3000], data);
                        Some(())
                    }
                    _ => None,
                });
            }
        }
        assert_eq!(net.endpoints[0].handed_over(), 4);
        for part in 0..PARTS {
            assert_eq!(net.endpoints[part].queue_pairs().0, 2);
        }
    }
}

#[test]
fn either_end_of_a_connection_hears_of_its_end_through_the_part_that_has_it() {
    for lose_every in [usize::MAX, 4] {
        let mut net = Net::new(lose_every);
        net.connect(0);
        let (host, here) = net.connect(1);
        net.endpoints[HOST].disconnect(net.now, host);
        net.until(1, |seen| match seen {
            Seen::Ended(qp, reason) if *qp == here => {
                assert_eq!(*reason, DisconnectReason::Remote);
                Some(())
            }
            _ => None,
        });
        net.endpoints[1].destroy(here);
        let (host, here) = net.connect(2);
        net.endpoints[2].disconnect(net.now, here);
        net.until(HOST, |seen| match seen {
            Seen::Ended(qp, reason) if *qp == host => {
                assert_eq!(*reason, DisconnectReason::Remote);
                Some(())
            }
            _ => None,
        });
        let ended = |seen: &Seen| matches!(seen, Seen::Ended(..)).then_some(());
        net.until(2, ended);
        net.endpoints[2].destroy(here);
        assert_eq!(net.endpoints[0].handed_over(), 0, "nothing is left over");
        assert_eq!(net.endpoints[1].queue_pairs().0, 0);
        assert_eq!(net.endpoints[2].queue_pairs().0, 0);
    }
}

#[test]
fn a_part_can_refuse_and_a_request_that_was_taken_back_is_gone_there() {
    let mut net = Net::new(usize::MAX);
    net.connect(0);
    let asked = net.ask();
    let request = net.request(1);
    net.endpoints[1].reject(net.now, request, RejectReason::Consumer, b"no");
    let refused = |seen: &Seen| (*seen == Seen::Rejected(asked)).then_some(());
    net.until(HOST, refused);
    assert_eq!(net.endpoints[0].handed_over(), 0);

    let asked = net.ask();
    let request = net.request(2);
    net.endpoints[HOST].destroy(asked);
    while net.endpoints[0].handed_over() > 0 {
        net.step();
    }
    net.step();
    let answer = AcceptParams::default();
    let late = net.endpoints[2].accept(net.now, request, answer);
    assert!(late.is_err(), "its peer gave up");
}
