//! What an earlier owner logged and did not put in place: who takes a drive does that first.

use std::collections::BTreeMap;
use std::ops::Range;

use drives::BLOCK_BYTES;

use super::listing::{AREA_AT, ASIDE, LISTING_AT, Listing, crc32c};
use super::name_of;
use crate::client::{Change, Client, Errno};
use crate::header::OBJECT_BYTES;

/// The attribute of a drive's header that says which objects may have a listing: the numbers of the first one, and of the one behind
/// the last.
pub(crate) const OBJECTS: &str = "onefold.deferred";

/// Objects at most that may have one: those of the largest journal.
const OBJECTS_MAX: u64 = 1 << 16;

/// How the next owner goes on.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// Of the newest listing.
    pub(super) sequence: u64,
    /// Objects that may have a listing; `None`: there never was one.
    pub(super) objects: Option<Range<u64>>,
    /// Blocks that were put in place.
    pub(crate) blocks: u64,
}

/// Why it cannot go on.
#[derive(Debug)]
pub(crate) enum NotRecovered {
    Failed(Errno),
    /// What is wrong.
    Damaged(String),
}

impl From<Errno> for NotRecovered {
    fn from(error: Errno) -> Self {
        Self::Failed(error)
    }
}

pub(crate) fn text_of(objects: &Range<u64>) -> String {
    format!("{} {}", objects.start, objects.end)
}

fn parse(text: &[u8]) -> Option<Range<u64>> {
    let (start, end) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    let objects: Range<u64> = start.parse().ok()?..end.parse().ok()?;
    let count = objects.end.checked_sub(objects.start)?;
    (count <= OBJECTS_MAX).then_some(objects)
}

/// Puts in place what was logged of a drive with so many blocks. Nobody else writes to it. Blocks.
pub(crate) fn recover(
    client: &dyn Client,
    drive: &str,
    header: &str,
    drive_blocks: u64,
) -> Result<Recovered, NotRecovered> {
    let text = match client.attribute(header, OBJECTS) {
        Err(error) if error.is_missing() => return Ok(Recovered::default()),
        read => read?,
    };
    let objects = parse(&text).ok_or_else(|| {
        let text = format!("the attribute {OBJECTS} of the object '{header}' does not say where deferred writes are");
        NotRecovered::Damaged(text)
    })?;
    let mut newest = Listing::default();
    for object in objects.clone().chain([ASIDE]) {
        if let Some(listing) = read_listing(client, &name_of(drive, object), drive_blocks)?
            && listing.sequence > newest.sequence
        {
            newest = listing;
        }
    }
    let blocks = put_in_place(client, drive, &newest)?;
    let next = Listing {
        sequence: newest.sequence + 1,
        runs: Vec::new(),
    };
    if blocks > 0 {
        let listing = [Change::Write(LISTING_AT, &next.encode())];
        client.change_now(&name_of(drive, ASIDE), &listing)?;
    }
    Ok(Recovered {
        sequence: next.sequence,
        objects: Some(objects),
        blocks,
    })
}

/// The listing of an object, if it has one.
fn read_listing(
    client: &dyn Client,
    name: &str,
    drive_blocks: u64,
) -> Result<Option<Listing>, NotRecovered> {
    let block = match client.read_now(name, LISTING_AT, BLOCK_BYTES) {
        Err(error) if error.is_missing() => return Ok(None),
        read => read?,
    };
    if block.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let listing = Listing::decode(&block, drive_blocks);
    let damaged = || {
        NotRecovered::Damaged(format!(
            "the object '{name}' has no sound listing of deferred writes at byte {LISTING_AT}"
        ))
    };
    listing.map(Some).ok_or_else(damaged)
}

/// How many blocks there were.
fn put_in_place(client: &dyn Client, drive: &str, listing: &Listing) -> Result<u64, NotRecovered> {
    // Of a block that was written several times the last bytes count.
    let mut blocks: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for run in &listing.runs {
        let name = name_of(drive, run.object);
        let len = run.bytes() as usize;
        let data = match client.read_now(&name, AREA_AT + u64::from(run.at), len) {
            Err(error) if error.is_missing() => Vec::new(),
            read => read?,
        };
        if data.len() != len || crc32c(&data) != run.crc32c {
            let at = AREA_AT + u64::from(run.at);
            let text = format!(
                "the object '{name}' does not hold the deferred write at byte {at} that was logged there"
            );
            return Err(NotRecovered::Damaged(text));
        }
        let contents = data.chunks(BLOCK_BYTES).map(<[u8]>::to_vec);
        blocks.extend((run.block..).zip(contents));
    }
    let count = blocks.len() as u64;
    let mut objects: BTreeMap<u64, Vec<(u64, Vec<u8>)>> = BTreeMap::new();
    for (block, bytes) in blocks {
        let at = block * BLOCK_BYTES as u64;
        let of_object = objects.entry(at / OBJECT_BYTES).or_default();
        of_object.push((at % OBJECT_BYTES, bytes));
    }
    for (object, writes) in objects {
        let writes = writes.iter().map(|(at, bytes)| Change::Write(*at, bytes));
        client.change_now(&name_of(drive, object), &writes.collect::<Vec<_>>())?;
    }
    Ok(count)
}
