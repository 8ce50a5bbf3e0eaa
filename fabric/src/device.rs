//! The device as the rest of the program sees it, whatever provides it.

use std::net::IpAddr;
use std::rc::Rc;

use crate::rdma::{DeviceError, RdmaDevice};
use crate::soft::{Addresses, SoftConfig, SoftCounters, SoftDevice};

/// How to open a [`Device`].
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Which local addresses it uses.
    pub addresses: Addresses,
    /// Bounds of the soft provider.
    pub soft: SoftConfig,
}

impl DeviceConfig {
    /// A device on every address of this machine, IPv4 and IPv6: for a target.
    pub fn wildcard() -> Self {
        Self {
            addresses: Addresses::Wildcard,
            soft: SoftConfig::default(),
        }
    }

    /// A device on these addresses; an unspecified one (`0.0.0.0`, `::`) means its whole family.
    pub fn on(addresses: Vec<IpAddr>) -> Self {
        Self {
            addresses: Addresses::Specific(addresses),
            soft: SoftConfig::default(),
        }
    }

    /// A device that can connect to `peer`: for a host. If `peer` is this machine itself, the
    /// device takes a random loopback address as its own, because both ends need the same UDP port.
    pub fn to_reach(peer: IpAddr) -> Self {
        Self {
            addresses: Addresses::ToReach(peer),
            soft: SoftConfig::default(),
        }
    }
}

/// An RDMA device on the current reactor. Clones are the same device; it closes when the last clone,
/// listener and open queue pair of it are gone.
#[derive(Clone)]
pub struct Device {
    pub(crate) rdma: Rc<dyn RdmaDevice>,
    soft: Rc<SoftDevice>,
}

impl Device {
    /// Opens a device; call it on the reactor that shall own it.
    pub fn open(config: DeviceConfig) -> Result<Self, DeviceError> {
        let soft = SoftDevice::open(config.addresses, config.soft)?;
        Ok(Self {
            rdma: soft.clone(),
            soft,
        })
    }

    /// The interface below NVMe queue pairs.
    pub fn rdma(&self) -> &Rc<dyn RdmaDevice> {
        &self.rdma
    }

    /// The addresses the device is bound to (unspecified ones for whole families).
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.soft.addresses()
    }

    /// What happened so far.
    pub fn counters(&self) -> SoftCounters {
        self.soft.counters()
    }

    /// Disconnects every queue pair and waits until the peers agreed, but no longer than the
    /// connection manager's retries take.
    pub async fn shutdown(&self) {
        self.soft.shutdown().await;
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("addresses", &self.addresses())
            .finish_non_exhaustive()
    }
}
