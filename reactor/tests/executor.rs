//! Tasks, wakes, timers and threads of a reactor.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use reactor::sync::{Notify, oneshot};
use reactor::{Config, JoinError, PoolConfig, run, spawn, start, timeout, yield_now};

/// A small reactor that sleeps at once, so that every test also tests going to sleep.
fn config() -> Config {
    Config {
        spin: Duration::ZERO,
        buffer_pool: PoolConfig {
            bytes: 2 * 1024 * 1024,
        },
        ..Config::default()
    }
}

fn on_a_reactor<T>(future: impl Future<Output = T>) -> T {
    run(config(), future).expect("this machine permits io_uring")
}

#[test]
fn the_main_future_gives_its_output() {
    assert_eq!(on_a_reactor(async { 7 }), 7);
}

#[test]
fn what_is_known_of_the_time_is_as_old_as_the_turn_and_without_a_reactor_it_is_read() {
    on_a_reactor(async {
        let before = reactor::now();
        assert_eq!(
            reactor::recently(),
            before,
            "within a turn nobody reads again"
        );
        let later = reactor::now();
        assert_eq!(reactor::recently(), later);
        reactor::sleep(Duration::from_millis(2)).await;
        assert!(reactor::recently() >= later + Duration::from_millis(2));
        let slept = Instant::now();
        std::thread::sleep(Duration::from_millis(1));
        yield_now().await;
        // Others may have been polled in the same turn.
        reactor::sleep(Duration::from_millis(1)).await;
        assert!(reactor::recently() >= slept + Duration::from_millis(1));
    });
    let outside = reactor::recently();
    std::thread::sleep(Duration::from_millis(1));
    assert!(reactor::recently() >= outside + Duration::from_millis(1));
}

#[test]
fn thousands_of_tasks_run_and_are_joined() {
    let sum = on_a_reactor(async {
        let tasks: Vec<_> = (0..20_000u64)
            .map(|i| {
                spawn(async move {
                    yield_now().await;
                    i
                })
            })
            .collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.expect("it ends");
        }
        sum
    });
    assert_eq!(sum, 20_000 * 19_999 / 2);
}

#[test]
fn tasks_are_polled_in_the_order_in_which_they_were_woken() {
    let order = Rc::new(RefCell::new(Vec::new()));
    on_a_reactor(async {
        let tasks = (0..1000).map(|i| {
            let order = order.clone();
            spawn(async move { order.borrow_mut().push(i) })
        });
        join_all(tasks.collect::<Vec<_>>()).await;
    });
    assert_eq!(*order.borrow(), (0..1000).collect::<Vec<_>>());
}

#[test]
fn a_busy_task_does_not_keep_others_or_the_ring_waiting() {
    on_a_reactor(async {
        let stop = Rc::new(Cell::new(false));
        let busy = spawn({
            let stop = stop.clone();
            async move {
                let mut turns = 0u64;
                while !stop.get() {
                    turns += 1;
                    yield_now().await;
                }
                turns
            }
        });
        let (mut a, b) = UnixStream::pair().expect("a pair");
        spawn(async move {
            reactor::sleep(Duration::from_millis(5)).await;
            std::io::Write::write_all(&mut a, b"x").expect("room");
        });
        reactor::readable(b.as_fd()).await.expect("readable");
        stop.set(true);
        assert!(busy.await.expect("it ends") > 0);
    });
}

#[test]
fn timers_fire_in_order_and_never_early() {
    let order = Rc::new(RefCell::new(Vec::new()));
    on_a_reactor(async {
        let start = reactor::now();
        let tasks = [9u64, 3, 7, 1, 5].map(|ms| {
            let order = order.clone();
            spawn(async move {
                let deadline = start + Duration::from_millis(ms);
                reactor::sleep_until(deadline).await;
                assert!(Instant::now() >= deadline);
                order.borrow_mut().push(ms);
            })
        });
        for task in tasks {
            task.await.expect("it ends");
        }
    });
    assert_eq!(*order.borrow(), [1, 3, 5, 7, 9]);
}

#[test]
fn a_timeout_drops_what_takes_too_long_and_passes_what_does_not() {
    struct Dropped<'a>(&'a Cell<bool>);
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    on_a_reactor(async {
        let dropped = Cell::new(false);
        let slow = async {
            let _guard = Dropped(&dropped);
            pending::<()>().await;
        };
        let error = timeout(Duration::from_millis(2), slow)
            .await
            .expect_err("too slow");
        assert_eq!(error.to_string(), "time ran out");
        assert!(dropped.get());
        assert_eq!(timeout(Duration::from_secs(60), async { 3 }).await, Ok(3));
    });
}

#[test]
fn an_aborted_task_is_dropped_and_says_so() {
    on_a_reactor(async {
        let alive = Rc::new(());
        let inside = alive.clone();
        let task = spawn(async move {
            let _inside = inside;
            pending::<()>().await;
        });
        yield_now().await;
        assert!(!task.is_finished());
        task.abort();
        assert_eq!(task.await, Err(JoinError::Aborted));
        assert_eq!(Rc::strong_count(&alive), 1);
    });
}

#[test]
fn a_task_may_abort_itself() {
    on_a_reactor(async {
        let slot: Rc<RefCell<Option<reactor::JoinHandle<()>>>> = Rc::default();
        let (started, wait) = oneshot::channel();
        let own = slot.clone();
        let handle = spawn(async move {
            own.borrow().as_ref().expect("its handle").abort();
            started.send(()).expect("heard");
            pending::<()>().await;
        });
        *slot.borrow_mut() = Some(handle);
        wait.await.expect("started");
        let handle = slot.borrow_mut().take().expect("the handle");
        assert_eq!(handle.await, Err(JoinError::Aborted));
    });
}

#[test]
fn a_panicking_task_ends_alone() {
    on_a_reactor(async {
        let bad = spawn(async { panic!("as the test wants it") });
        let good = spawn(async {
            yield_now().await;
            5
        });
        assert_eq!(
            bad.await,
            Err::<(), _>(JoinError::Panicked("as the test wants it".into()))
        );
        assert_eq!(good.await, Ok(5));
    });
}

#[test]
fn tasks_left_at_the_end_are_dropped_with_what_they_spawn_meanwhile() {
    struct SpawnsWhenDropped(Arc<AtomicUsize>);
    impl Drop for SpawnsWhenDropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            let never = CountsDrop(self.0.clone());
            drop(spawn(async move {
                let _never = never;
                panic!("the reactor has ended");
            }));
        }
    }
    struct CountsDrop(Arc<AtomicUsize>);
    impl Drop for CountsDrop {
        fn drop(&mut self) {
            self.0.fetch_add(100, Ordering::Relaxed);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    on_a_reactor(async {
        for _ in 0..3 {
            let guard = SpawnsWhenDropped(drops.clone());
            drop(spawn(async move {
                let _guard = guard;
                pending::<()>().await;
            }));
        }
        yield_now().await;
    });
    assert_eq!(drops.load(Ordering::Relaxed), 303);
}

#[test]
fn a_sleeping_reactor_is_woken_from_other_threads_every_time() {
    const ROUNDS: usize = 20_000;
    let reactor = start(config()).expect("a reactor");
    let other = start(config()).expect("another reactor");
    let (ping, pong) = (Notify::new(), Notify::new());
    let first = reactor.handle().spawn({
        let (ping, pong) = (ping.clone(), pong.clone());
        || async move {
            for _ in 0..ROUNDS {
                ping.notify_one();
                pong.notified().await;
            }
        }
    });
    let second = other.handle().spawn(|| async move {
        for _ in 0..ROUNDS {
            ping.notified().await;
            pong.notify_one();
        }
    });
    first.wait().expect("no wake was lost");
    second.wait().expect("no wake was lost");
}

#[test]
fn a_task_is_spawned_from_another_thread_and_its_result_comes_back() {
    let reactor = start(Config {
        name: "here".into(),
        ..config()
    })
    .expect("a reactor");
    let handle = reactor.handle();
    // Tasks need not be Send, only what makes them.
    let sum = handle.spawn(|| async {
        let local = Rc::new(Cell::new(1));
        yield_now().await;
        local.set(local.get() + 1);
        (
            local.get(),
            reactor::current().expect("inside").name().to_owned(),
        )
    });
    assert_eq!(sum.wait(), Ok((2, "here".to_owned())));
    let panics = handle.spawn(|| async { panic!("{}", 42) });
    assert_eq!(
        panics.wait(),
        Err::<(), _>(JoinError::Panicked("42".into()))
    );
    // A result is also awaited on another reactor.
    let there = handle.spawn(|| async { "there" });
    assert_eq!(on_a_reactor(there), Ok("there"));
}

#[test]
fn a_stopped_reactor_ends_its_tasks_and_refuses_new_ones() {
    let reactor = start(config()).expect("a reactor");
    let handle = reactor.handle();
    let (begun, wait) = oneshot::channel();
    let task = handle.spawn(|| async move {
        begun.send(()).expect("heard");
        pending::<()>().await;
    });
    on_a_reactor(wait).expect("it runs");
    reactor.stop_and_join();
    assert_eq!(task.wait(), Err(JoinError::Stopped));
    assert_eq!(handle.spawn(|| async {}).wait(), Err(JoinError::Stopped));
}

#[test]
fn a_waker_outlives_its_task_and_its_reactor() {
    let kept: Rc<RefCell<Option<Waker>>> = Rc::default();
    on_a_reactor(async {
        let keep = kept.clone();
        let task = spawn(poll_fn(move |cx: &mut Context<'_>| {
            *keep.borrow_mut() = Some(cx.waker().clone());
            Poll::Ready(())
        }));
        task.await.expect("it ends");
        kept.borrow().as_ref().expect("kept").wake_by_ref();
        yield_now().await;
    });
    kept.borrow().as_ref().expect("kept").wake_by_ref();
}

#[test]
fn readiness_is_seen_and_a_dropped_wait_leaves_nothing_behind() {
    on_a_reactor(async {
        let (mut a, b) = UnixStream::pair().expect("a pair");
        reactor::writable(b.as_fd()).await.expect("writable");
        for _ in 0..1000 {
            let mut wait = pin!(reactor::readable(b.as_fd()));
            assert!(wait.as_mut().now_or_never().is_none());
        }
        std::io::Write::write_all(&mut a, b"x").expect("room");
        reactor::readable(b.as_fd()).await.expect("readable");
        drop(a);
        reactor::readable(b.as_fd())
            .await
            .expect("a hang-up is readable");
    });
}

#[test]
fn blocking_calls_run_beside_the_reactor() {
    on_a_reactor(async {
        let calls = (0..100u32).map(|i| reactor::unblock(move || i * 2));
        let doubled = join_all(calls).await;
        assert_eq!(doubled, (0..100).map(|i| i * 2).collect::<Vec<_>>());
        // Two that wait for each other: neither blocks the reactor nor the other's thread.
        let (send, receive) = std::sync::mpsc::channel();
        let first = reactor::unblock(move || receive.recv());
        let second = reactor::unblock(move || send.send(9));
        let (got, sent) = futures_util::future::join(first, second).await;
        assert_eq!((got, sent), (Ok(9), Ok(())));
        let panics = spawn(reactor::unblock(|| panic!("in a call")));
        assert_eq!(
            panics.await,
            Err::<(), _>(JoinError::Panicked("in a call".into()))
        );
    });
}

#[test]
fn one_thread_holds_one_reactor() {
    on_a_reactor(async {
        let error = run(config(), async {}).expect_err("it is taken");
        assert!(error.to_string().contains("already"), "{error}");
    });
    assert!(reactor::current().is_none());
    on_a_reactor(async {});
}
