//! The servers of exports: the one place that starts and stops them.
//!
//! A kind of export has an arm in [`Running::start`], which gives what ends it when it is dropped, and says how many use
//! it. A server finds its volume by `subsystem::export`, by the number of its export.
//!
//! Guarantees: an export is kept only when its server runs; what is not in the catalog any more is not served; additions
//! and removals happen one after the other.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use api::ExportState;
use dedup::ErrorKind;
use subsystem::catalog::{Catalog, ExportConfig, ExportKind, NbdAddress};
use subsystem::errors::Failure;
use subsystem::target::Target;
use tokio::sync::Mutex;

use crate::lingering::outlast;

/// A server.
enum Running {
    Vhost(virtio::Server),
    Nbd(nbd::Server),
}

impl Running {
    /// Begins to serve an export. It may block.
    fn start(
        target: &Arc<Target>,
        reactors: &[reactor::Handle],
        export: &ExportConfig,
    ) -> io::Result<Self> {
        match export.kind {
            ExportKind::Vhost => virtio::Server::start(virtio::Parts {
                target: target.clone(),
                export: export.id,
                path: export.address.clone(),
                reactors: reactors.to_vec(),
            })
            .map(Self::Vhost),
            ExportKind::Nbd => nbd::Server::start(nbd::Parts {
                target: target.clone(),
                export: export.id,
                address: nbd_address(export)?,
                reactors: reactors.to_vec(),
                bounds: nbd::Bounds::default(),
            })
            .map(Self::Nbd),
        }
    }

    fn state(&self) -> ExportState {
        match self {
            Self::Vhost(server) => ExportState {
                connections: u64::from(server.is_connected()),
            },
            Self::Nbd(server) => ExportState {
                connections: server.connections() as u64,
            },
        }
    }
}

/// All exports.
pub(crate) struct Exports {
    target: Arc<Target>,
    control: reactor::Handle,
    /// Who serves volumes.
    reactors: Vec<reactor::Handle>,
    /// Locked while exports come and go.
    servers: Mutex<BTreeMap<u16, Running>>,
}

impl Exports {
    pub(crate) fn new(
        target: Arc<Target>,
        control: reactor::Handle,
        reactors: Vec<reactor::Handle>,
    ) -> Arc<Self> {
        Arc::new(Self {
            target,
            control,
            reactors,
            servers: Mutex::default(),
        })
    }

    /// Starts a server where waiting harms nobody.
    async fn start(&self, export: ExportConfig) -> Result<Running, Failure> {
        let is_taken = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
        let open = || async {
            let (target, reactors) = (self.target.clone(), self.reactors.clone());
            let export = export.clone();
            let starting =
                tokio::task::spawn_blocking(move || Running::start(&target, &reactors, &export));
            match starting.await {
                Ok(started) => started.map(Ok),
                Err(panicked) => Ok(Err(internal(panicked))),
            }
        };
        let started = outlast(is_taken, open).await;
        started.map_err(|error| cannot_serve(&export.address, &error))?
    }

    /// Serves what the pool keeps and is not served. What cannot be is told in the log, and keeps nothing else back.
    pub(crate) async fn serve_kept(&self) {
        let mut servers = self.servers.lock().await;
        for (id, export) in &self.target.catalog().exports {
            if servers.contains_key(id) {
                continue;
            }
            match self.start(ExportConfig::clone(export)).await {
                Ok(server) => {
                    servers.insert(*id, server);
                }
                Err(error) => tracing::error!(
                    export = export.address, %error,
                    "an export that the pool keeps is not served: a reload (SIGHUP) tries again, `onefold export \
                     delete` forgets it"
                ),
            }
        }
    }

    /// What serves now, by number.
    pub(crate) async fn states(&self) -> BTreeMap<u16, ExportState> {
        let servers = self.servers.lock().await;
        let states = servers.iter().map(|(id, server)| (*id, server.state()));
        states.collect()
    }

    /// Adds an export; its number is given to it.
    ///
    /// # Errors
    /// It cannot be, or its address is taken.
    pub(crate) async fn create(&self, mut export: ExportConfig) -> Result<ExportConfig, Failure> {
        let mut servers = self.servers.lock().await;
        let catalog = self.target.catalog();
        let free = (1..=u16::MAX).find(|id| !catalog.exports.contains_key(id));
        export.id = free.ok_or_else(|| Failure::invalid("no number of an export is free"))?;
        // What cannot be must not begin to be served.
        let mut trial = Catalog::clone(&catalog);
        trial.exports.insert(export.id, Arc::new(export.clone()));
        trial.check()?;
        let server = self.start(export.clone()).await?;
        let target = self.target.clone();
        let keep = move || async move {
            let add = |catalog: &mut Catalog| {
                catalog.exports.insert(export.id, Arc::new(export.clone()));
                Ok(export)
            };
            target.change(add).await
        };
        let export = match self.control.spawn(keep).await? {
            Ok(export) => export,
            Err(failure) => {
                end(vec![server]).await;
                return Err(failure);
            }
        };
        servers.insert(export.id, server);
        Ok(export)
    }

    /// Removes an export. Its users lose the volume, after their requests under way.
    ///
    /// # Errors
    /// There is none of that number, or the pool takes no changes.
    pub(crate) async fn delete(&self, id: u16) -> Result<ExportConfig, Failure> {
        let mut servers = self.servers.lock().await;
        let target = self.target.clone();
        let remove = move |catalog: &mut Catalog| {
            let gone = catalog.exports.remove(&id);
            gone.ok_or_else(|| {
                let text =
                    format!("there is no export {id}: `onefold export list` shows those there are");
                Failure::new(ErrorKind::NotFound, text)
            })
        };
        let removing = self
            .control
            .spawn(move || async move { target.change(remove).await });
        let export = removing.await??;
        end(servers.remove(&id).into_iter().collect()).await;
        Ok(ExportConfig::clone(&export))
    }

    /// Ends all servers, after the requests under way. They stay in the catalog.
    pub(crate) async fn stop(&self) {
        let servers = std::mem::take(&mut *self.servers.lock().await);
        end(servers.into_values().collect()).await;
    }
}

fn nbd_address(export: &ExportConfig) -> io::Result<NbdAddress> {
    let parsed = export.address.parse();
    parsed.map_err(|failure: Failure| io::Error::new(io::ErrorKind::InvalidInput, failure.message))
}

/// Why an export cannot be served, and what to do about it. Who asked for it named an address that cannot be.
fn cannot_serve(address: &str, error: &io::Error) -> Failure {
    let why = match error.raw_os_error() {
        Some(_) if error.kind() == io::ErrorKind::AddrInUse => {
            "another program listens there: stop it, or name another port".to_owned()
        }
        _ => error.to_string(),
    };
    Failure::invalid(format!("the export at '{address}' cannot be served: {why}"))
}

/// Drops servers where waiting harms nobody.
async fn end(servers: Vec<Running>) {
    let ending = tokio::task::spawn_blocking(move || drop(servers));
    if let Err(error) = ending.await {
        tracing::error!(%error, "a server of an export did not end");
    }
}

fn internal(error: tokio::task::JoinError) -> Failure {
    Failure::new(ErrorKind::Internal, format!("starting an export: {error}"))
}
