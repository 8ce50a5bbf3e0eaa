//! Whether a namespace takes writes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Namespace Write Protection (feature 84h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteProtect {
    /// Writes are taken.
    #[default]
    Off,
    /// No writes until it is switched off again.
    On,
    /// No writes until the daemon is started again.
    UntilPowerCycle,
    /// No writes any more.
    Permanent,
}

impl WriteProtect {
    /// The value of feature 84h (NVM Express Base 2.0, section 5.27.1.28).
    #[must_use]
    pub const fn feature_value(self) -> u32 {
        match self {
            Self::Off => 0,
            Self::On => 1,
            Self::UntilPowerCycle => 2,
            Self::Permanent => 3,
        }
    }

    /// The state of that value of feature 84h; the others are reserved.
    #[must_use]
    pub const fn from_feature_value(value: u32) -> Option<Self> {
        match value {
            0 => Some(Self::Off),
            1 => Some(Self::On),
            2 => Some(Self::UntilPowerCycle),
            3 => Some(Self::Permanent),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::UntilPowerCycle => "until-power-cycle",
            Self::Permanent => "permanent",
        }
    }
}

impl fmt::Display for WriteProtect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WriteProtect {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Off, Self::On, Self::UntilPowerCycle, Self::Permanent]
            .into_iter()
            .find(|state| state.name() == text)
            .ok_or_else(|| {
                format!("'{text}' is not one of off, on, until-power-cycle and permanent")
            })
    }
}
