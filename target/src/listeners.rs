//! The listeners as the control plane has them: it asks all data reactors, one after the other.
//!
//! Guarantees: a listener is there on every reactor or on none, and is kept only when it is there. Additions, removals
//! and reloads happen one after the other: of two for one address the second would close what the first opened.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dedup::ErrorKind;
use fabric::{LiveBounds, TlsMode, Transport, TransportAddress};
use futures_util::future::join_all;
use subsystem::catalog::{Catalog, PortChange, PortConfig};
use subsystem::errors::Failure;
use subsystem::figures::Report;
use subsystem::target::Target;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::lingering::outlast;
use crate::listen::{Order, Wanted};
use crate::mdns::Mdns;

/// How long a reactor may take to say what its listeners saw.
const REPORT_PATIENCE: Duration = Duration::from_secs(2);

/// Where to ask the reactors, and how they listen.
#[derive(Clone, Debug)]
pub(crate) struct Listeners {
    reactors: Vec<mpsc::Sender<Order>>,
    /// For addresses that come later.
    how: Wanted,
    mdns: Option<Arc<Mdns>>,
    /// Listeners that the pool keeps and that could not be opened. Locked while listeners come and go.
    missing: Arc<Mutex<HashSet<TransportAddress>>>,
}

impl Listeners {
    pub(crate) fn new(
        reactors: Vec<mpsc::Sender<Order>>,
        how: &Wanted,
        mdns: Option<Mdns>,
    ) -> Self {
        let how = Wanted {
            addresses: Vec::new(),
            by_default: false,
            ..how.clone()
        };
        Self {
            reactors,
            how,
            mdns: mdns.map(Arc::new),
            missing: Arc::default(),
        }
    }

    /// Notes that a listener that the pool keeps could not be opened.
    pub(crate) async fn note_missing(&self, address: TransportAddress) {
        self.missing.lock().await.insert(address);
    }

    /// Opens listeners that the pool keeps and that could not be opened before. What is configured in the pool counts
    /// as soon as it is changed.
    pub(crate) async fn reload(&self, target: &Target) {
        let mut missing = self.missing.lock().await;
        for address in missing.clone() {
            let Some(tls) = port_of(&target.catalog(), address).map(|port| port.tls) else {
                missing.remove(&address);
                continue;
            };
            match self.open(address, tls).await {
                Ok(()) => {
                    tracing::info!(%address, "a listener that the pool keeps is served now");
                    missing.remove(&address);
                    self.announce(&[address]);
                }
                Err(error) => {
                    tracing::error!(%address, %error, "a listener that the pool keeps is still not served");
                }
            }
        }
        tracing::info!("reloaded (SIGHUP): what is configured in the pool counts already");
    }

    /// Announces listeners on the local network, if that is wanted.
    pub(crate) fn announce(&self, addresses: &[TransportAddress]) {
        if let Some(mdns) = &self.mdns {
            addresses.iter().for_each(|address| mdns.announce(*address));
        }
    }

    /// What the reactors say. One that does not answer is left out: a status must not hang with it.
    pub(crate) async fn reports(&self) -> Vec<Report> {
        let asked = self.reactors.iter().map(|reactor| async move {
            let (question, answer) = oneshot::channel();
            reactor.send(Order::Report(question)).await.ok()?;
            answer.await.ok()
        });
        let answers = asked.map(|asked| tokio::time::timeout(REPORT_PATIENCE, asked));
        join_all(answers)
            .await
            .into_iter()
            .filter_map(|answer| answer.ok().flatten())
            .collect()
    }

    /// Listens at one more address.
    ///
    /// # Errors
    /// It is taken, or this machine does not have it.
    async fn open(&self, address: TransportAddress, tls: TlsMode) -> Result<(), Failure> {
        let stopped = || Failure::unavailable("the daemon stops");
        let wanted = Wanted {
            addresses: vec![address],
            tls,
            ..self.how.clone()
        };
        let mut devices = Vec::new().into_iter();
        for (index, reactor) in self.reactors.iter().enumerate() {
            let (question, answer) = oneshot::channel();
            let shared = devices.next().unwrap_or_default();
            let order = Order::Add(wanted.clone(), shared, question);
            reactor.send(order).await.map_err(|_| stopped())?;
            match answer.await.map_err(|_| stopped())? {
                Ok(found) if index == 0 => devices = found.others.into_iter(),
                Ok(_) => {}
                Err(failure) => {
                    self.close(address).await;
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// Listens there no longer.
    async fn close(&self, address: TransportAddress) {
        for reactor in &self.reactors {
            let (question, answer) = oneshot::channel();
            if reactor.send(Order::Remove(address, question)).await.is_ok() {
                let _ = answer.await;
            }
        }
    }

    /// Holds hosts to other bounds.
    pub(crate) async fn set_bounds(&self, bounds: LiveBounds) {
        for reactor in &self.reactors {
            let (question, answer) = oneshot::channel();
            if reactor
                .send(Order::SetBounds(bounds, question))
                .await
                .is_ok()
            {
                let _ = answer.await;
            }
        }
    }

    /// [`open`](Self::open), which is tried for a while where the address is taken ([`crate::lingering`]).
    ///
    /// # Errors
    /// It is taken still, or this machine does not have it.
    pub(crate) async fn open_soon(
        &self,
        address: TransportAddress,
        tls: TlsMode,
    ) -> Result<(), Failure> {
        let is_taken = |failure: &Failure| failure.kind == ErrorKind::Unavailable;
        let opened = outlast(is_taken, || self.open(address, tls)).await;
        opened.map_err(|failure| match is_taken(&failure) {
            // Who asked named an address that cannot be.
            true => Failure::invalid(failure.message),
            false => failure,
        })
    }

    /// Adds a listener; `kept` is whether the pool stores it.
    ///
    /// # Errors
    /// There is one, it cannot listen there, or the pool takes no changes.
    pub(crate) async fn add(
        &self,
        target: Arc<Target>,
        control: &reactor::Handle,
        address: TransportAddress,
        set: PortChange,
        kept: bool,
    ) -> Result<PortConfig, Failure> {
        let _one_at_a_time = self.missing.lock().await;
        if let Some(known) = port_of(&target.catalog(), address) {
            return Err(Failure::invalid(format!(
                "'{address}' is listener {} already: change it with `onefold listener set`",
                known.id
            )));
        }
        if let Some(known) = port_beside(&target.catalog(), address) {
            return Err(Failure::invalid(format!(
                "'{address}' and listener {} at '{}' are both for port {}, and one of them is for all addresses: remove \
                 that one with `onefold listener remove {}`, or name another port",
                known.id,
                known.address,
                address.socket_addr().port(),
                known.id
            )));
        }
        let mut port = PortConfig {
            is_transient: !kept,
            ..PortConfig::new(0, address)
        };
        set.apply(&mut port)?;
        // What cannot be must not begin to listen.
        port.check()?;
        self.open_soon(address, port.tls).await?;
        let add = move |catalog: &mut Catalog| {
            port.id = catalog.free_port_id()?;
            catalog.ports.insert(port.id, Arc::new(port.clone()));
            Ok(port)
        };
        let kept = control.spawn(move || async move { target.change(add).await });
        match kept.await? {
            Ok(port) => {
                self.announce(&[address]);
                Ok(port)
            }
            Err(failure) => {
                self.close(address).await;
                Err(failure)
            }
        }
    }

    /// Changes a listener: from the next connection on. Associations go on, and hear of ANA states.
    ///
    /// # Errors
    /// There is none of that number, it cannot be so, or the pool takes no changes.
    pub(crate) async fn set(
        &self,
        target: Arc<Target>,
        control: &reactor::Handle,
        id: u16,
        set: PortChange,
    ) -> Result<PortConfig, Failure> {
        let change = move |catalog: &mut Catalog| {
            let port = catalog.ports.get_mut(&id).ok_or_else(|| no_listener(id))?;
            let port = Arc::make_mut(port);
            set.apply(port)?;
            Ok(port.clone())
        };
        let changed = control.spawn(move || async move { target.change(change).await });
        let port = changed.await??;
        for reactor in &self.reactors {
            let (question, answer) = oneshot::channel();
            let order = Order::SetTls(port.address, port.tls, question);
            if reactor.send(order).await.is_ok() {
                let _ = answer.await;
            }
        }
        Ok(port)
    }

    /// Removes a listener; the associations of hosts that came to it end.
    ///
    /// # Errors
    /// There is none of that number, or the pool takes no changes.
    pub(crate) async fn remove(
        &self,
        target: Arc<Target>,
        control: &reactor::Handle,
        id: u16,
    ) -> Result<PortConfig, Failure> {
        let mut missing = self.missing.lock().await;
        let changed = target.clone();
        let remove = move |catalog: &mut Catalog| {
            let gone = catalog.ports.remove(&id);
            gone.ok_or_else(|| no_listener(id))
        };
        let removed = control.spawn(move || async move { changed.change(remove).await });
        let port = removed.await??;
        missing.remove(&port.address);
        if let Some(mdns) = &self.mdns {
            mdns.withdraw(port.address);
        }
        self.close(port.address).await;
        target.end_controllers_of(id);
        Ok(PortConfig::clone(&port))
    }
}

fn no_listener(id: u16) -> Failure {
    Failure::new(
        ErrorKind::NotFound,
        format!("there is no listener {id}: `onefold listener list` shows those there are"),
    )
}

/// The listener at exactly that address.
pub(crate) fn port_of(catalog: &Catalog, address: TransportAddress) -> Option<&PortConfig> {
    let mut ports = catalog.ports.values();
    ports
        .find(|port| port.address == address)
        .map(|port| &**port)
}

/// A listener over TCP that holds the port of that address everywhere, or that an address for everywhere would hold.
fn port_beside(catalog: &Catalog, address: TransportAddress) -> Option<&PortConfig> {
    let wanted = address.socket_addr();
    let mut ports = catalog.ports.values();
    let found = ports.find(|port| {
        let known = port.address.socket_addr();
        let is_everywhere = known.ip().is_unspecified() || wanted.ip().is_unspecified();
        let is_tcp = |address: TransportAddress| address.scheme.transport() == Transport::Tcp;
        is_everywhere
            && known.port() == wanted.port()
            && known.is_ipv4() == wanted.is_ipv4()
            && is_tcp(port.address)
            && is_tcp(address)
    });
    found.map(|port| &**port)
}
