//! The changes that records make.
//!
//! Records of hosts' writes change maps and counts, also where the state is shared. All others need the state alone.

use std::sync::atomic::Ordering;

use meta::{MapEntry, MapId, MapInfo, Mapping, Pba, Record, RecordRef};

use super::State;
use crate::SUB_BLOCK_BYTES;
use crate::hooks::{Current, Hooks};
use crate::metadata::volume::change_row;

impl State {
    /// Makes a record's changes. Its new blocks' references pass from the command to the map.
    pub(crate) fn install(&mut self, record: RecordRef<'_>) {
        if let Some((map, start, entries)) = record.as_map() {
            let new_blocks = entries.iter().filter_map(MapEntry::new_block);
            let bytes = (new_blocks.count() * SUB_BLOCK_BYTES) as u64;
            self.unflushed_bytes.fetch_add(bytes, Ordering::AcqRel);
            self.install_map(map, start, entries);
        } else if let Some(record) = record.as_other() {
            self.install_other(record);
        }
    }

    fn install_other(&mut self, record: &Record) {
        match record {
            Record::Own {
                map,
                start,
                entries,
            } => {
                self.install_map(*map, *start, entries);
                self.lifted_to(*map);
            }
            Record::Unmap { map, entries } => {
                for (at, _) in entries {
                    self.unmap(*map, *at, None);
                }
            }
            Record::Hide { map, entries } => {
                for (at, _) in entries {
                    self.unmap(*map, *at, Some(Mapping::HOLE));
                }
            }
            Record::Fork(forks) => {
                forks.iter().for_each(|fork| self.install_fork(fork));
                self.volume_changed();
            }
            Record::Rollback { .. } => {
                self.install_rollback(record);
                self.volume_changed();
            }
            Record::Reparent(info) => self.install_reparent(info),
            Record::MapGone { id } => self.install_map_gone(*id),
            Record::VolumeCreate(info) => {
                self.add_volume(info.clone(), MapInfo::root(info.map), 0);
                self.volume_changed();
            }
            Record::VolumeRename { id, .. } => {
                if let Some(entry) = self.volumes.get_mut(id) {
                    entry.change(|info| change_row(info, record));
                }
                self.name_snapshots(*id);
            }
            Record::VolumeResize { id, .. }
            | Record::VolumePolicy { id, .. }
            | Record::Trimming { id, .. } => {
                if let Some(entry) = self.volumes.get_mut(id) {
                    entry.change(|info| change_row(info, record));
                }
            }
            Record::VolumeDelete { id } => {
                if let Some(entry) = self.volumes.get_mut(id) {
                    entry.change(|info| change_row(info, record));
                    self.volume_changed();
                }
            }
            Record::VolumeGone { id } => {
                if let Some(entry) = self.volumes.remove(id) {
                    self.ancestry.forget_head(entry.info.map);
                    entry.map().leaves(&self.resident);
                }
            }
            Record::Settings(changes) => self.settings.install(changes),
            Record::Map { .. } | Record::Durable { .. } => {}
        }
    }

    fn volume_changed(&self) {
        self.volume_changes.fetch_add(1, Ordering::Release);
    }

    /// Whether records change only what can be changed where the state is shared: those of hosts' writes do.
    pub(crate) fn can_install_shared(&self, records: &[RecordRef<'_>]) -> bool {
        let is_head = |map| self.ancestry.volume(&self.volumes, map).is_some();
        let mut maps = records.iter().map(|record| record.as_map());
        self.is_shareable() && maps.all(|map| map.is_some_and(|(map, ..)| is_head(map)))
    }

    /// Makes the changes of such records. Their new blocks' references pass from the commands to the maps, before any old one goes.
    pub(crate) fn install_shared(&self, records: &[RecordRef<'_>]) {
        let last = self.last_change();
        let maps = || records.iter().filter_map(RecordRef::as_map);
        let entries = || maps().flat_map(|(_, _, entries)| entries);
        let mut replaced = Vec::with_capacity(entries().count());
        let new = entries().filter_map(MapEntry::new_block).count();
        let mut mapped = Vec::with_capacity(new);
        let bytes = (new * SUB_BLOCK_BYTES) as u64;
        self.unflushed_bytes.fetch_add(bytes, Ordering::AcqRel);
        let map_of = |record: &RecordRef<'_>| record.as_map().map(|(map, ..)| map);
        // Records of one map share its lock.
        for records in records.chunk_by(|a, b| map_of(a) == map_of(b)) {
            let Some(map) = records.first().and_then(map_of) else {
                continue;
            };
            let Some(entry) = self.ancestry.volume(&self.volumes, map) else {
                continue;
            };
            let mut pages = entry.map();
            for (_, start, entries) in records.iter().filter_map(RecordRef::as_map) {
                self.maps_waiting(entries, last);
                let before = replaced.len();
                let each = |old| replaced.push(old);
                let done = pages.replace_run(start, entries, last, &self.resident, each);
                let done_with = entries[..replaced.len() - before].iter();
                mapped.extend(done_with.filter_map(|entry| Some(entry.new_block()?.pba)));
                if let Err(at) = done {
                    self.miss_page(map, at);
                }
            }
        }
        self.count_mappings(mapped.into_iter(), &replaced, last);
    }

    /// Contents that wait for their index entries are mapped by a record.
    fn maps_waiting(&self, entries: &[MapEntry], record: u64) {
        if self.on_disk_index.is_waited() {
            for new in entries.iter().filter_map(MapEntry::new_block) {
                self.on_disk_index.mapped(new.pba, &new.fingerprint, record);
            }
        }
    }

    /// The references of what was mapped pass to the map, before any old one goes.
    fn count_mappings(
        &self,
        new: impl Iterator<Item = Pba>,
        replaced: &[Option<Pba>],
        record: u64,
    ) {
        self.blocks.pass_on(new, record);
        let old = replaced.iter().flatten();
        let freed: Vec<Pba> = old
            .filter_map(|old| self.drop_reference(*old, record))
            .collect();
        self.quarantine(&freed);
    }

    fn install_map(&mut self, map: MapId, start: u64, entries: &[MapEntry]) {
        let record = self.last_change();
        self.maps_waiting(entries, record);
        if let Some(deferred) = &mut self.deferred {
            for (at, entry) in MapEntry::numbered(start, entries) {
                if let Some(new) = entry.new_block() {
                    deferred.add_mapping(map, at, new.pba);
                }
            }
        }
        let mut replaced = Vec::with_capacity(entries.len());
        let mut missing = None;
        if let Some(mut to) = self.ancestry.map_mut(&self.volumes, map) {
            let each = |old| replaced.push(old);
            let done = to.replace_run(start, entries, record, &self.resident, each);
            missing = done.err();
            if let Some(online) = &mut self.online {
                for ((at, entry), old) in MapEntry::numbered(start, entries).zip(&replaced) {
                    online.changed(map, at, *old, entry.new_block().map(|new| new.pba));
                }
            }
        } else {
            // A volume that is gone maps nothing: the new references are void.
            let new = |entry: &MapEntry| entry.new_block().map(|new| new.pba);
            replaced.extend(entries.iter().map(new));
        }
        let mapped = &entries[..replaced.len()];
        let new = mapped.iter().filter_map(MapEntry::new_block);
        self.count_mappings(new.map(|new| new.pba), &replaced, record);
        if let Some(at) = missing {
            self.miss_page(map, at);
        }
    }

    /// `to`: nothing, or a hole.
    fn unmap(&mut self, map: MapId, at: u64, to: Option<Mapping>) {
        let record = self.last_change();
        let replaced = match self.ancestry.map_mut(&self.volumes, map) {
            Some(mut from) => from.replace(at, to, record, &self.resident),
            None => return, // a volume that is gone maps nothing
        };
        let Ok(old) = replaced else {
            return self.miss_page(map, at);
        };
        if let Some(online) = &mut self.online {
            online.changed(map, at, old, None);
        }
        let freed = old.and_then(|old| self.drop_reference(old, record));
        self.quarantine(freed.as_slice());
    }

    /// A change of a page that should have been brought in.
    fn miss_page(&self, map: MapId, at: u64) {
        let name = self.volume_of(map).map(|entry| entry.info.name.clone());
        let name = name.map_or_else(|| format!("map {map}"), |name| format!("volume `{name}`"));
        let what = format!(
            "sub-block {at} of {name} was changed and is not in memory: restart the daemon, \
             nothing is lost"
        );
        Current::must_not_happen(&what);
        self.make_read_only(what);
    }
}
