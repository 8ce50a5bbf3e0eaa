//! Files as people write them, right and wrong.

use std::collections::BTreeSet;
use std::time::Duration;

use super::keys::{ACTS, KEYS, TABLES, options, parse_options};
use super::*;
use crate::options::ServeArgs;

/// What a file says alone.
fn args_of(text: &str) -> ServeArgs {
    let settings = understand(text).map_err(|wrong| told(Path::new("file"), &wrong));
    let words = settings.expect(text).words(|_| false);
    parse_options(&words).expect(text)
}

fn mistakes(text: &str) -> Vec<String> {
    let mistakes = understand(text).err().unwrap_or_default();
    mistakes.iter().map(ToString::to_string).collect()
}

#[test]
fn every_option_of_serve_is_a_key_or_an_act() {
    let options = options();
    let options = options.get_arguments().filter_map(clap::Arg::get_long);
    let options: BTreeSet<String> = options.map(str::to_owned).collect();
    let keys = KEYS.iter().map(|key| key.option());
    let acts = ACTS.iter().map(|act| act.to_string());
    let mut known: BTreeSet<String> = keys.chain(acts).collect();
    assert_eq!(known.len(), KEYS.len() + ACTS.len(), "each once");
    known.insert("config".to_owned());
    assert_eq!(options, known);
}

#[test]
fn the_example_has_every_key_with_a_comment_and_its_default() {
    let text = example();
    let alone = parse_options(&[]).expect("no options");
    assert_eq!(
        args_of(&text),
        alone,
        "the keys of the example are the defaults"
    );
    let mut table = "";
    let mut found = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        if let Some(name) = line.strip_prefix('[') {
            table = name.trim_end_matches(']');
            continue;
        }
        let line = line.strip_prefix('#').unwrap_or(line);
        let Some((name, _)) = line.split_once(" = ").filter(|_| !line.starts_with(' ')) else {
            continue;
        };
        assert!(lines[index - 1].starts_with("# As an option: --"), "{line}");
        assert!(
            lines[index - 2].starts_with("# "),
            "'{line}' has no comment"
        );
        found.push(format!("{table}.{name}"));
    }
    let keys: Vec<String> = KEYS.iter().map(ToString::to_string).collect();
    assert_eq!(found, keys);
    // What stands behind a # can be written without it.
    let written: String = text
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if !key.starts_with(' ') => format!("{key}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let settings = understand(&written).expect("the samples can be");
    assert_eq!(settings.len(), KEYS.len());
    assert_ne!(args_of(&written), alone);
}

#[test]
fn the_example_is_checked_in() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/onefold.toml");
    let checked_in = std::fs::read_to_string(path).expect(path);
    assert_eq!(
        checked_in,
        example(),
        "write it anew: onefold config example > docs/onefold.toml"
    );
}

#[test]
fn values_are_those_of_the_options() {
    let args = args_of(
        "[pool]\ndir = '/srv/pool'\nwarn_at = [70, 0x50]\n\
         [listen]\naddresses = ['tcp://192.0.2.5:4420', \"rdma://192.0.2.5\"]\nmdns = true\n\
         [tls]\nmode = 'required'\n[limits]\nhosts = 7\nin_capsule = \"8k\"\n\
         [timeouts]\nhandshake = '1m'\n[memory]\nbuffers = 1_048_576\n[reactors]\nspin = '20us'\n\
         [log]\nfilter = 'warn,dedup=debug'\n",
    );
    assert_eq!(args.pool.as_deref(), Some(Path::new("/srv/pool")));
    assert_eq!(args.warn_at, [70, 80]);
    assert_eq!(args.listen.len(), 2);
    assert!(args.mdns && !args.strict_icrc);
    assert_eq!(args.tls, fabric::TlsMode::Required);
    assert_eq!((args.bounds.hosts, args.bounds.in_capsule), (Some(7), 8192));
    assert_eq!(args.bounds.handshake_timeout, Duration::from_secs(60));
    assert_eq!(
        (args.buffers, args.spin),
        (1 << 20, Duration::from_micros(20))
    );
    assert_eq!(args.log, "warn,dedup=debug");
    assert_eq!(
        args_of(""),
        args_of("[memory]\n"),
        "an empty file says nothing"
    );
}

#[test]
fn each_mistake_is_named_with_its_line_its_key_and_the_remedy() {
    for (text, line, words) in [
        (
            "[memory]\nbufers = '1G'",
            2,
            vec!["'bufers' in [memory]", "did you mean 'buffers'"],
        ),
        (
            "[memory]\nxyz = 1",
            2,
            vec!["'xyz'", "there are buffers, buffer_memory, metadata_cache"],
        ),
        (
            "[memroy]\nbuffers = '1G'",
            1,
            vec!["[memroy]", "did you mean 'memory'"],
        ),
        (
            "[nonsense]",
            1,
            vec!["[nonsense]", "there are pool, listen"],
        ),
        (
            "[pool]\nbuffers = '1G'",
            2,
            vec!["'buffers' in [pool]", "write buffers below [memory]"],
        ),
        (
            "[timeouts]\nstall_timeout = '3s'",
            2,
            vec!["write stall below [timeouts]"],
        ),
        ("[pool]\ncreate = '1G'", 2, vec!["done once", "--create"]),
        (
            "buffers = '1G'",
            1,
            vec!["in no table", "write buffers below [memory]"],
        ),
        ("what = 1", 1, vec!["'what'", "below the line of its table"]),
        (
            "memory = 4",
            1,
            vec!["'memory' is a table", "write [memory]"],
        ),
        (
            "[memory]\nbuffers = true",
            2,
            vec!["memory.buffers", "true or false", "\"4G\""],
        ),
        (
            "[memory]\nbuffers = 1.5",
            2,
            vec!["memory.buffers", "with a point", "\"4G\""],
        ),
        (
            "[memory]\nbuffers = '4X'",
            2,
            vec!["memory.buffers", "'4X' is not a size"],
        ),
        (
            "[memory]\nbuffers = -1",
            2,
            vec!["memory.buffers", "negative size"],
        ),
        (
            "[memory]\nmetadata_cache = '4k'",
            2,
            vec!["memory.metadata_cache", "8M"],
        ),
        (
            "[memory]\nbuffers = 4G",
            2,
            vec!["buffers = 4G", "write a size in quotes, such as \"4G\""],
        ),
        ("[timeouts]\nstall = 30s", 2, vec!["write a time in quotes"]),
        (
            "[timeouts]\nstall = 30",
            2,
            vec!["timeouts.stall", "write a time in quotes"],
        ),
        (
            "[timeouts]\nstall = '0s'",
            2,
            vec!["timeouts.stall", "1s to 1h"],
        ),
        (
            "[limits]\nhosts = '7'",
            2,
            vec!["limits.hosts", "a text", "without quotes"],
        ),
        (
            "[limits]\nhosts = 0",
            2,
            vec!["limits.hosts", "0 is not in 1..=65280"],
        ),
        (
            "[limits]\nhosts = [7]",
            2,
            vec!["limits.hosts", "a list", "whole number"],
        ),
        (
            "[listen]\nmdns = 'yes'",
            2,
            vec!["listen.mdns", "write true or false"],
        ),
        (
            "[listen]\naddresses = 'tcp://192.0.2.5'",
            2,
            vec!["listen.addresses", "in brackets"],
        ),
        (
            "[listen]\naddresses = []",
            2,
            vec!["listen.addresses", "leave the key away"],
        ),
        (
            "[listen]\naddresses = ['udp://192.0.2.5']",
            2,
            vec!["listen.addresses", "udp://192.0.2.5"],
        ),
        (
            "[listen]\naddresses = [\n  'tcp://0.0.0.0',\n  'tcp://192.0.2.5',\n]",
            2,
            vec!["listen.addresses", "192.0.2.5"],
        ),
        (
            "[pool]\nwarn_at = [90, 80]",
            2,
            vec!["pool.warn_at", "must rise"],
        ),
        (
            "[pool]\nwarn_at = [101]",
            2,
            vec!["pool.warn_at", "1..=100"],
        ),
        (
            "[tls]\nmode = 'on'",
            2,
            vec!["tls.mode", "off, allowed and required"],
        ),
        (
            "[log]\nfilter = 'inof'",
            2,
            vec!["log.filter", "'inof'", "info,dedup=debug"],
        ),
        (
            "[log]\nfilter = 1979-05-27",
            2,
            vec!["log.filter", "a date", "quotes"],
        ),
        (
            "[log]\n[log.filter]\nx = 1",
            2,
            vec!["log.filter", "a table"],
        ),
        ("[pool]\n[log]\n[pool]", 3, vec!["[pool] is there twice"]),
        (
            "[tls]\nmode = 'off'\nmode = 'off'",
            3,
            vec!["'mode' is there twice", "remove one"],
        ),
        ("[tls\nmode = 'off'", 1, vec!["[tls", "not TOML"]),
        ("[tls]\nmode = 'off", 2, vec!["mode = 'off", "not TOML"]),
        ("[tls]\nmode", 2, vec!["mode", "not TOML"]),
    ] {
        let told = mistakes(text);
        assert_eq!(told.len(), 1, "{text}: {told:?}");
        assert!(
            told[0].starts_with(&format!("{line}: ")),
            "{text}: {told:?}"
        );
        for word in words {
            assert!(told[0].contains(word), "'{word}' is not in {told:?}");
        }
    }
}

#[test]
fn keys_that_contradict_each_other_are_named_with_the_line_of_one_and_the_remedy() {
    for (text, line, words) in [
        (
            "[http]\nlisten = '127.0.0.1:8420'\ntls_certificate = '/c.pem'",
            3,
            vec![
                "http.tls_certificate and http.tls_key belong together",
                "give both",
            ],
        ),
        (
            "[http]\ntls_key = '/k.pem'",
            2,
            vec!["http.tls_key: http.tls_certificate and http.tls_key"],
        ),
        (
            "[http]\nlisten = '0.0.0.0:8420'",
            2,
            vec![
                "http.listen 0.0.0.0:8420",
                "give http.tls_certificate and http.tls_key",
                "http.clear_text",
            ],
        ),
        (
            "[listen]\naddresses = ['tcp://0.0.0.0:8420']\n[http]\nlisten = '127.0.0.1:8420'",
            4,
            vec![
                "http.listen 127.0.0.1:8420",
                "listen.addresses tcp://0.0.0.0:8420",
                "another port",
            ],
        ),
        (
            "[listen]\naddresses = ['rdma://192.0.2.5']\n[tls]\nmode = 'required'",
            4,
            vec![
                "tls.mode is required",
                "over RDMA there is no TLS",
                "tcp://",
            ],
        ),
        (
            "[limits]\nhost_share = 32\nqueue_share = 8",
            3,
            vec![
                "limits.queue_share 8",
                "limits.host_share 32",
                "at least 32",
            ],
        ),
        (
            "[timeouts]\nstall = '5s'\nstall_short = '6s'",
            3,
            vec![
                "timeouts.stall_short is 6s",
                "timeouts.stall only 5s",
                "at most 5s",
            ],
        ),
        (
            "[limits]\nio_queues = 64\ntcp_connections = 16\n[reactors]\ncount = 4",
            3,
            vec![
                "limits.tcp_connections 16",
                "a host needs 65",
                "lower limits.io_queues",
            ],
        ),
        (
            "[memory]\ntcp_capsules = '4k'",
            2,
            vec![
                "memory.tcp_capsules has 4.00 KiB",
                "limits.in_capsule, 16.0 KiB",
            ],
        ),
    ] {
        let told = mistakes(text);
        assert_eq!(told.len(), 1, "{text}: {told:?}");
        assert!(
            told[0].starts_with(&format!("{line}: ")),
            "{text}: {told:?}"
        );
        for word in words {
            assert!(told[0].contains(word), "'{word}' is not in {told:?}");
        }
        assert!(!told[0].contains("--"), "{told:?}");
    }
    for text in [
        "[http]\nlisten = '0.0.0.0:8420'\nclear_text = true",
        "[http]\nlisten = '0.0.0.0:8420'\ntls_certificate = '/c'\ntls_key = '/k'",
        "[listen]\naddresses = ['tcp://192.0.2.5', 'rdma://192.0.2.5']\n[tls]\nmode = 'required'",
        "[tls]\nmode = 'required'",
        "[timeouts]\nstall = '1s'",
        "[limits]\nhost_share = 8\nqueue_share = 8",
        "[limits]\nio_queues = 63\ntcp_connections = 16\n[reactors]\ncount = 4",
        "[memory]\ntcp_capsules = 0",
    ] {
        assert_eq!(mistakes(text), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn contradictions_are_told_beside_other_mistakes_but_not_of_wrong_keys() {
    let told = mistakes("[log]\nfilter = 1\n[http]\nlisten = '0.0.0.0:8420'");
    assert_eq!(told.len(), 2, "{told:?}");
    let told = mistakes("[http]\nlisten = '0.0.0.0:8420'\ntls_certificate = 1\ntls_key = '/k'");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("3: http.tls_certificate: this is"),
        "{told:?}"
    );
}

#[test]
fn what_this_machine_does_not_have_is_named_before_the_start() {
    let told = |text: &str| {
        let mistakes = understand_here(text).err().unwrap_or_default();
        mistakes.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (text, words) in [
        (
            "[api]\ngroup = 'no-such-group'",
            ["2: api.group", "groupadd no-such-group"],
        ),
        (
            "[http]\ntls_certificate = '/nowhere/c.pem'\ntls_key = '/nowhere/k.pem'",
            ["2: http.tls_certificate", "/nowhere/c.pem"],
        ),
        (
            "[memory]\nindex = '1000000T'",
            ["2: memory.index", "this machine has"],
        ),
    ] {
        let told = told(text);
        assert_eq!(told.len(), 1, "{text}: {told:?}");
        assert!(words.iter().all(|word| told[0].contains(word)), "{told:?}");
        // It is no mistake of the file alone: another machine may have it.
        assert_eq!(mistakes(text), Vec::<String>::new(), "{text}");
    }
    assert_eq!(told("[memory]\nbuffers = '64M'"), Vec::<String>::new());
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_the_lines() {
    let text = "[memory]\nbuffers = 4G\nindex = true\n[tls]\nmode = 'on'\n[lisen]\n[pool]\n[pool]\n[log]\nfilter = 1\n";
    let lines: Vec<String> = mistakes(text)
        .iter()
        .map(|told| told.split(':').next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(lines, ["2", "3", "5", "6", "8", "10"]);
    let endless: String = (0..5000).map(|n| format!("[x{n}]\n")).collect();
    assert_eq!(mistakes(&endless).len(), 50);
}

#[test]
fn the_tables_are_those_of_the_keys() {
    let tables: Vec<&str> = TABLES.iter().map(|(table, _)| *table).collect();
    let mut used: Vec<&str> = KEYS.iter().map(|key| key.table).collect();
    used.dedup();
    assert_eq!(used, tables);
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "(\\PC|\n){0,200}") {
        let _ = understand(&text);
    }

    #[test]
    fn text_that_looks_like_a_file_makes_no_panic(text in "(\\[(memory|tls|log)\\]\n|(buffers|mode|filter) = ([0-9a-z'\"\\[\\]{}.,-]{0,9})\n){0,8}") {
        let _ = understand(&text);
    }
}
