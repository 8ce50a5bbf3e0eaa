//! The target's figures, as `onefold status` shows them in JSON. All sizes are bytes.

use dedup::{PoolStatus, RebuildStatus, Redundancy};
use meta::FingerprintFunction;
use serde::{Deserialize, Serialize};

use crate::counters::Totals;

/// The figures of a transport since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportFigures {
    /// Its name: `rdma` or `tcp`.
    pub transport: String,
    /// Controllers of hosts, discovery included, now.
    pub controllers: u64,
    /// Queues that have joined a controller, now.
    pub queues: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections and commands that were refused or given up.
    pub refused: RefusalFigures,
    /// Memory held for capsules of queues, in bytes.
    pub queue_bytes: u64,
    /// Its bound; beyond it, connections or commands are refused with a status that makes hosts try again.
    pub queue_bytes_max: u64,
    /// Data of running commands, and of answers that hosts have not read, in bytes.
    #[serde(default)]
    pub held_bytes: u64,
    /// How often a queue had to delay its next command because it used its share of memory.
    #[serde(default)]
    pub held_back: u64,
}

/// What was refused, by its reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalFigures {
    /// Connections beyond a bound, including the bound on hosts that have yet to authenticate.
    pub too_many: u64,
    /// Connections with invalid parameters, or whose handshake took too long.
    pub handshake: u64,
    /// Connections that broke the protocol.
    pub violation: u64,
    /// Connections with a wrong digest.
    pub digest: u64,
    /// Connections that stalled for too long.
    pub stalled: u64,
    /// Connections or commands for whose capsules there was no memory.
    pub no_memory: u64,
    /// Connect commands, whatever was wrong with them.
    pub connect: u64,
    /// Those of them whose host is not on the list of the subsystem.
    #[serde(default)]
    pub host: u64,
}

/// A data-plane thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReactorFigures {
    /// The thread's name.
    pub name: String,
    /// Queues that have joined a controller there, now.
    #[serde(default)]
    pub queues: u64,
    /// Reads and writes since the daemon started.
    #[serde(default)]
    pub commands: u64,
    /// Commands that have arrived and are not answered, now.
    #[serde(default)]
    pub in_flight: u64,
    /// Time in which it worked since the daemon started, in microseconds: without sleep, and without polling.
    #[serde(default)]
    pub busy_micros: u64,
    /// Memory for data on its way, in bytes.
    pub buffer_bytes: u64,
    /// The part of it that is in use.
    pub buffer_used_bytes: u64,
    /// How often a command had to wait for a buffer.
    pub buffer_waits: u64,
}

impl TransportFigures {
    /// Adds what another reactor saw.
    pub fn add(&mut self, other: &Self) {
        self.accepted += other.accepted;
        self.queue_bytes += other.queue_bytes;
        self.queue_bytes_max += other.queue_bytes_max;
        self.held_bytes += other.held_bytes;
        self.held_back += other.held_back;
        let (mine, theirs) = (&mut self.refused, &other.refused);
        mine.too_many += theirs.too_many;
        mine.handshake += theirs.handshake;
        mine.violation += theirs.violation;
        mine.digest += theirs.digest;
        mine.stalled += theirs.stalled;
        mine.no_memory += theirs.no_memory;
    }
}

/// Space of a pool, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolSpace {
    /// Room for data on all drives.
    pub capacity_bytes: u64,
    /// Physical data blocks in use.
    pub used_bytes: u64,
    /// Journal and metadata store.
    pub metadata_bytes: u64,
    /// Mapped sub-blocks of all volumes; zeros are not mapped.
    pub logical_bytes: u64,
    /// How often a content is mapped: `logical_bytes` by the bytes of all contents before compression;
    /// 1 for an empty pool.
    pub dedup_ratio: f64,
    /// Free for new data.
    #[serde(default)]
    pub free_bytes: u64,
    /// Freed, and free for new data when a flush has made that durable.
    #[serde(default)]
    pub reclaiming_bytes: u64,
    /// What compression saves: without it, `used_bytes` would be that much more.
    pub compression_saved_bytes: u64,
    /// How fingerprints are computed: `clnh` or `blake3`.
    #[serde(default)]
    pub fingerprint: FingerprintFunction,
    /// Copies of all data, each on a drive of its own: `none` (there is one), `mirror=2` or `mirror=3`.
    #[serde(default)]
    pub redundancy: Redundancy,
    /// Data that have fewer copies than they should, about.
    #[serde(default)]
    pub at_risk_bytes: u64,
    /// How far the rebuild of a drive is; `null` if none runs.
    #[serde(default)]
    pub rebuild: Option<RebuildStatus>,
}

/// A host's association.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedHost {
    /// The host's NQN.
    pub hostnqn: String,
    /// The subsystem that it uses.
    #[serde(default)]
    pub subsystem: String,
    /// The address it comes from.
    pub address: String,
    /// The transport: `rdma` or `tcp`.
    pub transport: String,
    /// The cipher suite of TLS; `null` without TLS.
    #[serde(default)]
    pub tls: Option<String>,
    /// Its I/O queues.
    pub queues: u16,
    /// What it did since it attached.
    #[serde(default)]
    pub io: IoFigures,
}

/// Reads and writes that succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoFigures {
    /// Read commands.
    pub read_commands: u64,
    /// Write commands, those without data (Write Zeroes, Copy) included.
    pub write_commands: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that hosts sent.
    pub written_bytes: u64,
}

impl From<Totals> for IoFigures {
    fn from(totals: Totals) -> Self {
        Self {
            read_commands: totals.read_commands,
            write_commands: totals.write_commands,
            read_bytes: totals.bytes_read,
            written_bytes: totals.bytes_written,
        }
    }
}

impl PoolSpace {
    /// The public figures of an engine's status.
    #[must_use]
    pub fn new(status: &PoolStatus) -> Self {
        let saved = status.compressed_bytes.saturating_sub(status.packed_bytes);
        let dedup_ratio = match status.used_bytes + saved {
            0 => 1.0,
            contents => round_ratio(status.logical_bytes as f64 / contents as f64),
        };
        Self {
            capacity_bytes: status.capacity_bytes,
            used_bytes: status.used_bytes,
            metadata_bytes: status.metadata_bytes,
            logical_bytes: status.logical_bytes,
            dedup_ratio,
            free_bytes: status.free_bytes,
            reclaiming_bytes: status.reclaiming_bytes,
            compression_saved_bytes: saved,
            fingerprint: status.fingerprint,
            redundancy: status.redundancy,
            at_risk_bytes: status.at_risk_bytes(),
            rebuild: status.drives.iter().find_map(|drive| drive.rebuild),
        }
    }
}

/// Three decimals are enough for a reader, and keep the JSON short.
fn round_ratio(ratio: f64) -> f64 {
    (ratio * 1000.0).round() / 1000.0
}

/// The parts of the pool's space that the public JSON leaves out, for the table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceDetail {
    /// Freed, but not reusable before the next flush, in bytes.
    pub reclaiming_bytes: u64,
    /// Free for new data, in bytes.
    pub free_bytes: u64,
    /// Why the pool takes no writes at present, if so.
    pub read_only: Option<String>,
    /// Blocks found damaged since the pool was opened.
    pub corrupt_blocks: u64,
    /// Memory that the maps of volumes may take (`serve --metadata-cache`), in bytes.
    #[serde(default)]
    pub metadata_cache_bytes: u64,
    /// Memory that they take now, in bytes.
    #[serde(default)]
    pub metadata_resident_bytes: u64,
    /// Memory that follows from the size of the drives and is never given back, in bytes: above all a bit for each block.
    #[serde(default)]
    pub metadata_fixed_bytes: u64,
    /// Reads of the store for parts of maps that were not in memory, since the pool was opened.
    #[serde(default)]
    pub map_page_reads: u64,
    /// Memory that the index takes, in bytes.
    #[serde(default)]
    pub index_bytes: u64,
    /// Memory that it may take (`serve --index-memory`), in bytes.
    #[serde(default)]
    pub index_bytes_max: u64,
    /// Blocks that it has.
    #[serde(default)]
    pub indexed_blocks: u64,
    /// Blocks with a fingerprint that it does not have: they are found through the store.
    #[serde(default)]
    pub unindexed_blocks: u64,
    /// Contents that the store was asked for, since the pool was opened.
    #[serde(default)]
    pub on_disk_index_lookups: u64,
    /// Those of them that the store knew.
    #[serde(default)]
    pub on_disk_index_hits: u64,
}

impl SpaceDetail {
    /// The details of an engine's status.
    #[must_use]
    pub fn new(status: &PoolStatus) -> Self {
        Self {
            reclaiming_bytes: status.reclaiming_bytes,
            free_bytes: status.free_bytes,
            read_only: status.read_only.clone(),
            corrupt_blocks: status.corrupt_blocks,
            metadata_cache_bytes: status.metadata_cache_bytes,
            metadata_resident_bytes: status.metadata_resident_bytes,
            metadata_fixed_bytes: status.metadata_fixed_bytes,
            map_page_reads: status.map_page_reads,
            index_bytes: status.index_bytes,
            index_bytes_max: status.index_bytes_max,
            indexed_blocks: status.indexed_blocks,
            unindexed_blocks: status.unindexed_blocks,
            on_disk_index_lookups: status.on_disk_index_lookups,
            on_disk_index_hits: status.on_disk_index_hits,
        }
    }
}

/// What happened on the network of a reactor since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkFigures {
    /// Soft RoCE: packets received.
    pub rdma_packets_received: u64,
    /// Soft RoCE: packets sent.
    pub rdma_packets_sent: u64,
    /// Soft RoCE: packets sent again, or READs asked for again.
    pub rdma_retransmits: u64,
    /// Soft RoCE: acknowledgements that did not come in time.
    pub rdma_timeouts: u64,
    /// Soft RoCE: negative acknowledgements sent.
    pub rdma_naks_sent: u64,
    /// Soft RoCE: negative acknowledgements received.
    pub rdma_naks_received: u64,
    /// Soft RoCE: packets dropped because their checksum was wrong.
    pub rdma_checksum_errors: u64,
    /// Soft RoCE: packets dropped because they came ahead of others.
    pub rdma_out_of_sequence: u64,
    /// Soft RoCE: packets dropped because nobody has a use for them.
    pub rdma_unexpected: u64,
    /// Soft RoCE: packets that the kernel refused to send.
    pub rdma_send_errors: u64,
    /// Soft RoCE: congestion notifications received.
    pub rdma_congestion_notifications: u64,
    /// Soft RoCE: queue pairs that failed.
    pub rdma_queue_pair_errors: u64,
    /// Devices of the kernel: work requests that failed.
    pub rdma_failed_requests: u64,
    /// TCP: bytes received.
    pub tcp_received_bytes: u64,
    /// TCP: bytes sent.
    pub tcp_sent_bytes: u64,
    /// TCP: receive system calls.
    pub tcp_receives: u64,
    /// TCP: send system calls.
    pub tcp_sends: u64,
}

/// The figures of a reactor and its listeners.
#[derive(Clone, Debug)]
pub struct Report {
    /// One entry for each transport that it listens on.
    pub transports: Vec<TransportFigures>,
    /// The reactor itself.
    pub reactor: ReactorFigures,
    /// Its network: the devices and listeners that it has now.
    pub network: NetworkFigures,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_pool_has_a_ratio_of_one() {
        assert_eq!(PoolSpace::new(&PoolStatus::default()).dedup_ratio, 1.0);
    }

    #[test]
    fn what_compression_saves_does_not_count_as_deduplication() {
        let space = PoolSpace::new(&PoolStatus {
            logical_bytes: 20 * 4096,
            used_bytes: 6 * 4096,
            compressed_bytes: 8 * 4096,
            packed_bytes: 4 * 4096,
            ..PoolStatus::default()
        });
        assert_eq!(space.compression_saved_bytes, 4 * 4096);
        assert_eq!(space.dedup_ratio, 2.0);
    }
}
