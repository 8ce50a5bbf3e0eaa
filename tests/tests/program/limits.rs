//! Limits and guarantees of volumes and hosts, by hosts over real sockets.

use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use super::harness::*;

const HOSTS: [&str; 2] = [
    "nqn.2014-08.org.nvmexpress:uuid:6f6e6566-6f6c-4d00-8000-00000000e011",
    "nqn.2014-08.org.nvmexpress:uuid:6f6e6566-6f6c-4d00-8000-00000000e012",
];

/// A host that reads until it is dropped.
struct Reader(Child);

impl Reader {
    fn start(subsystem: &str, host: &str, queues: &str, depth: &str) -> Self {
        Self::of_namespace("1", subsystem, host, queues, depth)
    }

    fn of_namespace(nsid: &str, subsystem: &str, host: &str, queues: &str, depth: &str) -> Self {
        let mut load = Command::new(onefold());
        load.args(["perf", subsystem, "--hostnqn", host]);
        load.args(["--rw", "randread", "--time", "3600", "--nsid", nsid]);
        load.args(["--queues", queues, "--qd", depth]);
        let child = load.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self(child.expect("the program starts"))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Commands that each of the hosts got done.
fn reads(pool: &Pool) -> [u64; 2] {
    let status = pool.status();
    let hosts = status["hosts"].as_array().expect("a list");
    HOSTS.map(|nqn| {
        let mut of = hosts.iter().filter(|host| host["hostnqn"] == nqn);
        let io = of.next().map(|host| &host["io"]["read_commands"]);
        io.and_then(Value::as_u64).unwrap_or(0)
    })
}

#[test]
fn a_limited_volume_serves_no_more_and_its_hosts_get_half_each() {
    const IOPS: u64 = 200;
    let pool = Pool::new();
    let tcp = pool.address.replace("rdma://", "tcp://");
    let _daemon = pool.serve(&["--create", "1G", "--listen", &tcp, "--reactors", "2"]);
    let limit = ["volume", "set", "vol0", "--limit-iops", "200"];
    let burst = ["--limit-burst", "10ms", "--pool", pool.dir()];
    succeeds(&[&limit[..], &burst].concat());
    let subsystem = format!("{tcp}/{NQN}");
    // One asks for sixteen times as much as the other.
    let many_reads = Reader::start(&subsystem, HOSTS[0], "4", "64");
    let _few = Reader::start(&subsystem, HOSTS[1], "1", "16");
    wait_for("both hosts to be served", || {
        reads(&pool).iter().all(|reads| *reads > 0)
    });
    let (began, before) = (Instant::now(), reads(&pool));
    let mut now = before;
    wait_for("some seconds' worth of commands", || {
        now = reads(&pool);
        now[0] + now[1] >= before[0] + before[1] + 4 * IOPS
    });
    let took = began.elapsed().as_secs_f64();
    let [many, few] = [now[0] - before[0], now[1] - before[1]];
    // What was let through before the first look may be answered after it.
    let most = IOPS as f64 * (took + 0.01) + 20.0;
    assert!((many + few) as f64 <= most, "{many} and {few} in {took} s");
    let share = few as f64 / (many + few) as f64;
    assert!((0.4..=0.6).contains(&share), "{many} and {few}");
    // Alone, a host has all of it.
    drop(many_reads);
    wait_for("the other host to leave", || {
        let status = pool.status();
        status["hosts"].as_array().is_some_and(|all| all.len() == 1)
    });
    let (began, before) = (Instant::now(), reads(&pool)[1]);
    wait_for("the same again", || reads(&pool)[1] >= before + 2 * IOPS);
    let took = began.elapsed().as_secs_f64();
    let alone = (reads(&pool)[1] - before) as f64 / took;
    assert!(alone > 0.7 * IOPS as f64, "{alone} a second");
}

/// What part of all reads one of two hosts gets, over so many reads, and how many there are in a second.
fn share(pool: &Pool, count: u64) -> (f64, f64) {
    let (began, before) = (Instant::now(), reads(pool));
    let mut now = before;
    wait_for("reads of both hosts", || {
        now = reads(pool);
        now[0] + now[1] >= before[0] + before[1] + count
    });
    let [few, many] = [now[0] - before[0], now[1] - before[1]].map(|reads| reads as f64);
    let all = few + many;
    (few / all, all / began.elapsed().as_secs_f64())
}

#[test]
fn a_volume_with_a_guarantee_gets_it_beside_a_host_with_many_more_commands() {
    let pool = Pool::new();
    let tcp = pool.address.replace("rdma://", "tcp://");
    let _daemon = pool.serve(&["--create", "1G", "--listen", &tcp, "--reactors", "1"]);
    succeeds(&[
        "volume",
        "create",
        "other",
        "--size",
        "1G",
        "--pool",
        pool.dir(),
    ]);
    let subsystem = format!("{tcp}/{NQN}");
    let _few = Reader::of_namespace("1", &subsystem, HOSTS[0], "1", "2");
    let _many = Reader::of_namespace("2", &subsystem, HOSTS[1], "16", "16");
    wait_for("both hosts to be served", || {
        reads(&pool).iter().all(|reads| *reads > 0)
    });
    // The second host connects its queues one after the other, and needs a processor to crowd
    // the first one out. How far it gets depends on the machine.
    let (mut without, mut all) = (1.0, 0.0);
    wait_for("one queue of 17 to get little", || {
        (without, all) = share(&pool, 100_000);
        without < 0.3
    });
    // Twice what it gets, of what the node can do now: any machine has that.
    let iops = format!("{:.0}", (2.0 * without * all).max(1.0));
    let guarantee = ["volume", "set", "vol0", "--guarantee-iops", &iops];
    let line = succeeds(&[&guarantee[..], &["--pool", pool.dir()]].concat());
    assert!(line.contains(&format!("guaranteed IOPS {iops}")), "{line}");
    let mut status = Value::Null;
    wait_for(
        "the guarantee to be kept at the cost of the other host",
        || {
            let (with, _) = share(&pool, 40_000);
            status = pool.status();
            let held = status["surplus"]["held_commands"].as_u64();
            with >= 1.5 * without && held > Some(0)
        },
    );
    let limit = &status["limits"][0];
    assert_eq!(limit["guarantee_iops"].to_string(), iops);
    assert!(limit["achieved"]["iops"].as_u64() > Some(0), "{limit}");
    let text = succeeds(&["status", "--pool", pool.dir()]);
    assert!(text.contains("GUARANTEE OF"), "{text}");
    assert!(text.contains("held back for guarantees"), "{text}");
    // Without it everything is as before, and nobody waits any more.
    let off = ["volume", "set", "vol0", "--guarantee-iops", "off"];
    succeeds(&[&off[..], &["--pool", pool.dir()]].concat());
    wait_for("both to ask for the same again", || {
        let (again, _) = share(&pool, 40_000);
        again < 1.5 * without
    });
    assert!(pool.status()["surplus"].is_null());
}

#[test]
fn guarantees_that_cannot_be_are_refused_by_name_and_survive_a_restart_when_they_can() {
    let pool = Pool::new();
    let daemon = pool.serve(&["--create", "1G"]);
    let with = |arguments: &[&'static str]| {
        let start = ["volume", "set", "vol0", "--pool", pool.dir()];
        [&start[..], arguments].concat()
    };
    for (wrong, says) in [
        (["--guarantee-iops", "0"], "'off' takes it away"),
        (
            ["--guarantee-iops", "18446744073709551616"],
            "number of commands",
        ),
        (["--guarantee-iops", "many"], "number of commands"),
        (["--guarantee-bandwidth", "0"], "'off' takes it away"),
        (
            ["--guarantee-bandwidth", "99999999999999999999T"],
            "--guarantee-bandwidth",
        ),
    ] {
        fails(&with(&wrong), 64, &[says]);
    }
    let above = [
        ["--limit-iops", "100", "--guarantee-iops", "101"],
        ["--limit-bandwidth", "1M", "--guarantee-bandwidth", "1G"],
    ];
    for above in above {
        let words = [
            "volume 'vol0'",
            "above its own limit",
            "lower the guarantee",
        ];
        fails(&with(&above), 65, &words);
    }
    assert_eq!(pool.status()["limits"], serde_json::json!([]));
    succeeds(&with(&["--limit-iops", "100", "--guarantee-iops", "100"]));
    drop(daemon);
    let _daemon = pool.serve(&[]);
    let limits = &pool.status()["limits"];
    assert_eq!(limits[0]["guarantee_iops"], 100, "{limits}");
}
