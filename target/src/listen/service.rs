//! Whom the queues of listeners are served by.

use std::sync::Arc;

use fabric::{KnownAddresses, TargetQueue, TlsKeys};
use subsystem::figures::ReactorFigures;
use subsystem::limits::Limits;
use subsystem::serve::serve_queue;
use subsystem::target::Target;
use subsystem::target::tls_keys::HostKeyring;

/// What listeners ask of whom they hand queues to. Clones are the same one, on any reactor.
pub(crate) trait Service: Clone + Send + 'static {
    /// Bounds of listeners and queues.
    fn limits(&self) -> &Limits;

    /// Addresses of hosts with a ready admin queue, for the listeners of all reactors.
    fn known_addresses(&self) -> &KnownAddresses;

    /// The keys of hosts that speak TLS; `None` if no listener does.
    fn keys(&self) -> Option<Arc<dyn TlsKeys>>;

    /// What this reactor did, as far as that is counted.
    fn reactor_figures(&self) -> ReactorFigures;

    /// Waits until no queue is to be taken any more.
    fn stopped(&self) -> impl Future<Output = ()>;

    /// Waits until every association has ended.
    fn drained(&self) -> impl Future<Output = ()>;

    /// Serves a queue to its end.
    fn serve(&self, queue: TargetQueue) -> impl Future<Output = ()> + 'static;
}

impl Service for Arc<Target> {
    fn limits(&self) -> &Limits {
        Target::limits(self)
    }

    fn known_addresses(&self) -> &KnownAddresses {
        Target::known_addresses(self)
    }

    fn keys(&self) -> Option<Arc<dyn TlsKeys>> {
        Some(HostKeyring::of(self))
    }

    fn reactor_figures(&self) -> ReactorFigures {
        Target::reactor_figures(self)
    }

    fn stopped(&self) -> impl Future<Output = ()> {
        Target::stopped(self)
    }

    fn drained(&self) -> impl Future<Output = ()> {
        Target::drained(self)
    }

    fn serve(&self, queue: TargetQueue) -> impl Future<Output = ()> + 'static {
        serve_queue(self.clone(), queue)
    }
}
