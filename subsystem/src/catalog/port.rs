//! Listeners as they are configured.

use std::collections::BTreeMap;

use fabric::{TlsMode, Transport, TransportAddress};
use nvme::ana::AnaState;
use serde::{Deserialize, Serialize};

use super::{ANA_GROUPS_MAX, text};
use crate::errors::Failure;

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortConfig {
    /// Its identifier: PORTID in the discovery log.
    pub id: u16,
    /// Where it listens.
    #[serde(with = "text")]
    pub address: TransportAddress,
    /// It comes from `serve --listen`, or is the default: it is not stored.
    #[serde(skip)]
    pub is_transient: bool,
    /// The state of each ANA group that is not optimized here. These are stored in any case.
    #[serde(default)]
    pub ana: BTreeMap<u32, AnaState>,
    /// Whether hosts use TLS; only for TCP listeners.
    #[serde(default, with = "text", skip_serializing_if = "is_off")]
    pub tls: TlsMode,
}

fn is_off(mode: &TlsMode) -> bool {
    *mode == TlsMode::Off
}

impl PortConfig {
    /// A listener that is stored.
    #[must_use]
    pub fn new(id: u16, address: TransportAddress) -> Self {
        Self {
            id,
            address,
            is_transient: false,
            ana: BTreeMap::new(),
            tls: TlsMode::Off,
        }
    }

    /// Sets how it reaches the namespaces of a group.
    ///
    /// # Errors
    /// There is no such group.
    pub fn set_ana(&mut self, group: u32, state: AnaState) -> Result<(), Failure> {
        if group == 0 || group > ANA_GROUPS_MAX {
            return Err(Failure::invalid(format!(
                "there is no ANA group {group}: they are 1 to {ANA_GROUPS_MAX}"
            )));
        }
        match state {
            AnaState::Optimized => self.ana.remove(&group),
            state => self.ana.insert(group, state),
        };
        Ok(())
    }

    /// Checks that such a listener is possible.
    ///
    /// # Errors
    /// Names what is wrong.
    pub fn check(&self) -> Result<(), Failure> {
        if self.tls != TlsMode::Off && self.address.scheme.transport() != Transport::Tcp {
            return Err(Failure::invalid(format!(
                "'{}' cannot have TLS: only TCP listeners can; leave --tls out, or name a tcp:// address",
                self.address
            )));
        }
        Ok(())
    }
}

/// A change of a listener; fields that are left out stay.
#[derive(Clone, Debug, Default)]
pub struct PortChange {
    /// Whether hosts use TLS.
    pub tls: Option<TlsMode>,
    /// The states of ANA groups.
    pub ana: BTreeMap<u32, AnaState>,
}

impl PortChange {
    /// Makes the change.
    ///
    /// # Errors
    /// There is no such ANA group.
    pub fn apply(&self, port: &mut PortConfig) -> Result<(), Failure> {
        port.tls = self.tls.unwrap_or(port.tls);
        for (group, state) in &self.ana {
            port.set_ana(*group, *state)?;
        }
        Ok(())
    }
}
