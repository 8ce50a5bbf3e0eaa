//! Connections that are made, used, broken and ended at random moments on bad networks, and packets of random
//! bytes. Nothing panics, all memory comes back, and the end of each connection is reported once.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use rand::Rng;

use super::pair::{A, B, Joint, Network, Pair, SERVICE};
use crate::endpoint::{
    AcceptParams, ConnectParams, EndpointConfig, Event, PathMtu, QpId, RejectReason, SendWork,
};
use crate::memory::{Access, RegionKey};

#[derive(Default)]
struct Life {
    /// Queue pairs that exist, and whether their end was reported.
    qps: HashMap<QpId, bool>,
    usable: HashSet<QpId>,
    regions: Vec<RegionKey>,
    posted: u64,
    completed: u64,
}

fn life(seed: u64) {
    let config = EndpointConfig {
        max_qps: 6,
        max_send_wr: 8,
        max_recv_wr: 8,
        give_up_after: Duration::from_millis(300),
        rnr_retry_count: 5,
        cm_timeout: Duration::from_millis(20),
        cm_retries: 3,
        ..EndpointConfig::default()
    };
    let mut pair = Pair::new(seed, config, Network::perfect());
    pair.network = Network::random(&mut pair.random);
    let mut lives = [Life::default(), Life::default()];
    for side in &mut pair.sides {
        side.endpoint.listen(SERVICE).expect("listen");
    }
    for _ in 0..pair.random.random_range(50..400) {
        for (side, life) in lives.iter_mut().enumerate() {
            events(&mut pair, life, side);
            act(&mut pair, life, side);
        }
        for _ in 0..pair.random.random_range(0..6) {
            pair.step();
        }
    }
    for (side, life) in lives.iter_mut().enumerate() {
        pair.collect_events();
        events(&mut pair, life, side);
        for (qp, _) in life.qps.drain() {
            pair.sides[side].endpoint.destroy(qp);
        }
        pair.collect_events();
        events(&mut pair, life, side);
        assert_eq!(
            life.posted, life.completed,
            "seed {seed}: each exactly once"
        );
        for key in life.regions.drain(..) {
            pair.deregister(side, key);
        }
    }
    pair.run_for(Duration::from_secs(60));
    pair.finish([QpId(0), QpId(0)]);
}

fn events(pair: &mut Pair, life: &mut Life, side: usize) {
    pair.collect_events();
    for event in std::mem::take(&mut pair.sides[side].events) {
        match event {
            Event::ConnectRequest { request, .. } => {
                let now = pair.now;
                let endpoint = &mut pair.sides[side].endpoint;
                match pair.random.random_range(0..5) {
                    0 => endpoint.reject(now, request, RejectReason::Consumer, b"no"),
                    1 => {}
                    _ => {
                        if let Ok(qp) = endpoint.accept(now, request, AcceptParams::default()) {
                            life.qps.insert(qp, false);
                            life.usable.insert(qp);
                        }
                    }
                }
            }
            Event::Connected { qp, .. } | Event::Established { qp } => {
                assert_eq!(life.qps.get(&qp), Some(&false));
                life.usable.insert(qp);
            }
            Event::Rejected { qp, .. } => {
                assert_eq!(life.qps.remove(&qp), Some(false));
            }
            Event::Disconnected { qp, .. } => {
                assert_eq!(life.qps.insert(qp, true), Some(false), "told once");
                life.usable.remove(&qp);
            }
            Event::Completion { qp, .. } => {
                assert_ne!(
                    life.qps.get(&qp),
                    Some(&true),
                    "completions come before the end"
                );
                life.completed += 1;
            }
        }
    }
}

fn act(pair: &mut Pair, life: &mut Life, side: usize) {
    let chosen = pair.random.random_range(0..life.qps.len().max(1));
    let mut qps: Vec<QpId> = life.qps.keys().copied().collect();
    qps.sort();
    let qp = qps.get(chosen).copied();
    let now = pair.now;
    match (pair.random.random_range(0..40), qp) {
        (0..3, _) => {
            let mtu = PathMtu::ALL[pair.random.random_range(0..5)];
            let params = ConnectParams::new(SERVICE, Vec::new(), mtu);
            let path = pair.sides[side].path;
            if let Ok(qp) = pair.sides[side].endpoint.connect(now, path, params) {
                life.qps.insert(qp, false);
            }
        }
        (3, Some(qp)) => pair.sides[side].endpoint.disconnect(now, qp),
        (4, Some(qp)) => {
            pair.sides[side].endpoint.destroy(qp);
            life.qps.remove(&qp);
            life.usable.remove(&qp);
        }
        (5, _) if life.regions.len() < 5 => {
            let access = Access {
                remote_read: true,
                remote_write: true,
            };
            life.regions
                .push(pair.register(side, vec![0; 9000], access));
        }
        (6, _) if !life.regions.is_empty() => {
            let key = life.regions.remove(0);
            pair.deregister(side, key);
        }
        (7..20, Some(qp)) => {
            let block = pair.block(vec![0; 5000]);
            let posted = pair.sides[side].endpoint.post_receive(qp, 0, block);
            life.posted += u64::from(posted.is_ok());
        }
        (_, Some(qp)) => {
            let len = pair.random.random_range(0..5000);
            let memory = pair.block(vec![1; len]);
            // The other end's regions are known to the test only through its table.
            let keys = pair.sides[1 - side].endpoint.regions.keys();
            let RegionKey { rkey, va } = keys
                .first()
                .copied()
                .unwrap_or(RegionKey { rkey: 9, va: 9 });
            let work = match pair.random.random_range(0..6) {
                0 => SendWork::Read {
                    into: memory,
                    offset: 0,
                    len,
                    remote_va: va,
                    rkey,
                },
                1 => SendWork::Write {
                    from: memory,
                    offset: 0,
                    len,
                    remote_va: va,
                    rkey,
                },
                2 => SendWork::Send {
                    data: memory,
                    len,
                    invalidate: Some(rkey),
                },
                _ => SendWork::Send {
                    data: memory,
                    len,
                    invalidate: None,
                },
            };
            let posted = pair.sides[side].endpoint.post_send(now, qp, 0, work);
            life.posted += u64::from(posted.is_ok());
        }
        _ => {}
    }
}

#[test]
fn random_connections_end_with_all_memory_handed_back() {
    for seed in super::seeds(400) {
        life(seed);
    }
}

/// Real packets with random changes, as if their ICRC were right.
fn mutated(seed: u64) {
    let config = EndpointConfig {
        max_qps: 4,
        give_up_after: Duration::from_millis(100),
        ..EndpointConfig::default()
    };
    let mut pair = Pair::new(seed, config, Network::perfect());
    pair.sides[B].endpoint.listen(SERVICE).expect("listen");
    let qps = pair.join(Joint::default());
    let key = pair.register(
        B,
        vec![0; 5000],
        Access {
            remote_read: true,
            remote_write: true,
        },
    );
    let path = pair.sides[A].path;
    let params = ConnectParams::new(SERVICE, b"ask".to_vec(), PathMtu::Mtu1024);
    pair.sides[A]
        .endpoint
        .connect(pair.now, path, params)
        .expect("connect");
    pair.post_receive(B, qps[B], 0, 3000);
    pair.send(A, qps[A], 1, &[1; 2500]);
    pair.read(A, qps[A], 2, key, 5000);
    pair.write(A, qps[A], 3, key, 3333);
    for _ in 0..20 {
        for side in [A, B] {
            for mut packet in pair.drain(side, 50) {
                packet.resize(packet.len().next_multiple_of(4), 0);
                let copies = pair.random.random_range(1..4);
                for copy in 0..copies {
                    let mut changed = packet.clone();
                    for _ in 0..pair.random.random_range(0..3) * copy {
                        let at = pair.random.random_range(0..changed.len().min(100));
                        changed[at] = pair.random.random();
                    }
                    changed.truncate(changed.len() - pair.random.random_range(0..2) * 4);
                    let receiver = &mut pair.sides[1 - side];
                    receiver
                        .endpoint
                        .handle_packet(pair.now, receiver.path, &changed);
                }
            }
        }
        pair.now += Duration::from_millis(60);
        for side in [A, B] {
            pair.sides[side].endpoint.handle_timeout(pair.now);
        }
    }
    pair.collect_events();
    pair.deregister(B, key);
    for side in [A, B] {
        for qp in pair.sides[side]
            .endpoint
            .qps
            .keys()
            .copied()
            .collect::<Vec<_>>()
        {
            pair.sides[side].endpoint.destroy(QpId(qp));
        }
    }
    pair.run_for(Duration::from_secs(60));
    pair.finish(qps);
}

#[test]
fn changed_packets_do_no_harm() {
    for seed in super::seeds(500) {
        mutated(seed);
    }
}
