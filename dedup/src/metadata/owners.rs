//! Which maps of a line have entries of a part of it: who looks for a page asks those alone, and not each ancestor.
//!
//! What is noted of a map and a folder of pages is about the map and all of its ancestors, so all that come from the map
//! share it. Parents do not change but by merging, so a note stays true as long as no map gets another parent:
//! * A page that is lifted to a parent is hidden by its only child until others pass on to that parent. Then all notes go.
//! * What is dropped of a parent is asked for in vain.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use meta::MapId;

use crate::metadata::ancestry::Ancestry;
use crate::metadata::page_map::FOLDER;
use crate::metadata::state::State;

/// Entries of all notes together: 16 MiB. Above that all go.
const ENTRIES_MAX: usize = if cfg!(test) { 40 } else { 1 << 20 };

/// What a note takes besides, in entries.
const NOTE: usize = 4;

/// Maps, the nearest first, and which pages of a folder each of them may have, by bits.
type Note = Vec<(MapId, u64)>;

/// What the store said of maps: which pages of a folder they have.
pub(crate) type Answers = BTreeMap<MapId, u64>;

/// What is noted.
#[derive(Default)]
pub(crate) struct Owners {
    notes: HashMap<(MapId, u64), Note>,
    entries: usize,
}

impl Owners {
    /// Lines are not what they were.
    pub(crate) fn clear(&mut self) {
        self.notes.clear();
        self.entries = 0;
    }

    fn get(&self, map: MapId, folder: u64) -> Option<&Note> {
        self.notes.get(&(map, folder))
    }

    fn put(&mut self, map: MapId, folder: u64, note: Note) {
        if self.entries + note.len() + NOTE > ENTRIES_MAX {
            self.clear();
        }
        self.entries += note.len() + NOTE;
        self.notes.insert((map, folder), note);
    }
}

impl Ancestry {
    /// What a map and its ancestors may have of a folder.
    ///
    /// # Errors
    /// The store has to be asked about these maps.
    fn note(&self, map: MapId, folder: u64, answers: &Answers) -> Result<Note, Vec<MapId>> {
        let (mut note, mut unknown) = (Note::new(), Vec::new());
        let mut next = Some(map);
        while let Some(id) = next {
            if let Some(of_rest) = self.owners.get(id, folder) {
                note.extend(of_rest);
                break;
            }
            let Some(parent) = self.parents.get(&id) else {
                break;
            };
            let (mut bits, is_all) = parent.map.own_bits(folder);
            match answers.get(&id) {
                Some(answer) => bits |= answer,
                None if !is_all => unknown.push(id),
                None => {}
            }
            if bits != 0 {
                note.push((id, bits));
            }
            next = parent.map.info().parent;
        }
        match unknown.is_empty() {
            true => Ok(note),
            false => Err(unknown),
        }
    }
}

impl State {
    /// The ancestors of a map that may have entries of a page, the nearest first. `answers`: what the store said since
    /// lines are what they are now.
    ///
    /// # Errors
    /// The store has to be asked about these maps and the page's folder.
    pub(crate) fn owners(
        &mut self,
        map: MapId,
        page: u64,
        answers: &Answers,
    ) -> Result<Vec<MapId>, Vec<MapId>> {
        let Some(parent) = self.map(map).and_then(|map| map.info().parent) else {
            return Ok(Vec::new());
        };
        let (folder, bit) = (page / FOLDER, 1 << (page % FOLDER));
        if self.ancestry.owners.get(parent, folder).is_none() {
            let note = self.ancestry.note(parent, folder, answers)?;
            self.ancestry.owners.put(parent, folder, note);
        }
        let note = self.ancestry.owners.get(parent, folder);
        let note = note.into_iter().flatten();
        Ok(note
            .filter(|(_, bits)| bits & bit != 0)
            .map(|(map, _)| *map)
            .collect())
    }
}
