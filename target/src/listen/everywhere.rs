//! Listening on every data reactor.

use fabric::TransportAddress;
use reactor::{ReactorThread, RemoteJoin};
use subsystem::errors::Failure;
use tokio::sync::{mpsc, oneshot};

use super::{Order, Part, Service, Wanted, listen};

/// Questions that may wait for a reactor.
const QUESTIONS_MAX: usize = 16;

/// What came of it.
pub(crate) struct Everywhere {
    /// The addresses that are bound.
    pub(crate) bound: Vec<TransportAddress>,
    /// The reactors' work, which ends when the service stops.
    pub(crate) work: Vec<RemoteJoin<()>>,
    /// Where to ask the reactors.
    pub(crate) reactors: Vec<mpsc::Sender<Order>>,
}

/// Lets every data reactor listen, the first one first: it finds out what is free.
///
/// # Errors
/// What is taken, or not this machine's.
pub(crate) async fn listen_everywhere<S: Service>(
    service: &S,
    mut wanted: Wanted,
    data: &[ReactorThread],
) -> Result<Everywhere, Failure> {
    let (mut bound, mut work, mut reactors) = (Vec::new(), Vec::new(), Vec::new());
    let mut devices = Vec::new().into_iter();
    for (index, reactor) in data.iter().enumerate() {
        let part = Part {
            index,
            count: data.len(),
        };
        let (ready, is_ready) = oneshot::channel();
        let (questions, asked) = mpsc::channel(QUESTIONS_MAX);
        let (service, here) = (service.clone(), wanted.clone());
        let shared = devices.next().unwrap_or_default();
        let listening = move || listen(service, here, part, shared, ready, asked);
        work.push(reactor.handle().spawn(listening));
        reactors.push(questions);
        let found = is_ready.await.map_err(|error| {
            Failure::new(dedup::ErrorKind::Internal, format!("listening: {error}"))
        })??;
        if index == 0 {
            wanted = wanted.shared(&found.addresses);
            bound = found.addresses;
            devices = found.others.into_iter();
        }
    }
    Ok(Everywhere {
        bound,
        work,
        reactors,
    })
}
