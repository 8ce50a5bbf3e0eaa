//! Decides what becomes of each contradiction, and lists the rows that change.

use std::collections::{BTreeMap, BTreeSet};

use drives::BLOCK_BYTES;
use meta::{
    BlockContent, BlockRow, Compression, MapId, MapInfo, Pba, Store, VerifyPolicy, VolumeInfo,
    VolumeState,
};
use uuid::Uuid;

use super::plan::{Contents, Held, Survey, content_of};
use super::{Change, LISTED_MAX, LostRange, RecoveredVolume, RepairReport};
use crate::metadata::volume::VOLUMES_MAX;
use crate::offline::lineage;
use crate::{EngineError, Result};

const NO_ROW: &str = "nothing tells what its block held";
const ROW_LOST: &str = "its row in the metadata store is lost";
const NO_BLOCK: &str = "its block is on no drive of the pool";
const OTHER_CONTENT: &str = "its block belongs to another content";

/// Block rows that are read at a time.
const SCAN_ROWS: usize = 16 * 1024;

/// Sub-blocks whose data is lost, with the reason.
type Lost = BTreeMap<(MapId, u64), &'static str>;

/// What the rows of the blocks that had to be looked at become.
struct Decided {
    rows: BTreeMap<Pba, Option<(BlockContent, u64)>>,
    lost: Lost,
    /// Lost sub-blocks that need another block to stand for them.
    moved: Vec<(MapId, u64)>,
}

/// The rows of volumes and blocks that change, in that order; and the report. The survey has the
/// mappings.
pub(super) fn resolve(
    survey: &mut Survey,
    contents: &mut Contents<'_>,
    store: &dyn Store,
    report: &mut RepairReport,
) -> Result<Vec<Change>> {
    let mut decided = Decided {
        rows: BTreeMap::new(),
        lost: Lost::new(),
        moved: Vec::new(),
    };
    for (pba, held) in std::mem::take(&mut survey.held) {
        decide(survey, contents, &mut decided, pba, &held);
    }
    if !decided.moved.is_empty() {
        let has_place = |pba| contents.has_place(pba);
        let home = free_block(survey, &decided, store, has_place)?.ok_or_else(|| {
            EngineError::new(
                crate::ErrorKind::NoSpace,
                "the pool is full: no block is free that could stand for lost data; nothing was changed",
            )
        })?;
        let count = decided.moved.len() as u64;
        decided
            .rows
            .insert(home, Some((contents.lost(home), count)));
        for at in &decided.moved {
            let change = survey.map.entry(*at).or_insert((None, None));
            change.1 = Some(home);
        }
    }
    for block in &survey.blocks {
        if block.stored == 0 {
            report.freed_blocks += 1;
        } else if block.stored != u64::from(block.row.refcount) {
            report.corrected_counts += 1;
        }
    }
    let is_damaged = restore_parents(survey)?
        || survey.is_damaged
        || !decided.lost.is_empty()
        || report.freed_blocks + report.corrected_counts > 0;
    if !is_damaged {
        // What the journal holds is the next opening's business.
        report.consistent = true;
        return Ok(Vec::new());
    }
    report.dropped_mappings = survey.dropped;
    let mut changes = volumes(survey, report)?;
    changes.extend(maps(survey));
    blocks(survey, decided.rows, &mut changes)?;
    list_lost(survey, &decided.lost, report);
    Ok(changes)
}

/// Parents without a row get it again, if they had no parent themselves; returns whether there were any.
fn restore_parents(survey: &mut Survey) -> Result<bool> {
    let is_lost = |info: &&MapInfo| {
        info.parent
            .is_some_and(|parent| !survey.maps.contains_key(&parent))
    };
    let orphans: Vec<MapInfo> = survey.maps.values().filter(is_lost).copied().collect();
    for MapInfo { id, parent, depth } in &orphans {
        let Some(parent) = parent.filter(|_| *depth == 1) else {
            return Err(EngineError::corrupt(format!(
                "the row of the parent of map {id} is lost, and with it what the map inherits: restore the newest \
                 backup; nothing was changed"
            )));
        };
        survey.maps.insert(parent, MapInfo::root(parent));
        survey.strays.remove(&parent);
    }
    Ok(!orphans.is_empty())
}

/// Rows of maps that change.
fn maps(survey: &Survey) -> Vec<Change> {
    let ids: BTreeSet<MapId> = survey
        .stored_maps
        .keys()
        .chain(survey.maps.keys())
        .copied()
        .collect();
    let changes = ids.into_iter().filter_map(|id| {
        let before = survey.stored_maps.get(&id).copied();
        let after = survey.maps.get(&id).copied();
        (before != after).then_some(Change::Map { id, before, after })
    });
    changes.collect()
}

/// What a block holds that several mappings may disagree about, or that no row describes.
fn decide(
    survey: &Survey,
    contents: &mut Contents<'_>,
    decided: &mut Decided,
    pba: Pba,
    held: &[Held],
) {
    let row = survey
        .find(pba)
        .map(|at| content_of(&survey.blocks[at].row));
    let mut lose = |held: &Held, reason: &'static str| {
        decided.lost.insert((held.map, held.sub_block), reason);
        decided.moved.push((held.map, held.sub_block));
    };
    if !survey.is_on_a_drive(pba) {
        let reason = match pba == super::rebuild::UNKNOWN {
            true => ROW_LOST,
            false => NO_BLOCK,
        };
        held.iter().for_each(|held| lose(held, reason));
        decided.rows.insert(pba, None);
        return;
    }
    // A mapping to a block with a row relies on the row's fingerprint and on the checksum of its own.
    let expected = |held: &Held| {
        let mapped = row.map(|row| BlockContent {
            crc32c: held.crc32c.unwrap_or(row.crc32c),
            ..row
        });
        held.claim.or(mapped)
    };
    // Only what the journal says is believed without a look at the drive.
    let is_doubtful = |held: &Held| held.claim.is_none() && expected(held) != row;
    let mut known: Vec<BlockContent> = Vec::new();
    known.extend(row.filter(|_| held.iter().any(is_doubtful)));
    for content in held.iter().filter_map(expected) {
        if !known.contains(&content) {
            known.push(content);
        }
    }
    let winner = match known.as_slice() {
        [] => {
            let proven = held.iter().find_map(|held| {
                let volume = survey.volume_of(held.map);
                contents.by_checksum(pba, held.crc32c?, volume)
            });
            if let Some(content) = proven {
                let mut kept = 0;
                for held in held {
                    match held.crc32c == Some(content.crc32c) {
                        true => kept += 1,
                        false => lose(held, OTHER_CONTENT),
                    }
                }
                decided.rows.insert(pba, Some((content, kept)));
                return;
            }
            for held in held {
                decided.lost.insert((held.map, held.sub_block), NO_ROW);
            }
            let row = (contents.lost(pba), held.len() as u64);
            decided.rows.insert(pba, Some(row));
            return;
        }
        [content] => *content,
        // Only the drive can tell. If it has none of them, reading finds the damage.
        [first, ..] => known
            .iter()
            .find(|content| contents.holds(pba, content))
            .copied()
            .or(row)
            .unwrap_or(*first),
    };
    let mut kept = 0;
    for held in held {
        match expected(held) {
            Some(content) if content == winner => kept += 1,
            Some(_) => lose(held, OTHER_CONTENT),
            None => lose(held, NO_ROW),
        }
    }
    decided.rows.insert(pba, Some((winner, kept)));
}

/// A block with a place of which nothing maps a part when the repair is done.
fn free_block(
    survey: &Survey,
    decided: &Decided,
    store: &dyn Store,
    has_place: impl Fn(Pba) -> bool,
) -> Result<Option<Pba>> {
    for (drive, blocks) in (0u16..).zip(&survey.data_blocks) {
        let mut next = 0;
        while next < *blocks {
            let rows = store.blocks(Pba::new(drive, next), Pba::new(drive, *blocks), SCAN_ROWS)?;
            let upto = match rows.last() {
                Some((last, _)) if rows.len() == SCAN_ROWS => last.block() + 1,
                _ => *blocks,
            };
            let is_free = |pba: Pba, has_row: bool| {
                let is_mapped = match survey.find(pba) {
                    Some(at) => survey.blocks[at].kept > 0,
                    None => has_row,
                };
                !decided.rows.contains_key(&pba) && !is_mapped
            };
            let blocks = (next..upto).map(|block| Pba::new(drive, block));
            for pba in blocks.filter(|pba| has_place(*pba)) {
                let has_row = |pba| rows.binary_search_by_key(&pba, |(pba, _)| *pba).is_ok();
                if !is_free(pba, has_row(pba)) {
                    continue;
                }
                let mut slots = (0..=Pba::SLOT_MAX).map(|slot| pba.fragment(slot));
                let fragments = store.blocks(
                    pba.fragment(0),
                    Pba(pba.fragment(Pba::SLOT_MAX).0 + 1),
                    usize::from(Pba::SLOT_MAX) + 1,
                )?;
                let has_row = |pba| fragments.iter().any(|(of, _)| *of == pba);
                if slots.all(|pba| is_free(pba, has_row(pba))) {
                    return Ok(Some(pba));
                }
            }
            next = upto;
        }
    }
    Ok(None)
}

/// Volumes that change, those included that are made anew.
fn volumes(survey: &mut Survey, report: &mut RepairReport) -> Result<Vec<Change>> {
    for (map, stray) in std::mem::take(&mut survey.strays) {
        let info = recovered(survey, map, stray.end)?;
        report.recovered_volumes.push(RecoveredVolume {
            name: info.name.clone(),
            nsid: info.nsid,
            size_bytes: info.size_bytes,
            mappings: stray.mappings,
        });
        survey.heads.insert(map, info.id);
        survey.volumes.insert(info.id, info);
    }
    let ids = survey.stored_volumes.keys().chain(survey.volumes.keys());
    let mut ids: Vec<u32> = ids.copied().collect();
    ids.sort_unstable();
    ids.dedup();
    let changes = ids.into_iter().filter_map(|id| {
        let before = survey.stored_volumes.get(&id).cloned();
        let after = survey.volumes.get(&id).cloned();
        let (before, after) = (before.map(Box::new), after.map(Box::new));
        (before != after).then_some(Change::Volume { id, before, after })
    });
    Ok(changes.collect())
}

/// A row for a volume of which only the mappings are left.
fn recovered(survey: &Survey, map: MapId, end: u64) -> Result<VolumeInfo> {
    let volumes = &survey.volumes;
    let mut id = map;
    while volumes.contains_key(&id) || (id != map && survey.maps.contains_key(&id)) {
        // The numbers are never used up: there are fewer rows.
        id = id.wrapping_add(1);
    }
    let mut name = format!("recovered-{map}");
    while volumes.values().any(|info| info.name == name) {
        name.push('x');
    }
    let is_taken = |nsid: &u32| volumes.values().any(|info| info.nsid == *nsid);
    let nsid = (1..=VOLUMES_MAX as u32).find(|nsid| !is_taken(nsid));
    let nsid = nsid.ok_or_else(|| {
        EngineError::invalid(format!(
            "the pool has {VOLUMES_MAX} volumes, and the mappings of map {map} need one more: delete a \
             volume first; nothing was changed"
        ))
    })?;
    let uuid = Uuid::new_v4();
    Ok(VolumeInfo {
        id,
        map,
        name,
        nsid,
        uuid,
        nguid: *uuid.as_bytes(),
        size_bytes: end * BLOCK_BYTES as u64,
        lba_bytes: BLOCK_BYTES as u32,
        state: VolumeState::Active,
        dedup: true,
        verify: VerifyPolicy::Trust,
        domain: String::new(),
        trimming: Vec::new(),
        compression: Compression::Off,
        snapshot: None,
    })
}

/// Blocks that change.
fn blocks(
    survey: &Survey,
    mut decided: BTreeMap<Pba, Option<(BlockContent, u64)>>,
    changes: &mut Vec<Change>,
) -> Result<()> {
    let row_of = |pba: Pba, content: BlockContent, count: u64, before: Option<BlockRow>| {
        let refcount = u32::try_from(count).map_err(|_| {
            EngineError::internal(format!(
                "block {pba} has {count} mappings; they cannot be counted"
            ))
        })?;
        Ok::<_, EngineError>((refcount > 0).then_some(BlockRow {
            refcount,
            fingerprint: content.fingerprint,
            crc32c: content.crc32c,
            has_index_entry: before.is_some_and(|before| {
                before.has_index_entry && before.fingerprint == content.fingerprint
            }),
        }))
    };
    for block in &survey.blocks {
        let (pba, before) = (block.pba, Some(block.row));
        let after = match decided.remove(&pba) {
            None => row_of(pba, content_of(&block.row), block.kept, before)?,
            Some(None) => None,
            Some(Some((content, count))) => row_of(pba, content, count, before)?,
        };
        if before != after {
            changes.push(Change::Block { pba, before, after });
        }
    }
    for (pba, row) in decided {
        let Some((content, count)) = row else {
            continue; // it has no row, and gets none
        };
        let (before, after) = (None, row_of(pba, content, count, None)?);
        if before != after {
            changes.push(Change::Block { pba, before, after });
        }
    }
    Ok(())
}

/// The volume that has a map, or all that may inherit from it.
fn names_of(survey: &Survey, map: MapId) -> String {
    let inherits = |info: &&VolumeInfo| lineage(&survey.maps, info.map).any(|of| of == map);
    let volumes = survey.volumes.values().filter(inherits);
    let names: Vec<&str> = volumes.map(|info| info.name.as_str()).collect();
    match names.is_empty() {
        true => format!("number {map}"),
        false => names.join(", "),
    }
}

/// Neighbours that are lost for the same reason are one range.
fn list_lost(survey: &Survey, lost: &Lost, report: &mut RepairReport) {
    let grain = BLOCK_BYTES as u64;
    let mut last: Option<(u32, u64, &str)> = None;
    for ((map, at), reason) in lost {
        report.lost_sub_blocks += 1;
        let goes_on = last == Some((*map, at.wrapping_sub(1), reason));
        last = Some((*map, *at, reason));
        if goes_on {
            if report.lost_ranges == report.lost.len() as u64
                && let Some(range) = report.lost.last_mut()
            {
                range.bytes += grain;
            }
            continue;
        }
        report.lost_ranges += 1;
        if report.lost.len() < LISTED_MAX {
            report.lost.push(LostRange {
                volume: names_of(survey, *map),
                offset: at * grain,
                bytes: grain,
                reason: (*reason).to_owned(),
            });
        }
    }
}
