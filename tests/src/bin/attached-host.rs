//! A host for stories in systems that have none: `attached-host ADDRESS FILE`. It writes, over restarts of the daemon, until
//! FILE is there; then it proves what it wrote, and prints how many writes were answered and the longest that one took.

#![allow(clippy::print_stdout, reason = "the figures are the result")]

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fabric::TransportAddress;
use tests::host::{Seen, stay_attached};

/// Where it writes: behind what others do in the stories.
const BASE: u64 = 256 << 20;

/// How often it is looked for the file.
const LOOK: Duration = Duration::from_millis(50);

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, address, file] = &words[..] else {
        panic!("attached-host ADDRESS FILE");
    };
    let address: TransportAddress = address.parse().expect("an address");
    let work = async {
        let seen = Seen::default();
        let ends = async {
            while !Path::new(file).exists() {
                reactor::sleep(LOOK).await;
            }
            seen.enough.store(true, Ordering::Relaxed);
        };
        let host = stay_attached(address, BASE, &seen, |_| println!("attached"));
        futures_util::future::join(host, ends).await;
        println!(
            "{} writes, the longest {} ms",
            seen.writes.load(Ordering::Relaxed),
            seen.longest_ms.load(Ordering::Relaxed)
        );
    };
    reactor::run(reactor::Config::default(), work).expect("a reactor");
}
