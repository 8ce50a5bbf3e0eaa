//! A verbs device in several parts, each on a reactor of its own.
//!
//! Each part has a protection domain, completion queues and a shared receive queue of its own on every
//! kernel device, with its reactor's buffers registered, and an event channel. The first part has the
//! listeners of the connection manager: it hands each request to the part with the fewest queue pairs of
//! those that listen there, and what becomes a queue pair there stays there. The parts share nothing else
//! but the news that a kernel device is lost: the kernel tells that to whoever asks first.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use reactor::sync::queue::{Full, Receiver, Sender, channel};

use super::raw::{DeviceKey, LooseId, QueueKey};
use crate::listening::Listening;

/// Connection requests that wait to be taken by the part they are for; more are refused, and hosts ask
/// again.
const REQUESTS_MAX: usize = 1024;

/// News that wait for a part. There is one for each loss of a kernel device, and a part looks at them
/// within a turn of its reactor.
const LOSSES_MAX: usize = 256;

/// A connection request on its way to the part that shall answer it. Dropping it refuses it.
pub(super) struct Request {
    pub(super) id: LooseId,
    /// The service port.
    pub(super) port: u16,
    pub(super) private_data: Vec<u8>,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) slot: PartSlot,
}

/// What is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// A kernel device.
    Device(DeviceKey),
    /// A completion queue, which belongs to one of the parts.
    CompletionQueue(QueueKey),
}

/// What was lost, and why.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    pub(super) lost: Lost,
    pub(super) why: String,
}

/// The ways to all parts.
#[derive(Clone)]
pub(super) struct Parts {
    index: usize,
    all: Arc<[PartLink]>,
    pub(super) listening: Listening,
}

struct PartLink {
    requests: Sender<Request>,
    losses: Sender<Loss>,
    /// Accepted queue pairs, and requests that may become some.
    queue_pairs: AtomicUsize,
}

/// What comes from the other parts.
pub(super) struct Inbox {
    requests: Receiver<Request>,
    losses: Receiver<Loss>,
}

/// Something that another part says.
pub(super) enum News {
    Loss(Loss),
    Request(Request),
}

/// A queue pair's slot at a part, or that of a request: counted there until it is dropped.
pub(super) struct PartSlot {
    part: usize,
    all: Arc<[PartLink]>,
}

impl Drop for PartSlot {
    fn drop(&mut self) {
        self.all[self.part]
            .queue_pairs
            .fetch_sub(1, Ordering::Relaxed);
    }
}

/// Joins the parts of a device.
pub(super) fn join(count: usize) -> Vec<(Parts, Inbox)> {
    let parts = (0..count.max(1)).map(|_| {
        let (requests, requests_in) = channel(REQUESTS_MAX);
        let (losses, losses_in) = channel(LOSSES_MAX);
        let link = PartLink {
            requests,
            losses,
            queue_pairs: AtomicUsize::new(0),
        };
        let inbox = Inbox {
            requests: requests_in,
            losses: losses_in,
        };
        (link, inbox)
    });
    let (all, inboxes): (Vec<_>, Vec<_>) = parts.unzip();
    let all: Arc<[PartLink]> = all.into();
    let listening = Listening::default();
    let of_part = |(index, inbox)| {
        let parts = Parts {
            index,
            all: all.clone(),
            listening: listening.clone(),
        };
        (parts, inbox)
    };
    inboxes.into_iter().enumerate().map(of_part).collect()
}

impl Parts {
    /// Which part this is.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// A slot at that one of these parts that has the fewest queue pairs; at this one if there are none.
    pub(super) fn slot(&self, parts: &[usize]) -> PartSlot {
        let queue_pairs = |part: &usize| self.all[*part].queue_pairs.load(Ordering::Relaxed);
        let parts = parts.iter().copied().filter(|part| *part < self.all.len());
        let part = parts.min_by_key(queue_pairs).unwrap_or(self.index);
        self.all[part].queue_pairs.fetch_add(1, Ordering::Relaxed);
        PartSlot {
            part,
            all: self.all.clone(),
        }
    }

    /// Whether a slot is at this part.
    pub(super) fn is_here(&self, slot: &PartSlot) -> bool {
        slot.part == self.index
    }

    /// Hands a request to the part where it has its slot; it comes back if that is gone or has too many.
    pub(super) fn hand_over(&self, request: Request) -> Result<(), Request> {
        let part = request.slot.part;
        self.all[part]
            .requests
            .try_send(request)
            .map_err(|full| match full {
                Full::Full(request) | Full::Closed(request) => request,
            })
    }

    /// Tells all other parts.
    pub(super) fn tell(&self, loss: &Loss) {
        for (part, link) in self.all.iter().enumerate() {
            if part == self.index {
                continue;
            }
            match link.losses.try_send(loss.clone()) {
                // It ends, and its connections with it.
                Ok(()) | Err(Full::Closed(_)) => {}
                Err(Full::Full(_)) => tracing::error!(part, ?loss, "the part does not listen"),
            }
        }
    }
}

impl Inbox {
    /// What another part says next. News of losses come before requests: a request that is seen came
    /// after every loss that was told before it.
    pub(super) async fn next(&mut self) -> News {
        poll_fn(|cx| {
            if let Poll::Ready(Some(loss)) = pin!(self.losses.recv()).poll(cx) {
                return Poll::Ready(News::Loss(loss));
            }
            match pin!(self.requests.recv()).poll(cx) {
                Poll::Ready(Some(request)) => Poll::Ready(News::Request(request)),
                // Never over: every part can send to itself.
                Poll::Ready(None) | Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// A request that waits.
    pub(super) fn waiting_request(&mut self) -> Option<Request> {
        self.requests.try_recv()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts_of(slots: &[PartSlot]) -> Vec<usize> {
        slots.iter().map(|slot| slot.part).collect()
    }

    #[test]
    fn each_connection_goes_to_the_reactor_with_the_fewest() {
        let joined = join(3);
        let first = &joined[0].0;
        let mut slots: Vec<PartSlot> = (0..6).map(|_| first.slot(&[0, 1, 2])).collect();
        assert_eq!(parts_of(&slots), [0, 1, 2, 0, 1, 2]);
        // Those of the second one end, and it gets the next two.
        slots.retain(|slot| slot.part != 1);
        let next = [first.slot(&[0, 1, 2]), first.slot(&[0, 1, 2])];
        assert_eq!(parts_of(&next), [1, 1]);
        assert!(first.is_here(&slots[0]) && !first.is_here(&next[0]));
        // Who does not listen gets none.
        assert_eq!(parts_of(&[first.slot(&[0, 2])]), [0]);
        assert_eq!(parts_of(&[joined[2].0.slot(&[])]), [2]);
    }

    #[test]
    fn a_loss_is_told_to_every_other_reactor_once() {
        let mut joined = join(3);
        let loss = Loss {
            lost: Lost::Device(DeviceKey::of_number(1)),
            why: "it was removed".into(),
        };
        joined[1].0.tell(&loss);
        for (part, (_, inbox)) in joined.iter_mut().enumerate() {
            let heard = inbox.losses.try_recv().map(|heard| heard.lost);
            assert_eq!(heard, (part != 1).then_some(loss.lost), "part {part}");
            assert!(inbox.losses.try_recv().is_none(), "part {part}");
        }
    }
}
