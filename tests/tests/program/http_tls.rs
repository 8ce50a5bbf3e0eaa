//! HTTP by TLS: what other machines may ask, and certificates that are renewed.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::harness::{Daemon, Pool, wait_for};
use super::http::has_status;

#[test]
fn by_tls_other_machines_may_come_and_need_a_token_for_everything() {
    let pool = Pool::new();
    let folder = pool.dir.with_extension("tls");
    std::fs::create_dir(&folder).expect("a folder");
    let file = |name: &str| folder.join(name).to_str().expect("text").to_owned();
    let (chain, key) = (file("crt"), file("key"));
    let make = || {
        let made = Command::new("openssl")
            .args([
                "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
            ])
            .args(["-keyout", &key, "-out", &chain])
            .output()
            .expect("openssl runs");
        assert!(made.status.success(), "{made:?}");
    };
    make();
    let ip = pool.ip();
    let with = |chain: &str, key: &str| {
        let words = ["--create", "1G", "--http", "0.0.0.0:8421"];
        let tls = ["--http-tls-certificate", chain, "--http-tls-key", key];
        words
            .iter()
            .chain(&tls)
            .map(|word| (*word).to_owned())
            .collect::<Vec<_>>()
    };
    for (bad, named) in [
        (with("/nowhere.crt", &key), "/nowhere.crt"),
        (with(&chain, &chain), &*chain),
    ] {
        let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
        pool.fails_to_serve(&bad, 65, &[named, "PEM"]);
    }
    let good = with(&chain, &key);
    let good: Vec<&str> = good.iter().map(String::as_str).collect();
    let log = pool.dir.with_extension("log");
    let words = ["serve", "--pool", pool.dir(), "--listen", &pool.address];
    let words = [&words[..], &good].concat();
    let daemon = Daemon::start_with(&words, File::create(&log).expect("a log").into());
    let asked = |request: &str| {
        let mut client = Command::new("openssl")
            .args([
                "s_client",
                "-quiet",
                "-verify_quiet",
                "-CAfile",
                &chain,
                "-verify_return_error",
            ])
            .args(["-connect", &format!("{ip}:8421")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl runs");
        let text = format!("{request} HTTP/1.1\r\nHost: {ip}:8421\r\nConnection: close\r\n\r\n");
        let mut stdin = client.stdin.take().expect("a pipe");
        stdin.write_all(text.as_bytes()).expect("sent");
        let output = client.wait_with_output().expect("it ends");
        drop(stdin);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    has_status(&asked("GET /healthz"), 200);
    has_status(&asked("GET /v1/status"), 401);
    // In the clear: no answer at all.
    let mut plain = TcpStream::connect((ip, 8421)).expect("it listens");
    plain
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        .expect("sent");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(
        !answer.starts_with(b"HTTP"),
        "{}",
        String::from_utf8_lossy(&answer)
    );

    // The certificate is renewed in its files. A client that trusts only the new one sees the old one until a reload.
    make();
    assert_eq!(asked("GET /healthz"), "");
    daemon.signal(Signal::HUP);
    wait_for("the new certificate", || !asked("GET /healthz").is_empty());
    // Files that cannot be used change nothing.
    let renewed = file("renewed");
    std::fs::rename(&chain, &renewed).expect("moved");
    std::fs::write(&chain, "half a certificate").expect("written");
    daemon.signal(Signal::HUP);
    let told = || std::fs::read_to_string(&log).expect("the log");
    wait_for("the refusal", || {
        told().contains("the old certificate stays")
    });
    std::fs::rename(&renewed, &chain).expect("moved");
    has_status(&asked("GET /healthz"), 200);
    daemon.stop(Signal::TERM);
}
