//! Tables by which machines boot from volumes. That a machine does so is told by `guests_clones.rs`.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use super::harness::{Pool, json, run, succeeds};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:7a2c4f10-6d3b-4e58-9b1a-20c35e81f6d4";
const OTHER: &str = "nqn.2026-11.org.example:other";
const NIC: &str = "52:54:00:12:34:56=192.0.2.50/24,gateway=192.0.2.254";

fn holds(table: &[u8], part: &[u8]) -> bool {
    table.windows(part.len()).any(|window| window == part)
}

/// The bytes of a UUID.
fn uuid(text: &str) -> [u8; 16] {
    let digits = text.replace('-', "");
    let number = u128::from_str_radix(&digits, 16).expect("a UUID");
    number.to_be_bytes()
}

#[test]
fn a_table_for_booting_says_who_the_machine_is_and_where_its_volume_is() {
    let pool = Pool::new();
    let tcp = format!("tcp://{}:4420", pool.ip());
    let daemon = pool.serve(&["--create", "1G", "--listen", &tcp]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let nbft = |words: &[&str], file: &str| {
        let start = ["volume", "nbft", "vol0", file];
        run(&[&start[..], words, &["--pool", pool.dir()]].concat())
    };
    let refused = |words: &[&str], code, says: &[&str]| {
        let output = nbft(words, &path("refused"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {errors}");
        for said in says {
            assert!(errors.contains(said), "'{said}' is not in: {errors}");
        }
        assert!(!Path::new(&path("refused")).exists(), "nothing is written");
    };
    let made = |words: &[&str], name: &str| {
        let output = nbft(words, &path(name));
        assert!(output.status.success(), "{words:?}: {output:?}");
        let told = String::from_utf8(output.stdout).expect("text");
        (told, fs::read(path(name)).expect("a table"))
    };
    let who = ["--host", HOST, "--nic", NIC];

    let (told, table) = made(&who, "one");
    assert!(told.contains(&tcp) && told.contains(HOST), "{told}");
    assert!(table.starts_with(b"NBFT"));
    assert_eq!(table.iter().fold(0_u8, |sum, b| sum.wrapping_add(*b)), 0);
    assert!(holds(&table, HOST.as_bytes()));
    assert!(holds(&table, &[0x52, 0x54, 0, 0x12, 0x34, 0x56]));
    let view = json(&["volume", "show", "vol0", "--json", "--pool", pool.dir()]);
    assert!(holds(&table, &uuid(view["uuid"].as_str().expect("text"))));
    let id = uuid(HOST.rsplit(':').next().expect("its end"));
    assert!(holds(&table, &id), "the name's UUID is the identifier");

    // Another address than that of the listener, of a network that the interface is in.
    let to = ["--address", "tcp://192.0.2.1:4421", "--json"];
    let (told, table) = made(&[&who[..], &to].concat(), "two");
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(
        told["addresses"],
        serde_json::json!(["tcp://192.0.2.1:4421"])
    );
    assert_eq!(told["bytes"], table.len());
    assert_eq!(told["nsid"], 1);
    assert!(holds(&table, &[0xff, 0xff, 192, 0, 2, 1]) && holds(&table, b"4421\0"));

    // Standard output has the table alone.
    assert_eq!(nbft(&[&who[..], &to].concat(), "-").stdout, table);

    // A file is not lost by a slip.
    let again = nbft(&who, &path("one"));
    let errors = String::from_utf8_lossy(&again.stderr);
    assert_eq!(again.status.code(), Some(65), "{errors}");
    assert!(errors.contains("--overwrite"), "{errors}");
    made(&[&who[..], &["--overwrite"]].concat(), "one");

    let example = ["--host", "nqn.2026-11.org.example:vm", "--nic", NIC];
    refused(&example, 65, &["org.example:vm", "--host-id"]);
    let id = ["--host-id", "7a2c4f10-6d3b-4e58-9b1a-20c35e81f6d4"];
    made(&[&example[..], &id].concat(), "named");
    let rdma = ["--address", "rdma://192.0.2.1:4420"];
    refused(&[&who[..], &rdma].concat(), 65, &["TCP"]);
    let all = ["--address", "tcp://0.0.0.0:4420"];
    refused(&[&who[..], &all].concat(), 65, &["0.0.0.0", "every"]);
    let far = ["--host", HOST, "--nic", "52:54:00:12:34:56=192.0.2.50/24"];
    refused(&far, 65, &["--nic", "gateway"]);
    refused(&["--host", HOST], 64, &["--nic"]);
    let subsystem = [&who[..], &["--subsystem", OTHER]].concat();
    refused(&subsystem, 66, &["vol0", OTHER, "namespace attach"]);

    // Several subsystems show it.
    let at = ["--pool", pool.dir()];
    succeeds(&[&["subsystem", "create", OTHER, "--host", OTHER][..], &at].concat());
    succeeds(
        &[
            &["namespace", "attach", OTHER, "vol0", "--hosts", OTHER][..],
            &at,
        ]
        .concat(),
    );
    refused(&who, 65, &["--subsystem", OTHER]);
    // What would keep the machine out is told, and the table is made.
    let output = nbft(&subsystem, &path("other"));
    let doubts = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{doubts}");
    for says in ["subsystem allow", "is hidden"] {
        assert!(doubts.contains(says), "'{says}' is not in: {doubts}");
    }

    // Hosts without keys do not get in at the only listener.
    succeeds(&[&["listener", "set", &tcp, "--tls", "required"][..], &at].concat());
    refused(&subsystem, 65, &["without TLS", "--address"]);
    daemon.stop(Signal::TERM);
}
