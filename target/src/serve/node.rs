//! What the control interface asks a daemon for.
//!
//! Guarantee: a configuration file with a mistake changes nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use api::drive_health::DriveHealth;
use api::drives::{AddDrive, DriveChange};
use api::http::Certificate;
use api::reliability::{Reliability, ReliabilityGoal};
use api::{Daemon, ExportState, Reloaded};
use dedup::{PoolStatus, Redundancy};
use fabric::{TlsMode, Transport, TransportAddress};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::lock::Mutex;
use meta::PoolDir;
use subsystem::catalog::{ExportConfig, PortChange, PortConfig};
use subsystem::errors::Failure;
use subsystem::figures::Report;
use subsystem::target::Target;

use crate::config::{self, Changes, Running};
use crate::drive_changes;
use crate::drive_health::DriveHealthWatch;
use crate::exports::Exports;
use crate::http::renew;
use crate::listen::live_bounds;
use crate::listeners::{Listeners, port_of};
use crate::logging;
use crate::nodes::Handover;
use crate::options::ServeArgs;
use crate::pool::Serving;
use crate::reliability::{Spares, reliability};

/// What the control interface asks for.
pub(super) struct NodeInterface {
    pub(super) handover: Arc<Handover>,
    pub(super) target: Arc<Target>,
    pub(super) pool: Serving,
    pub(super) health: DriveHealthWatch,
    pub(super) dir: Arc<Mutex<PoolDir>>,
    pub(super) spares: Spares,
    pub(super) control: reactor::Handle,
    pub(super) listeners: Listeners,
    pub(super) exports: Arc<Exports>,
    pub(super) certificate: Option<Certificate>,
    pub(super) running: Mutex<Running>,
}

impl NodeInterface {
    /// SIGHUP, without a terminal.
    pub(super) async fn reload(&self) {
        let has_file = self.running.lock().await.file().is_ok();
        let reloaded = match has_file {
            true => self.reload_file().await.map(drop),
            false => {
                let running = self.running.lock().await;
                let renewed = renew(self.certificate.as_ref(), &running.options().http);
                renewed
                    .inspect_err(|failure| tracing::error!("the old certificate stays: {failure}"))
            }
        };
        if reloaded.is_err() {
            return;
        }
        self.listeners.reload(&self.target).await;
        self.exports.serve_kept().await;
    }

    /// Reads the configuration file again.
    async fn reload_file(&self) -> Result<Reloaded, Failure> {
        let mut running = self.running.lock().await;
        let file = running.file()?;
        let read = running.read_again().map_err(Failure::invalid);
        let reloaded = match read {
            Ok(wanted) => match wanted.check_here() {
                Ok(()) => self.apply(&mut running, file, &wanted).await,
                Err(why) => Err(Failure::invalid(why)),
            },
            Err(failure) => Err(failure),
        };
        match reloaded {
            Ok(changes) => {
                tracing::info!("the configuration file was read again: {changes}");
                Ok(changes.into())
            }
            Err(failure) => {
                let why = failure.to_string().replace('\n', "; ");
                tracing::error!("the configuration file was read again, and not applied: {why}");
                Err(failure)
            }
        }
    }

    /// Applies what can change while the daemon runs.
    async fn apply(
        &self,
        running: &mut Running,
        file: PathBuf,
        wanted: &ServeArgs,
    ) -> Result<Changes, Failure> {
        let (applied, waiting) = running.differences(wanted);
        let names = config::names(&applied);
        let has = |key: &str| names.iter().any(|name| name == key);
        // What can fail comes first: then nothing else has changed.
        renew(self.certificate.as_ref(), &wanted.http)?;
        if has("listen.addresses") {
            self.listen_at(&running.options().listen, wanted).await?;
        }
        if has("pool.warn_at") {
            self.pool.engine.set_fill_warnings(&wanted.warn_at)?;
        }
        if has("log.filter") {
            logging::set(&wanted.log).map_err(Failure::invalid)?;
        }
        if has("tls.mode") {
            self.set_tls(wanted.tls).await?;
        }
        if names
            .iter()
            .any(|name| name.starts_with("timeouts.") || name.starts_with("limits."))
        {
            self.listeners
                .set_bounds(live_bounds(&wanted.bounds.limits()))
                .await;
        }
        running.applied(&applied, wanted);
        Ok(Changes::from(Reloaded {
            file,
            applied: names,
            waiting: config::names(&waiting),
        }))
    }

    /// Sets whether hosts come by TLS to the listeners of the options. Those that the pool keeps have a mode of their
    /// own.
    async fn set_tls(&self, tls: TlsMode) -> Result<(), Failure> {
        let catalog = self.target.catalog();
        let ports = catalog.ports.values().filter(|port| port.is_transient);
        let is_tcp = |port: &&Arc<PortConfig>| port.address.scheme.transport() == Transport::Tcp;
        for port in ports.filter(is_tcp) {
            let (target, id) = (self.target.clone(), port.id);
            self.listeners
                .set(target, &self.control, id, tls_of(port.address, tls))
                .await?;
        }
        Ok(())
    }

    /// Listens at the addresses that are wanted instead of those that were. Listeners that the pool keeps stay.
    async fn listen_at(
        &self,
        were: &[TransportAddress],
        wanted: &ServeArgs,
    ) -> Result<(), Failure> {
        let catalog = self.target.catalog();
        let mut added = Vec::new();
        for address in wanted
            .listen
            .iter()
            .filter(|address| !were.contains(address))
        {
            if port_of(&catalog, *address).is_some()
                || added.iter().any(|(known, _)| known == address)
            {
                continue;
            }
            let (target, set) = (self.target.clone(), tls_of(*address, wanted.tls));
            match self
                .listeners
                .add(target, &self.control, *address, set, false)
                .await
            {
                Ok(port) => added.push((*address, port.id)),
                Err(failure) => {
                    for (_, id) in added {
                        // It was there a moment ago; a daemon that stops needs it no longer.
                        let _ = self
                            .listeners
                            .remove(self.target.clone(), &self.control, id)
                            .await;
                    }
                    return Err(failure);
                }
            }
        }
        for address in were
            .iter()
            .filter(|address| !wanted.listen.contains(address))
        {
            let port = port_of(&catalog, *address).filter(|port| port.is_transient);
            if let Some(port) = port {
                self.listeners
                    .remove(self.target.clone(), &self.control, port.id)
                    .await?;
            }
        }
        Ok(())
    }
}

/// The TLS mode of the options, for a listener at that address.
fn tls_of(address: TransportAddress, tls: TlsMode) -> PortChange {
    PortChange {
        tls: (address.scheme.transport() == Transport::Tcp).then_some(tls),
        ..PortChange::default()
    }
}

impl Daemon for NodeInterface {
    fn reload_config(&self) -> BoxFuture<'_, Result<Reloaded, Failure>> {
        self.reload_file().boxed()
    }

    fn give_away(&self) -> BoxFuture<'_, Result<Vec<String>, Failure>> {
        self.handover.ask().boxed()
    }

    fn reports(&self) -> BoxFuture<'_, Vec<Report>> {
        self.listeners.reports().boxed()
    }

    fn add_listener(
        &self,
        address: TransportAddress,
        set: PortChange,
    ) -> BoxFuture<'_, Result<PortConfig, Failure>> {
        let (target, control) = (self.target.clone(), &self.control);
        self.listeners
            .add(target, control, address, set, true)
            .boxed()
    }

    fn set_listener(&self, id: u16, set: PortChange) -> BoxFuture<'_, Result<PortConfig, Failure>> {
        let (target, control) = (self.target.clone(), &self.control);
        self.listeners.set(target, control, id, set).boxed()
    }

    fn remove_listener(&self, id: u16) -> BoxFuture<'_, Result<PortConfig, Failure>> {
        let (target, control) = (self.target.clone(), &self.control);
        self.listeners.remove(target, control, id).boxed()
    }

    fn exports(&self) -> BoxFuture<'_, BTreeMap<u16, ExportState>> {
        self.exports.states().boxed()
    }

    fn create_export(&self, export: ExportConfig) -> BoxFuture<'_, Result<ExportConfig, Failure>> {
        self.exports.create(export).boxed()
    }

    fn delete_export(&self, id: u16) -> BoxFuture<'_, Result<ExportConfig, Failure>> {
        self.exports.delete(id).boxed()
    }

    fn add_drive(&self, add: AddDrive) -> BoxFuture<'_, Result<(), Failure>> {
        let (pool, dir) = (self.pool.clone(), self.dir.clone());
        let work = move || async move {
            let mut dir = dir.lock().await;
            match add.spare {
                true => drive_changes::add_spare(&pool.engine, &mut dir, add).await,
                false => drive_changes::add_drive(&pool, &mut dir, add).await,
            }
        };
        let work = self.control.spawn(work);
        async move { work.await? }.boxed()
    }

    fn change_drive(
        &self,
        path: PathBuf,
        change: DriveChange,
    ) -> BoxFuture<'_, Result<(), Failure>> {
        let (pool, dir) = (self.pool.clone(), self.dir.clone());
        let work = move || async move {
            let mut dir = dir.lock().await;
            drive_changes::change_drive(&pool, &mut dir, &path, change).await
        };
        let work = self.control.spawn(work);
        async move { work.await? }.boxed()
    }

    fn metadata_drives(&self) -> Vec<String> {
        let metadata = self.pool.metadata.as_ref();
        metadata.map_or_else(Vec::new, |metadata| metadata.copies.state().names)
    }

    fn drive_health(&self) -> BTreeMap<String, DriveHealth> {
        self.health.all()
    }

    fn set_redundancy(&self, redundancy: Redundancy) -> BoxFuture<'_, Result<(), Failure>> {
        let engine = self.pool.engine.clone();
        let work = move || async move { engine.set_redundancy(redundancy).await };
        let work = self.control.spawn(work);
        async move { Ok(work.await??) }.boxed()
    }

    fn reliability(&self, goal: &ReliabilityGoal, space: &PoolStatus) -> Reliability {
        reliability(&self.pool.engine, goal, space, self.spares.of(&self.dir))
    }
}
