//! Features of the device, and its configuration space (virtio 1.2, sections 5.2.3 and 5.2.4).

use subsystem::export::{ExportShape, SECTOR};

/// Queues of a device at most. A guest takes one for each processor.
pub(crate) const QUEUES_MAX: u32 = 64;

/// Segments of data in a request, as the guest is told: a queue of 128 entries holds them with header and status.
const SEGMENTS_MAX: u32 = 126;

/// Ranges of one Discard or Write Zeroes request.
pub(crate) const RANGES_MAX: u32 = 256;

/// Sectors of such a range, at most: 1 GiB, so that one request does not work for long.
const RANGE_SECTORS_MAX: u32 = 1 << 21;

/// Bytes of the configuration space.
pub(crate) const CONFIG_BYTES: usize = 96;

/// Where the byte is that switches the write-back cache.
pub(crate) const WRITEBACK_AT: u32 = 32;

/// Features (`VIRTIO_BLK_F_`, `VIRTIO_F_`, `VHOST_USER_F_`).
pub(crate) mod feature {
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const RO: u64 = 1 << 5;
    pub(crate) const BLK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const CONFIG_WCE: u64 = 1 << 11;
    pub(crate) const MQ: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
    pub(crate) const INDIRECT_DESC: u64 = 1 << 28;
    pub(crate) const EVENT_IDX: u64 = 1 << 29;
    pub(crate) const PROTOCOL: u64 = 1 << 30;
    pub(crate) const VERSION_1: u64 = 1 << 32;
    /// Those of every device.
    const ALWAYS: u64 = SEG_MAX
        | BLK_SIZE
        | FLUSH
        | TOPOLOGY
        | CONFIG_WCE
        | MQ
        | DISCARD
        | WRITE_ZEROES
        | INDIRECT_DESC
        | EVENT_IDX
        | PROTOCOL
        | VERSION_1;

    /// What a device offers.
    pub(crate) fn offered(read_only: bool) -> u64 {
        match read_only {
            true => ALWAYS | RO,
            false => ALWAYS,
        }
    }
}

/// The configuration space.
pub(crate) fn space(shape: &ExportShape, writeback: bool) -> [u8; CONFIG_BYTES] {
    let mut space = [0; CONFIG_BYTES];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    let blocks_of_4k = 4096 / shape.lba_bytes.clamp(512, 4096);
    put(0, &(shape.size_bytes / SECTOR).to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    put(20, &shape.lba_bytes.to_le_bytes());
    // Of a volume with smaller blocks, what it stores as one.
    put(24, &[blocks_of_4k.ilog2() as u8, 0]);
    put(26, &(blocks_of_4k as u16).to_le_bytes());
    put(WRITEBACK_AT as usize, &[u8::from(writeback)]);
    put(34, &(QUEUES_MAX as u16).to_le_bytes());
    for at in [36, 48] {
        put(at, &RANGE_SECTORS_MAX.to_le_bytes());
        put(at + 4, &RANGES_MAX.to_le_bytes());
    }
    // Discards give blocks of 4 KiB back.
    put(44, &(4096 / SECTOR as u32).to_le_bytes());
    put(56, &[1]);
    space
}
