//! What the daemon sends to an OpenTelemetry collector.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::harness::{Daemon, Pool, run, wait_for};

/// A collector that takes one connection after the other.
struct Collector(TcpListener);

impl Collector {
    /// Beside the listeners of a pool, where nobody else is.
    fn open(pool: &Pool) -> Self {
        Self(TcpListener::bind(place(pool)).expect("the address is free"))
    }

    /// The next request: its head and what it says. It is answered with that.
    fn take(&self, answer: &str) -> (String, Value) {
        let (stream, _) = self.0.accept().expect("somebody comes");
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).expect("a socket");
        let (head, body) = read(&stream);
        (&stream)
            .write_all(answer.as_bytes())
            .expect("it waits for the answer");
        (head, serde_json::from_slice(&body).expect("JSON"))
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 21\r\n\r\n{\"partialSuccess\":{}}";

fn place(pool: &Pool) -> SocketAddr {
    SocketAddr::new(pool.ip(), 4318)
}

fn read(stream: &TcpStream) -> (String, Vec<u8>) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let read = reader.read_line(&mut head).expect("a head");
        assert!(read > 0, "it ends early: {head}");
    }
    let head = head.to_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .and_then(|length| length.parse().ok());
    let mut body = vec![0; length.expect("a length")];
    reader.read_exact(&mut body).expect("a body");
    (head, body)
}

fn serve(pool: &Pool, log: Stdio) -> Daemon {
    let endpoint = format!("http://{}/in", place(pool));
    let http = format!("{}:8420", pool.ip());
    let arguments = [
        "serve",
        "--pool",
        pool.dir(),
        "--listen",
        &pool.address,
        "--create",
        "1G",
        "--otlp-endpoint",
        &endpoint,
        "--otlp-interval",
        "1s",
        "--http",
        &http,
    ];
    Daemon::start_with(&arguments, log)
}

/// The names of `/metrics`: kinds by names.
fn scraped(pool: &Pool) -> BTreeSet<String> {
    let address = SocketAddr::new(pool.ip(), 8420);
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .expect("sent");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("a page");
    let samples = page
        .lines()
        .filter(|line| line.starts_with("onefold_") || line.starts_with("process_"));
    let names = samples.filter_map(|line| line.split(['{', ' ']).next());
    let names = names.map(|name| {
        name.trim_end_matches("_bucket")
            .trim_end_matches("_count")
            .trim_end_matches("_sum")
    });
    names.map(str::to_owned).collect()
}

/// The metrics of a request.
fn metrics(request: &Value) -> Vec<Value> {
    let metrics = &request["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
    metrics.as_array().expect("metrics").clone()
}

/// What a metric is called where it is scraped.
fn scraped_name(metric: &Value) -> String {
    let unit = match metric["unit"].as_str() {
        Some("By") => "_bytes",
        Some("s") => "_seconds",
        _ => "",
    };
    let total = if metric["sum"].is_object() {
        "_total"
    } else {
        ""
    };
    format!("{}{unit}{total}", metric["name"].as_str().expect("a name"))
}

#[test]
fn a_collector_gets_the_figures_that_a_scraper_reads() {
    let pool = Pool::new();
    let collector = Collector::open(&pool);
    let daemon = serve(&pool, Stdio::inherit());
    let (head, first) = collector.take(OK);
    assert!(
        head.starts_with("post /in/v1/metrics http/1.1\r\n"),
        "{head}"
    );
    assert!(
        head.contains("content-type: application/json\r\n"),
        "{head}"
    );
    let attributes = first["resourceMetrics"][0]["resource"]["attributes"].to_string();
    assert!(
        attributes.contains("service.name") && attributes.contains("\"onefold\""),
        "{attributes}"
    );

    pool.load(&["--rw", "write", "--size", "4M", "--bs", "64k"]);
    let mut latency = Value::Null;
    wait_for("the latency of the load", || {
        let request = collector.take(OK).1;
        let found = metrics(&request)
            .into_iter()
            .find(|it| it["name"] == "onefold_volume_latency");
        latency = found.unwrap_or_default();
        // A request may have been on its way when the load began.
        latency["histogram"]["dataPoints"][0]["count"] == "64"
    });
    let point = &latency["histogram"]["dataPoints"][0];
    assert_eq!(
        (
            &latency["unit"],
            &latency["histogram"]["aggregationTemporality"]
        ),
        (&"s".into(), &2.into())
    );
    let counts = point["bucketCounts"].as_array().expect("counts");
    let number = |text: &Value| {
        text.as_str()
            .and_then(|text| text.parse::<u64>().ok())
            .expect("a number as text")
    };
    assert_eq!(
        counts.iter().map(number).sum::<u64>(),
        number(&point["count"])
    );
    let bounds = point["explicitBounds"].as_array().expect("bounds");
    assert_eq!(bounds.len() + 1, counts.len());
    assert!(point["sum"].as_f64() > Some(0.0), "{point}");
    assert!(number(&point["startTimeUnixNano"]) < number(&point["timeUnixNano"]));
    assert_eq!(point["attributes"][0]["key"], "volume");
    assert_eq!(point["attributes"][0]["value"]["stringValue"], "vol0");

    // The host of the load may go between the two looks.
    wait_for("the same names both ways", || {
        let request = collector.take(OK).1;
        let sent: BTreeSet<String> = metrics(&request).iter().map(scraped_name).collect();
        sent.len() > 50 && sent == scraped(&pool)
    });
    // Nothing waits for a collector that does not answer.
    daemon.stop(Signal::TERM);
}

#[test]
fn a_collector_that_is_away_is_said_once_and_disturbs_nothing() {
    let pool = Pool::new();
    let path = pool.dir.with_extension("log");
    let log = File::create(&path).expect("a file");
    let daemon = serve(&pool, log.into());
    let logged = || std::fs::read_to_string(&path).expect("a log");
    let said = |words: &str| logged().matches(words).count();
    wait_for("the complaint", || said("does not take metrics") == 1);
    pool.load(&["--rw", "write", "--size", "1M"]);
    let collector = Collector::open(&pool);
    // One that refuses is no different.
    let refusal = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy";
    collector.take(refusal);
    collector.take(OK);
    wait_for("the all-clear", || said("takes metrics again") == 1);
    assert_eq!(said("does not take metrics"), 1, "{}", logged());
    assert!(logged().contains("cannot be reached"), "{}", logged());
    collector.take(refusal);
    wait_for("the next complaint", || {
        said("503 Service Unavailable: busy") == 1
    });
    daemon.stop(Signal::TERM);
}

#[test]
fn an_endpoint_that_is_none_is_explained_before_anything_starts() {
    let pool = Pool::new();
    std::fs::create_dir(&pool.dir).expect("a folder");
    let file = pool.dir.join("onefold.toml");
    let wrong = "[telemetry]\notlp_endpoint = \"collector:4317\"\n";
    std::fs::write(&file, wrong).expect("a file");
    let file = file.to_str().expect("text");
    let output = run(&["config", "check", file]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    for words in ["onefold.toml:2", "collector:4317", "write http://"] {
        assert!(said.contains(words), "no '{words}' in {said}");
    }
}
