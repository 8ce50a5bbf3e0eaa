//! Watched sockets.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use reactor::net::{Readiness, Watch};
use reactor::{Config, PoolConfig, run};

fn on_a_reactor(test: impl Future<Output = ()>) {
    let config = Config {
        spin: Duration::ZERO,
        buffer_pool: PoolConfig { bytes: 2 << 20 },
        ..Config::default()
    };
    run(config, test).expect("this machine permits io_uring");
}

/// Two connected sockets, the first of them watched.
fn pair() -> (UnixStream, UnixStream, Watch) {
    let (here, there) = UnixStream::pair().expect("a pair");
    here.set_nonblocking(true).expect("non-blocking");
    there.set_nonblocking(true).expect("non-blocking");
    let fd: Arc<OwnedFd> = Arc::new(here.try_clone().expect("a descriptor").into());
    let watch = Watch::new(&fd).expect("on a reactor");
    (here, there, watch)
}

async fn ready(watch: &Watch) -> Readiness {
    poll_fn(|cx| watch.poll_ready(cx)).await.expect("watched")
}

async fn until(watch: &Watch, wanted: impl Fn(Readiness) -> bool) {
    while !wanted(ready(watch).await) {}
}

#[test]
fn data_and_the_end_are_reported_again_and_again() {
    on_a_reactor(async {
        let (mut here, mut there, watch) = pair();
        let mut byte = [0; 8];
        for round in 0..100 {
            there.write_all(&[round]).expect("room");
            until(&watch, |ready| ready.readable).await;
            assert_eq!(here.read(&mut byte).expect("data"), 1);
            assert_eq!(byte[0], round);
        }
        drop(there);
        until(&watch, |ready| ready.readable).await;
        assert_eq!(here.read(&mut byte).expect("the end"), 0);
    });
}

#[test]
fn room_is_reported_when_it_is_there_again() {
    on_a_reactor(async {
        let (mut here, mut there, watch) = pair();
        until(&watch, |ready| ready.writable).await;
        let chunk = [7; 65_536];
        let mut written = 0;
        while let Ok(bytes) = here.write(&chunk) {
            written += bytes;
        }
        let reader = reactor::spawn(async move {
            let (mut chunk, mut read) = ([0; 65_536], 0);
            while read < written {
                read += there.read(&mut chunk).expect("what was written");
            }
            there
        });
        until(&watch, |ready| ready.writable).await;
        assert!(here.write(&chunk).expect("room") > 0);
        drop(reader.await);
    });
}

#[test]
fn a_socket_is_closed_once_nobody_watches_it() {
    on_a_reactor(async {
        let (here, mut there, watch) = pair();
        drop(here);
        drop(watch);
        // The watch held the last descriptor; the kernel lets go of it when the poll is cancelled.
        let mut byte = [0; 1];
        while !matches!(there.read(&mut byte), Ok(0)) {
            reactor::yield_now().await;
        }
    });
}

#[test]
fn watching_needs_a_reactor() {
    let (here, _there) = UnixStream::pair().expect("a pair");
    assert!(Watch::new(&Arc::new(here.into())).is_err());
}
