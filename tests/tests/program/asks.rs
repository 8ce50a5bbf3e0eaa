//! What asks first, and what the program says of ways that are open.

use std::io::Write;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::harness::*;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6f6e6566-6f6c-4d00-8000-000000000001";
const OTHER: &str = "nqn.2026-11.org.example:vms";
const UUID: &str = "6f6e6566-6f6c-4d00-8000-00000000abcd";

impl Pool {
    /// A command about this pool: its exit code, and all that it says.
    fn says(&self, words: &[&str]) -> (Option<i32>, String) {
        let output = run(&[words, &["--pool", self.dir()]].concat());
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).expect("text"))
    }

    #[track_caller]
    fn does(&self, words: &[&str]) -> String {
        let (code, text) = self.says(words);
        assert_eq!(code, Some(0), "{words:?}: {text}");
        text
    }

    /// It is refused for want of `--yes`, and says these words.
    #[track_caller]
    fn asks(&self, words: &[&str], facts: &[&str]) {
        let (code, text) = self.says(words);
        assert_eq!(code, Some(65), "{words:?}: {text}");
        for fact in facts.iter().chain(&["--yes"]) {
            assert!(text.contains(fact), "'{fact}' is not in: {text}");
        }
    }

    /// The same command on a terminal, where somebody types an answer: whether it did it.
    fn answers(&self, words: &str, answer: &str) -> (bool, String) {
        let line = format!("exec {} {words} --pool {}", onefold(), self.dir());
        let mut script = Command::new("script");
        script
            .args(["-q", "-e", "-c", &line, "/dev/null"])
            .env("SHELL", "/bin/sh");
        let script = script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().expect("the program starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        writeln!(stdin, "{answer}").expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        drop(stdin);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), text)
    }
}

#[test]
fn without_a_terminal_nothing_is_lost_unless_yes_says_so_and_attached_hosts_are_named() {
    let pool = Pool::new();
    let daemon = pool.serve(&[
        "--create", "1G", "--volume", "vm1=64M", "--volume", "vm2=64M",
    ]);
    let load = Load::start(&pool, &pool.subsystem(), HOST);
    pool.asks(
        &["volume", "delete", "vm1"],
        &["Attached to volume 'vm1'", HOST],
    );
    pool.asks(&["listener", "remove", "1"], &["the only listener", HOST]);
    pool.does(&["subsystem", "create", OTHER]);
    pool.does(&[
        "namespace",
        "attach",
        OTHER,
        "vm2",
        "--write-protect",
        "permanent",
    ]);
    pool.asks(
        &["namespace", "detach", OTHER, "1"],
        &["permanently write protected", "vm2"],
    );
    pool.asks(
        &["subsystem", "delete", OTHER],
        &["1 namespaces", "permanently write protected"],
    );
    assert!(
        pool.does(&["volume", "list"]).contains("vm1"),
        "nothing was lost"
    );
    assert!(pool.does(&["namespace", "list"]).contains("permanent"));

    assert!(
        pool.does(&["volume", "delete", "vm1", "--yes"])
            .contains(HOST)
    );
    pool.does(&["namespace", "detach", OTHER, "1", "--yes"]);
    pool.does(&["subsystem", "delete", OTHER, "--yes"]);
    drop(load);
    let more = pool.address.replace(":4420", ":4421");
    pool.does(&["listener", "add", &more]);
    pool.does(&["listener", "remove", &more]);
    pool.does(&["listener", "remove", &pool.address, "--yes"]);
    daemon.stop(Signal::TERM);
}

#[test]
fn on_a_terminal_the_name_has_to_be_typed() {
    let pool = Pool::new();
    let _daemon = pool.create();
    let (done, text) = pool.answers("volume delete vol0", "yes");
    assert!(!done && text.contains("nothing was changed"), "{text}");
    assert!(pool.does(&["volume", "list"]).contains("vol0"));
    let (done, text) = pool.answers("volume delete vol0", "vol0");
    assert!(done && text.contains("deleted vol0"), "{text}");
}

#[test]
fn who_attaches_a_volume_or_keeps_a_secret_is_told_what_is_still_open() {
    let pool = Pool::new();
    let _daemon = pool.create();
    let text = pool.does(&["volume", "create", "vm1", "--size", "64M"]);
    assert!(
        text.contains(NQN) && text.contains("admits any host"),
        "{text}"
    );
    pool.does(&["subsystem", "create", OTHER, "--host", HOST]);
    let text = pool.does(&["namespace", "attach", OTHER, "vm1"]);
    assert!(
        text.contains("is also namespace 2") && text.contains(NQN),
        "{text}"
    );
    pool.does(&["namespace", "detach", OTHER, "1"]);
    let text = pool.does(&["namespace", "attach", OTHER, "vm1", "--move"]);
    assert!(!text.contains("also"), "{text}");
    assert!(!pool.does(&["namespace", "list", NQN]).contains("vm1"));
    // What is protected for good does not move on in passing.
    pool.does(&[
        "namespace",
        "set",
        OTHER,
        "1",
        "--write-protect",
        "permanent",
    ]);
    let (code, text) = pool.says(&["namespace", "attach", NQN, "vm1", "--move"]);
    assert_eq!(code, Some(65), "{text}");
    assert!(text.contains("namespace detach"), "{text}");
    assert!(
        !pool.does(&["namespace", "list", NQN]).contains("vm1"),
        "all or nothing"
    );
    let text = pool.does(&[
        "volume",
        "create",
        "vm2",
        "--size",
        "64M",
        "--subsystem",
        OTHER,
    ]);
    assert!(!text.contains("admits any host"), "{text}");

    let key = pool.dir.with_extension("key");
    std::fs::write(&key, succeeds(&["host", "gen-dhchap-key"])).expect("a file");
    let key = key.to_str().expect("text");
    let text = pool.does(&["host", "create", HOST, "--dhchap-secret-file", key]);
    assert!(
        text.contains("still admit any host") && text.contains(NQN),
        "{text}"
    );
    assert!(!text.contains(OTHER), "{text}");
    pool.does(&["subsystem", "allow", NQN, HOST]);
    let text = pool.does(&["host", "set", HOST, "--dhchap-secret-file", key]);
    assert!(!text.contains("still admit"), "{text}");
    let text = pool.does(&["host", "delete", HOST]);
    let told = text.contains("without a secret") && text.contains(OTHER);
    assert!(told && text.contains(NQN), "{text}");
}

#[test]
fn names_that_are_none_are_refused_wherever_one_is_given() {
    let pool = Pool::new();
    let _daemon = pool.create();
    pool.does(&["subsystem", "create", OTHER]);
    pool.does(&["namespace", "attach", OTHER, "vol0"]);
    let key = pool.dir.with_extension("key");
    std::fs::write(&key, succeeds(&["host", "gen-tls-key"])).expect("a file");
    let key = key.to_str().expect("text");
    for (name, why) in [
        ("nqn.2014-08.org.nvmexpress:uuid:...", "a UUID"),
        ("nqn.2014-08.org.nvmexpress:uuid:1111", "a UUID"),
        ("nqn.2026-13.org.example:host", "01 to 12"),
    ] {
        let lines: [&[&str]; 7] = [
            &["subsystem", "create", name],
            &[
                "subsystem",
                "create",
                "nqn.2026-11.org.example:new",
                "--host",
                name,
            ],
            &["subsystem", "allow", OTHER, name],
            &["namespace", "set", OTHER, "1", "--hosts", name],
            &["host", "create", name],
            &["host", "tls-key", "add", name, "--file", key],
            &["referral", "add", "tcp://192.0.2.9:8009", "--nqn", name],
        ];
        for line in lines {
            let (code, text) = pool.says(line);
            assert_eq!(code, Some(65), "{line:?}: {text}");
            assert!(
                text.contains(name) && text.contains(why),
                "{line:?}: {text}"
            );
        }
    }
}

#[test]
fn a_volume_gets_the_identity_that_is_given_and_no_second_one_does() {
    let pool = Pool::new();
    let daemon = pool.serve(&["--create", "1G", "--volume", &format!("a=64M,uuid={UUID}")]);
    let shown = |name| json(&["volume", "show", name, "--pool", pool.dir(), "--json"]);
    let nguid = UUID.replace('-', "");
    assert_eq!(
        (&shown("a")["uuid"], &shown("a")["nguid"]),
        (&UUID.into(), &nguid.as_str().into())
    );
    pool.does(&["subsystem", "create", OTHER]);
    let create = ["volume", "create", "b", "--size", "64M", "--uuid"];
    // Where it is shown makes no difference, and the first one stays where it is.
    for place in [NQN, OTHER, "none"] {
        let (code, text) =
            pool.says(&[&create[..], &[nguid.as_str(), "--subsystem", place]].concat());
        assert_eq!(code, Some(65), "{text}");
        assert!(text.contains("volume 'a'"), "{text}");
    }
    assert!(pool.does(&["namespace", "list"]).contains(" a "));
    let second = "6f6e6566-6f6c-4d00-8000-00000000abce";
    pool.does(&[&create[..], &[second]].concat());
    assert_eq!(shown("b")["uuid"], second);
    let nil = "00000000-0000-0000-0000-000000000000";
    let third = ["volume", "create", "c", "--size", "64M", "--uuid", nil];
    assert_eq!(pool.says(&third).0, Some(65));
    daemon.stop(Signal::TERM);
    let _daemon = pool.serve(&[]);
    assert_eq!(
        (shown("a")["uuid"].as_str(), shown("b")["uuid"].as_str()),
        (Some(UUID), Some(second))
    );
}

#[test]
fn listeners_and_referrals_go_by_their_address_and_the_pool_by_a_variable() {
    let pool = Pool::new();
    let _daemon = pool.create();
    pool.does(&["referral", "add", "tcp://192.0.2.9:8009"]);
    pool.does(&["referral", "add", "tcp://192.0.2.10:8009"]);
    pool.does(&["referral", "remove", "tcp://192.0.2.9:8009"]);
    pool.does(&["referral", "remove", "2"]);
    let (code, text) = pool.says(&["referral", "remove", "tcp://192.0.2.9:8009"]);
    assert_eq!(code, Some(66), "{text}");
    pool.does(&["ana", "set", &pool.address, "1", "non-optimized"]);
    pool.does(&["listener", "set", "1", "--ana", "1=optimized"]);

    let by_variable = |words: &[&str]| {
        let mut command = Command::new(onefold());
        let command = command.args(words).env("ONEFOLD_POOL", pool.dir());
        let output = command.output().expect("the program starts");
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    assert!(by_variable(&["volume", "list"]).contains("vol0"));
    assert!(by_variable(&["pool", "check", "--online"]).contains(pool.dir()));
    assert!(by_variable(&["pool", "check", "--online", pool.dir()]).contains("consistent"));
    let (code, text) = pool.says(&["pool", "check", "--online"]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_listener_for_all_addresses_and_one_for_a_single_address_do_not_share_a_port() {
    let pool = Pool::new();
    let daemon = pool.create();
    let free = std::net::TcpListener::bind((pool.ip(), 0)).expect("a port");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let single = format!("tcp://{}:{port}", pool.ip());
    pool.does(&["listener", "add", &single]);
    let everywhere = format!("tcp://0.0.0.0:{port}");
    fails(
        &["listener", "add", &everywhere, "--pool", pool.dir()],
        65,
        &["are both for port", "onefold listener remove 2"],
    );
    // One that another program holds.
    let other = std::net::TcpListener::bind((pool.ip(), 0)).expect("a port");
    let taken = format!("tcp://{}", other.local_addr().expect("an address"));
    fails(
        &["listener", "add", &taken, "--pool", pool.dir()],
        65,
        &["in use by another program"],
    );
    daemon.stop(Signal::TERM);
}
