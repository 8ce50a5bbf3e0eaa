//! The primitives tasks wait with, polled by hand.

use futures_util::FutureExt;
use reactor::sync::{Closed, Event, Notify, Semaphore, oneshot, queue};

#[test]
fn a_oneshot_carries_its_value_or_the_news_that_there_is_none() {
    let (sender, mut receiver) = oneshot::channel();
    assert_eq!((&mut receiver).now_or_never(), None);
    assert_eq!(sender.send(1), Ok(()));
    assert_eq!(receiver.now_or_never(), Some(Ok(1)));
    let (sender, receiver) = oneshot::channel::<u8>();
    drop(sender);
    assert_eq!(receiver.now_or_never(), Some(Err(Closed)));
    let (sender, receiver) = oneshot::channel();
    drop(receiver);
    assert!(sender.is_closed());
    assert_eq!(sender.send(2), Err(2));
}

#[test]
fn an_event_happens_once_for_all() {
    let event = Event::new();
    let mut early = event.wait();
    assert_eq!((&mut early).now_or_never(), None);
    event.set();
    assert!(event.is_set());
    assert_eq!(early.now_or_never(), Some(()));
    assert_eq!(event.wait().now_or_never(), Some(()));
}

#[test]
fn a_bell_rings_for_one_and_passes_on_what_is_not_heard() {
    let bell = Notify::new();
    bell.notify_one();
    bell.notify_one();
    assert_eq!(bell.notified().now_or_never(), Some(()), "kept");
    let mut first = Box::pin(bell.notified());
    let mut second = Box::pin(bell.notified());
    let mut third = Box::pin(bell.notified());
    assert_eq!((&mut first).now_or_never(), None, "kept once only");
    assert_eq!((&mut second).now_or_never(), None);
    assert_eq!((&mut third).now_or_never(), None);
    bell.notify_one();
    drop(first);
    assert_eq!(second.now_or_never(), Some(()), "the first did not hear it");
    bell.notify_all();
    assert_eq!(third.now_or_never(), Some(()));
    assert_eq!(
        bell.notified().now_or_never(),
        None,
        "a ring for all is not kept"
    );
}

#[test]
fn a_semaphore_serves_in_order_and_counts_exactly() {
    let semaphore = Semaphore::new(10);
    let held = semaphore.try_acquire(8).expect("free");
    let mut large = Box::pin(semaphore.acquire(6));
    assert!((&mut large).now_or_never().is_none());
    assert!(semaphore.try_acquire(1).is_none(), "the large one is first");
    let mut small = Box::pin(semaphore.acquire(1));
    assert!((&mut small).now_or_never().is_none());
    drop(held);
    let large = large.now_or_never().expect("granted");
    assert_eq!(large.amount(), 6);
    drop(small);
    assert_eq!(semaphore.free(), 4, "a grant nobody took went back");
    drop(large);
    let all = semaphore
        .acquire(1000)
        .now_or_never()
        .expect("cut down to the total");
    assert_eq!((all.amount(), semaphore.free()), (semaphore.total(), 0));
}

#[test]
fn a_queue_is_bounded_ordered_and_knows_when_its_sides_are_gone() {
    let (sender, mut receiver) = queue::channel(2);
    assert_eq!(sender.try_send(1), Ok(()));
    assert_eq!(sender.send(2).now_or_never(), Some(Ok(())));
    assert_eq!(sender.try_send(3), Err(queue::Full::Full(3)));
    {
        let mut waits = sender.send(3);
        assert_eq!((&mut waits).now_or_never(), None);
        assert_eq!(receiver.recv().now_or_never(), Some(Some(1)));
        assert_eq!(waits.now_or_never(), Some(Ok(())));
    }
    let second = sender.clone();
    drop(sender);
    assert_eq!(receiver.try_recv(), Some(2));
    assert_eq!(receiver.recv().now_or_never(), Some(Some(3)));
    assert_eq!(receiver.recv().now_or_never(), None);
    drop(second);
    assert_eq!(receiver.recv().now_or_never(), Some(None));
    let (sender, receiver) = queue::channel(1);
    assert_eq!(sender.try_send(1), Ok(()));
    drop(receiver);
    assert_eq!(sender.try_send(2), Err(queue::Full::Closed(2)));
    assert_eq!(sender.send(3).now_or_never(), Some(Err(3)));
}
