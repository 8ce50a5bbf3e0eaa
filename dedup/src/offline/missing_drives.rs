//! What a pool that lacks drives has on them: read from journal and store, which both stay as they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use meta::{
    Journal, JournalConfig, JournalMedia, LoadVisitor, MapEntry, MapId, MapInfo, Mapping, NewBlock,
    Pba, Record, Store, VolumeInfo, VolumeState,
};

use super::lineage;
use crate::log::replay::{Data, Proof, Replay, change_maps, change_volumes, replay_record};
use crate::pool::alerts::AffectedVolume;
use crate::{Result, SUB_BLOCK_BYTES};

/// What a pool that lacks drives has on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingDrives {
    /// Volumes with data there, and how much.
    pub affected: Vec<AffectedVolume>,
    /// Names of the others.
    pub unaffected: Vec<String>,
}

impl MissingDrives {
    /// Finds out from journal and store, which both stay as they are, which volumes have data on the
    /// drives with these indexes.
    ///
    /// # Errors
    /// Those of loading the store and of reading the journal.
    pub fn look_up(
        store: &dyn Store,
        journal: Arc<dyn JournalMedia>,
        config: JournalConfig,
        drives: &[u16],
    ) -> Result<Self> {
        let mut usage = Usage {
            drives,
            volumes: BTreeMap::new(),
            maps: BTreeMap::new(),
            mappings: BTreeMap::new(),
        };
        let checkpoint = store.load(&mut usage)?;
        let (_, records) = Journal::open(journal, checkpoint, config)?;
        for (sequence, record) in &records {
            replay_record(*sequence, record, Data::Durable, &mut usage)?;
        }
        let (affected, unaffected) = usage
            .volumes
            .iter()
            .filter(|(_, info)| info.state == VolumeState::Active)
            .map(|(_, info)| AffectedVolume {
                name: info.name.clone(),
                bytes: usage.bytes_of(info.map),
            })
            .partition::<Vec<_>, _>(|volume| volume.bytes > 0);
        Ok(Self {
            affected,
            unaffected: unaffected.into_iter().map(|volume| volume.name).collect(),
        })
    }
}

/// Mappings of each volume to some drives.
struct Usage<'a> {
    drives: &'a [u16],
    volumes: BTreeMap<u32, VolumeInfo>,
    maps: BTreeMap<MapId, MapInfo>,
    mappings: BTreeMap<MapId, i64>,
}

impl Usage<'_> {
    fn count(&mut self, map: MapId, pba: Pba, change: i64) {
        if self.drives.contains(&pba.drive()) {
            *self.mappings.entry(map).or_default() += change;
        }
    }

    /// What a map and its ancestors have there: what a child hides of it counts too.
    fn bytes_of(&self, map: MapId) -> u64 {
        let mappings =
            lineage(&self.maps, map).map(|map| self.mappings.get(&map).copied().unwrap_or(0));
        u64::try_from(mappings.sum::<i64>()).unwrap_or(0) * SUB_BLOCK_BYTES as u64
    }
}

impl Replay for Usage<'_> {
    /// Nothing is proven: the drives are missing.
    fn prove(&mut self, _map: MapId, _new: &NewBlock) -> Proof {
        Proof::Unreadable
    }

    fn proven(&mut self, _new: NewBlock, _proof: Proof) {}

    fn undone(&mut self, _map: MapId, _sub_block: u64, _old: Option<Pba>) {}

    fn map(&mut self, _sequence: u64, map: MapId, entries: Vec<(u64, MapEntry)>) -> Result<()> {
        for (_, entry) in entries {
            if let Some(old) = entry.old {
                self.count(map, old, -1);
            }
            if let Some(new) = entry.new_block() {
                self.count(map, new.pba, 1);
            }
        }
        Ok(())
    }

    fn other(&mut self, _sequence: u64, record: &Record) -> Result<()> {
        change_volumes(record, &mut self.volumes);
        change_maps(record, &mut self.maps);
        Ok(())
    }
}

impl LoadVisitor for Usage<'_> {
    fn volume(&mut self, volume: VolumeInfo) {
        self.volumes.insert(volume.id, volume);
    }

    fn map_row(&mut self, info: MapInfo) {
        self.maps.insert(info.id, info);
    }

    fn block(&mut self, _pba: Pba, _row: meta::BlockRow) {}

    fn map(&mut self, map: MapId, _sub_block: u64, mapping: Mapping) {
        self.count(map, mapping.pba, 1);
    }
}
