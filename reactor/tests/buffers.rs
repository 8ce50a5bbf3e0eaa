//! Pools: bounds, order, and what comes back. Nothing here runs on a reactor: a pool needs none.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use futures_util::FutureExt;
use reactor::{BUFFER_ALIGNMENT, Buffer, BufferPool, MAX_BUFFER_BYTES};

fn pool(bytes: usize) -> BufferPool {
    BufferPool::new(bytes).expect("memory")
}

#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counter {
    fn new() -> (Arc<Self>, Waker) {
        let counter = Arc::new(Self::default());
        (counter.clone(), Waker::from(counter))
    }

    fn wakes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn buffers_are_aligned_disjoint_and_come_back_on_drop() {
    let pool = pool(MAX_BUFFER_BYTES);
    let mut buffers: Vec<Buffer> = (0..512)
        .map(|_| pool.try_alloc(4096).expect("room"))
        .collect();
    assert!(pool.try_alloc(1).is_none());
    for (i, buffer) in buffers.iter_mut().enumerate() {
        assert!(buffer.as_ptr().addr().is_multiple_of(BUFFER_ALIGNMENT));
        buffer.fill(i as u8);
    }
    for (i, buffer) in buffers.iter().enumerate() {
        assert!(buffer.iter().all(|&byte| byte == i as u8));
    }
    assert_eq!(pool.stats().free_bytes, 0);
    drop(buffers);
    assert_eq!(pool.stats().free_bytes, MAX_BUFFER_BYTES);
    let whole = pool
        .try_alloc(MAX_BUFFER_BYTES)
        .expect("everything came together again");
    assert_eq!(whole.len(), MAX_BUFFER_BYTES);
}

#[test]
fn a_length_is_rounded_up_to_a_power_of_two_and_never_beyond_the_largest() {
    let pool = pool(1);
    assert_eq!(pool.stats().total_bytes, MAX_BUFFER_BYTES);
    for (len, capacity) in [(0, 4096), (1, 4096), (4097, 8192), (12_288, 16_384)] {
        let mut buffer = pool.try_alloc(len).expect("room");
        assert_eq!((buffer.len(), buffer.capacity()), (len, capacity));
        buffer.set_len(capacity);
        assert_eq!(buffer.len(), capacity);
    }
    assert!(pool.try_alloc(MAX_BUFFER_BYTES + 1).is_none());
}

#[test]
fn a_zeroed_buffer_hides_what_its_last_user_left() {
    let pool = pool(MAX_BUFFER_BYTES);
    let mut first = pool.try_alloc(MAX_BUFFER_BYTES).expect("room");
    first.fill(0xaa);
    drop(first);
    let zeroed = pool
        .alloc_zeroed(MAX_BUFFER_BYTES)
        .now_or_never()
        .expect("room");
    assert!(zeroed.iter().all(|&byte| byte == 0));
}

#[test]
fn who_finds_the_pool_empty_waits_in_line_and_is_woken_in_turn() {
    let pool = pool(MAX_BUFFER_BYTES);
    let whole = pool.try_alloc(MAX_BUFFER_BYTES).expect("room");
    let (large_wakes, large_waker) = Counter::new();
    let (small_wakes, small_waker) = Counter::new();
    let mut large = pin!(pool.alloc(MAX_BUFFER_BYTES / 2));
    let mut small = pin!(pool.alloc(MAX_BUFFER_BYTES));
    assert!(
        large
            .as_mut()
            .poll(&mut Context::from_waker(&large_waker))
            .is_pending()
    );
    assert!(
        small
            .as_mut()
            .poll(&mut Context::from_waker(&small_waker))
            .is_pending()
    );
    assert_eq!(pool.stats().waiting, 2);
    drop(whole);
    assert_eq!((large_wakes.wakes(), small_wakes.wakes()), (1, 0));
    // Half of the pool is free, but the second in line is before everyone who comes now.
    assert!(pool.try_alloc(4096).is_none());
    let Poll::Ready(half) = large.as_mut().poll(&mut Context::from_waker(&large_waker)) else {
        panic!("it was granted")
    };
    drop(half);
    assert_eq!(small_wakes.wakes(), 1);
    assert!(
        small
            .as_mut()
            .poll(&mut Context::from_waker(&small_waker))
            .is_ready()
    );
    assert_eq!(pool.stats().waits_total, 2);
}

#[test]
fn who_leaves_the_line_gives_its_turn_and_its_grant_to_the_next() {
    let pool = pool(MAX_BUFFER_BYTES);
    let half = pool.try_alloc(MAX_BUFFER_BYTES / 2).expect("room");
    let mut impatient = Box::pin(pool.alloc(MAX_BUFFER_BYTES));
    assert!((&mut impatient).now_or_never().is_none());
    let (wakes, waker) = Counter::new();
    let mut next = pin!(pool.alloc(4096));
    assert!(
        next.as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    drop(impatient);
    assert_eq!(wakes.wakes(), 1);
    assert!(
        next.as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
    );
    drop(half);

    let all = pool.try_alloc(MAX_BUFFER_BYTES).expect("all came back");
    let mut granted = Box::pin(pool.alloc(MAX_BUFFER_BYTES));
    assert!((&mut granted).now_or_never().is_none());
    drop(all);
    assert_eq!(pool.stats().free_bytes, 0);
    drop(granted);
    assert_eq!(pool.stats().free_bytes, MAX_BUFFER_BYTES);
}

#[test]
fn threads_share_a_pool_smaller_than_their_need() {
    let pool = pool(MAX_BUFFER_BYTES);
    let threads: Vec<_> = (0..4u8)
        .map(|id| {
            let pool = pool.clone();
            thread::spawn(move || {
                for round in 0..2000usize {
                    let len = [4096, 100_000, 1 << 20, 2 << 20][(round + usize::from(id)) % 4];
                    let mut buffer = block_on(pool.alloc(len));
                    buffer[0] = id;
                    buffer[len - 1] = id;
                    assert_eq!((buffer[0], buffer[len - 1]), (id, id));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no one starves");
    }
    assert_eq!(pool.stats().free_bytes, MAX_BUFFER_BYTES);
}

/// The plainest executor: parks the thread between polls.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

#[test]
fn a_buffer_is_cut_for_several_holders_and_made_whole_again() {
    let pool = BufferPool::new(4 << 20).expect("a pool");
    let free = || pool.stats().free_bytes;
    let all = free();
    for len in [300_000, 512 << 10, 131_073] {
        let mut buffer = pool.try_alloc(len).expect("room");
        let (start, capacity) = (buffer.as_ptr(), buffer.capacity());
        buffer.fill(1);
        let mut parts = buffer.split(128 << 10);
        assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), len);
        for (index, part) in parts.iter_mut().enumerate() {
            assert!(part.iter().all(|byte| *byte == 1));
            part.fill(index as u8);
        }
        let whole = Buffer::join(parts).expect("they are its parts");
        assert_eq!((whole.as_ptr(), whole.len()), (start, len));
        assert_eq!(whole.capacity(), capacity);
        for (index, part) in whole.chunks(128 << 10).enumerate() {
            assert!(part.iter().all(|byte| *byte == index as u8));
        }
        drop(whole);
        assert_eq!(free(), all);
    }
    let small = pool.try_alloc(4096).expect("room").split(128 << 10);
    assert_eq!(small.len(), 1, "it is no longer than a part");
    assert_eq!(
        Buffer::join(small).map(|whole| whole.len()).ok(),
        Some(4096)
    );
}

#[test]
fn what_are_not_the_parts_of_a_buffer_is_not_joined_and_goes_back() {
    let pool = BufferPool::new(4 << 20).expect("a pool");
    let all = pool.stats().free_bytes;
    let parts = || pool.try_alloc(512 << 10).expect("room").split(128 << 10);
    let mut swapped = parts();
    swapped.swap(1, 2);
    assert!(Buffer::join(swapped).is_err());
    let mut missing = parts();
    missing.pop();
    assert!(Buffer::join(missing).is_err());
    let mut strange = parts();
    strange[3] = pool.try_alloc(128 << 10).expect("room");
    assert!(Buffer::join(strange).is_err());
    let mut others = parts();
    let mut middle = others.split_off(1);
    middle.pop();
    assert!(Buffer::join(middle).is_err(), "two that are no buddies");
    drop(others);
    assert!(Buffer::join(Vec::new()).is_err());
    assert_eq!(pool.stats().free_bytes, all);
}
