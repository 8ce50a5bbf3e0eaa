//! A target with its listeners: from here on hosts can connect.

use std::sync::Arc;

use fabric::{TlsMode, TransportAddress};
use futures_util::future::join_all;
use reactor::{ReactorThread, RemoteJoin};
use subsystem::errors::Failure;
use subsystem::target::Target;
use tokio::task::JoinHandle;

use super::{Around, DRAIN_TIMEOUT};
use crate::announcement::reachable;
use crate::listen::{Everywhere, Wanted, listen_everywhere};
use crate::listeners::{Listeners, port_of};
use crate::mdns::Mdns;
use crate::nodes;

/// See the module.
pub(super) struct Front {
    pub(super) target: Arc<Target>,
    pub(super) listening: Listening,
}

impl Front {
    /// Listens where it is told to, or where the pool says.
    ///
    /// # Errors
    /// An address is taken, or not this machine's.
    pub(super) async fn open(
        target: Arc<Target>,
        mut wanted: Wanted,
        around: &Around<'_>,
    ) -> Result<Self, Failure> {
        let catalog = target.catalog();
        let kept = catalog.ports.values().filter(|port| !port.is_transient);
        let kept: Vec<_> = kept.map(|port| (port.address, port.tls)).collect();
        if wanted.by_default && !kept.is_empty() {
            (wanted.addresses, wanted.by_default) = (Vec::new(), false);
        }
        let is_kept = |address: &TransportAddress| kept.iter().any(|(kept, _)| kept == address);
        wanted.addresses.retain(|address| !is_kept(address));
        let mut listening = start_listening(&target, wanted, kept, around.data).await?;
        if let Some(node) = around.node {
            let catalog = target.catalog();
            let by_tls = |address| {
                let port = port_of(&catalog, address);
                port.is_some_and(|port| port.tls == TlsMode::Required)
            };
            let places = reachable(&listening.bound, by_tls);
            let keeping = nodes::keep(
                node.clone(),
                target.clone(),
                places,
                around.handover.clone(),
            );
            listening._told = Some(EndsWhenDropped(tokio::spawn(keeping)));
        }
        Ok(Self { target, listening })
    }

    /// Ends it, where nothing was served.
    pub(super) async fn end(self) {
        self.target.stop();
        let drained = async {
            self.target.drained().await;
            join_all(self.listening.work).await;
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            tracing::warn!("hosts' commands are still under way: stopping without them");
        }
    }
}

/// What came of listening.
pub(super) struct Listening {
    pub(super) bound: Vec<TransportAddress>,
    /// The reactors' work, which ends when the target stops.
    pub(super) work: Vec<RemoteJoin<()>>,
    pub(super) listeners: Listeners,
    /// Tells other nodes of this one.
    pub(super) _told: Option<EndsWhenDropped>,
}

/// A task that nobody waits for.
pub(super) struct EndsWhenDropped(JoinHandle<()>);

impl Drop for EndsWhenDropped {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Lets every data reactor listen. Of the listeners that the pool keeps some may be missing: a network card that is gone must not keep the pool from
/// being served.
async fn start_listening(
    target: &Arc<Target>,
    wanted: Wanted,
    kept: Vec<(TransportAddress, TlsMode)>,
    data: &[ReactorThread],
) -> Result<Listening, Failure> {
    let how = wanted.clone();
    let mdns = match how.mdns {
        true => Some(Mdns::start(target.discovery.nqn.clone())?),
        false => None,
    };
    let Everywhere {
        mut bound,
        work,
        reactors,
    } = listen_everywhere(target, wanted, data).await?;
    let listeners = Listeners::new(reactors, &how, mdns);
    for (address, tls) in kept {
        match listeners.open_soon(address, tls).await {
            Ok(()) => bound.push(address),
            Err(error) => {
                tracing::error!(
                    %address, %error,
                    "a listener that the pool keeps is not served: a reload (SIGHUP) tries again, \
                     `onefold listener remove` forgets it"
                );
                listeners.note_missing(address).await;
            }
        }
    }
    if bound.is_empty() {
        return Err(Failure::unavailable(
            "none of the pool's listeners can be served (see the log): name an address with --listen",
        ));
    }
    listeners.announce(&bound);
    Ok(Listening {
        bound,
        work,
        listeners,
        _told: None,
    })
}
