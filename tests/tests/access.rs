//! Who may attach, told with the program alone: hosts with secrets, over TCP and RDMA, over a restart; and that
//! nobody sees a secret.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use serde_json::Value;
use tests::daemon::{Daemon, onefold, text_of};

const NQN: &str = "nqn.2026-11.dev.onefold:default";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-00000000aaaa";

fn gen_key(folder: &Path, name: &str, hash: &str) -> (String, String) {
    let output = onefold(&["host", "gen-dhchap-key", "--hash", hash]);
    assert!(output.status.success(), "{}", text_of(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    let path = folder.join(name);
    fs::write(&path, &text).expect("a file");
    (
        path.to_str().expect("UTF-8").to_owned(),
        text.trim().to_owned(),
    )
}

/// Every file below a folder.
fn files(folder: &Path, all: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => files(&path, all),
            false => all.push(path),
        }
    }
}

#[test]
fn a_host_with_a_secret_attaches_with_it_alone_also_after_a_restart_and_nobody_sees_it() {
    let folder = tempfile::Builder::new()
        .prefix("onefold-access-")
        .tempdir()
        .expect("a folder");
    let pool = folder.path().join("pool");
    let serve = || {
        let listen = ["tcp://127.77.31.1:4420", "rdma://127.77.31.1:4420"];
        let mut all = vec!["--create", "1G", "--volume", "vol0=256M", "--reactors", "1"];
        listen
            .iter()
            .for_each(|address| all.extend_from_slice(&["--listen", address]));
        Daemon::start(&pool, None, &all)
    };
    let daemon = serve();
    let place = ["--pool", pool.to_str().expect("UTF-8")];
    let control = |arguments: &[&str]| onefold(&[arguments, &place].concat());
    let (one, one_text) = gen_key(folder.path(), "one.key", "sha256");
    let (two, two_text) = gen_key(folder.path(), "two.key", "none");
    let (ctrl, ctrl_text) = gen_key(folder.path(), "controller.key", "sha512");
    let created = control(&[
        "host",
        "create",
        HOST,
        "--dhchap-secret-file",
        &one,
        "--dhchap-ctrl-secret-file",
        &ctrl,
    ]);
    assert!(created.status.success(), "{}", text_of(&created));

    let perf = |transport: &str, keys: &[&str]| {
        let address = format!("{transport}://127.77.31.1:4420/{NQN}");
        let load = [
            "perf", &address, "--rw", "randrw", "--size", "4M", "--verify", "--json",
        ];
        onefold(&[&load, keys].concat())
    };
    let right = ["--hostnqn", HOST, "--dhchap-secret-file", &one];
    for transport in ["tcp", "rdma"] {
        let output = perf(transport, &right);
        assert!(output.status.success(), "{}", text_of(&output));
        let both = [&right[..], &["--dhchap-ctrl-secret-file", &ctrl]].concat();
        let output = perf(transport, &both);
        assert!(output.status.success(), "{}", text_of(&output));
    }
    // Whoever has no key is not asked.
    assert!(perf("tcp", &[]).status.success());
    let refused = |keys: &[&str], why: &str| {
        let output = perf("tcp", keys);
        assert!(!output.status.success(), "{keys:?} gets in");
        let text = text_of(&output);
        assert!(text.contains(why), "{text}");
    };
    refused(&["--hostnqn", HOST], "--dhchap-secret-file");
    refused(
        &["--hostnqn", HOST, "--dhchap-secret-file", &two],
        "wrong answer",
    );
    let stranger = ["--dhchap-ctrl-secret-file", two.as_str()];
    refused(
        &[&right[..], &stranger].concat(),
        "does not know its secret",
    );

    assert!(daemon.stop().success(), "it stops cleanly");
    let daemon = serve();
    assert!(perf("tcp", &right).status.success(), "the secret is kept");
    refused(
        &["--hostnqn", HOST, "--dhchap-secret-file", &two],
        "wrong answer",
    );
    let changed = control(&[
        "host",
        "set",
        HOST,
        "--dhchap-secret-file",
        &two,
        "--no-dhchap-ctrl-secret",
    ]);
    assert!(changed.status.success(), "{}", text_of(&changed));
    refused(&right, "wrong answer");
    assert!(
        perf("tcp", &["--hostnqn", HOST, "--dhchap-secret-file", &two])
            .status
            .success()
    );

    let shown: Value =
        serde_json::from_slice(&control(&["host", "show", HOST, "--json"]).stdout).expect("JSON");
    assert_eq!(shown["dhchap_secret"], "none", "its hash");
    assert_eq!(shown["dhchap_ctrl_secret"], Value::Null);
    let failed = daemon.status()["authentication"]["failed"].as_u64();
    assert_eq!(failed, Some(2));
    // It may be bound to TLS, which these listeners do not take.
    let right = ["--hostnqn", HOST, "--dhchap-secret-file", &two];
    for (switch, gets_in) in [("on", false), ("off", true)] {
        let set = control(&["host", "set", HOST, "--tls-only", switch]);
        assert!(set.status.success(), "{}", text_of(&set));
        let text = text_of(&control(&["host", "show", HOST]));
        assert!(
            text.contains(&format!("TLS only           {switch}")),
            "{text}"
        );
        match gets_in {
            true => assert!(perf("tcp", &right).status.success()),
            false => refused(&right, "Connect Invalid Host"),
        }
    }
    let log = daemon.log();
    assert!(
        log.contains("127.0.0.1") && log.contains("authentication failed"),
        "{log}"
    );
    let texts = [
        &["host", "list"][..],
        &["host", "list", "--json"],
        &["status", "--json"],
        &["subsystem", "list", "--json"],
    ];
    let said: Vec<_> = texts
        .iter()
        .map(|text| text_of(&control(text)))
        .chain([log])
        .collect();
    for secret in [one_text, two_text, ctrl_text] {
        let middle = &secret[12..40];
        assert!(
            !said.iter().any(|text| text.contains(middle)),
            "a secret is shown"
        );
    }
    assert!(daemon.stop().success(), "it stops cleanly");
    let mut kept = Vec::new();
    files(&pool, &mut kept);
    for file in kept {
        let mode = fs::metadata(&file).expect("a file").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{} can be read by others", file.display());
    }
}
