//! What a reactor costs on this machine: spawning, waking, and small reads.
//!
//! `cargo run -p reactor --example cost -- [FILE]` reads from FILE, or from a temporary file of
//! 256 MiB in the current folder.
#![allow(clippy::print_stdout)]

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use reactor::file::{self, FileExtent};
use reactor::sync::Notify;
use reactor::{Config, spawn, start, yield_now};

const FILE_BYTES: u64 = 256 << 20;
const BLOCK: usize = 4096;
/// O_DIRECT of x86-64 and of aarch64 differ; libc knows.
const DIRECT: i32 = libc::O_DIRECT;

fn report(what: &str, count: u64, took: Duration) {
    let each = took.as_nanos() as f64 / count as f64;
    println!(
        "{what:<44} {each:>9.0} ns each, {:>9.0} per second",
        1e9 / each
    );
}

fn main() -> io::Result<()> {
    for spin in [Duration::ZERO, Duration::from_micros(20)] {
        println!("spin {spin:?}");
        tasks(spin)?;
        threads(spin)?;
    }
    let (path, temporary) = match std::env::args().nth(1) {
        Some(path) => (PathBuf::from(path), false),
        None => (made()?, true),
    };
    let result = reads(&path);
    if temporary {
        std::fs::remove_file(&path)?;
    }
    result
}

fn tasks(spin: Duration) -> io::Result<()> {
    const COUNT: u64 = 200_000;
    reactor::run(
        Config {
            spin,
            ..Config::default()
        },
        async {
            let start = Instant::now();
            for _ in 0..COUNT {
                let _ = spawn(async {}).await;
            }
            report("spawn and join a task", COUNT, start.elapsed());
            let start = Instant::now();
            for _ in 0..COUNT {
                yield_now().await;
            }
            report("wake and poll (yield)", COUNT, start.elapsed());
            let (ping, pong) = (Notify::new(), Notify::new());
            let other = spawn({
                let (ping, pong) = (ping.clone(), pong.clone());
                async move {
                    for _ in 0..COUNT {
                        ping.notified().await;
                        pong.notify_one();
                    }
                }
            });
            let start = Instant::now();
            for _ in 0..COUNT {
                ping.notify_one();
                pong.notified().await;
            }
            report("round between two tasks", COUNT, start.elapsed());
            let _ = other.await;
            let pool = reactor::current().map(|handle| handle.buffers().clone());
            if let Some(pool) = pool {
                let start = Instant::now();
                for _ in 0..COUNT {
                    drop(pool.alloc(BLOCK).await);
                }
                report("take and return a 4 KiB buffer", COUNT, start.elapsed());
            }
        },
    )
}

fn threads(spin: Duration) -> io::Result<()> {
    const COUNT: u64 = 50_000;
    let config = Config {
        spin,
        ..Config::default()
    };
    let other = start(config.clone())?;
    let (ping, pong) = (Notify::new(), Notify::new());
    let echo = other.handle().spawn({
        let (ping, pong) = (ping.clone(), pong.clone());
        || async move {
            for _ in 0..COUNT {
                ping.notified().await;
                pong.notify_one();
            }
        }
    });
    reactor::run(config, async {
        let start = Instant::now();
        for _ in 0..COUNT {
            ping.notify_one();
            pong.notified().await;
        }
        report("round between two reactors", COUNT, start.elapsed());
        let _ = echo.await;
    })
}

fn made() -> io::Result<PathBuf> {
    let path = std::env::current_dir()?.join("cost.tmp");
    let mut file = File::create(&path)?;
    let chunk: Vec<u8> = (0..1u32 << 20).map(|i| (i * 7 % 251) as u8).collect();
    for _ in 0..FILE_BYTES >> 20 {
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    Ok(path)
}

fn reads(path: &Path) -> io::Result<()> {
    const COUNT: u64 = 200_000;
    let file = File::options().read(true).custom_flags(DIRECT).open(path)?;
    let blocks = file.metadata()?.len() / BLOCK as u64;
    let file = Arc::new(file.into());
    for (depth, spin) in [(32u64, 20), (32, 0), (1, 20), (1, 0)] {
        let spin = Duration::from_micros(spin);
        let count = if depth == 1 { COUNT / 4 } else { COUNT };
        reactor::run(
            Config {
                spin,
                ..Config::default()
            },
            async {
                let Some(handle) = reactor::current() else {
                    return;
                };
                let (start, cpu) = (Instant::now(), cpu_time());
                let tasks: Vec<_> = (0..depth)
                    .map(|lane| {
                        let (pool, file) = (handle.buffers().clone(), Arc::clone(&file));
                        spawn(async move {
                            let mut at = lane;
                            for _ in 0..count / depth {
                                // A full-period walk that looks random to the drive.
                                at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                                let file_offset = (at >> 20) % blocks * BLOCK as u64;
                                let extent = FileExtent {
                                    file_offset,
                                    buffer_offset: 0,
                                    len: BLOCK,
                                };
                                let buffer = pool.alloc(BLOCK).await;
                                file::read(&file, buffer, &[extent]).await.0?;
                            }
                            io::Result::Ok(())
                        })
                    })
                    .collect();
                for task in tasks {
                    if let Ok(Err(error)) = task.await {
                        println!("a read failed: {error}");
                    }
                }
                let took = start.elapsed();
                report(
                    &format!("4 KiB O_DIRECT reads, qd {depth}, spin {spin:?}"),
                    count,
                    took,
                );
                report("  CPU time of the thread", count, cpu_time() - cpu);
            },
        )?;
    }
    Ok(())
}

/// CPU time of this thread, as the scheduler counts it.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|field| field.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}
