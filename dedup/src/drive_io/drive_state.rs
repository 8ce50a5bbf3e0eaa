//! Which drives of a pool have what was acknowledged, as it survives a restart.
//!
//! Guarantee: that a drive is offline is durable before anything is acknowledged that it lacks. It comes back through a
//! rebuild ([`crate::background::rebuild`]), and is online when it has all of its data.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use meta::{COPIES_MAX, SettingChanges};
use serde::{Deserialize, Serialize};

/// The setting that says it: for each drive, by its index, a byte. It is in the store at once, and in no record of the
/// journal: an opening has to know it before it looks at what records say, and who writes it may hold up the journal.
const CONDITIONS_KEY: &str = "engine.drives";

/// Whether the copies on a drive are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DriveState {
    /// It has all that was acknowledged: it is read and written.
    #[default]
    Online,
    /// It lacks data, which is being copied to it. It is written, and not read.
    Rebuilding,
    /// It lacks data. It is neither read nor written.
    Offline,
}

impl fmt::Display for DriveState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Online => "online",
            Self::Rebuilding => "rebuilding",
            Self::Offline => "offline",
        })
    }
}

/// What is stored of a drive: its state, and of one that is offline whether somebody wanted that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Condition {
    /// [`DriveState::Online`].
    Online = 0,
    /// [`DriveState::Rebuilding`].
    Rebuilding = 1,
    /// [`DriveState::Offline`], because it failed: a spare takes its place.
    Failed = 2,
    /// [`DriveState::Offline`], because somebody took it offline, who may want it again.
    TakenOffline = 3,
    /// [`DriveState::Offline`] for good: it was emptied, and is no drive of the pool any more.
    Removed = 4,
}

impl Condition {
    /// What is unknown is not relied on.
    pub(crate) const fn of(byte: u8) -> Self {
        match byte {
            0 => Self::Online,
            1 => Self::Rebuilding,
            3 => Self::TakenOffline,
            4 => Self::Removed,
            _ => Self::Failed,
        }
    }

    /// What that means for its copies.
    pub(crate) const fn state(self) -> DriveState {
        match self {
            Self::Online => DriveState::Online,
            Self::Rebuilding => DriveState::Rebuilding,
            Self::Failed | Self::TakenOffline | Self::Removed => DriveState::Offline,
        }
    }
}

/// Copies of all data of a pool, each on a drive of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Redundancy {
    /// One copy.
    #[default]
    #[serde(rename = "none")]
    None,
    /// Two: the loss of one drive loses nothing.
    #[serde(rename = "mirror=2")]
    Mirror2,
    /// Three: the loss of two drives loses nothing.
    #[serde(rename = "mirror=3")]
    Mirror3,
}

impl Redundancy {
    /// That of so many copies.
    #[must_use]
    pub const fn of(copies: usize) -> Self {
        match copies {
            0 | 1 => Self::None,
            2 => Self::Mirror2,
            _ => Self::Mirror3,
        }
    }

    /// How many copies.
    #[must_use]
    pub const fn copies(self) -> usize {
        match self {
            Self::None => 1,
            Self::Mirror2 => 2,
            Self::Mirror3 => 3,
        }
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Mirror2 => "mirror=2",
            Self::Mirror3 => "mirror=3",
        })
    }
}

impl FromStr for Redundancy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::None, Self::Mirror2, Self::Mirror3]
            .into_iter()
            .find(|known| known.to_string() == text)
            .ok_or_else(|| "use none, mirror=2 or mirror=3".to_owned())
    }
}

/// The conditions of so many drives, as the settings of the store say.
pub(crate) fn conditions_of(settings: &BTreeMap<String, Vec<u8>>, drives: usize) -> Vec<Condition> {
    let bytes = settings.get(CONDITIONS_KEY);
    let byte = |at: usize| bytes.and_then(|bytes| bytes.get(at)).copied();
    (0..drives)
        .map(|at| Condition::of(byte(at).unwrap_or(0)))
        .collect()
}

/// The setting that says how many copies segments are to have, in a byte, if that was changed since the pool was made. In the
/// store at once.
const COPIES_KEY: &str = "engine.copies";

/// How many copies segments are to have, as the settings of the store say; `None`: as many as they have.
pub(crate) fn copies_of(settings: &BTreeMap<String, Vec<u8>>) -> Option<usize> {
    let copies = settings.get(COPIES_KEY)?.first()?;
    Some(usize::from(*copies)).filter(|copies| (1..=COPIES_MAX).contains(copies))
}

/// The change of settings that says that segments are to have so many copies.
pub(crate) fn stored_copies(copies: usize) -> SettingChanges {
    [(COPIES_KEY.to_owned(), Some(vec![copies as u8]))]
        .into_iter()
        .collect()
}

/// The setting that says which drives are being emptied: for each, by its index, a byte that is not 0. In the store at once.
const EMPTYING_KEY: &str = "engine.emptying";

/// Which of so many drives are being emptied, as the settings of the store say.
pub(crate) fn emptying_of(settings: &BTreeMap<String, Vec<u8>>, drives: usize) -> Vec<bool> {
    let bytes = settings.get(EMPTYING_KEY);
    let byte = |at: usize| bytes.and_then(|bytes| bytes.get(at)).copied();
    (0..drives).map(|at| byte(at).unwrap_or(0) != 0).collect()
}

/// The change of settings that says that these are being emptied.
pub(crate) fn stored_emptying(emptying: &[bool]) -> SettingChanges {
    let bytes = emptying.iter().map(|is_it| u8::from(*is_it)).collect();
    let value = Some(bytes).filter(|_| emptying.contains(&true));
    [(EMPTYING_KEY.to_owned(), value)].into_iter().collect()
}

/// The change of settings that makes these the conditions.
pub(crate) fn stored(conditions: &[Condition]) -> SettingChanges {
    let bytes = conditions
        .iter()
        .map(|condition| *condition as u8)
        .collect();
    let are_all_online = conditions
        .iter()
        .all(|condition| *condition == Condition::Online);
    let value = Some(bytes).filter(|_| !are_all_online);
    [(CONDITIONS_KEY.to_owned(), value)].into_iter().collect()
}
