//! Which drives of a pool have what was acknowledged, as it survives a restart.
//!
//! Guarantee: that a drive is offline is durable before anything is acknowledged that it lacks. It comes back through a
//! rebuild ([`crate::background::rebuild`]), and is online when it has all of its data.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use meta::SettingChanges;
use serde::{Deserialize, Serialize};

/// The setting that says it: for each drive, by its index, a byte. It is in the store at once, and in no record of the
/// journal: an opening has to know it before it looks at what records say, and who writes it may hold up the journal.
const STATES_KEY: &str = "engine.drives";

/// Whether the copies on a drive are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum DriveState {
    /// It has all that was acknowledged: it is read and written.
    #[default]
    Online = 0,
    /// It lacks data, which is being copied to it. It is written, and not read.
    Rebuilding = 1,
    /// It lacks data. It is neither read nor written.
    Offline = 2,
}

impl DriveState {
    /// What is unknown is not relied on.
    pub(crate) const fn of(byte: u8) -> Self {
        match byte {
            0 => Self::Online,
            1 => Self::Rebuilding,
            _ => Self::Offline,
        }
    }
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

/// The states of so many drives, as the settings of the store say.
pub(crate) fn states_of(settings: &BTreeMap<String, Vec<u8>>, drives: usize) -> Vec<DriveState> {
    let states = settings.get(STATES_KEY);
    let state = |at: usize| states.and_then(|states| states.get(at)).copied();
    (0..drives)
        .map(|at| DriveState::of(state(at).unwrap_or(0)))
        .collect()
}

/// The change of settings that makes these the states.
pub(crate) fn stored(states: &[DriveState]) -> SettingChanges {
    let bytes = states.iter().map(|state| *state as u8).collect();
    let are_all_online = states.iter().all(|state| *state == DriveState::Online);
    let value = Some(bytes).filter(|_| !are_all_online);
    [(STATES_KEY.to_owned(), value)].into_iter().collect()
}
