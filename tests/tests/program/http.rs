//! The HTTP listener, as Prometheus, scripts, browsers and bad guests meet it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::Signal;

use super::harness::{Daemon, Pool, wait_for};

/// Where the daemon of a pool answers HTTP.
fn place(pool: &Pool) -> SocketAddr {
    SocketAddr::new(pool.ip(), 8420)
}

fn serve(pool: &Pool) -> Daemon {
    pool.serve(&["--create", "1G", "--http", &place(pool).to_string()])
}

/// Sends these bytes, and reads until the other side closes.
fn exchange(pool: &Pool, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(place(pool)).expect("it listens");
    let limit = Some(Duration::from_secs(60));
    stream.set_read_timeout(limit).expect("a socket");
    // It may close before it has read everything.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut chunk) {
        answer.extend_from_slice(&chunk[..count]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// The answer to a request without a body, with these lines in its head.
fn ask(pool: &Pool, request: &str, lines: &str) -> String {
    let host = place(pool);
    let text = format!("{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{lines}\r\n");
    exchange(pool, text.as_bytes())
}

#[track_caller]
fn has_status(answer: &str, status: u16) {
    let wanted = format!("HTTP/1.1 {status} ");
    assert!(answer.starts_with(&wanted), "no {status}: {answer}");
}

/// A sample of the metrics.
#[track_caller]
fn sample(page: &str, name: &str) -> f64 {
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = value.unwrap_or_else(|| panic!("no {name} in {page}"));
    value.parse().expect("a number")
}

#[test]
fn a_scraper_reads_health_and_figures_without_a_token() {
    let pool = Pool::new();
    let daemon = serve(&pool);
    let health = ask(&pool, "GET /healthz", "");
    has_status(&health, 200);
    assert!(health.ends_with("\r\n\r\nok\n"), "{health}");
    pool.load(&["--rw", "write", "--size", "4M", "--bs", "64k"]);
    let logical = pool.figure("logical_bytes") as f64;
    assert!(logical > 0.0);
    // A page may be a second old.
    wait_for("the figures of the load", || {
        let page = ask(&pool, "GET /metrics", "");
        has_status(&page, 200);
        sample(&page, "onefold_pool_logical_bytes") == logical
    });
    let page = ask(&pool, "GET /metrics", "");
    assert!(
        page.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{page}"
    );
    assert_eq!(
        sample(&page, "onefold_volume_logical_bytes{volume=\"vol0\"}"),
        logical
    );
    assert_eq!(sample(&page, "onefold_pool_health{state=\"ok\"}"), 1.0);
    assert!(page.ends_with("# EOF\n"), "{page}");
    daemon.stop(Signal::TERM);
}

#[test]
fn health_is_503_with_the_reason_while_the_pool_takes_no_writes() {
    let pool = Pool::new();
    let place = place(&pool).to_string();
    let daemon = pool.serve(&["--create", "64M", "--volume", "vol0=256M", "--http", &place]);
    let write = [
        "--rw", "write", "--bs", "64k", "--qd", "8", "--size", "128M",
    ];
    let report = pool.load_that_may_fail(&write);
    assert!(report["errors"].as_u64() > Some(0), "{report:#}");
    let health = ask(&pool, "GET /healthz", "");
    has_status(&health, 503);
    assert!(
        health.contains("\r\n\r\ntakes no writes\nthe pool is full"),
        "{health}"
    );
    daemon.stop(Signal::TERM);
}

#[test]
fn bad_requests_are_refused_and_harm_nobody() {
    let pool = Pool::new();
    let daemon = serve(&pool);
    let host = place(&pool);
    // A client that says nothing, and one that never ends its head: they are closed in the end.
    let silent = TcpStream::connect(host).expect("it listens");
    let mut slow = TcpStream::connect(host).expect("it listens");
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost: x")
        .expect("sent");
    for path in [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/healthz/..%2f..%2fpool.toml",
        "//etc/passwd",
        "/v2/status",
    ] {
        has_status(&ask(&pool, &format!("GET {path}"), ""), 404);
    }
    has_status(&ask(&pool, "POST /metrics", "Content-Length: 0\r\n"), 405);
    let huge = format!("Content-Length: {}\r\n", 1_u64 << 40);
    has_status(&ask(&pool, "POST /metrics", &huge), 413);
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    let endless = format!(
        "POST /metrics HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}{chunk}"
    );
    has_status(&exchange(&pool, endless.as_bytes()), 413);
    let long = format!("X-Long: {}\r\n", "x".repeat(64 << 10));
    has_status(&ask(&pool, "GET /metrics", &long), 431);
    has_status(&exchange(&pool, b"\x16\x03\x01\x02\x00\x01\xff\xff"), 400);
    has_status(
        &exchange(&pool, b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n"),
        400,
    );
    // A name that somebody else made to lead here, and a page of another site.
    let rebound = b"GET /metrics HTTP/1.1\r\nHost: evil.example:8420\r\nConnection: close\r\n\r\n";
    let refused = exchange(&pool, rebound);
    has_status(&refused, 421);
    assert!(refused.contains("--http-name evil.example"), "{refused}");
    has_status(
        &ask(&pool, "GET /metrics", "Origin: http://evil.example\r\n"),
        403,
    );
    let answer = ask(&pool, "GET /healthz", "");
    has_status(&answer, 200);
    for header in [
        "x-frame-options: DENY",
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
    ] {
        assert!(answer.contains(header), "{answer}");
    }
    assert!(!answer.contains("access-control"), "{answer}");
    for mut stream in [silent, slow] {
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).expect("a socket");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("it is closed in time");
    }
    daemon.stop(Signal::TERM);
}

#[test]
fn crowds_wait_for_their_turn_and_the_next_one_is_answered() {
    let pool = Pool::new();
    let daemon = serve(&pool);
    let crowd: Vec<TcpStream> = (0..300)
        .map(|_| TcpStream::connect(place(&pool)).expect("it listens"))
        .collect();
    drop(crowd);
    has_status(&ask(&pool, "GET /healthz", ""), 200);
    daemon.stop(Signal::TERM);
}

#[test]
fn what_other_machines_can_reach_is_not_served_in_the_clear() {
    let pool = Pool::new();
    for address in ["0.0.0.0:8420", "[::]:8420", "192.0.2.7:8420"] {
        let more = ["--create", "1G", "--http", address];
        pool.fails_to_serve(&more, 65, &[address, "127.0.0.1:8420"]);
    }
    assert!(!pool.dir.exists(), "nothing was made");
    let daemon = serve(&pool);
    // The port is taken: said before the pool is touched.
    let other = Pool::new();
    let taken = place(&pool).to_string();
    other.fails_to_serve(
        &["--create", "1G", "--http", &taken],
        69,
        &[&taken, "cannot listen"],
    );
    assert!(!other.dir.exists(), "nothing was made");
    daemon.stop(Signal::TERM);
}
