//! A device to serve or connect with, whatever provides it.
//!
//! Each address is served by the provider that is right for it: verbs where a device of the kernel
//! owns the address, the soft provider elsewhere. One [`Device`] can have a part of each.

use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll};

use crate::address::Addresses;
use crate::error::{DeviceError, ListenError, SetupError, VerbsError};
use crate::memory::Budget;
use crate::provider::{
    ConnectionParams, PendingConnection, QueuePair, QueuePairHandler, RdmaDevice, RdmaListener,
};
use crate::soft::{SoftConfig, SoftCounters, SoftDevice, SoftPart};
use crate::verbs::{self, VerbsConfig, VerbsCounters, VerbsDevice, VerbsPart};

/// Which provider a device uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// For each address, verbs if a device of the kernel owns it, otherwise the soft provider.
    #[default]
    Auto,
    /// Verbs alone; an address that no device owns is an error.
    Verbs,
    /// The soft provider alone.
    Soft,
}

/// How to open a [`Device`].
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Which local addresses it uses.
    pub addresses: Addresses,
    /// Who provides it.
    pub provider: Provider,
    /// Bounds of the soft provider.
    pub soft: SoftConfig,
    /// Bounds of the verbs provider.
    pub verbs: VerbsConfig,
}

impl DeviceConfig {
    /// A device on every address of this machine, IPv4 and IPv6: for a target.
    pub fn wildcard() -> Self {
        Self::with_addresses(Addresses::Wildcard)
    }

    /// A device on these addresses; an unspecified one (`0.0.0.0`, `::`) means its whole family.
    pub fn on(addresses: Vec<IpAddr>) -> Self {
        Self::with_addresses(Addresses::Specific(addresses))
    }

    /// A device that can connect to `peer`: for a host. If `peer` is this machine itself, a soft
    /// device takes a random loopback address as its own, because both ends need the same UDP port.
    pub fn to_reach(peer: IpAddr) -> Self {
        Self::with_addresses(Addresses::ToReach(peer))
    }

    /// The same with another provider.
    #[must_use]
    pub fn provided_by(mut self, provider: Provider) -> Self {
        self.provider = provider;
        self
    }

    fn with_addresses(addresses: Addresses) -> Self {
        Self {
            addresses,
            provider: Provider::default(),
            soft: SoftConfig::default(),
            verbs: VerbsConfig::default(),
        }
    }
}

/// Which addresses each provider serves.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    verbs: Option<Addresses>,
    soft: Option<Addresses>,
    /// Whether the soft part is there only for what verbs devices do not own, and may be missing if
    /// the kernel's own software device has its port.
    soft_may_be_missing: bool,
}

impl Plan {
    /// Divides addresses; `owner` says whether a verbs device owns one (an unspecified one: whether
    /// there is any), and why not.
    fn new(
        addresses: &Addresses,
        provider: Provider,
        owner: impl Fn(IpAddr) -> Result<(), VerbsError>,
    ) -> Result<Self, DeviceError> {
        let all = Some(addresses.clone());
        let (verbs, soft) = match (provider, addresses) {
            (Provider::Soft, _) => (None, all),
            (Provider::Verbs, _) => {
                for address in addresses_to_own(addresses)? {
                    owner(address)?;
                }
                (all, None)
            }
            (Provider::Auto, Addresses::Specific(list)) => {
                let (owned, others): (Vec<IpAddr>, Vec<IpAddr>) =
                    list.iter().partition(|address| owned(&owner, **address));
                // A whole family is served by both: each of its addresses by whom it belongs to.
                let wild = owned.iter().copied().filter(IpAddr::is_unspecified);
                let others: Vec<IpAddr> = others.into_iter().chain(wild).collect();
                let some =
                    |list: Vec<IpAddr>| (!list.is_empty()).then_some(Addresses::Specific(list));
                (some(owned), some(others))
            }
            (Provider::Auto, _) => {
                // Where there is no way to a peer, the soft provider says what is wrong.
                let own = addresses_to_own(addresses).unwrap_or_default();
                match (
                    own.iter().all(|a| owned(&owner, *a)) && !own.is_empty(),
                    addresses,
                ) {
                    (true, Addresses::Wildcard) => (all.clone(), all),
                    (true, _) => (all, None),
                    (false, _) => (None, all),
                }
            }
        };
        let whole = |part: &Addresses| match part {
            Addresses::Wildcard => true,
            Addresses::Specific(list) => list.iter().all(IpAddr::is_unspecified),
            Addresses::ToReach(_) => false,
        };
        let soft_may_be_missing = verbs.is_some() && soft.as_ref().is_some_and(whole);
        Ok(Self {
            verbs,
            soft,
            soft_may_be_missing,
        })
    }
}

/// Asks for an owner, and notes the answer.
fn owned(owner: &impl Fn(IpAddr) -> Result<(), VerbsError>, address: IpAddr) -> bool {
    owner(address)
        .inspect_err(|reason| tracing::debug!(%address, %reason, "soft RoCE"))
        .is_ok()
}

/// The local addresses that a device has to own.
fn addresses_to_own(addresses: &Addresses) -> Result<Vec<IpAddr>, DeviceError> {
    Ok(match addresses {
        Addresses::Wildcard => vec![std::net::Ipv4Addr::UNSPECIFIED.into()],
        Addresses::Specific(list) => list.clone(),
        Addresses::ToReach(peer) => {
            let source = verbs::source_towards(*peer);
            let address = *peer;
            vec![source.map_err(|source| DeviceError::NoRoute { address, source })?]
        }
    })
}

/// An RDMA device on the current reactor. Clones are the same device; it closes when the last clone,
/// listener and open queue pair of it are gone.
#[derive(Clone)]
pub struct Device {
    pub(crate) rdma: Rc<dyn RdmaDevice>,
    soft: Option<Rc<SoftDevice>>,
    verbs: Option<Rc<VerbsDevice>>,
}

/// A part of a device on its way to its reactor: a listener there gets its share of the connections.
pub struct DevicePart {
    soft: Option<SoftPart>,
    verbs: Option<VerbsPart>,
}

impl DevicePart {
    /// Starts the part; call it on the reactor that shall own it. Where the kernel's RDMA devices have no
    /// room for one more reactor (memory that may be locked, for one), a warning says so and the other
    /// parts serve what they own; None if nothing else is left for this one.
    ///
    /// # Errors
    /// As [`Device::open`], of the soft part.
    pub fn start(self) -> Result<Option<Device>, DeviceError> {
        let verbs = self.verbs.and_then(|part| {
            VerbsDevice::start(part)
                .inspect_err(|reason| tracing::warn!(
                    %reason, reactor = reactor::current().as_ref().map(|here| here.name()),
                    "RDMA devices of the kernel are served by fewer data-plane threads: this one cannot use them"
                ))
                .ok()
        });
        let soft = self.soft.map(SoftDevice::start).transpose()?;
        Ok((soft.is_some() || verbs.is_some()).then(|| Device::of(soft, verbs)))
    }
}

impl std::fmt::Debug for DevicePart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DevicePart")
    }
}

impl Device {
    /// Opens a device; call it on the reactor that shall own it.
    pub fn open(config: DeviceConfig) -> Result<Self, DeviceError> {
        Self::open_parts(config, 1).map(|(device, _)| device)
    }

    /// Opens a device of `count` parts: this is the first one, the others are for other reactors. They
    /// connect to nobody; the first one's listeners share connections with those on the same port of
    /// others. There can be fewer, where the kernel cannot divide packets among soft ones.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_parts(
        config: DeviceConfig,
        count: usize,
    ) -> Result<(Self, Vec<DevicePart>), DeviceError> {
        let mut plan = Plan::new(&config.addresses, config.provider, verbs::owner)?;
        let (verbs, verbs_parts) = match &plan.verbs {
            None => (None, Vec::new()),
            Some(addresses) => match open_verbs(addresses, &config.verbs, count) {
                Ok((verbs, others)) => (Some(verbs), others),
                Err(reason) if config.provider == Provider::Auto => {
                    tracing::warn!(%reason, "an RDMA device owns the address but cannot be used: soft RoCE instead");
                    plan.soft = Some(config.addresses);
                    plan.soft_may_be_missing = false;
                    (None, Vec::new())
                }
                Err(error) => return Err(error.into()),
            },
        };
        let parts = match plan.soft {
            None => Vec::new(),
            Some(addresses) => match SoftPart::open_all(&addresses, &config.soft, count) {
                Ok(parts) => parts,
                Err(DeviceError::PortInUse { .. }) if plan.soft_may_be_missing => {
                    tracing::info!("the kernel has the RoCE port: RDMA devices alone are served");
                    Vec::new()
                }
                Err(error) => return Err(error),
            },
        };
        let mut parts = parts.into_iter();
        let soft = parts.next().map(SoftDevice::start).transpose()?;
        let mut verbs_parts = verbs_parts.into_iter();
        let others = iter::from_fn(|| match (parts.next(), verbs_parts.next()) {
            (None, None) => None,
            (soft, verbs) => Some(DevicePart { soft, verbs }),
        });
        let others = others.collect();
        Ok((Self::of(soft, verbs), others))
    }

    /// Whether a device could be opened: takes what soft RoCE needs, and lets go of it. Whether a device of the kernel
    /// can be used shows only when it is opened.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn check(config: &DeviceConfig) -> Result<(), DeviceError> {
        let plan = Plan::new(&config.addresses, config.provider, verbs::owner)?;
        let soft = plan.soft.as_ref();
        match soft.map_or(Ok(()), |addresses| SoftPart::check(addresses, &config.soft)) {
            Err(DeviceError::PortInUse { .. }) if plan.soft_may_be_missing => Ok(()),
            checked => checked,
        }
    }

    fn of(soft: Option<Rc<SoftDevice>>, verbs: Option<Rc<VerbsDevice>>) -> Self {
        let rdma: Rc<dyn RdmaDevice> = match (&soft, &verbs) {
            (Some(soft), Some(verbs)) => Rc::new(Both {
                soft: soft.clone(),
                verbs: verbs.clone(),
            }),
            (Some(soft), None) => soft.clone(),
            (None, Some(verbs)) => verbs.clone(),
            (None, None) => unreachable!("a plan has a part at least"),
        };
        Self { rdma, soft, verbs }
    }

    /// The interface below NVMe queue pairs.
    pub fn rdma(&self) -> &Rc<dyn RdmaDevice> {
        &self.rdma
    }

    /// The addresses the device is bound to (unspecified ones for whole families).
    pub fn addresses(&self) -> Vec<IpAddr> {
        let mut all = self.verbs.as_ref().map_or_else(Vec::new, |v| v.addresses());
        all.extend(self.soft.as_ref().map_or_else(Vec::new, |s| s.addresses()));
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The kernel's RDMA devices that it uses, by name; empty if it is soft alone.
    pub fn adapters(&self) -> Vec<String> {
        self.verbs.as_ref().map_or_else(Vec::new, |v| v.names())
    }

    /// What happened so far on the soft part; zeros if there is none.
    pub fn counters(&self) -> SoftCounters {
        self.soft
            .as_ref()
            .map_or_else(SoftCounters::default, |soft| soft.counters())
    }

    /// What happened so far on the verbs part; None if there is none.
    pub fn verbs_counters(&self) -> Option<VerbsCounters> {
        self.verbs.as_ref().map(|verbs| verbs.counters())
    }

    /// Disconnects every queue pair and waits until the peers agreed, but no longer than the
    /// connection manager's retries take.
    pub async fn shutdown(&self) {
        if let Some(verbs) = &self.verbs {
            verbs.shutdown().await;
        }
        if let Some(soft) = &self.soft {
            soft.shutdown().await;
        }
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("addresses", &self.addresses())
            .field("adapters", &self.adapters())
            .finish_non_exhaustive()
    }
}

/// Opens the first part of a verbs device; the others are for other reactors.
fn open_verbs(
    addresses: &Addresses,
    config: &VerbsConfig,
    count: usize,
) -> Result<(Rc<VerbsDevice>, Vec<VerbsPart>), VerbsError> {
    let mut parts = VerbsPart::all(addresses, config, count)?;
    let others = parts.split_off(1);
    let first = parts.pop().ok_or(VerbsError::NoDevice)?;
    Ok((VerbsDevice::start(first)?, others))
}

/// A device with a part of each provider.
struct Both {
    soft: Rc<SoftDevice>,
    verbs: Rc<VerbsDevice>,
}

impl RdmaDevice for Both {
    fn listen(
        &self,
        address: Option<IpAddr>,
        port: u16,
        backlog: usize,
    ) -> Result<Box<dyn RdmaListener>, ListenError> {
        match address {
            Some(address) if self.verbs.serves(address) => {
                self.verbs.listen(Some(address), port, backlog)
            }
            Some(address) => self.soft.listen(Some(address), port, backlog),
            None => Ok(Box::new(BothListeners {
                verbs: self.verbs.listen(None, port, backlog)?,
                soft: self.soft.listen(None, port, backlog)?,
            })),
        }
    }

    fn connect(
        &self,
        peer: SocketAddr,
        params: ConnectionParams,
        handler: Rc<dyn QueuePairHandler>,
    ) -> Result<Rc<dyn QueuePair>, SetupError> {
        let source = verbs::source_towards(peer.ip());
        if source.is_ok_and(|source| self.verbs.serves(source)) {
            self.verbs.connect(peer, params, handler)
        } else {
            self.soft.connect(peer, params, handler)
        }
    }

    /// One budget for both: that of the soft part, which has less.
    fn read_budget(&self) -> (Budget, usize) {
        self.soft.read_budget()
    }
}

/// Requests from both providers.
struct BothListeners {
    verbs: Box<dyn RdmaListener>,
    soft: Box<dyn RdmaListener>,
}

impl RdmaListener for BothListeners {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Option<Box<dyn PendingConnection>>> {
        match self.verbs.poll_accept(cx) {
            Poll::Ready(Some(pending)) => Poll::Ready(Some(pending)),
            // When one provider has ended, the other goes on.
            Poll::Ready(None) => self.soft.poll_accept(cx),
            Poll::Pending => match self.soft.poll_accept(cx) {
                Poll::Ready(None) => Poll::Pending,
                other => other,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// A machine whose one device owns 192.0.2.1.
    fn one_device(address: IpAddr) -> Result<(), VerbsError> {
        match address == ip("192.0.2.1") || address.is_unspecified() {
            true => Ok(()),
            false => Err(VerbsError::NotOwned {
                address,
                devices: vec!["mlx5_0".into()],
                reason: "No such device".into(),
            }),
        }
    }

    fn no_device(_: IpAddr) -> Result<(), VerbsError> {
        Err(VerbsError::NoDevice)
    }

    fn specific(list: &[&str]) -> Addresses {
        Addresses::Specific(list.iter().map(|text| ip(text)).collect())
    }

    #[test]
    fn each_address_gets_the_provider_that_owns_it() {
        let addresses = specific(&["192.0.2.1", "198.51.100.1"]);
        let plan = Plan::new(&addresses, Provider::Auto, one_device).expect("it can be served");
        assert_eq!(plan.verbs, Some(specific(&["192.0.2.1"])));
        assert_eq!(plan.soft, Some(specific(&["198.51.100.1"])));
        assert!(!plan.soft_may_be_missing, "it was asked for by name");

        let addresses = specific(&["192.0.2.1"]);
        let plan = Plan::new(&addresses, Provider::Auto, one_device).expect("it can be served");
        assert_eq!((plan.verbs, plan.soft), (Some(addresses), None));
    }

    #[test]
    fn without_a_device_everything_is_soft() {
        for addresses in [
            Addresses::Wildcard,
            specific(&["192.0.2.1", "0.0.0.0"]),
            Addresses::ToReach(ip("127.0.0.1")),
        ] {
            let plan = Plan::new(&addresses, Provider::Auto, no_device).expect("it is served");
            assert_eq!((plan.verbs, plan.soft), (None, Some(addresses)));
        }
    }

    #[test]
    fn every_address_means_those_of_devices_and_the_others() {
        let plan = Plan::new(&Addresses::Wildcard, Provider::Auto, one_device).expect("served");
        assert_eq!(plan.verbs, Some(Addresses::Wildcard));
        assert_eq!(plan.soft, Some(Addresses::Wildcard));
        assert!(plan.soft_may_be_missing, "rxe takes the port for itself");
        let plan = Plan::new(&specific(&["0.0.0.0"]), Provider::Auto, one_device).expect("served");
        assert_eq!(plan.verbs, Some(specific(&["0.0.0.0"])));
        assert_eq!(plan.soft, Some(specific(&["0.0.0.0"])));
        assert!(plan.soft_may_be_missing);
    }

    #[test]
    fn who_asks_for_verbs_gets_verbs_or_the_reason_why_not() {
        let addresses = specific(&["192.0.2.1"]);
        let plan = Plan::new(&addresses, Provider::Verbs, one_device).expect("it is owned");
        assert_eq!((plan.verbs, plan.soft), (Some(addresses.clone()), None));
        let error = Plan::new(&addresses, Provider::Verbs, no_device).expect_err("no device");
        assert!(matches!(error, DeviceError::Verbs(VerbsError::NoDevice)));
        let other = specific(&["192.0.2.1", "198.51.100.1"]);
        let error = Plan::new(&other, Provider::Verbs, one_device).expect_err("not owned");
        assert!(error.to_string().contains("198.51.100.1"), "{error}");
    }

    #[test]
    fn a_reactor_that_cannot_use_a_device_leaves_its_hosts_to_the_others() {
        reactor::run(reactor::Config::default(), async {
            // No device of any machine owns an address for documentation.
            let owned = specific(&["192.0.2.1"]);
            let parts = VerbsPart::all(&owned, &VerbsConfig::default(), 2).expect("parts");
            for verbs in parts {
                let part = DevicePart {
                    soft: None,
                    verbs: Some(verbs),
                };
                let started = part.start().expect("no reason to stop");
                assert!(started.is_none(), "there is nothing to listen with");
            }
        })
        .expect("a reactor");
    }

    #[test]
    fn who_asks_for_soft_is_not_asked_for_devices() {
        let addresses = specific(&["192.0.2.1"]);
        let unasked = |_| panic!("no device is wanted");
        let plan = Plan::new(&addresses, Provider::Soft, unasked).expect("it is served");
        assert_eq!((plan.verbs, plan.soft), (None, Some(addresses)));
    }
}
