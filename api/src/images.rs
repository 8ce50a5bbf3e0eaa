//! Images of volumes: their content on its way in and out, and where volumes have any.
//!
//! | request | answer |
//! |---|---|
//! | `POST /v1/volumes/NAME/import` with [`BeginImport`] | an [`ImportSession`] |
//! | `PUT /v1/volumes/NAME/data?session=UUID&offset=N` with a piece of the image | [`Written`] |
//! | `POST /v1/volumes/NAME/import/parts` with [`WriteParts`] | [`Written`] |
//! | `PATCH /v1/volumes/NAME/import` with [`KeepImport`] | [`ImportView`]: so much is durable |
//! | `POST /v1/volumes/NAME/import/finish` with [`FinishImport`] | the [`VolumeView`], which hosts see now |
//! | `GET /v1/volumes/NAME/data?offset=N&length=M[&task=ID][&fingerprints=true]` | the bytes |
//! | `GET /v1/volumes/NAME/extents[?offset=N&length=M]` | [`ExtentsView`] |
//! | `GET /v1/volumes/NAME/diff?with=OTHER[&offset=N]` | [`DiffView`] |
//!
//! Guarantees: a piece is at most [`PIECE_BYTES_MAX`] long, and `PIECES_MAX` are in memory at one time; a request has at most
//! [`PARTS_MAX`] parts, and repeats [`SAME_BYTES_MAX`] at most. Engine work
//! runs on the control reactor, never on one that serves hosts. Only an import that is under way writes data.

use std::time::Duration;

use axum::body::{self, to_bytes};
use axum::extract::{Extension, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use dedup::{MAX_COMMAND_BYTES, SUB_BLOCK_BYTES, VolumeSpec};
use hyper::Method;
pub use hyper::body::Bytes;
use serde::{Deserialize, Serialize};
use subsystem::errors::Failure;
use subsystem::target::imports::{Destination, Import};
use subsystem::target::received::{self, Received};
use tokio::sync::{Semaphore, SemaphorePermit};
use uuid::Uuid;

use crate::client::{Client, Lane};
use crate::errors::{Answer, Refusal};
use crate::extract::{Body, Path, Query};
use crate::server::{ApiState, on_control};
use crate::task_list::TaskKind;
use crate::tokens::Role;
use crate::transfers;
use crate::volumes::{self, CreateVolume, ImportView, VolumeView, is_plain, volume_path};

/// Bytes that parts of one request repeat at most.
pub use subsystem::target::received::SAME_BYTES_MAX;

/// The longest piece of an image in one request, in bytes.
pub const PIECE_BYTES_MAX: usize = 4 << 20;

/// Parts of one request at most.
pub const PARTS_MAX: usize = 512;

/// The longest name of a snapshot behind its `@`, in bytes.
const SNAPSHOT_NAME_BYTES_MAX: usize = 64;

/// Pieces in memory at one time, of all imports and exports.
const PIECES_MAX: usize = 8;

/// How long a piece may take to come.
const PIECE_TIMEOUT: Duration = Duration::from_secs(15);

/// Ranges of one answer.
const EXTENTS_MAX: usize = 16 << 10;

/// What pieces are.
pub(crate) const OCTETS: &str = "application/octet-stream";

pub(crate) static WRITING: Semaphore = Semaphore::const_new(PIECES_MAX);
pub(crate) static READING: Semaphore = Semaphore::const_new(PIECES_MAX);

/// An image that is to come into a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeginImport {
    /// What the image is known by to who sends it, such as its size and when it was changed; up to 256 bytes. It has to
    /// be the same when the import is resumed.
    pub image: String,
    /// Its length, if that is known before its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_bytes: Option<u64>,
    /// Whether a new volume grows with an image whose length is not known, and ends where it does.
    #[serde(default)]
    pub grow: bool,
    /// The snapshot that there is of the volume when the image is whole, if it is the image of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<ReceivedSnapshot>,
    /// Where it goes.
    pub into: ImportInto,
}

/// A snapshot as it was where it came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReceivedSnapshot {
    /// Its name behind the `@`.
    pub name: String,
    /// What names its content in all pools ([`crate::snapshots::SnapshotView::content`]).
    pub content: Uuid,
    /// When it was taken, in seconds since 1970.
    pub created_at: u64,
}

/// Where an image goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportInto {
    /// To a new volume of the path's name.
    New(CreateVolume),
    /// In place of what the volume has, which is lost. This takes the role of an administrator.
    Existing,
    /// As changes of a volume that has what one of its snapshots has. This takes the role of an administrator.
    Onto(ChangesOf),
    /// To where an interrupted import has begun.
    Interrupted,
}

/// What an image that has changes alone is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangesOf {
    /// What names the content of the volume's snapshot.
    pub base: Uuid,
    /// The size that the volume gets, in bytes.
    pub size_bytes: u64,
}

/// An import that may go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportSession {
    /// What each piece shows. It ends when somebody resumes the import, and with the daemon.
    pub session: Uuid,
    /// Where the first piece belongs.
    pub done_bytes: u64,
    /// The volume's size, in bytes.
    pub size_bytes: u64,
    /// Bytes of its logical blocks: pieces are whole ones.
    pub lba_bytes: u32,
}

/// Parts of an image that are no data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteParts {
    /// The import's session.
    pub session: Uuid,
    /// They are written in this order.
    pub parts: Vec<ImportPart>,
}

/// A part of an image that is zeros, or has what the volume has elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportPart {
    /// Its first byte.
    pub offset: u64,
    /// How many bytes it has.
    pub length: u64,
    /// Where the volume has the same already, which it does not overlap; zeros if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_as: Option<u64>,
}

/// So much of an image has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepImport {
    /// The import's session.
    pub session: Uuid,
    /// All before this byte was answered; it is durable when this is.
    pub done_bytes: u64,
}

/// All of an image has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishImport {
    /// The import's session.
    pub session: Uuid,
    /// The image's length.
    pub image_bytes: u64,
}

/// A piece that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Its length.
    pub bytes: u64,
}

/// Where a volume has data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentsView {
    /// In order. What is in none of them reads as zeros.
    pub ranges: Vec<ByteRange>,
    /// The byte up to which was looked: what comes behind it is for the next request.
    pub upto: u64,
}

/// Where two volumes, or snapshots, may differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffView {
    /// In order. What is in none of them is equal in both.
    pub ranges: Vec<ByteRange>,
    /// The byte up to which was looked: what comes behind it is for the next request.
    pub upto: u64,
    /// The size of the larger one in bytes: all is told when `upto` is there.
    pub size_bytes: u64,
}

/// Bytes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteRange {
    /// The first one.
    pub offset: u64,
    /// How many.
    pub length: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PieceAt {
    session: Uuid,
    offset: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    offset: u64,
    length: u64,
    /// The export or the send that reads.
    task: Option<u64>,
    /// Behind the bytes come the fingerprints of their blocks of 4,096 bytes.
    #[serde(default)]
    fingerprints: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    #[serde(default)]
    offset: u64,
    /// All behind the offset, if left out.
    length: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Compared {
    with: String,
    #[serde(default)]
    offset: u64,
}

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/v1/volumes/{name}/import", post(begin).patch(keep))
        .route("/v1/volumes/{name}/import/parts", post(write_parts))
        .route("/v1/volumes/{name}/import/finish", post(finish))
        .route("/v1/volumes/{name}/data", put(write).get(read))
        .route("/v1/volumes/{name}/extents", get(extents))
        .route("/v1/volumes/{name}/diff", get(diff))
}

async fn begin(
    State(state): State<ApiState>,
    Extension(role): Extension<Role>,
    Path(name): Path<String>,
    Body(request): Body<BeginImport>,
) -> Answer<ImportSession> {
    let image = Import {
        image: request.image,
        image_bytes: request.image_bytes,
        done_bytes: 0,
        grows: request.grow && request.image_bytes.is_none(),
        snapshot: request.snapshot.map(received).transpose()?,
        changes: None,
    };
    state.tasks.check_room()?;
    let kind = match image.snapshot {
        None => TaskKind::Import,
        Some(_) => TaskKind::Receive,
    };
    let (target, volume) = (state.target.clone(), name.clone());
    let (begun, done_bytes) = match request.into {
        ImportInto::Interrupted => {
            let work = move || async move { target.resume_import(&volume, &image).await };
            let (import, begun) = state.control.spawn(work).await??;
            (begun, import.done_bytes)
        }
        ImportInto::Existing if role < Role::Admin => {
            return Err(Failure::invalid(
                "an image in place of what a volume has takes the role of an administrator",
            )
            .into());
        }
        ImportInto::Onto(_) if role < Role::Admin => {
            return Err(Failure::invalid(
                "changes of what a volume has take the role of an administrator",
            )
            .into());
        }
        ImportInto::Onto(ChangesOf { base, size_bytes }) => {
            let onto = Destination::Onto {
                volume,
                base,
                size_bytes,
            };
            let work = move || async move { target.begin_import(onto, image).await };
            (state.control.spawn(work).await??, 0)
        }
        ImportInto::Existing => {
            let over = Destination::Over(volume);
            let work = move || async move { target.begin_import(over, image).await };
            (state.control.spawn(work).await??, 0)
        }
        ImportInto::New(create) => {
            if create.name != name {
                let text = format!(
                    "the volume is '{name}' in the path and '{}' in the body",
                    create.name
                );
                return Err(Failure::invalid(text).into());
            }
            let (spec, place): (VolumeSpec, _) = volumes::planned(create)?;
            let new = Destination::New(spec, place);
            let work = move || async move { target.begin_import(new, image).await };
            (state.control.spawn(work).await??, 0)
        }
    };
    let session = begun.session;
    let (seen, of) = (state.clone(), name.clone());
    let result = move || {
        // Its owner may have deleted it already.
        let view = volumes::view(&seen, &of).ok()?;
        serde_json::to_value(view).ok()
    };
    transfers::follow_import(&state, kind, &name, begun, result);
    let info = volumes::find(&state, &name)?;
    Ok(Json(ImportSession {
        session,
        done_bytes,
        size_bytes: info.size_bytes,
        lba_bytes: info.lba_bytes,
    }))
}

/// A snapshot that is announced. A name that none can have is refused now, not when all has come.
fn received(snapshot: ReceivedSnapshot) -> Result<Received, Failure> {
    let ReceivedSnapshot {
        name,
        content,
        created_at,
    } = snapshot;
    if !is_plain(&name) || name.len() > SNAPSHOT_NAME_BYTES_MAX {
        return Err(Failure::invalid(format!(
            "'{}' cannot be the name of a snapshot: up to {SNAPSHOT_NAME_BYTES_MAX} of a-z A-Z 0-9 . _ -",
            name.chars().take(80).collect::<String>().escape_default()
        )));
    }
    Ok(Received {
        name,
        content,
        created: created_at,
    })
}

async fn write_parts(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Body(request): Body<WriteParts>,
) -> Answer<Written> {
    let WriteParts { session, parts } = request;
    if parts.len() > PARTS_MAX {
        return Err(Failure::invalid(format!(
            "{} parts at a time are too many: send at most {PARTS_MAX}",
            parts.len()
        ))
        .into());
    }
    let bytes = parts
        .iter()
        .fold(0_u64, |sum, part| sum.saturating_add(part.length));
    let part = |part: ImportPart| received::Part {
        offset: part.offset,
        length: part.length,
        same_as: part.same_as,
    };
    let parts: Vec<_> = parts.into_iter().map(part).collect();
    let _place = place_of(&WRITING).await?;
    let (target, buffers) = (state.target.clone(), state.control.buffers().clone());
    let work = move || async move {
        let written = target.write_parts(&name, session, &parts, &buffers);
        written.await
    };
    state.control.spawn(work).await??;
    Ok(Json(Written { bytes }))
}

async fn keep(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Body(request): Body<KeepImport>,
) -> Answer<ImportView> {
    let target = state.target.clone();
    let KeepImport {
        session,
        done_bytes,
    } = request;
    let work = move || async move { target.keep_import(&name, session, done_bytes).await };
    Ok(Json(state.control.spawn(work).await??.into()))
}

async fn finish(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Body(request): Body<FinishImport>,
) -> Answer<VolumeView> {
    let (target, volume) = (state.target.clone(), name.clone());
    let FinishImport {
        session,
        image_bytes,
    } = request;
    let work = move || async move { target.finish_import(&volume, session, image_bytes).await };
    state.control.spawn(work).await??;
    Ok(Json(volumes::view(&state, &name)?))
}

async fn write(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Query(at): Query<PieceAt>,
    body: body::Body,
) -> Answer<Written> {
    let PieceAt { session, offset } = at;
    // Before the body, so that what waits is with who sends it.
    let _place = place_of(&WRITING).await?;
    let data = whole(body, PIECE_BYTES_MAX, "a piece of an image").await?;
    let bytes = data.len() as u64;
    let (target, buffers) = (state.target.clone(), state.control.buffers().clone());
    let work = move || async move {
        let written = target.write_image(&name, session, offset, &data, &buffers);
        written.await
    };
    state.control.spawn(work).await??;
    Ok(Json(Written { bytes }))
}

/// A body of at most so many bytes, which is `what`, as soon as all of it is there.
pub(crate) async fn whole(
    body: body::Body,
    bytes_max: usize,
    what: &str,
) -> Result<Bytes, Failure> {
    match tokio::time::timeout(PIECE_TIMEOUT, to_bytes(body, bytes_max)).await {
        Ok(Ok(data)) => Ok(data),
        Ok(Err(error)) => Err(Failure::invalid(format!(
            "{what}: it is not complete, or has more than {bytes_max} bytes: {error}"
        ))),
        Err(_) => Err(Failure::unavailable(format!(
            "{what}: it did not come in time: an import goes on with --resume"
        ))),
    }
}

pub(crate) async fn place_of(
    places: &'static Semaphore,
) -> Result<SemaphorePermit<'static>, Failure> {
    let place = places.acquire().await;
    place.map_err(|_| Failure::unavailable("the daemon stops"))
}

/// A piece on its way out, and its place among those in memory.
struct Going {
    data: Vec<u8>,
    _place: SemaphorePermit<'static>,
}

impl AsRef<[u8]> for Going {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

async fn read(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Query(part): Query<Part>,
) -> Result<Response, Refusal> {
    let Part {
        offset,
        length,
        task,
        fingerprints,
    } = part;
    if let Some(id) = task {
        state.tasks.find(id)?.reads(offset.saturating_add(length))?;
    }
    let length = usize::try_from(length)
        .ok()
        .filter(|length| *length <= PIECE_BYTES_MAX);
    let length = length.ok_or_else(|| {
        Failure::invalid(format!(
            "at most {PIECE_BYTES_MAX} bytes are read at a time"
        ))
    })?;
    if fingerprints
        && !(offset.is_multiple_of(SUB_BLOCK_BYTES as u64)
            && length.is_multiple_of(SUB_BLOCK_BYTES))
    {
        return Err(Failure::invalid(format!(
            "only whole blocks of {SUB_BLOCK_BYTES} bytes have fingerprints: offset and length are multiples of that"
        ))
        .into());
    }
    let place = place_of(&READING).await?;
    let (target, buffers) = (state.target.clone(), state.control.buffers().clone());
    let work = move || async move {
        let volume = target.open_to_read(&name)?;
        let mut data = Vec::with_capacity(length);
        while data.len() < length {
            let buffer = buffers.alloc((length - data.len()).min(MAX_COMMAND_BYTES));
            let at = offset.saturating_add(data.len() as u64);
            let (read, buffer) = volume.read(at, buffer.await).await;
            read?;
            data.extend_from_slice(&buffer);
        }
        if fingerprints {
            let all = volume.fingerprints(&data);
            data.extend(all.iter().flat_map(|fingerprint| fingerprint.0));
        }
        Ok::<_, Failure>(data)
    };
    let data = state.control.spawn(work).await??;
    let going = Bytes::from_owner(Going {
        data,
        _place: place,
    });
    Ok(([(CONTENT_TYPE, OCTETS)], going).into_response())
}

async fn extents(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Query(asked): Query<Asked>,
) -> Answer<ExtentsView> {
    let Asked { offset, length } = asked;
    let volume = state.target.open_to_read(&name)?;
    let rest = volume.info().size_bytes.saturating_sub(offset);
    let length = length.unwrap_or(rest);
    let work = move || async move { volume.extents(offset, length, EXTENTS_MAX).await };
    let found = on_control(&state, work).await?;
    Ok(Json(ExtentsView {
        ranges: byte_ranges(found.ranges),
        upto: found.upto,
    }))
}

fn byte_ranges(ranges: Vec<(u64, u64)>) -> Vec<ByteRange> {
    let range = |(offset, length)| ByteRange { offset, length };
    ranges.into_iter().map(range).collect()
}

async fn diff(
    State(state): State<ApiState>,
    Path(name): Path<String>,
    Query(asked): Query<Compared>,
) -> Answer<DiffView> {
    let Compared { with, offset } = asked;
    let volume = state.target.open_to_read(&name)?;
    let other = state.target.open_to_read(&with)?;
    let size_bytes = volume.info().size_bytes.max(other.info().size_bytes);
    let work = move || async move { volume.diff(&other, offset, EXTENTS_MAX).await };
    let found = on_control(&state, work).await?;
    Ok(Json(DiffView {
        ranges: byte_ranges(found.ranges),
        upto: found.upto,
        size_bytes,
    }))
}

impl Client {
    /// Begins to bring an image to a volume, or to go on with it.
    ///
    /// # Errors
    /// The daemon refuses, or no daemon serves the pool.
    pub async fn begin_import(
        &self,
        name: &str,
        request: &BeginImport,
    ) -> Result<ImportSession, Failure> {
        let path = format!("{}/import", volume_path(name)?);
        self.send(Method::POST, &path, Some(request)).await
    }

    /// Makes what has come of an image durable.
    ///
    /// # Errors
    /// The import was taken over, or the pool takes no changes.
    pub async fn keep_import(
        &self,
        name: &str,
        request: &KeepImport,
    ) -> Result<ImportView, Failure> {
        let path = format!("{}/import", volume_path(name)?);
        self.send(Method::PATCH, &path, Some(request)).await
    }

    /// Writes parts of an image that are no data.
    ///
    /// # Errors
    /// The daemon refuses, or no daemon serves the pool.
    pub async fn write_parts(&self, name: &str, request: &WriteParts) -> Result<Written, Failure> {
        let path = format!("{}/import/parts", volume_path(name)?);
        self.send(Method::POST, &path, Some(request)).await
    }

    /// Ends an import: the image is whole, and durable when this returns.
    ///
    /// # Errors
    /// It is not whole, or the pool takes no changes.
    pub async fn finish_import(
        &self,
        name: &str,
        request: &FinishImport,
    ) -> Result<VolumeView, Failure> {
        let path = format!("{}/import/finish", volume_path(name)?);
        self.send(Method::POST, &path, Some(request)).await
    }

    /// Where a volume has data, from a byte on.
    ///
    /// # Errors
    /// There is no such volume, or a part of it is not there; or no daemon serves the pool.
    pub async fn extents(&self, name: &str, range: ByteRange) -> Result<ExtentsView, Failure> {
        let ByteRange { offset, length } = range;
        let path = volume_path(name)?;
        let path = format!("{path}/extents?offset={offset}&length={length}");
        self.get(&path).await
    }

    /// Where a volume may differ from another one, from a byte on. Both may be snapshots.
    ///
    /// # Errors
    /// There is none of that name; or no daemon serves the pool.
    pub async fn diff(&self, name: &str, with: &str, offset: u64) -> Result<DiffView, Failure> {
        let path = volume_path(name)?;
        let with = volume_path(with)?;
        let with = with.rsplit('/').next().unwrap_or_default();
        self.get(&format!("{path}/diff?with={with}&offset={offset}"))
            .await
    }
}

impl Lane {
    /// Writes a piece of an image.
    ///
    /// # Errors
    /// The daemon refuses, or the connection broke.
    pub async fn write_piece(
        &mut self,
        name: &str,
        session: Uuid,
        offset: u64,
        piece: Bytes,
    ) -> Result<(), Failure> {
        let path = volume_path(name)?;
        let path = format!("{path}/data?session={session}&offset={offset}");
        self.ask(Method::PUT, &path, OCTETS, piece).await.map(drop)
    }

    /// Reads bytes of a volume, for a task or none.
    ///
    /// # Errors
    /// They cannot be read, the task was cancelled, or the connection broke.
    pub async fn read_piece(
        &mut self,
        name: &str,
        range: ByteRange,
        task: Option<u64>,
    ) -> Result<Bytes, Failure> {
        self.read(name, range, task, false).await
    }

    /// The same, and the fingerprints of its blocks behind it, 16 bytes each.
    ///
    /// # Errors
    /// As for [`Lane::read_piece`].
    pub async fn read_with_fingerprints(
        &mut self,
        name: &str,
        range: ByteRange,
        task: Option<u64>,
    ) -> Result<(Bytes, Bytes), Failure> {
        let mut data = self.read(name, range, task, true).await?;
        let fingerprints = data.split_off(range.length as usize);
        Ok((data, fingerprints))
    }

    async fn read(
        &mut self,
        name: &str,
        range: ByteRange,
        task: Option<u64>,
        fingerprints: bool,
    ) -> Result<Bytes, Failure> {
        let ByteRange { offset, length } = range;
        let path = volume_path(name)?;
        let task = task.map_or_else(String::new, |task| format!("&task={task}"));
        let (and, more) = match fingerprints {
            false => ("", 0),
            true => ("&fingerprints=true", length / SUB_BLOCK_BYTES as u64 * 16),
        };
        let path = format!("{path}/data?offset={offset}&length={length}{task}{and}");
        let bytes = self.ask(Method::GET, &path, OCTETS, Bytes::new()).await?;
        match bytes.len() as u64 == length + more {
            true => Ok(bytes),
            false => Err(self.broken("sent another length than was asked for", &bytes.len())),
        }
    }
}
