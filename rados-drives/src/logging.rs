//! Deferred writes on their way: with the journal into the cluster, and then to their places.
//!
//! Guarantees:
//! * What completed before [`log_with`] or [`log`] began survives the end of this process when that has ended well, and is there
//!   before any block that [`log_with`] writes is. Until then it is lost with the process.
//! * Nothing is put in place over what was written later: such blocks are written only when no listing names them ([`settle`]).
//! * What was taken can be logged also in a cluster that became full: objects with an area are made as large as they get before.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use drives::{BLOCK_BYTES, DriveError, ErrorKind, Part};
use reactor::Buffer;

use crate::client::{Change, Client};
use crate::deferred::{
    AREA_AT, AREA_BYTES, ASIDE, Deferred, LISTING_AT, Logging, OBJECTS, Objects, name_of, text_of,
};
use crate::shared::Shared;
use crate::transfer::{self, Operation, operations};

/// Bytes that are worth an operation which puts them in place.
const PLACE_BYTES: usize = 1 << 20;

/// Fewer wait so long.
const PLACE_PAUSE: Duration = Duration::from_millis(100);

/// After a failure of what puts them in place.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// What is on its way to be logged waits again, unless it was logged.
struct Begun<'a> {
    deferred: &'a Deferred,
    logging: Option<Logging>,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if let Some(logging) = self.logging.take() {
            self.deferred.state().give_back(logging);
        }
    }
}

/// Writes blocks of the journal, and logs with them what waits.
pub(crate) async fn log_with(
    shared: &Arc<Shared>,
    buffers: &[Buffer],
    moved: &[(u64, Part)],
) -> Result<(), DriveError> {
    let deferred = &shared.deferred;
    let operations = operations(moved.iter().copied(), false);
    let Some((first, others)) = operations.split_first() else {
        return log(shared).await;
    };
    let mut objects = deferred.objects.lock().await;
    if deferred.is_begun() {
        let prepared = prepare(shared, &mut objects, first.object).await;
        deferred.is_ready.store(prepared.is_ok(), Ordering::Relaxed);
    }
    let waits = deferred.state().waits();
    if waits && objects.prepared.contains(&first.object) {
        log_in(shared, &mut objects, first.object, Some(first), buffers).await?;
        drop(objects);
        // Blocks of the journal in other objects come after the data that they are about.
        return transfer::write_operations(shared, buffers, others).await;
    }
    if waits {
        log_in(shared, &mut objects, ASIDE, None, &[]).await?;
    }
    drop(objects);
    transfer::write_operations(shared, buffers, &operations).await
}

/// Makes an object as large as it gets, and those to which the next loggings may go: the one behind it and the one aside.
async fn prepare(
    shared: &Arc<Shared>,
    objects: &mut Objects,
    object: u64,
) -> Result<(), DriveError> {
    for object in [ASIDE, object, object + 1] {
        if objects.prepared.contains(&object) {
            continue;
        }
        name_object(shared, objects, object).await?;
        let (name, last) = (name_of(&shared.drive, object), [0; BLOCK_BYTES]);
        let at = AREA_AT + u64::from(AREA_BYTES) - BLOCK_BYTES as u64;
        let begin =
            |client: &dyn Client, room| client.change(&name, &[Change::Write(at, &last)], room);
        let written = transfer::run(shared, BLOCK_BYTES, begin).await?;
        written.map_err(|error| shared.failed(error, true))?;
        objects.prepared.insert(object);
    }
    Ok(())
}

/// Logs what waits, if anything does.
pub(crate) async fn log(shared: &Arc<Shared>) -> Result<(), DriveError> {
    if !shared.deferred.is_begun() {
        return Ok(());
    }
    // What is on its way waits again if it fails.
    let mut objects = shared.deferred.objects.lock().await;
    let waits = shared.deferred.state().waits();
    match waits {
        true => log_in(shared, &mut objects, ASIDE, None, &[]).await,
        false => Ok(()),
    }
}

/// Logs what waits in an object, by the operation that also writes this to it.
async fn log_in(
    shared: &Arc<Shared>,
    objects: &mut Objects,
    object: u64,
    with: Option<&Operation>,
    buffers: &[Buffer],
) -> Result<(), DriveError> {
    let deferred = &shared.deferred;
    // A listing that comes late must not replace a newer one.
    shared.fence().await?;
    name_object(shared, objects, object).await?;
    let begun = deferred.state().begin_logging(object);
    let begun = match begun {
        Some(begun) => Some(begun),
        None => {
            place(shared).await?;
            deferred.state().begin_logging(object)
        }
    };
    let logging = begun.ok_or_else(|| {
        let text = "there is no room to log what waits; this is a bug: please report it";
        shared.error(ErrorKind::Io, text)
    })?;
    let mut begun = Begun {
        deferred,
        logging: Some(logging),
    };
    if let Some(logging) = &begun.logging {
        let bytes = logging.data.len() + with.map_or(0, |with| with.bytes);
        let name = name_of(&shared.drive, object);
        let begin = |client: &dyn Client, room| {
            let gathered = with.map(|with| with.gather(buffers)).unwrap_or_default();
            let of_journal = gathered.iter().map(|(at, data)| Change::Write(*at, data));
            let mut changes: Vec<Change<'_>> = of_journal.collect();
            if !logging.data.is_empty() {
                let at = AREA_AT + u64::from(logging.at);
                changes.push(Change::Write(at, &logging.data));
            }
            changes.push(Change::Write(LISTING_AT, &logging.listing));
            client.change(&name, &changes, room)
        };
        deferred.has_logged.store(true, Ordering::Release);
        let logged = transfer::run(shared, bytes, begin).await?;
        logged.map_err(|error| shared.failed(error, true))?;
    }
    if let Some(logging) = begun.logging.take() {
        deferred.state().logged(logging);
    }
    place_beside(shared);
    Ok(())
}

/// Says in the header that an object may have a listing, before it has one.
async fn name_object(
    shared: &Arc<Shared>,
    objects: &mut Objects,
    object: u64,
) -> Result<(), DriveError> {
    let named = match (&objects.named, object) {
        (Some(_), ASIDE) => return Ok(()),
        (None, ASIDE) => 0..0,
        (Some(named), _) if named.contains(&object) => return Ok(()),
        (Some(named), _) if !named.is_empty() => named.start.min(object)..named.end.max(object + 1),
        _ => object..object + 1,
    };
    let text = text_of(&named);
    let begin = |client: &dyn Client, room| {
        let set = Change::Set(OBJECTS, text.as_bytes());
        client.change(&shared.header, &[set], room)
    };
    let written = transfer::run(shared, BLOCK_BYTES, begin).await?;
    written.map_err(|error| shared.failed(error, true))?;
    objects.named = Some(named);
    Ok(())
}

/// Puts in place what is logged.
async fn place(shared: &Arc<Shared>) -> Result<(), DriveError> {
    let _turn = shared.deferred.placing.lock().await;
    let placing = shared.deferred.state().begin_placing();
    let Some(placing) = placing else {
        return Ok(());
    };
    let moved = placing.contents.iter().enumerate();
    let moved = moved.map(|(number, (block, _))| {
        let part = Part {
            buffer: number,
            offset: 0,
            len: BLOCK_BYTES,
        };
        (block * BLOCK_BYTES as u64, part)
    });
    let contents: Vec<&[u8]> = placing.contents.iter().map(|(_, it)| it.bytes()).collect();
    let written = transfer::write(shared, &contents, moved).await;
    let is_stuck = &shared.deferred.is_stuck;
    is_stuck.store(written.is_err(), Ordering::Relaxed);
    written?;
    shared.deferred.state().placed(&placing);
    Ok(())
}

/// Lets a task of this reactor put in place what is logged, unless there is one.
fn place_beside(shared: &Arc<Shared>) {
    if reactor::current().is_some() && !shared.deferred.is_placing.swap(true, Ordering::AcqRel) {
        reactor::spawn(place_all(Arc::downgrade(shared)));
    }
}

/// Puts in place what is logged, until nothing is.
async fn place_all(shared: Weak<Shared>) {
    let mut pause = PLACE_PAUSE;
    loop {
        let unplaced = {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let state = shared.deferred.state();
            let unplaced = state.unplaced_bytes();
            if unplaced == 0 {
                // Under the lock of the state, so that what is logged next finds it so.
                shared.deferred.is_placing.store(false, Ordering::Release);
                return;
            }
            unplaced
        };
        if unplaced < PLACE_BYTES || pause > PLACE_PAUSE {
            reactor::sleep(pause).await;
        }
        let Some(shared) = shared.upgrade() else {
            return;
        };
        pause = PLACE_PAUSE;
        let was_stuck = shared.deferred.is_stuck.load(Ordering::Relaxed);
        if let Err(error) = place(&shared).await {
            // It is tried again and again, and told once.
            if !was_stuck {
                tracing::warn!(
                    drive = shared.name,
                    "deferred writes cannot be put in place, and wait: {error}"
                );
            }
            pause = RETRY_PAUSE;
            if let Err(error) = shared.fence().await {
                tracing::warn!(drive = shared.name, "the drive cannot be fenced: {error}");
            }
        }
    }
}

/// Returns when neither an opening nor a task writes these blocks any more.
pub(crate) async fn settle(shared: &Arc<Shared>, blocks: Range<u64>) -> Result<(), DriveError> {
    let deferred = &shared.deferred;
    if !deferred.is_begun() {
        return Ok(());
    }
    while deferred.state().concerns(&blocks) {
        log(shared).await?;
        place(shared).await?;
        // A listing without them.
        let mut objects = deferred.objects.lock().await;
        log_in(shared, &mut objects, ASIDE, None, &[]).await?;
    }
    Ok(())
}
