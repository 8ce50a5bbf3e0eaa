//! Who sends images now.
//!
//! Guarantees: a volume has one session at most, and a session ends once: what it ended with is told to who began it.
//! A sender whose session is over is told why.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use meta::VolumeInfo;
use reactor::lock_whole;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::Target;
use crate::errors::Failure;

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The image is whole.
    Whole,
    /// Somebody resumed the import, and sends it now.
    TakenOver,
    /// The volume was deleted, or rolled back to its snapshot.
    GivenUp,
    /// The sender was told to stop.
    Cancelled,
    /// The sender was silent for too long.
    Silent,
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole => "the image is whole",
            Self::TakenOver => "somebody else resumed it",
            Self::GivenUp => "what had come of it was given up",
            Self::Cancelled => "it was cancelled",
            Self::Silent => "nothing came for too long",
        })
    }
}

/// A session that has begun.
#[derive(Debug)]
pub struct ImportBegun {
    /// What its sender shows with each piece.
    pub session: Uuid,
    /// The volume.
    pub volume: Uuid,
    /// How it ends. Nothing comes if the daemon ends first.
    pub end: oneshot::Receiver<SessionEnd>,
}

/// The session of a volume: one that sends, or the last one that did.
#[derive(Debug)]
struct Session {
    id: Uuid,
    heard: Mutex<Instant>,
    state: State,
}

#[derive(Debug)]
enum State {
    Sends(oneshot::Sender<SessionEnd>),
    Over(SessionEnd),
}

/// The sessions of all volumes, by their UUIDs.
#[derive(Debug, Default)]
pub(super) struct Sessions(HashMap<Uuid, Session>);

impl Sessions {
    /// A session begins; the volume's last one is over.
    pub(super) fn begin(&mut self, volume: Uuid) -> ImportBegun {
        self.end(volume, SessionEnd::TakenOver);
        let session = Uuid::new_v4();
        let (told, end) = oneshot::channel();
        let begun = Session {
            id: session,
            heard: Mutex::new(Instant::now()),
            state: State::Sends(told),
        };
        self.0.insert(volume, begun);
        ImportBegun {
            session,
            volume,
            end,
        }
    }

    /// The import has ended: the volume has no session any more.
    pub(super) fn end(&mut self, volume: Uuid, end: SessionEnd) {
        if let Some(Session {
            state: State::Sends(told),
            ..
        }) = self.0.remove(&volume)
        {
            // Nobody has to wait for it.
            let _ = told.send(end);
        }
    }

    /// The session is over, and the import waits for another one.
    fn stop(&mut self, volume: Uuid, session: Uuid, end: SessionEnd) {
        let found = self.0.get_mut(&volume).filter(|it| it.id == session);
        if let Some(it) = found
            && let State::Sends(told) = std::mem::replace(&mut it.state, State::Over(end))
        {
            let _ = told.send(end);
        }
    }

    /// Lets a sender go on, who is heard.
    pub(super) fn check(&self, info: &VolumeInfo, session: Uuid) -> Result<(), Failure> {
        let why = match self.0.get(&info.uuid).filter(|it| it.id == session) {
            Some(Session {
                heard,
                state: State::Sends(_),
                ..
            }) => {
                *lock_whole(heard) = Instant::now();
                return Ok(());
            }
            Some(Session {
                state: State::Over(end),
                ..
            }) => end.to_string(),
            None => "somebody else resumed it, or the daemon was started again".to_owned(),
        };
        Err(Failure::invalid(format!(
            "this session of the import to volume '{}' is over: {why}; --resume goes on",
            info.name
        )))
    }
}

impl Target {
    /// For how long nothing has come from a sender. `None`: its session is over.
    pub async fn silence_of_import(&self, volume: Uuid, session: Uuid) -> Option<Duration> {
        let sessions = self.importing.read().await;
        let it = sessions.0.get(&volume).filter(|it| it.id == session)?;
        matches!(it.state, State::Sends(_)).then(|| lock_whole(&it.heard).elapsed())
    }

    /// Ends a session: what comes of it from now on is refused. The import waits for who resumes it.
    pub async fn stop_import(&self, volume: Uuid, session: Uuid, end: SessionEnd) {
        self.importing.write().await.stop(volume, session, end);
    }
}
