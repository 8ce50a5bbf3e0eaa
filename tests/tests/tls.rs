//! TLS on TCP, told with the program alone: who gets in, what the others hear, and that nobody sees a key.

use std::{fs, path::Path};

use tests::daemon::{Daemon, onefold, text_of};

const NQN: &str = "nqn.2026-11.dev.onefold:default";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-00000000bbbb";
const ADDRESS: &str = "tcp://127.77.32.1:4420";

/// A new key in a file of its own; gives the file's name and the key.
fn gen_key(folder: &Path, hash: &str) -> (String, String) {
    let output = onefold(&["host", "gen-tls-key", "--hash", hash]);
    assert!(output.status.success(), "{}", text_of(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    let path = folder.join(hash);
    fs::write(&path, &text).expect("a file");
    (
        path.to_str().expect("UTF-8").to_owned(),
        text.trim().to_owned(),
    )
}

#[test]
fn a_host_verifies_its_data_over_tls_with_either_suite_and_one_without_a_key_hears_what_to_do() {
    let folder = tempfile::Builder::new()
        .prefix("onefold-tls-")
        .tempdir()
        .expect("a folder");
    let pool = folder.path().join("pool");
    let all = [
        "--create",
        "1G",
        "--volume",
        "vol0=256M",
        "--reactors",
        "1",
        "--listen",
        ADDRESS,
        "--tls",
        "required",
    ];
    let daemon = Daemon::start(&pool, None, &all);
    let place = ["--pool", pool.to_str().expect("UTF-8")];
    let control = |arguments: &[&str]| {
        let output = onefold(&[arguments, &place].concat());
        assert!(output.status.success(), "{}", text_of(&output));
    };
    control(&["host", "create", HOST]);
    let perf = |keys: &[&str]| {
        let address = format!("{ADDRESS}/{NQN}");
        let load = ["perf", &address, "--rw", "randrw", "--bs", "64k"];
        let size = ["--size", "16M", "--verify", "--json"];
        onefold(&[&load[..], &size, keys].concat())
    };
    let mut texts = Vec::new();
    for hash in ["sha256", "sha384"] {
        let (file, text) = gen_key(folder.path(), hash);
        let with_key = ["--hostnqn", HOST, "--tls-key-file", &file];
        // Not known yet.
        let output = perf(&with_key);
        assert!(!output.status.success(), "an unknown key gets in");
        assert!(
            text_of(&output).contains("same key"),
            "{}",
            text_of(&output)
        );
        control(&["host", "tls-key", "add", HOST, "--file", &file]);
        let output = perf(&with_key);
        assert!(output.status.success(), "{}", text_of(&output));
        let output = onefold(&[&["discover", ADDRESS][..], &with_key].concat());
        assert!(output.status.success(), "{}", text_of(&output));
        assert!(text_of(&output).contains(NQN), "{}", text_of(&output));
        texts.push(text);
    }
    assert!(!perf(&[]).status.success(), "nobody comes in clear");
    let log = daemon.log();
    assert!(
        log.contains("does not begin with TLS") && log.contains("not known here"),
        "{log}"
    );
    for text in &texts {
        assert!(!log.contains(text.as_str()), "the log shows a key");
    }
    // RDMA has no TLS.
    let address = format!("rdma://127.77.32.1:4420/{NQN}");
    let (file, _) = gen_key(folder.path(), "sha256");
    let output = onefold(&[
        "perf",
        &address,
        "--rw",
        "read",
        "--size",
        "1M",
        "--hostnqn",
        HOST,
        "--tls-key-file",
        &file,
    ]);
    assert!(!output.status.success(), "{}", text_of(&output));
    assert!(
        text_of(&output).contains("NVMe/TCP alone"),
        "{}",
        text_of(&output)
    );
    assert!(daemon.stop().success(), "it stops cleanly");
}
