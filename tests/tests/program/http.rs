//! The HTTP listener, as Prometheus, scripts, browsers and bad guests meet it.

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::harness::{Daemon, NQN, Pool, fails, json as answer, onefold, succeeds, wait_for};

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
pub(crate) fn has_status(answer: &str, status: u16) {
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

/// Prometheus takes a counter that falls for a restart of the daemon.
#[test]
fn counters_of_the_network_do_not_fall_when_a_listener_is_removed() {
    let pool = Pool::new();
    let daemon = serve(&pool);
    let more = format!("tcp://{}:4421", pool.ip());
    succeeds(&["listener", "add", &more, "--pool", pool.dir()]);
    let subsystem = format!("{more}/nqn.2026-11.dev.onefold:default");
    succeeds(&[
        "perf", &subsystem, "--rw", "write", "--size", "4M", "--bs", "64k",
    ]);
    // By all reactors.
    let received = || -> f64 {
        let page = ask(&pool, "GET /metrics", "");
        let lines = page.lines();
        let samples = lines.filter(|line| line.starts_with("onefold_tcp_received_bytes_total{"));
        samples
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    };
    let written = f64::from(4 << 20);
    // A page may be a second old.
    wait_for("the bytes of the load", || received() >= written);
    succeeds(&["listener", "remove", &more, "--yes", "--pool", pool.dir()]);
    // A page that is newer than the removal: nothing else makes this name.
    succeeds(&[
        "volume",
        "create",
        "later",
        "--size",
        "1M",
        "--pool",
        pool.dir(),
    ]);
    wait_for("a page after the removal", || {
        ask(&pool, "GET /metrics", "").contains("volume=\"later\"")
    });
    assert!(received() >= written, "{}", received());
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
    let unfinished =
        format!("POST /metrics HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n{{");
    let mut late = TcpStream::connect(host).expect("it listens");
    late.write_all(unfinished.as_bytes()).expect("sent");
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
    // The page too: what another page shows in a frame, its visitors click on.
    let page = ask(&pool, "GET /", "");
    assert!(page.contains("x-frame-options: DENY"), "{page}");
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
    let [_, _, late] = [silent, slow, late].map(|mut stream| {
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).expect("a socket");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("it is closed in time");
        String::from_utf8(rest).expect("text")
    });
    has_status(&late, 408);
    daemon.stop(Signal::TERM);
}

#[test]
fn what_cannot_be_understood_is_refused_and_changes_nothing() {
    let pool = Pool::new();
    let daemon = serve(&pool);
    let admin = token(&pool, "ann", &["--role", "admin"]);
    let volumes = || answer(&["volume", "list", "--pool", pool.dir(), "--json"]);
    let before = volumes();
    let deep = "{\"name\":".repeat(5_000);
    for wrong in [
        "",
        "{",
        "null",
        "[]",
        "7",
        &deep,
        "{\"name\": \"a\"}",
        "{\"name\": 7, \"size_bytes\": 4096}",
        "{\"name\": \"a\", \"size_bytes\": \"1G\"}",
        "{\"name\": \"a\", \"size_bytes\": -4096}",
        "{\"name\": \"a\", \"size_bytes\": 1e99}",
        "{\"name\": \"a\", \"size_bytes\": 4096, \"color\": 1}",
        "{\"name\": \"../../etc\", \"size_bytes\": 4096}",
        "{\"name\": \"a\\u0000\", \"size_bytes\": 4096}",
        "{\"name\": \"a\", \"size_bytes\": 4096} {}",
    ] {
        let refused = ask_as(&pool, &admin, "POST /v1/volumes", wrong);
        has_status(&refused, 400);
        assert_eq!(body(&refused)["kind"], "invalid", "{wrong}: {refused}");
    }
    for (request, status) in [
        ("GET /v1/volumes/..%2f..%2fpool.toml", 404),
        ("DELETE /v1/volumes/%00", 404),
        ("GET /v1/volumes/%ff", 400),
        ("GET /v1/tasks/one", 400),
        ("GET /v1/events?since=-1", 400),
        ("GET /v1/events/stream?since=x", 400),
        ("GET /v1/trace", 400),
        ("GET /v1/history?step=week", 400),
        ("GET /v1/volumes/vol0/key-proof?nonce=12", 400),
        (
            "GET /v1/volumes/vol0/data?offset=512&length=4096&fingerprints=true",
            400,
        ),
        (
            "GET /v1/volumes/vol0/data?offset=0&length=512&fingerprints=true",
            400,
        ),
        ("GET /assets/..%2f..%2fCargo.toml", 404),
        ("GET /assets/../../../etc/passwd", 404),
    ] {
        has_status(&ask_as(&pool, &admin, request, ""), status);
    }
    for key in ["12", &"zz".repeat(32)] {
        let take = format!("{{\"domain\": \"d\", \"fingerprint\": \"clnh\", \"key\": \"{key}\"}}");
        let refused = ask_as(&pool, &admin, "POST /v1/domain-keys", &take);
        has_status(&refused, 400);
        // Not the whole answer: its head has the time of day, in which two digits may be any.
        let told = body(&refused).to_string();
        assert!(!told.contains(key), "a secret stays one: {told}");
    }
    // A page of another site that knows a token: no answer, and no change. Nor by a form, which is no JSON.
    let lines = format!("Authorization: Bearer {admin}\r\nOrigin: http://evil.example\r\n");
    has_status(&ask(&pool, "DELETE /v1/volumes/vol0", &lines), 403);
    let lines = format!(
        "Authorization: Bearer {admin}\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n"
    );
    has_status(&ask(&pool, "POST /v1/volumes", &lines), 400);
    assert_eq!(volumes(), before);
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

/// A request with a token.
fn ask_as(pool: &Pool, token: &str, request: &str, body: &str) -> String {
    let length = body.len();
    let lines = format!(
        "Authorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n"
    );
    let host = place(pool);
    let head = format!("{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{lines}\r\n");
    exchange(pool, (head + body).as_bytes())
}

/// A token of that role.
fn token(pool: &Pool, name: &str, more: &[&str]) -> String {
    let create = ["token", "create", name, "--pool", pool.dir()];
    succeeds(&[&create[..], more].concat()).trim().to_owned()
}

#[test]
fn a_token_may_do_what_its_role_says_until_it_is_removed_or_expires() {
    let pool = Pool::new();
    let log = pool.dir.with_extension("log");
    let place = place(&pool).to_string();
    let arguments = ["serve", "--pool", pool.dir(), "--listen", &pool.address];
    let more = ["--create", "1G", "--http", &place];
    let daemon = Daemon::start_with(
        &[&arguments[..], &more[..]].concat(),
        File::create(&log).expect("a log").into(),
    );
    let read = token(&pool, "prometheus", &[]);
    let operate = token(&pool, "night", &["--role", "operate"]);
    let admin = token(&pool, "ann", &["--role", "admin", "--expires", "never"]);
    let brief = token(&pool, "brief", &["--expires", "1s"]);
    let volume = |name: &str| format!("{{\"name\": \"{name}\", \"size_bytes\": 4194304}}");

    // Without a token, or with what is none: nothing, and nothing is told.
    for wrong in ["", "x", &read[..read.len() - 1], &read.to_uppercase()] {
        let answer = ask_as(&pool, wrong, "GET /v1/status", "");
        has_status(&answer, 401);
        assert!(answer.contains("www-authenticate: Bearer"), "{answer}");
        assert!(!answer.contains("vol0"), "{answer}");
    }
    has_status(&ask(&pool, "GET /v1/volumes", ""), 401);
    has_status(&ask_as(&pool, "", "DELETE /v1/volumes/vol0", ""), 401);

    has_status(&ask_as(&pool, &read, "GET /v1/status", ""), 200);
    for (request, body) in [
        ("POST /v1/volumes", volume("a")),
        ("DELETE /v1/volumes/vol0", String::new()),
        ("GET /v1/tokens", String::new()),
    ] {
        let answer = ask_as(&pool, &read, request, &body);
        has_status(&answer, 403);
        assert!(
            answer.contains("has the role 'read', and this needs"),
            "{answer}"
        );
    }
    has_status(
        &ask_as(&pool, &operate, "POST /v1/volumes", &volume("a")),
        200,
    );
    has_status(&ask_as(&pool, &operate, "DELETE /v1/volumes/a", ""), 403);
    let onto =
        "{\"onto\": {\"base\": \"00000000-0000-0000-0000-000000000001\", \"size_bytes\": 4096}}";
    for into in ["\"existing\"", onto] {
        let import = format!("{{\"image\": \"x\", \"into\": {into}}}");
        let answer = ask_as(&pool, &operate, "POST /v1/volumes/a/import", &import);
        assert!(answer.contains("the role of an administrator"), "{answer}");
    }
    has_status(
        &ask_as(&pool, &operate, "POST /v1/backup", "{\"dir\": \"/tmp/x\"}"),
        403,
    );
    has_status(&ask_as(&pool, &admin, "DELETE /v1/volumes/a", ""), 200);
    let listed = ask_as(&pool, &admin, "GET /v1/tokens", "");
    has_status(&listed, 200);
    for secret in [&read, &operate, &admin, &brief] {
        assert!(
            !listed.contains(secret.trim_start_matches("onefold_")),
            "{listed}"
        );
    }
    wait_for("a token to expire", || {
        let answer = ask_as(&pool, &brief, "GET /v1/status", "");
        answer.starts_with("HTTP/1.1 401") && answer.contains("'brief' has expired")
    });
    // The log knows the change by its token, and no secret.
    let told = std::fs::read_to_string(&log).expect("the log");
    assert!(told.contains("token 'night' (127."), "{told}");
    assert!(!told.contains(&admin), "a secret was logged");
    has_status(&ask_as(&pool, &admin, "PUT /v1/volumes", ""), 405);
    has_status(&ask_as(&pool, &admin, "GET /v1/none", ""), 404);

    // They are kept by their hashes, and count again after a restart.
    daemon.stop(Signal::TERM);
    let daemon = serve(&pool);
    has_status(&ask_as(&pool, &admin, "GET /v1/tokens", ""), 200);
    fails(
        &["token", "create", "ann", "--pool", pool.dir()],
        65,
        &["'ann'", "remove it first"],
    );
    succeeds(&["token", "remove", "ann", "--pool", pool.dir()]);
    has_status(&ask_as(&pool, &admin, "GET /v1/status", ""), 401);
    fails(
        &["token", "remove", "ann", "--pool", pool.dir()],
        66,
        &["'ann'", "token list"],
    );
    let tokens = answer(&["token", "list", "--pool", pool.dir(), "--json"]);
    let names: Vec<_> = tokens.as_array().expect("a list").iter().collect();
    assert_eq!(names.len(), 3, "{tokens:#}");
    daemon.stop(Signal::TERM);
}

#[test]
fn without_a_token_nothing_of_the_documented_is_answered_but_health_figures_and_the_document() {
    let pool = Pool::new();
    let daemon = serve(&pool);
    let document = body(&ask(&pool, "GET /v1/openapi.json", ""));
    let read = token(&pool, "look", &[]);
    let open = ["/healthz", "/metrics", "/v1/openapi.json"];
    let mut refused = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        if open.contains(&path.as_str()) {
            continue;
        }
        let path = path.replace(['{', '}'], "");
        for (method, operation) in methods.as_object().expect("methods") {
            let request = format!("{} {path}", method.to_uppercase());
            has_status(&ask(&pool, &request, "Content-Length: 0\r\n"), 401);
            has_status(&ask_as(&pool, "onefold_none", &request, "{}"), 401);
            if operation["x-onefold-role"] != "read" {
                has_status(&ask_as(&pool, &read, &request, "{}"), 403);
            }
            refused += 1;
        }
    }
    assert!(refused > 50, "{refused} requests were refused");
    daemon.stop(Signal::TERM);
}

#[test]
fn who_tries_tokens_waits_for_each_answer_is_counted_and_fills_no_log() {
    let pool = Pool::new();
    let log = pool.dir.with_extension("log");
    let place = place(&pool).to_string();
    let arguments = ["serve", "--pool", pool.dir(), "--listen", &pool.address];
    let daemon = Daemon::start_with(
        &[&arguments[..], &["--create", "1G", "--http", &place]].concat(),
        File::create(&log).expect("a log").into(),
    );
    let began = Instant::now();
    for number in 0..4 {
        let wrong = format!("onefold_{number:064}");
        has_status(&ask_as(&pool, &wrong, "GET /v1/status", ""), 401);
    }
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(2), "{waited:?}");
    has_status(&ask(&pool, "GET /v1/status", ""), 401);
    wait_for("the counts", || {
        let page = ask(&pool, "GET /metrics", "");
        let count = |reason| {
            sample(
                &page,
                &format!("onefold_api_refused_total{{reason=\"{reason}\"}}"),
            )
        };
        (count("wrong_token"), count("no_token")) == (4.0, 1.0)
    });
    let told = std::fs::read_to_string(&log).expect("the log");
    assert_eq!(told.matches("a request used a token").count(), 1, "{told}");
    assert!(!told.contains("onefold_0"), "a secret was logged: {told}");
    let events = answer(&["events", "--pool", pool.dir(), "--json"]);
    assert!(
        events.to_string().contains("a request used a token"),
        "{events:#}"
    );
    daemon.stop(Signal::TERM);
}

#[test]
fn a_proxy_of_this_machine_is_not_taken_for_those_it_asks_for() {
    let pool = Pool::new();
    let daemon = serve(&pool);
    has_status(&ask(&pool, "GET /metrics", ""), 200);
    let passed_on = ask(&pool, "GET /metrics", "X-Forwarded-For: 192.0.2.7\r\n");
    has_status(&passed_on, 401);
    daemon.stop(Signal::TERM);
}

#[test]
fn who_asks_for_it_is_served_in_the_clear() {
    let pool = Pool::new();
    let words = [
        "--create",
        "1G",
        "--http",
        "0.0.0.0:8422",
        "--http-clear-text",
    ];
    let daemon = pool.serve(&words);
    let mut stream = TcpStream::connect((pool.ip(), 8422)).expect("it listens");
    let request = format!(
        "GET /healthz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
        pool.ip()
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    has_status(&answer, 200);
    daemon.stop(Signal::TERM);
}

#[test]
fn a_group_may_operate_by_the_pools_socket_and_take_nothing_from_anybody() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "this story needs root");
        eprintln!("left out: only root can be another user");
        return;
    }
    let pool = Pool::new();
    pool.fails_to_serve(
        &["--create", "1G", "--api-group", "nobodys"],
        65,
        &["--api-group nobodys", "no such group"],
    );
    let daemon = pool.serve(&["--create", "1G", "--api-group", "daemon"]);
    let above = pool.dir.parent().expect("a folder");
    for folder in [above, &pool.dir] {
        std::fs::set_permissions(folder, Permissions::from_mode(0o711)).expect("it is ours");
    }
    let command = |group: &str, words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            "65534",
            "--regid",
            group,
            "--clear-groups",
            &onefold(),
        ]);
        command.args(words).args(["--pool", pool.dir()]);
        let output = command.output().expect("setpriv runs");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), errors)
    };
    let (code, errors) = command("daemon", &["volume", "create", "theirs", "--size", "4M"]);
    assert_eq!(code, Some(0), "{errors}");
    let (code, errors) = command("daemon", &["volume", "delete", "theirs", "--yes"]);
    assert_ne!(code, Some(0));
    assert!(
        errors.contains("has the role 'operate', and this needs 'admin'"),
        "{errors}"
    );
    let (code, errors) = command("nogroup", &["volume", "list"]);
    assert_ne!(code, Some(0), "{errors}");
    let volumes = answer(&["volume", "list", "--pool", pool.dir(), "--json"]);
    assert_eq!(volumes.as_array().map(Vec::len), Some(2), "{volumes:#}");
    daemon.stop(Signal::TERM);
}

#[test]
fn what_the_pool_held_is_known_by_the_second_and_over_a_restart() {
    let pool = Pool::new();
    let daemon = serve(&pool);
    let read = token(&pool, "look", &[]);
    let rows = || body(&ask_as(&pool, &read, "GET /v1/history?step=second", ""));
    wait_for("a row", || {
        !rows()["at"].as_array().expect("a list").is_empty()
    });
    pool.load(&["--rw", "write", "--size", "4M", "--bs", "64k"]);
    let logical = pool.figure("logical_bytes");
    wait_for("the load in the history", || {
        let last = |name: &str| rows()[name].as_array().expect("a list").last().cloned();
        last("logical_bytes") == Some(logical.into())
    });
    let before = rows();
    let written = before["written_bytes"].as_array().expect("a list").iter();
    let written: u64 = written.filter_map(Value::as_u64).sum();
    assert_eq!(written, 4 << 20, "each byte is in one row");
    daemon.stop(Signal::TERM);
    let daemon = serve(&pool);
    let after = rows();
    for name in ["at", "logical_bytes", "written_bytes"] {
        assert_eq!(after[name][0], before[name][0], "{name}");
    }
    let longer = ask_as(&pool, &read, "GET /v1/history?step=year", "");
    has_status(&longer, 400);
    has_status(&ask(&pool, "GET /", ""), 200);
    has_status(&ask(&pool, "GET /assets/app.js", ""), 200);
    has_status(&ask(&pool, "GET /assets/..%2f..%2fpool.toml", ""), 404);
    daemon.stop(Signal::TERM);
}

/// What is wrong with a value by its schema, in the document of the API.
fn faults(document: &Value, schema: &Value, value: &Value, at: &str) -> Vec<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let pointer = reference.trim_start_matches('#');
        let schema = document.pointer(pointer).expect(reference);
        return faults(document, schema, value, at);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = |choice: &&Value| faults(document, choice, value, at).is_empty();
        return match choices.iter().filter(fits).count() {
            1 => Vec::new(),
            count => vec![format!("{at}: {value} fits {count} of its forms")],
        };
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let is_kind = |wanted: &Value| wanted == kind || (wanted == "number" && kind == "integer");
    let kinds = &schema["type"];
    if !kinds
        .as_array()
        .map_or_else(|| is_kind(kinds), |all| all.iter().any(is_kind))
    {
        return vec![format!("{at}: {value} is no {kinds}")];
    }
    if schema["enum"]
        .as_array()
        .is_some_and(|all| !all.contains(value))
    {
        return vec![format!("{at}: {value} is none of {}", schema["enum"])];
    }
    let mut found = Vec::new();
    if let Some(items) = value.as_array() {
        for item in items {
            found.extend(faults(document, &schema["items"], item, &format!("{at}[]")));
        }
    }
    if let Some(fields) = value.as_object() {
        for name in schema["required"].as_array().into_iter().flatten() {
            let name = name.as_str().expect("a name");
            if !fields.contains_key(name) {
                found.push(format!("{at}.{name} is missing"));
            }
        }
        for (name, field) in fields {
            let others = &schema["additionalProperties"];
            match schema["properties"].get(name) {
                Some(schema) => {
                    found.extend(faults(document, schema, field, &format!("{at}.{name}")))
                }
                None if others.is_object() => {
                    found.extend(faults(document, others, field, &format!("{at}.{name}")));
                }
                None if *others == false => found.push(format!("{at}.{name} is not documented")),
                None => {}
            }
        }
    }
    found
}

/// The JSON of an answer.
#[track_caller]
fn body(answer: &str) -> Value {
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

#[test]
fn answers_are_as_the_api_document_says() {
    let pool = Pool::new();
    let daemon = serve(&pool);
    let dir = pool.dir();
    let host = "nqn.2014-08.org.nvmexpress:uuid:6f6e6566-6f6c-4d00-8000-000000000001";
    succeeds(&["volume", "create", "more", "--size", "4M", "--pool", dir]);
    succeeds(&["subsystem", "allow", NQN, host, "--pool", dir]);
    succeeds(&["status", "--survey", "--pool", dir]);
    let admin = token(&pool, "admin", &["--role", "admin"]);
    let document = body(&ask(&pool, "GET /v1/openapi.json", ""));
    let paths = document["paths"].as_object().expect("paths");
    let mut looked_at = 0;
    for (path, methods) in paths {
        let answer = &methods["get"]["responses"]["200"]["content"]["application/json"];
        if answer.is_null() || path == "/v1/openapi.json" {
            continue;
        }
        // The first task is the survey.
        let path = path.replace("{id}", "1").replace("{name}", "more").replace(
            "{nqn}",
            match path.contains("hosts") {
                true => host,
                false => NQN,
            },
        );
        // It is compared with itself.
        let path = path.replace("/diff", "/diff?with=more");
        let proof = format!("/key-proof?nonce={}", "00".repeat(32));
        let path = path.replace("/key-proof", &proof);
        let told = ask_as(&pool, &admin, &format!("GET {path}"), "");
        if path.starts_with("/v1/hosts/") && told.starts_with("HTTP/1.1 404") {
            continue;
        }
        has_status(&told, 200);
        let found = faults(&document, &answer["schema"], &body(&told), &path);
        assert!(found.is_empty(), "{found:#?}");
        looked_at += 1;
    }
    assert!(looked_at > 12, "{looked_at} answers were looked at");
    let refused = ask_as(&pool, &admin, "GET /v1/volumes/none", "");
    has_status(&refused, 404);
    let error = json!({"$ref": "#/components/schemas/ErrorBody"});
    let found = faults(&document, &error, &body(&refused), "error");
    assert!(found.is_empty(), "{found:#?}");
    daemon.stop(Signal::TERM);
}
