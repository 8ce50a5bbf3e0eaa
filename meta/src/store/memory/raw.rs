//! The rows of a store in memory as one on disk has them: with these both are copied to drives, and made anew, by the same code.

use std::collections::BTreeMap;
use std::sync::Mutex;

use uuid::Uuid;

use super::{MemoryStore, NAME, State};
use crate::codec::CodecError;
use crate::error::MetaError;
use crate::store::page::{ENTRIES, POSITION_BITS};
use crate::store::row::{Row, RowError};
use crate::store::rows;
use crate::types::{BlockRow, MapId, Mapping, Pba};

impl MemoryStore {
    /// Keys and values of all rows but index entries, by their keys, as the store of this pool.
    pub(crate) fn rows(&self, pool: Uuid) -> Vec<(Vec<u8>, Vec<u8>)> {
        let state = self.lock();
        let version = match state.maps.is_empty() {
            true => rows::VERSION,
            false => rows::VERSION_PARENTS,
        };
        let mut blocks: BTreeMap<u64, Vec<(Pba, BlockRow)>> = BTreeMap::new();
        for (pba, row) in &state.blocks {
            let page = blocks.entry(pba.0 >> POSITION_BITS).or_default();
            page.push((*pba, *row));
        }
        let mut mappings: BTreeMap<(MapId, u64), Vec<(u64, Mapping)>> = BTreeMap::new();
        for ((map, sub_block), mapping) in &state.map {
            let page = mappings.entry((*map, sub_block / ENTRIES)).or_default();
            page.push((*sub_block, *mapping));
        }
        let settings = state.settings.iter();
        let some = [
            Row::Format { pool, version },
            Row::Checkpoint(state.checkpoint),
            Row::Totals(state.totals.clone()),
        ];
        let some = some.into_iter();
        let some = some.chain(state.volumes.values().cloned().map(Row::Volume));
        let some = some.chain(state.maps.values().copied().map(Row::Ancestry));
        let some =
            some.chain(settings.map(|(key, value)| Row::Setting(key.clone(), value.clone())));
        let some = some.chain(blocks.into_values().map(Row::Blocks));
        let some = some.chain(
            mappings
                .into_iter()
                .map(|((map, _), mappings)| Row::Mappings { map, mappings }),
        );
        let segments = state.segments.iter();
        let segments =
            segments.map(|(first, row)| (rows::segment_key(*first).to_vec(), row.encode()));
        let mut all: Vec<_> = some.map(|row| row.encode()).chain(segments).collect();
        all.sort_unstable();
        all
    }

    /// Whether another store has the same rows; index entries are not compared.
    pub fn has_rows_of(&self, other: &Self) -> bool {
        self.rows(Uuid::nil()) == other.rows(Uuid::nil())
    }

    /// The store of these rows, without index entries.
    ///
    /// # Errors
    /// One of them is none.
    pub(crate) fn of_rows(all: &[(Vec<u8>, Vec<u8>)]) -> Result<Self, MetaError> {
        let mut state = State::default();
        for (key, value) in all {
            state.put_row(key, value).map_err(|error| {
                MetaError::corrupt(NAME, error.to_string(), "this is a simulation")
            })?;
        }
        Ok(Self {
            state: Mutex::new(state),
        })
    }
}

impl State {
    fn put_row(&mut self, key: &[u8], value: &[u8]) -> Result<(), RowError> {
        if key.first() == Some(&rows::PREFIX_SEGMENT) {
            let (first, row) = rows::parse_segment(key, value)?;
            self.segments.insert(first, row);
            return Ok(());
        }
        match Row::decode(key, value)? {
            Row::Format { version, .. } if version == rows::VERSION_PAGES => {
                return Err(CodecError::Field("version").into());
            }
            Row::Format { .. } => {}
            Row::Checkpoint(checkpoint) => self.checkpoint = checkpoint,
            Row::Volume(info) => {
                self.volumes.insert(info.id, info);
            }
            Row::Ancestry(info) => {
                self.maps.insert(info.id, info);
            }
            Row::Blocks(blocks) => self.blocks.extend(blocks),
            Row::Mappings { map, mappings } => {
                let mappings = mappings.into_iter();
                self.map
                    .extend(mappings.map(|(sub_block, mapping)| ((map, sub_block), mapping)));
            }
            Row::Setting(key, value) => {
                self.settings.insert(key, value);
            }
            Row::Totals(totals) => self.totals = totals,
        }
        Ok(())
    }
}
