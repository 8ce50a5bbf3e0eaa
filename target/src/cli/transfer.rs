//! What images and streams on their way have in common: connections that carry pieces side by side, where a volume has
//! data, what has come so far, and the signal that ends it.

use std::cell::RefCell;
use std::time::Duration;

use api::client::{Client, Lane};
use api::images::{ByteRange, Bytes, ImportSession, KeepImport, PIECE_BYTES_MAX};
use api::tasks::{FinishTask, StartTask, TaskKind};
use dedup::ErrorKind;
use futures_util::{Stream, TryStreamExt, stream};
use subsystem::errors::Failure;
use tokio::signal::unix::{SignalKind, signal};

use crate::images::GRAIN;

/// Pieces under way at one time.
pub(super) const PIECES: usize = 4;

/// How often what has come is made durable, so that it goes on there after an interruption.
pub(super) const KEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Connections to a daemon, one for each piece that is under way.
pub(super) struct Lanes(RefCell<Vec<Lane>>);

impl Lanes {
    /// Opens [`PIECES`] of them.
    pub(super) async fn open(client: &Client) -> Result<Self, Failure> {
        let mut lanes = Vec::new();
        for _ in 0..PIECES {
            lanes.push(client.lane().await?);
        }
        Ok(Self(RefCell::new(lanes)))
    }

    /// One that nobody uses. It comes back with [`Self::give`], unless it broke.
    fn take(&self) -> Result<Lane, Failure> {
        self.0.borrow_mut().pop().ok_or_else(|| {
            Failure::new(
                ErrorKind::Internal,
                "there are fewer connections than pieces",
            )
        })
    }

    fn give(&self, lane: Lane) {
        self.0.borrow_mut().push(lane);
    }

    /// Reads bytes of a volume; returns where they begin too.
    pub(super) async fn read(
        &self,
        reading: &Reading<'_>,
        range: ByteRange,
    ) -> Result<(u64, Bytes), Failure> {
        self.read_of(reading.name, range, Some(reading.task)).await
    }

    /// The same of the volume of that name, for a task or none.
    pub(super) async fn read_of(
        &self,
        name: &str,
        range: ByteRange,
        task: Option<u64>,
    ) -> Result<(u64, Bytes), Failure> {
        let mut lane = self.take()?;
        let data = lane.read_piece(name, range, task).await?;
        self.give(lane);
        Ok((range.offset, data))
    }

    /// The same, and the fingerprints of its blocks.
    pub(super) async fn read_with_fingerprints(
        &self,
        reading: &Reading<'_>,
        range: ByteRange,
    ) -> Result<(Bytes, Bytes), Failure> {
        let mut lane = self.take()?;
        let task = Some(reading.task);
        let read = lane
            .read_with_fingerprints(reading.name, range, task)
            .await?;
        self.give(lane);
        Ok(read)
    }

    /// Writes a piece of an image.
    pub(super) async fn write(
        &self,
        name: &str,
        session: &ImportSession,
        offset: u64,
        piece: Bytes,
    ) -> Result<(), Failure> {
        let mut lane = self.take()?;
        lane.write_piece(name, session.session, offset, piece)
            .await?;
        self.give(lane);
        Ok(())
    }
}

/// An export or a send, as the task that the daemon shows.
pub(super) struct Reading<'a> {
    client: &'a Client,
    name: &'a str,
    task: u64,
}

impl<'a> Reading<'a> {
    /// A volume or a snapshot is going to be read.
    pub(super) async fn begin(
        client: &'a Client,
        kind: TaskKind,
        name: &'a str,
    ) -> Result<Self, Failure> {
        let start = StartTask {
            kind,
            object: Some(name.to_owned()),
        };
        let task = client.start_task(&start).await?.id;
        Ok(Self { client, name, task })
    }

    /// What is read.
    pub(super) fn name(&self) -> &'a str {
        self.name
    }

    /// Says how it ended, and hands that on.
    pub(super) async fn ends<T>(self, ended: Result<T, Failure>) -> Result<T, Failure> {
        let finish = FinishTask {
            error: ended.as_ref().err().map(|failure| failure.message.clone()),
        };
        // The task ends without it too, only later.
        let _ = self.client.finish_task(self.task, &finish).await;
        ended
    }
}

/// The ranges of a part of a volume that have data, in pieces, asked for as they are needed.
pub(super) fn data_pieces<'a>(
    client: &'a Client,
    name: &'a str,
    part: ByteRange,
) -> impl Stream<Item = Result<ByteRange, Failure>> + 'a {
    let end = part.offset + part.length;
    let looks = stream::try_unfold(part.offset, move |at| async move {
        if at >= end {
            return Ok::<_, Failure>(None);
        }
        let rest = ByteRange {
            offset: at,
            length: end - at,
        };
        let found = client.extents(name, rest).await?;
        let pieces: Vec<_> = found.ranges.into_iter().flat_map(split).map(Ok).collect();
        Ok(Some((stream::iter(pieces), found.upto)))
    });
    looks.try_flatten()
}

/// A range in pieces.
pub(super) fn split(range: ByteRange) -> impl Iterator<Item = ByteRange> {
    let end = range.offset + range.length;
    let starts = (range.offset..end).step_by(PIECE_BYTES_MAX);
    starts.map(move |offset| ByteRange {
        offset,
        length: (end - offset).min(PIECE_BYTES_MAX as u64),
    })
}

/// Makes what has come durable: all before this byte. Returns up to where it is.
pub(super) async fn keep(
    client: &Client,
    name: &str,
    session: &ImportSession,
    done_bytes: u64,
) -> Result<u64, Failure> {
    let request = KeepImport {
        session: session.session,
        done_bytes: done_bytes - done_bytes % GRAIN,
    };
    let kept = client.keep_import(name, &request).await?;
    Ok(kept.done_bytes)
}

/// Waits for Ctrl-C or SIGTERM.
pub(super) async fn interrupted() -> Result<(), Failure> {
    let waiting = |kind| {
        signal(kind).map_err(|error| {
            Failure::new(
                ErrorKind::Internal,
                format!("cannot wait for signals: {error}"),
            )
        })
    };
    let (mut interrupt, mut terminate) = (
        waiting(SignalKind::interrupt())?,
        waiting(SignalKind::terminate())?,
    );
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
