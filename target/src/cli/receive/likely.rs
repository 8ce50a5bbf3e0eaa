//! Where this pool may have the contents that a stream offers: in volumes that its owner named.
//!
//! Guarantee: memory is bounded. A place is only a guess, of which the daemon makes sure.

use api::client::Client;
use api::images::ByteRange;
use api::known::LikelyPlace;
use dedup::ErrorKind;
use futures_util::TryStreamExt;
use hashbrown::HashMap;
use streams::{BLOCK_BYTES, Digest, content_hash};
use subsystem::errors::Failure;

use super::super::transfer::{Lanes, PIECES, data_pieces};
use super::super::{ask, progress};
use crate::images::is_zero;
use crate::size::format_human;

/// Bits of a place that say which block of its volume it is; the others say which volume.
const BLOCK_BITS: u32 = 48;

/// Volumes at most.
const NAMES_MAX: usize = 1 << (u64::BITS - BLOCK_BITS);

/// Memory of a place in the table: a part of the hash, the place, and what the table knows of it.
const PLACE_BYTES: u64 = 8 + 8 + 1;

/// Contents of volumes, by the stream's hash.
pub(super) struct Likely {
    names: Vec<String>,
    places: HashMap<u64, u64>,
    places_max: usize,
    is_full: bool,
}

impl Likely {
    /// Reads volumes and snapshots, and remembers where each content is.
    pub(super) async fn of(
        client: &Client,
        names: &[String],
        key: &Digest,
        memory_bytes: u64,
    ) -> Result<Self, Failure> {
        // The table has a power of two of places, and doubles when seven of eight are taken.
        let log = (memory_bytes / PLACE_BYTES).checked_ilog2();
        let mut likely = Self {
            names: names.to_vec(),
            places: HashMap::new(),
            places_max: log.map_or(0, |log| (1 << log) / 8 * 7),
            is_full: false,
        };
        if names.len() > NAMES_MAX {
            return Err(Failure::invalid(format!(
                "{} volumes are too many for --like: name at most {NAMES_MAX}",
                names.len()
            )));
        }
        for (number, name) in names.iter().enumerate() {
            likely.read(client, number, name, key).await?;
            if likely.is_full {
                ask::tell([format!(
                    "'{name}' has more contents than fit into --memory: those behind {} of different ones are not looked \
                     for",
                    format_human(likely.places.len() as u64 * BLOCK_BYTES)
                )]);
                break;
            }
        }
        Ok(likely)
    }

    async fn read(
        &mut self,
        client: &Client,
        number: usize,
        name: &str,
        key: &Digest,
    ) -> Result<(), Failure> {
        let size = size_of(client, name).await?;
        let whole = ByteRange {
            offset: 0,
            length: size,
        };
        let bar = progress::bar(Some(size));
        let lanes = Lanes::open(client).await?;
        let read = |range| lanes.read_of(name, range, None);
        let pieces = data_pieces(client, name, whole)
            .map_ok(read)
            .try_buffered(PIECES);
        let mut pieces = std::pin::pin!(pieces);
        while let Some((offset, data)) = pieces.try_next().await? {
            for (at, block) in data.chunks(BLOCK_BYTES as usize).enumerate() {
                if is_zero(block) {
                    continue;
                }
                if self.places.len() >= self.places_max {
                    self.is_full = true;
                    return Ok(());
                }
                let place = offset / BLOCK_BYTES + at as u64;
                let part = part_of(&content_hash(key, block));
                self.places
                    .entry(part)
                    .or_insert((number as u64) << BLOCK_BITS | place);
            }
            bar.set_position(offset);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Where a content may be.
    pub(super) fn place_of(&self, hash: &Digest) -> Option<LikelyPlace> {
        let place = self.places.get(&part_of(hash))?;
        Some(LikelyPlace {
            volume: self.names.get((place >> BLOCK_BITS) as usize)?.clone(),
            offset: (place & ((1 << BLOCK_BITS) - 1)) * BLOCK_BYTES,
        })
    }
}

/// The part of a hash that the table knows.
fn part_of(hash: &Digest) -> u64 {
    let first = hash.0.first_chunk();
    first.map_or(0, |first| u64::from_le_bytes(*first))
}

/// The size of a volume or a snapshot, in bytes.
async fn size_of(client: &Client, name: &str) -> Result<u64, Failure> {
    let size = match name.contains('@') {
        true => {
            let all = client.snapshots().await?;
            let found = all.into_iter().find(|view| view.name == name);
            found.map(|view| view.size_bytes)
        }
        false => {
            let all = client.volumes().await?;
            let found = all.into_iter().find(|view| view.name == name);
            found.map(|view| view.size_bytes)
        }
    };
    size.ok_or_else(|| {
        Failure::new(
            ErrorKind::NotFound,
            format!("--like {name}: there is no such volume or snapshot in this pool"),
        )
    })
}
