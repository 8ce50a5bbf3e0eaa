//! A host that writes, and knows what was acknowledged.

use std::collections::BTreeMap;

use fabric::{Connector, TransportAddress};
use futures_util::future::join_all;
use initiator::{ConnectOptions, Controller, Host, Namespace};

/// Bytes of what is written at a time.
pub(crate) const BLOCK: usize = 4096;

/// Writes that are under way.
const DEPTH: u64 = 8;

/// What a host wrote to each block: the last number that was acknowledged, and the last one that was sent.
#[derive(Debug, Default)]
pub(crate) struct Written {
    blocks: BTreeMap<u64, (u64, u64)>,
}

impl Written {
    /// How many blocks have something that was acknowledged.
    pub(crate) fn acknowledged(&self) -> usize {
        let known = |(acknowledged, _): &&(u64, u64)| *acknowledged > 0;
        self.blocks.values().filter(known).count()
    }
}

/// The bytes of a block with a number: no two are alike.
fn content(block: u64, number: u64) -> Vec<u8> {
    let mut word = block << 32 ^ number;
    let words = (0..BLOCK / 8).flat_map(|_| {
        // A step of SplitMix64.
        word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27).to_le_bytes()
    });
    words.collect()
}

/// Runs something with the volume behind an address.
pub(crate) fn with_volume<T: Send + 'static>(
    listen: &str,
    run: impl AsyncFnOnce(Namespace) -> T + Send + 'static,
) -> T {
    let address: TransportAddress = listen.parse().expect("an address");
    let ended = reactor::run(reactor::Config::default(), async move {
        let connector = Connector::to_reach(&address).expect("a connector");
        let nqn = "nqn.2026-11.dev.onefold:default".parse().expect("a name");
        let options = ConnectOptions::new(address.socket_addr(), nqn, Host::generate());
        let controller = Controller::connect(&connector, options).await;
        let controller = controller.expect("the daemon lets hosts in");
        let volume = controller.namespace(1).await.expect("a volume");
        let result = run(volume).await;
        controller.close();
        connector.shutdown().await;
        result
    });
    ended.expect("this machine permits io_uring")
}

async fn write(volume: &Namespace, block: u64, number: u64) -> bool {
    let buffers = reactor::current().expect("inside").buffers().clone();
    let mut buffer = buffers.alloc(BLOCK).await;
    buffer.copy_from_slice(&content(block, number));
    let (result, _) = volume.write(block * BLOCK as u64, buffer, false).await;
    result.is_ok()
}

/// Writes blocks over and over, and flushes nothing, until a write fails, or until `count` rounds are done; `each` is told of
/// each round.
pub(crate) async fn write_rounds(
    volume: Namespace,
    blocks: u64,
    count: u64,
    each: impl Fn(u64),
) -> Written {
    let mut written = Written::default();
    for number in 1..=count {
        let first = number * DEPTH % blocks;
        let of_round: Vec<u64> = (0..DEPTH).map(|at| (first + at * 7) % blocks).collect();
        for block in &of_round {
            written.blocks.entry(*block).or_default().1 = number;
        }
        let writes = of_round.iter().map(|block| write(&volume, *block, number));
        let ended = join_all(writes).await;
        for (block, is_acknowledged) in of_round.iter().zip(&ended) {
            if *is_acknowledged {
                written.blocks.entry(*block).or_default().0 = number;
            }
        }
        if !ended.iter().all(|ended| *ended) {
            break;
        }
        each(number);
    }
    written
}

/// Each block has what was acknowledged last, or what was sent after that.
pub(crate) async fn verify(volume: Namespace, written: Written) {
    for (block, (acknowledged, sent)) in written.blocks {
        let buffers = reactor::current().expect("inside").buffers().clone();
        let buffer = buffers.alloc(BLOCK).await;
        let (result, buffer) = volume.read(block * BLOCK as u64, buffer).await;
        result.expect("it can be read");
        let is_old = match acknowledged {
            0 => buffer.iter().all(|byte| *byte == 0),
            number => *buffer == content(block, number)[..],
        };
        assert!(
            is_old || *buffer == content(block, sent)[..],
            "block {block} has neither what was acknowledged ({acknowledged}) nor what was sent last ({sent})"
        );
    }
}
