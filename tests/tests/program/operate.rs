//! What whoever runs a node types: rates, another name for a volume, a look at the machine, manual pages.

use rustix::process::Signal;

use super::harness::*;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6f6e6566-6f6c-4d00-8000-00000000e002";

#[test]
fn top_shows_what_a_host_does_to_a_volume_and_status_counts_it() {
    let pool = Pool::new();
    let _daemon = pool.serve(&["--create", "1G", "--volume", "busy=64M"]);
    let _load = Load::start(&pool, &pool.subsystem(), HOST);
    let top = || json(&["top", "--once", "--json", "--pool", pool.dir()]);
    wait_for("reads in top", || {
        let rates = top();
        let [volume, host] = [&rates["volumes"][0], &rates["hosts"][0]];
        let reads = |of: &serde_json::Value| of["reads"].as_f64().is_some_and(|rate| rate > 0.0);
        volume["name"] == "busy" && reads(volume) && host["hostnqn"] == HOST && reads(host)
    });
    let text = succeeds(&["top", "--pool", pool.dir()]);
    assert!(
        text.contains("busy") && text.contains(HOST) && text.contains("onefold-data0"),
        "{text}"
    );
    let status = pool.status();
    let io = &status["volumes"][0]["io"];
    assert!(io["read_commands"].as_u64() > Some(0), "{status:#}");
    assert_eq!(
        io["read_bytes"].as_u64(),
        io["read_commands"].as_u64().map(|n| n * 4096)
    );
    let read = &status["volumes"][0]["latency"]["read"];
    let percentiles = ["p50_ns", "p99_ns", "p999_ns"].map(|name| read[name].as_u64());
    assert!(percentiles[0] > Some(1000), "{status:#}");
    assert!(percentiles.is_sorted(), "{status:#}");
    assert!(text.contains("READ p99") && text.contains(" us"), "{text}");
    assert_eq!(status["hosts"][0]["subsystem"], NQN);
    assert!(
        status["pool"]["free_bytes"].as_u64() > Some(0),
        "{status:#}"
    );
    assert_eq!(status["drives"].as_array().map(Vec::len), Some(1));
    assert_eq!(status["listeners"][0]["address"], pool.address.as_str());
}

#[test]
fn a_trace_shows_where_the_time_of_a_hosts_commands_goes() {
    let pool = Pool::new();
    let _daemon = pool.create();
    let _load = Load::start(&pool, &pool.subsystem(), HOST);
    let trace = |more: &[&str]| {
        let trace = ["trace", HOST, "--pool", pool.dir()];
        succeeds(&[&trace[..], more].concat())
    };
    let lines = trace(&["--count", "20", "--json"]);
    let parse = |line| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
    let commands: Vec<_> = lines.lines().map(parse).collect();
    assert_eq!(commands.len(), 20, "{lines}");
    for command in commands {
        let stages = command["stages_ns"].as_object().expect("stages");
        let sum: u64 = stages.values().filter_map(|spent| spent.as_u64()).sum();
        assert_eq!(command["total_ns"], sum, "{command}");
        if command["operation"] == "read" {
            let is_there = |stage| stages.contains_key(stage);
            assert!(
                ["receive", "index", "send"].into_iter().all(is_there),
                "{command}"
            );
        }
    }
    let text = trace(&["--count", "5"]);
    for word in ["ANSWERED", "journal", "read", "MEAN OF"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    fails(&["trace", "nobody", "--pool", pool.dir()], 64, &["nobody"]);
}

#[test]
fn a_volumes_policy_changes_while_a_host_writes_and_stays_over_a_kill() {
    let pool = Pool::new();
    let daemon = pool.serve(&["--create", "1G", "--volume", "v=64M,domain=a"]);
    let _load = Load::start(&pool, &pool.subsystem(), HOST);
    let at = ["--pool", pool.dir()];
    let set = |words: &[&'static str]| [&["volume", "set", "v"], words, &at[..]].concat();
    let text = succeeds(&set(&["--compression", "lz4", "--verify", "background"]));
    assert!(
        text.contains("dedup on, compression lz4, verify background"),
        "{text}"
    );
    succeeds(&set(&["--dedup", "off", "--verify", "compare"]));
    succeeds(&set(&["--domain", "a", "--dedup", "off"]));
    fails(
        &set(&["--domain", "b"]),
        65,
        &["cannot change", "--domain b"],
    );
    fails(&set(&[]), 65, &["nothing is to be changed"]);
    fails(&set(&["--verify", "sometimes"]), 64, &["sometimes"]);
    succeeds(&["snapshot", "create", "v@s", at[0], at[1]]);
    fails(
        &["volume", "set", "v@s", "--dedup", "on", at[0], at[1]],
        65,
        &["is a snapshot", "volume clone v@s"],
    );
    let of = |name| {
        let volume = json(&["volume", "show", name, "--json", "--pool", pool.dir()]);
        [&volume["dedup"], &volume["compression"], &volume["verify"]].map(ToString::to_string)
    };
    let wanted = ["false", "\"lz4\"", "\"compare\""];
    assert_eq!(of("v"), wanted);
    assert_eq!(pool.status()["hosts"][0]["hostnqn"], HOST, "still attached");
    daemon.kill();
    let _daemon = pool.serve(&[]);
    assert_eq!(of("v"), wanted);
}

#[test]
fn a_volume_gets_another_name_while_a_host_uses_it_and_keeps_it_over_a_kill() {
    let pool = Pool::new();
    let daemon = pool.serve(&[
        "--create",
        "1G",
        "--volume",
        "old=64M",
        "--volume",
        "other=64M",
    ]);
    let _load = Load::start(&pool, &pool.subsystem(), HOST);
    let uuid = pool.status()["volumes"][0]["uuid"].clone();
    fails(
        &["volume", "rename", "old", "other", "--pool", pool.dir()],
        65,
        &["other"],
    );
    succeeds(&["volume", "rename", "old", "new", "--pool", pool.dir()]);
    assert_eq!(pool.status()["hosts"][0]["hostnqn"], HOST, "still attached");
    daemon.kill();
    let _daemon = pool.serve(&[]);
    let volume = json(&["volume", "show", "new", "--json", "--pool", pool.dir()]);
    assert_eq!(volume["uuid"], uuid);
    fails(
        &["volume", "show", "old", "--pool", pool.dir()],
        66,
        &["old"],
    );
}

#[test]
fn a_program_can_read_the_log_as_json_with_one_object_a_line() {
    let pool = Pool::new();
    let file = pool.dir.with_extension("log");
    let serve = ["serve", "--pool", pool.dir(), "--listen", &pool.address];
    let more = ["--create", "1G", "--log-format", "json"];
    let log = std::fs::File::create(&file).expect("a log");
    let daemon = Daemon::start_with(&[&serve[..], &more].concat(), log.into());
    daemon.stop(Signal::TERM);
    let text = std::fs::read_to_string(&file).expect("a log");
    let parse = |line| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
    let lines: Vec<_> = text.lines().map(parse).collect();
    let created = lines
        .iter()
        .find(|line| line["message"] == "a volume was created");
    let created = created.unwrap_or_else(|| panic!("not in {text}"));
    assert_eq!(
        (&created["volume"], &created["level"]),
        (&"vol0".into(), &"INFO".into())
    );
    assert!(created["timestamp"].is_string(), "{created}");
}

#[test]
fn doctor_says_of_each_check_how_it_is_and_its_exit_code_follows() {
    let pool = Pool::new();
    let output = run(&["doctor", "--json", "--pool", pool.dir()]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("a list");
    for check in [
        "kernel",
        "io_uring",
        "open files",
        "locked memory",
        "fingerprints",
        "firewall",
    ] {
        assert!(
            findings.iter().any(|finding| finding["check"] == check),
            "{check}: {report:#}"
        );
    }
    let expected = if report["state"] == "fail" { 1 } else { 0 };
    assert_eq!(output.status.code(), Some(expected), "{report:#}");
    let remedies = findings.iter().filter(|finding| finding["state"] != "ok");
    assert!(
        remedies
            .into_iter()
            .all(|finding| finding["remedy"].is_string()),
        "{report:#}"
    );
}

#[test]
fn manual_pages_and_completions_come_from_the_program_itself() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("man1");
    succeeds(&["man", dir.to_str().expect("text")]);
    let page = std::fs::read_to_string(dir.join("onefold-volume-rename.1")).expect("a page");
    assert!(
        page.contains("EXIT STATUS") && page.contains("vol0 mail"),
        "{page}"
    );
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            succeeds(&["completions", shell]).contains("rename"),
            "{shell}"
        );
    }
    fails(
        &["completions", "tcsh", "--json"],
        64,
        &["\"exit_code\":64"],
    );
}
