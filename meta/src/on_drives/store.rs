//! The store of a pool whose drives have copies of the metadata.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::change::{encode_batch, encode_segments, encode_settings};
use super::members::MetadataOnDrives;
use crate::ballast::FolderRoom;
use crate::batch::Batch;
use crate::error::MetaError;
use crate::segment::SegmentRow;
use crate::setting::SettingChanges;
use crate::store::{LoadVisitor, MapRows, Store, StoreFigures};
use crate::types::{
    BlockRow, Checkpoint, Fingerprint, MapId, MapInfo, Mapping, Pba, Totals, VolumeInfo,
};

/// What changes the store in the folder is in the log of every member before. Index entries are only in the folder: nothing is lost
/// without them.
pub struct StoreOnDrives(Arc<MetadataOnDrives>);

impl StoreOnDrives {
    /// The store in the folder, and what the drives have of it.
    #[must_use]
    pub fn new(copies: Arc<MetadataOnDrives>) -> Self {
        Self(copies)
    }

    fn folder(&self) -> &dyn Store {
        self.0.store()
    }
}

impl Store for StoreOnDrives {
    fn load(&self, visitor: &mut dyn LoadVisitor) -> Result<Checkpoint, MetaError> {
        self.folder().load(visitor)
    }

    fn checkpoint(&self) -> Result<Checkpoint, MetaError> {
        self.folder().checkpoint()
    }

    fn volumes(&self) -> Result<Vec<VolumeInfo>, MetaError> {
        self.folder().volumes()
    }

    fn maps(&self) -> Result<Vec<MapInfo>, MetaError> {
        self.folder().maps()
    }

    fn settings(&self) -> Result<BTreeMap<String, Vec<u8>>, MetaError> {
        self.folder().settings()
    }

    fn totals(&self) -> Result<Totals, MetaError> {
        self.folder().totals()
    }

    fn blocks(
        &self,
        first: Pba,
        end: Pba,
        count_max: usize,
    ) -> Result<Vec<(Pba, BlockRow)>, MetaError> {
        self.folder().blocks(first, end, count_max)
    }

    fn last_block(&self, end: Pba) -> Result<Option<Pba>, MetaError> {
        self.folder().last_block(end)
    }

    fn mappings(
        &self,
        map: MapId,
        first: u64,
        end: u64,
        count_max: usize,
    ) -> Result<Vec<(u64, Mapping)>, MetaError> {
        self.folder().mappings(map, first, end, count_max)
    }

    fn map_rows(
        &self,
        map: MapId,
        ranges: &[Range<u64>],
        most: (usize, usize),
    ) -> Result<MapRows, MetaError> {
        self.folder().map_rows(map, ranges, most)
    }

    fn mapped_parts(
        &self,
        map: MapId,
        first: u64,
        end: u64,
        sub_blocks: u64,
    ) -> Result<Vec<u64>, MetaError> {
        self.folder().mapped_parts(map, first, end, sub_blocks)
    }

    fn index_entries(&self, fingerprints: &[Fingerprint]) -> Result<Vec<Option<Pba>>, MetaError> {
        self.folder().index_entries(fingerprints)
    }

    fn has_index_entries(&self) -> Result<bool, MetaError> {
        self.folder().has_index_entries()
    }

    fn put_index_entries(&self, blocks: &[(Pba, Fingerprint)]) -> Result<(), MetaError> {
        self.folder().put_index_entries(blocks)
    }

    fn segments(&self) -> Result<Vec<(Pba, SegmentRow)>, MetaError> {
        self.folder().segments()
    }

    fn put_segments(&self, range: Range<Pba>, rows: &[(Pba, SegmentRow)]) -> Result<(), MetaError> {
        self.0.change(
            || encode_segments(&range, rows),
            |store, mark| {
                store.put_segments(range.clone(), rows)?;
                mark.map_or(Ok(()), |mark| store.put_settings(&mark))
            },
        )
    }

    fn put_settings(&self, changes: &SettingChanges) -> Result<(), MetaError> {
        self.0.change(
            || encode_settings(changes),
            |store, mark| match mark {
                None => store.put_settings(changes),
                Some(mut all) => {
                    all.extend(changes.clone());
                    store.put_settings(&all)
                }
            },
        )
    }

    fn apply(&self, batch: &Batch) -> Result<(), MetaError> {
        self.0.change(
            || encode_batch(batch),
            |store, mark| match mark {
                None => store.apply(batch),
                Some(mark) => {
                    let mut batch = batch.clone();
                    batch.settings.extend(mark);
                    store.apply(&batch)
                }
            },
        )
    }

    fn tend(&self) -> Option<FolderRoom> {
        self.folder().tend()
    }

    fn figures(&self) -> Option<StoreFigures> {
        self.folder().figures()
    }

    /// A copy is one of the folder alone: an opening of it copies all to the drives anew.
    fn copy_to(&self, dir: &Path) -> Result<(), MetaError> {
        self.0.folder.copy_to(dir)
    }

    fn size_bytes(&self) -> u64 {
        self.folder().size_bytes()
    }
}
