//! Copies of a block against each other: those that are wrong are written again from one that is right.
//!
//! Guarantees: who calls holds a reference on the block, so it is not used for anything else meanwhile. A copy is written only
//! with what all contents of the block are proven by, and a crash in the middle leaves that copy wrong.

use std::sync::Arc;

use drives::{BLOCK_BYTES, DriveError};
use meta::Pba;
use reactor::Buffer;

use crate::LABEL_BLOCKS;
use crate::content::fingerprint::{self, Block};
use crate::content::pack::Pack;
use crate::drive_io::drive_list::DriveList;
use crate::drive_io::scatter::{self, OfDrive};
use crate::drive_io::segments::Place;
use crate::metadata::block_table::IN_FLIGHT;
use crate::metadata::domain::Hashers;
use crate::pool::Shared;
use crate::pool::alerts::Action;
use crate::pool::damage_list::Known;
use crate::sync::wait::lock;

/// One content of a block: its slot if the block is a pack, and what it is proven by.
pub(super) struct Content {
    pub(super) pba: Pba,
    pub(super) known: Known,
}

/// Whether a copy of a block has all of its contents.
pub(super) fn is_whole(hashers: &Hashers, contents: &[Content], block: &Block) -> bool {
    contents.iter().all(|content| content.is_in(hashers, block))
}

impl Content {
    fn is_in(&self, hashers: &Hashers, block: &Block) -> bool {
        let prove = |block: &Block| hashers.prove(block, self.known.fingerprint, self.known.crc32c);
        let Some(slot) = self.pba.slot() else {
            return prove(block);
        };
        let mut unpacked = [0; BLOCK_BYTES];
        let pack = Pack::parse(block);
        let result = pack.and_then(|pack| pack.unpack(slot.into(), &mut unpacked));
        result.is_ok() && prove(&unpacked)
    }
}

/// All contents of the block that this one is in. The rows of all of them are resident as long as the caller pins them.
fn contents_of(shared: &Shared, pba: Pba, known: &Known) -> Vec<Content> {
    let of = |pba, known| Content { pba, known };
    let mut contents = vec![of(pba, *known)];
    if pba.is_fragment() {
        let state = lock(&shared.state);
        for sibling in siblings(pba).filter(|sibling| *sibling != pba) {
            let info = state.blocks.get(sibling);
            if info.references & !IN_FLIGHT > 0 {
                contents.push(of(sibling, Known::of(&info)));
            }
        }
    }
    contents
}

/// The addresses of all contents that the block of this one can have.
pub(super) fn siblings(pba: Pba) -> impl Iterator<Item = Pba> {
    let slots = match pba.is_fragment() {
        true => Pba::SLOT_MAX + 1,
        false => 0,
    };
    let fragments = (0..slots).map(move |slot| pba.container().fragment(slot));
    fragments.chain((!pba.is_fragment()).then_some(pba))
}

/// Whether a copy of a block holds this content. If there are several, those that do not are written again from one that
/// does. Where there is a right copy the buffer begins with the block as it lies there.
pub(super) async fn prove_copies(
    shared: &Arc<Shared>,
    hashers: &Hashers,
    (pba, known): (Pba, &Known),
    mut buf: Buffer,
) -> (bool, Buffer) {
    let contents = contents_of(shared, pba, known);
    let _pass = shared.drives.gate.pass();
    let (mut holds, mut right, mut wrong) = (false, None, Vec::new());
    for place in shared.drives.readable(pba).iter() {
        let result;
        (result, buf) = read(&shared.drives, *place, buf).await;
        if let Err(error) = &result
            && shared.drives.has_copies()
        {
            shared.drive_failed(place.drive, Action::Read, error);
        }
        let block = fingerprint::split(&buf).first().filter(|_| result.is_ok());
        let is_in = |content: &Content| block.is_some_and(|block| content.is_in(hashers, block));
        holds |= contents.first().is_some_and(is_in);
        match contents.iter().all(is_in) {
            true => right = Some(*place),
            false => wrong.push(*place),
        }
    }
    let Some(right) = right.filter(|_| !wrong.is_empty()) else {
        return (holds, buf);
    };
    let result;
    (result, buf) = read(&shared.drives, right, buf).await;
    let block = fingerprint::split(&buf).first().filter(|_| result.is_ok());
    let is_in = |content: &Content| block.is_some_and(|block| content.is_in(hashers, block));
    if !contents.iter().all(is_in) {
        return (holds, buf);
    }
    for place in wrong {
        buf = write(shared, pba, place, buf).await;
    }
    (true, buf)
}

/// Writes a copy of a block. References on all that may be read of it are held.
async fn write(shared: &Arc<Shared>, pba: Pba, place: Place, buf: Buffer) -> Buffer {
    let Some(drive) = shared.drives.get(place.drive.into()) else {
        return buf;
    };
    let (written, buf) = drive.write(buf, &[place.extent()]).await;
    match written {
        Ok(()) => {
            lock(&shared.damage).healed += 1;
            let block = place.block - LABEL_BLOCKS;
            shared.drives.note_error(place.drive);
            lock(&shared.alert_log).healed(place.drive, block);
        }
        Err(error) => {
            if error.is_in_doubt() {
                // What may still be written is right as long as the block is in use, and not when it is used again.
                lock(&shared.state)
                    .space()
                    .doubt(pba.container(), place.drive);
            }
            shared.drive_failed(place.drive, Action::Write, &error);
            // It cannot be made right: nobody is to read it.
            shared.go_on_without(place.drive, &error).await;
        }
    }
    buf
}

async fn read(drives: &DriveList, place: Place, buf: Buffer) -> (Result<(), DriveError>, Buffer) {
    let group = OfDrive {
        drive: place.drive,
        extents: vec![place.extent()],
    };
    let (failed, buf) = scatter::read(drives, buf, &[group]).await;
    let failed = failed.into_iter().next();
    (failed.map_or(Ok(()), |(_, error)| Err(error)), buf)
}
