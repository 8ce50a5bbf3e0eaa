//! TLS with hosts and networks that do what they should not: what they lose is their own connection.

use std::cell::{Cell, RefCell};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fabric::{
    CloseReason, Connector, HostData, HostError, HostQueue, TcpHostConfig, TcpListenerConfig,
    TlsFailure, TlsMode,
};
use nvme::Status;
use nvme::auth::{Hash, PskVersion, TlsPsk};
use nvme::tcp::Pdu;
use openssl::ssl::{
    ErrorCode, Ssl, SslContextBuilder, SslMethod, SslSessionCacheMode, SslStream, SslVersion,
};

use crate::common::{LOOK_AGAIN, all_buffers_back, buffer, command, pattern, read, run, write};
use crate::harness::{
    IO, NO_DIGESTS, Raw, Target, attach, attach_at, config, connect_command, goes_on, ic_req,
    in_capsule, transported,
};
use crate::tls::{Keys, by_tls, good_psk, psk, start, start_with};

/// A network between a host and a target, which can be looked into and spoilt.
struct Relay {
    address: SocketAddr,
    /// What crossed it to the target, and to the host.
    seen: [Rc<RefCell<Vec<u8>>>; 2],
    spoil: [Rc<Cell<Spoil>>; 2],
}

/// What happens to the bytes of a direction.
#[derive(Clone, Copy, PartialEq)]
enum Spoil {
    Nothing,
    /// A bit of the byte after so many more.
    Flip(usize),
    /// The connection ends after so many more bytes.
    Cut(usize),
}

impl Relay {
    /// For one connection.
    fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let relay = Self {
            address: listener.local_addr().expect("an address"),
            seen: Default::default(),
            spoil: [(); 2].map(|()| Rc::new(Cell::new(Spoil::Nothing))),
        };
        let (seen, spoil) = (relay.seen.clone(), relay.spoil.clone());
        reactor::spawn(async move {
            listener.set_nonblocking(true).expect("non-blocking");
            let host = loop {
                match listener.accept() {
                    Ok((host, _)) => break Rc::new(host),
                    Err(_) => reactor::readable(listener.as_fd()).await.expect("polled"),
                }
            };
            let target = Rc::new(TcpStream::connect(target).expect("a connection"));
            for (from, to, way) in [(host.clone(), target.clone(), 0), (target, host, 1)] {
                from.set_nonblocking(true).expect("non-blocking");
                reactor::spawn(pump(from, to, seen[way].clone(), spoil[way].clone()));
            }
        });
        relay
    }
}

async fn pump(
    from: Rc<TcpStream>,
    to: Rc<TcpStream>,
    seen: Rc<RefCell<Vec<u8>>>,
    spoil: Rc<Cell<Spoil>>,
) {
    let mut buffer = vec![0; 65_536];
    loop {
        let mut bytes = match (&*from).read(&mut buffer) {
            Ok(0) => break,
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                reactor::readable(from.as_fd()).await.expect("polled");
                continue;
            }
            Err(_) => break,
        };
        match spoil.get() {
            Spoil::Flip(at) if at < bytes => {
                buffer[at] ^= 0x10;
                spoil.set(Spoil::Nothing);
            }
            Spoil::Flip(at) => spoil.set(Spoil::Flip(at - bytes)),
            Spoil::Cut(at) => {
                spoil.set(Spoil::Cut(at.saturating_sub(bytes)));
                bytes = bytes.min(at);
            }
            Spoil::Nothing => {}
        }
        seen.borrow_mut().extend_from_slice(&buffer[..bytes]);
        let mut rest = &buffer[..bytes];
        while !rest.is_empty() {
            match (&*to).write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    reactor::writable(to.as_fd()).await.expect("polled");
                }
                Err(_) => break,
            }
        }
        if spoil.get() == Spoil::Cut(0) {
            break;
        }
    }
    for stream in [from, to] {
        // Fails only if it is closed already.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

/// A host without manners that speaks TLS, by OpenSSL's own callback for keys.
struct Sealed {
    stream: SslStream<TcpStream>,
    tickets: Arc<AtomicUsize>,
}

impl Sealed {
    async fn open(target: &Target, psk: TlsPsk) -> Self {
        let tickets = Arc::new(AtomicUsize::new(0));
        let mut context = SslContextBuilder::new(SslMethod::tls()).expect("OpenSSL");
        context
            .set_min_proto_version(Some(SslVersion::TLS1_3))
            .expect("TLS 1.3");
        context
            .set_ciphersuites("TLS_AES_128_GCM_SHA256")
            .expect("a suite");
        context.set_psk_client_callback(move |_, _, identity, key| {
            identity[..psk.identity.len()].copy_from_slice(psk.identity.as_bytes());
            key[..psk.key.len()].copy_from_slice(&psk.key);
            Ok(psk.key.len())
        });
        context.set_session_cache_mode(SslSessionCacheMode::CLIENT);
        let counted = tickets.clone();
        context.set_new_session_callback(move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let stream = TcpStream::connect(target.address()).expect("a connection");
        stream.set_nonblocking(true).expect("non-blocking");
        stream.set_nodelay(true).expect("no delay");
        let ssl = Ssl::new(&context.build()).expect("OpenSSL");
        let stream = SslStream::new(ssl, stream).expect("OpenSSL");
        let mut sealed = Self { stream, tickets };
        sealed.until(SslStream::connect).await.expect("a handshake");
        sealed
    }

    async fn until<T>(
        &mut self,
        mut what: impl FnMut(&mut SslStream<TcpStream>) -> Result<T, openssl::ssl::Error>,
    ) -> Result<T, openssl::ssl::Error> {
        loop {
            match what(&mut self.stream) {
                Err(error) if error.code() == ErrorCode::WANT_READ => {
                    reactor::readable(self.stream.get_ref().as_fd())
                        .await
                        .expect("polled");
                }
                Err(error) if error.code() == ErrorCode::WANT_WRITE => {
                    reactor::writable(self.stream.get_ref().as_fd())
                        .await
                        .expect("polled");
                }
                done => return done,
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) {
        let sent = self.until(|stream| stream.ssl_write(bytes)).await;
        assert_eq!(sent.expect("it is sent"), bytes.len());
    }

    async fn receive(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        let mut have = 0;
        while have < count {
            have += self
                .until(|stream| stream.ssl_read(&mut bytes[have..]))
                .await
                .expect("it comes");
        }
        bytes
    }

    /// A queue whose Connect has succeeded.
    async fn connected(target: &Target) -> Self {
        let mut sealed = Self::open(target, good_psk()).await;
        sealed.send(&ic_req(NO_DIGESTS)).await;
        assert_eq!(sealed.receive(128).await[0], 1);
        sealed.command(&connect_command(32, true), &[]).await;
        assert_eq!(sealed.receive(24).await[0], 5);
        sealed
    }

    async fn command(&mut self, sqe: &nvme::Sqe, data: &[u8]) {
        let mut bytes = Vec::new();
        Pdu::Command(*sqe).emit(NO_DIGESTS, data.len(), 0, &mut bytes);
        bytes.extend_from_slice(data);
        self.send(&bytes).await;
    }
}

/// Where damaged writes go: nobody else writes there.
const SPOILT: usize = 4 << 20;

fn is_unwritten(target: &Target) -> bool {
    target.disk.borrow()[SPOILT..].iter().all(|byte| *byte == 0)
}

/// Writes many bytes that the connection does not survive.
async fn lost_write(queue: &HostQueue, bytes: usize) -> CloseReason {
    let mut data = buffer(bytes).await;
    data.fill(0xee);
    let sent = queue.submit(command(1, SPOILT, bytes), HostData::ToTarget(data, bytes));
    lost(sent.await)
}

fn lost<T>(outcome: Result<T, HostError>) -> CloseReason {
    match outcome {
        Err(HostError::Closed { reason, .. }) => reason,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was answered"),
    }
}

/// A listener that requires TLS, and a host that is attached to it.
async fn scene(config: TcpListenerConfig) -> (Target, Arc<Keys>, HostQueue) {
    let config = TcpListenerConfig {
        tls: TlsMode::Required,
        ..config
    };
    let (target, keys) = start_with(config, &[good_psk()]);
    let good = attach(&target, by_tls([good_psk()]), true).await;
    (target, keys, good)
}

#[test]
fn nothing_that_hosts_write_or_read_can_be_seen_on_the_wire() {
    run(async {
        let (target, _) = start(TlsMode::Required, &[good_psk()]);
        let relay = Relay::to(target.address());
        let queue = attach_at(relay.address, by_tls([good_psk()]), true).await;
        let secret = b"what nobody else may read, ever. ".repeat(8000);
        let secret = &secret[..262_144];
        for bytes in [512, 8192, 131_072, 262_144] {
            assert_eq!(write(&queue, 0, &secret[..bytes]).await, Status::SUCCESS);
            assert!(read(&queue, 0, bytes).await == secret[..bytes]);
        }
        for seen in &relay.seen {
            let seen = seen.borrow();
            assert!(seen.len() > 400_000, "it came this way");
            let found = |what: &[u8]| seen.windows(what.len()).any(|part| part == what);
            assert!(!found(&secret[..16]));
            // Nor the headers: a command, and a response.
            assert!(!found(&[4, 0, 72, 0]) && !found(&[5, 0, 24, 0]));
            // All of it are records, and after the hellos of data alone.
            let mut rest = &seen[..];
            let mut kinds = Vec::new();
            while let Some(header) = rest.first_chunk::<5>() {
                kinds.push(header[0]);
                rest = &rest[5 + usize::from(u16::from_be_bytes([header[3], header[4]]))..];
            }
            let hellos = kinds.iter().take_while(|kind| **kind != 23).count();
            assert!(hellos <= 2 && kinds[hellos..].iter().all(|kind| *kind == 23));
        }
    });
}

#[test]
fn digests_and_data_of_every_size_go_through_tls() {
    run(async {
        for (header_digest, data_digest) in [(false, false), (true, true)] {
            let (target, _) = start(TlsMode::Allowed, &[psk(Hash::Sha384, PskVersion::V1, 1)]);
            let host = TcpHostConfig {
                header_digest,
                data_digest,
                ..by_tls([psk(Hash::Sha384, PskVersion::V1, 1)])
            };
            let queue = attach(&target, host, false).await;
            for bytes in [
                4, 512, 4096, 16_340, 16_384, 16_388, 65_536, 131_072, 1_048_576,
            ] {
                let data = pattern(bytes as u64, bytes);
                assert_eq!(write(&queue, 4096, &data).await, Status::SUCCESS);
                assert!(target.disk.borrow()[4096..4096 + bytes] == data);
                assert!(read(&queue, 4096, bytes).await == data);
            }
            // Many at once.
            let all = (0..24_usize).map(|n| {
                let queue = queue.clone();
                async move {
                    let (offset, data) = (n * 262_144, pattern(n as u64, 200_000));
                    assert_eq!(write(&queue, offset, &data).await, Status::SUCCESS);
                    assert!(read(&queue, offset, data.len()).await == data);
                }
            });
            futures_util::future::join_all(all).await;
            assert_eq!(target.listener.counters().digest_errors, 0);
        }
    });
}

#[test]
fn n19_a_host_that_stalls_or_dribbles_in_its_handshake_is_closed_when_its_time_is_up() {
    run(async {
        let patience = Duration::from_secs(3);
        let (target, keys, good) = scene(TcpListenerConfig {
            handshake_timeout: patience,
            ..config()
        })
        .await;
        let begun = reactor::now();
        let mut stalled = Raw::open(&target);
        stalled.send(&[22, 3, 1, 2, 0, 1]).await;
        let mut dribbling = Raw::open(&target);
        let dribble = async {
            // A record that would take an hour.
            dribbling.send(&[22, 3, 1, 0x20, 0, 1, 0, 0x1f, 0xfc]).await;
            while reactor::now() < begun + patience {
                dribbling.send(&[0]).await;
                reactor::sleep(Duration::from_millis(100)).await;
            }
            assert_eq!(dribbling.ended().await, None);
        };
        let (_, _, ()) = futures_util::join!(stalled.ended(), dribble, goes_on(&good));
        assert!(reactor::now() >= begun + patience);
        let failures = keys.failures.lock().unwrap().clone();
        assert_eq!(failures, [TlsFailure::Stalled, TlsFailure::Stalled]);
        goes_on(&good).await;
    });
}

#[test]
fn n19_what_is_no_handshake_ends_its_connection_at_once() {
    run(async {
        let (target, keys, good) = scene(config()).await;
        // Garbage, an alert, data, a hello that never ends, a hello of TLS 1.2, a record of no known length.
        let mut endless = vec![22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff];
        endless.resize(40_000, 1);
        let old_hello = [22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3]
            .into_iter()
            .chain([7; 32])
            .chain([0, 0, 2, 0xc0, 0x2f, 1, 0])
            .collect();
        let kinds: [Vec<u8>; 5] = [
            [22].into_iter().chain([0xa5; 600]).collect(),
            vec![22, 3, 1, 0, 4, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0],
            endless,
            old_hello,
            vec![22, 3, 3, 0xff, 0xff, 1, 2, 3],
        ];
        for (n, bytes) in kinds.iter().enumerate() {
            let mut raw = Raw::open(&target);
            raw.send(bytes).await;
            raw.closed().await;
            let failures = keys.failures.lock().unwrap().clone();
            assert_eq!(failures.len(), n + 1, "{n}: {failures:?}");
        }
        // Whatever does not begin as TLS does is a host in clear.
        for first in [0, 20, 21, 23, 255] {
            let mut raw = Raw::open(&target);
            raw.send(&[first, 3, 3, 0, 2, 2, 70]).await;
            raw.closed().await;
            let last = keys.failures.lock().unwrap().last().cloned();
            assert_eq!(last, Some(TlsFailure::Clear));
        }
        let counters = target.listener.counters();
        assert_eq!((counters.tls_handshakes, counters.tls_failures), (1, 10));
        goes_on(&good).await;
    });
}

#[test]
fn n19_an_alert_in_the_middle_of_data_ends_the_queue_that_it_came_on() {
    run(async {
        let (target, _, good) = scene(config()).await;
        let mut sealed = Sealed::connected(&target).await;
        let half = &in_capsule(1, 7, SPOILT, 8192);
        let mut bytes = Vec::new();
        Pdu::Command(*half).emit(NO_DIGESTS, 8192, 0, &mut bytes);
        bytes.resize(bytes.len() + 4000, 0xee);
        sealed.send(&bytes).await;
        // In clear: a record that nobody sealed.
        sealed
            .stream
            .get_mut()
            .write_all(&[21, 3, 3, 0, 2, 2, 70])
            .expect("it is sent");
        let ended = sealed.until(|stream| stream.ssl_read(&mut [0; 64])).await;
        assert!(ended.is_err());
        assert!(is_unwritten(&target));
        goes_on(&good).await;
        drop(good);
        all_buffers_back().await;
    });
}

#[test]
fn a_host_that_ends_tls_properly_ends_its_queue_and_gets_no_session_ticket() {
    run(async {
        let (target, _, good) = scene(config()).await;
        let mut sealed = Sealed::connected(&target).await;
        sealed.command(&in_capsule(1, 7, 0, 4096), &[3; 4096]).await;
        assert_eq!(sealed.receive(24).await[0], 5);
        assert_eq!(sealed.tickets.load(Ordering::Relaxed), 0);
        let queue = target.queues.borrow()[1].clone();
        // Its last words; the connection itself stays open.
        sealed.stream.shutdown().expect("they are sent");
        assert_eq!(queue.closed().await, CloseReason::Peer);
        // The target says so itself when it is the one to end.
        let mut sealed = Sealed::connected(&target).await;
        target.queues.borrow()[2].close();
        let end = sealed.until(|stream| stream.ssl_read(&mut [0; 64])).await;
        assert_eq!(end.expect_err("the end").code(), ErrorCode::ZERO_RETURN);
        goes_on(&good).await;
    });
}

#[test]
fn a_host_that_reads_nothing_holds_no_more_than_its_queue_and_gets_all_of_it_later() {
    run(async {
        let (target, _, good) = scene(config()).await;
        let data = pattern(5, 262_144);
        assert_eq!(write(&good, SPOILT, &data).await, Status::SUCCESS);
        let mut sealed = Sealed::connected(&target).await;
        for cid in 0..31 {
            sealed
                .command(&transported(2, cid, SPOILT, data.len()), &[])
                .await;
        }
        // What the kernel's buffers do not take waits.
        while target.listener.counters().held_bytes == 0 {
            reactor::sleep(LOOK_AGAIN).await;
        }
        assert!(target.listener.counters().held_bytes <= 31 * (262_144 + 100) + (160 << 10));
        goes_on(&good).await;
        for _ in 0..31 {
            assert_eq!(sealed.receive(24).await[0], 7);
            assert!(sealed.receive(data.len()).await == data);
            assert_eq!(sealed.receive(24).await[0], 5);
        }
        while target.listener.counters().held_bytes > 0 {
            reactor::sleep(LOOK_AGAIN).await;
        }
    });
}

#[test]
fn a_bit_that_flips_on_its_way_to_the_target_ends_the_connection_and_is_not_written() {
    run(async {
        let (target, _, good) = scene(config()).await;
        for (bytes, at) in [(4096, 200), (131_072, 100_000), (131_072, 1)] {
            let relay = Relay::to(target.address());
            let queue = attach_at(relay.address, by_tls([good_psk()]), true).await;
            relay.spoil[0].set(Spoil::Flip(at));
            lost_write(&queue, bytes).await;
            assert!(is_unwritten(&target));
            goes_on(&good).await;
        }
        let counters = target.listener.counters();
        assert_eq!((counters.tls_failures, counters.violations), (3, 0));
        drop(good);
        all_buffers_back().await;
    });
}

#[test]
fn a_record_whose_rest_does_not_come_is_waited_for_as_long_as_a_pdu() {
    run(async {
        let (target, _, good) = scene(TcpListenerConfig {
            stall_timeout: Duration::from_millis(300),
            ..config()
        })
        .await;
        let relay = Relay::to(target.address());
        let queue = attach_at(relay.address, by_tls([good_psk()]), true).await;
        // The length: the target waits for bytes that the host did not send.
        relay.spoil[0].set(Spoil::Flip(3));
        lost_write(&queue, 131_072).await;
        assert_eq!(target.listener.counters().stalled, 1);
        // A host that owes nothing may be silent.
        assert!(!good.is_closing());
        goes_on(&good).await;
    });
}

#[test]
fn a_bit_that_flips_on_its_way_to_the_host_ends_the_connection_and_is_not_read() {
    run(async {
        let (target, _, good) = scene(config()).await;
        let data = pattern(6, 131_072);
        assert_eq!(write(&good, 0, &data).await, Status::SUCCESS);
        let relay = Relay::to(target.address());
        let queue = attach_at(relay.address, by_tls([good_psk()]), true).await;
        relay.spoil[1].set(Spoil::Flip(90_000));
        let into = buffer(data.len()).await;
        let reading = HostData::FromTarget(into, data.len());
        let reason = lost(queue.submit(command(2, 0, data.len()), reading).await);
        assert!(
            matches!(reason, CloseReason::Tls(TlsFailure::Record(_))),
            "{reason}"
        );
        goes_on(&good).await;
    });
}

#[test]
fn a_connection_that_is_cut_in_a_record_delivers_nothing_of_it() {
    run(async {
        let (target, _, good) = scene(config()).await;
        for at in [1, 5, 5000, 80_000] {
            let relay = Relay::to(target.address());
            let queue = attach_at(relay.address, by_tls([good_psk()]), true).await;
            relay.spoil[0].set(Spoil::Cut(at));
            lost_write(&queue, 131_072).await;
            assert!(is_unwritten(&target));
            goes_on(&good).await;
        }
        // In the handshake, too: then the host is told where to look.
        let relay = Relay::to(target.address());
        relay.spoil[1].set(Spoil::Cut(50));
        let host = Connector::tcp(by_tls([good_psk()]));
        let error = HostQueue::connect(&host, relay.address, IO).await;
        let error = error.expect_err("it is cut").to_string();
        assert!(error.contains("TLS handshake"), "{error}");
        goes_on(&good).await;
        drop(good);
        all_buffers_back().await;
    });
}
