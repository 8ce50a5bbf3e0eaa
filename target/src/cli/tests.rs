//! Command lines as people and scripts write them.

use std::path::PathBuf;
use std::time::Duration;

use bench::perf::Pattern;
use meta::{Compression, VerifyPolicy};
use subsystem::limits::{Limits, QueueLimits};

use super::args::Command;
use super::bench::BenchCommand;
use super::perf::SubsystemAddress;
use super::pool::PoolCommand;
use super::volume::VolumeCommand;
use crate::options::{DriveArg, VolumeArg};

fn parse(line: &str) -> Result<Command, clap::Error> {
    super::line::parse(line.split_whitespace().map(Into::into)).map(|cli| cli.command)
}

#[test]
fn the_definition_is_sound_and_every_command_has_an_example() {
    let command = super::line::command();
    command.clone().debug_assert();
    fn check(command: &clap::Command) {
        let leaf = command
            .get_subcommands()
            .all(|sub| sub.get_name() == "help");
        if leaf && command.get_name() != "help" {
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                help.contains("onefold"),
                "'{}' has no example",
                command.get_name()
            );
        }
        command.get_subcommands().for_each(check);
    }
    check(&command);
}

#[test]
fn serve_runs_without_arguments_and_takes_all_of_them() {
    let Ok(Command::Serve(args)) = parse("onefold serve") else {
        panic!("serve")
    };
    assert_eq!(
        (args.pool, args.create, args.volumes.len()),
        (None, None, 0)
    );
    let line = "onefold serve --pool /srv/p --create 10G --volume a=5G --volume b=1T,lba=512 \
                --listen rdma://192.0.2.1:4420 --listen rdma://[::1]:4421 --drive /dev/x --drive /a=b/d=2G";
    let Ok(Command::Serve(args)) = parse(line) else {
        panic!("serve")
    };
    assert_eq!(args.create, Some(10 << 30));
    assert_eq!(
        args.volumes[1],
        VolumeArg {
            name: "b".into(),
            size_bytes: 1 << 40,
            lba_bytes: 512,
            dedup: true,
            compression: Compression::Off,
            verify: VerifyPolicy::Trust,
            domain: String::new(),
            uuid: None,
        }
    );
    assert_eq!(args.listen[1].port, 4421);
    assert_eq!(
        args.drives[0],
        DriveArg::Path {
            path: "/dev/x".into(),
            size_bytes: None,
            domain: None,
        }
    );
    assert_eq!(
        args.drives[1],
        DriveArg::Path {
            path: "/a=b/d".into(),
            size_bytes: Some(2 << 30),
            domain: None,
        }
    );
}

#[test]
fn a_drive_may_name_what_it_fails_with() {
    let shelf = |path: &str, size_bytes| {
        Ok(DriveArg::Path {
            path: path.into(),
            size_bytes,
            domain: Some("psu-a".into()),
        })
    };
    assert_eq!("/dev/x,domain=psu-a".parse(), shelf("/dev/x", None));
    assert_eq!("/x=1G,domain=psu-a".parse(), shelf("/x", Some(1 << 30)));
    for wrong in ["/x,domain=", ",domain=a", "memory=4G,domain=a"] {
        assert!(wrong.parse::<DriveArg>().is_err(), "{wrong}");
    }
}

#[test]
fn memory_is_a_drive_with_a_size_and_a_file_of_that_name_has_a_path() {
    assert_eq!(
        "memory=4G".parse(),
        Ok(DriveArg::Memory {
            size_bytes: 4 << 30
        })
    );
    assert!("memory".parse::<DriveArg>().is_err());
    assert!(matches!("./memory=4G".parse(), Ok(DriveArg::Path { .. })));
}

#[test]
fn reactors_and_listeners_of_any_transport_can_be_chosen() {
    let line = "onefold serve --reactors 4 --listen tcp://[::]:4420 --listen rdma+soft://192.0.2.1";
    let Ok(Command::Serve(args)) = parse(line) else {
        panic!("serve")
    };
    assert_eq!((args.reactors, args.listen.len()), (Some(4), 2));
    for wrong in ["0", "65", "many"] {
        assert!(parse(&format!("onefold serve --reactors {wrong}")).is_err());
    }
}

#[test]
fn what_hosts_may_take_has_defaults_and_an_option_each() {
    let limits = |line: &str| match parse(line) {
        Ok(Command::Serve(args)) => args.bounds.limits(),
        other => panic!("{line}: {other:?}"),
    };
    let usual = Limits::default();
    assert_eq!(limits("onefold serve"), usual);
    let line = "onefold serve --hosts 3 --io-queues 4 --queue-depth 64 --in-capsule 8k --queue-share 5 --host-share 6 \
                --tcp-capsules 7M --rdma-capsules 8M --tcp-connections 9 --handshake-timeout 10 --stall-timeout 11 \
                --stall-timeout-short 12 --rdma-shared-receives 13 --drive-timeout 2";
    let wanted = Limits {
        controllers: 3,
        io_queues: 4,
        rdma: QueueLimits {
            depth: 64,
            capsule_bytes_max: 8 << 20,
            ..usual.rdma
        },
        tcp: QueueLimits {
            depth: 64,
            in_capsule_bytes: 8 << 10,
            capsule_bytes_max: 7 << 20,
        },
        rdma_shared_receives: 13,
        tcp_connections: 9,
        queue_share: 5,
        host_share: 6,
        handshake_timeout: Duration::from_secs(10),
        quiesce_time: Duration::from_secs(22),
        stall_timeout: Duration::from_secs(11),
        stall_timeout_short: Duration::from_secs(12),
        ..usual
    };
    assert_eq!(limits(line), wanted);
    for wrong in [
        "--hosts 0",
        "--hosts 65520",
        "--io-queues 0",
        "--queue-depth 1",
        "--queue-depth 1025",
        "--in-capsule 0",
        "--in-capsule 5k",
        "--in-capsule 1M",
        "--queue-share 0",
        "--host-share 0",
        "--tcp-connections 0",
        "--rdma-shared-receives 32769",
        "--handshake-timeout 0",
        "--stall-timeout 0",
        "--stall-timeout-short 0",
    ] {
        assert!(parse(&format!("onefold serve {wrong}")).is_err(), "{wrong}");
    }
}

#[test]
fn the_help_of_every_command_is_of_a_sane_length_on_a_terminal_of_80_columns() {
    fn check(command: &clap::Command, path: &str) {
        let narrow = command.clone().term_width(80).disable_help_subcommand(true);
        for (long, lines_max) in [(false, 110), (true, 300)] {
            let mut narrow = narrow.clone().bin_name(path);
            let help = match long {
                false => narrow.render_help(),
                true => narrow.render_long_help(),
            };
            let help = help.to_string();
            let count = help.lines().count();
            assert!(count <= lines_max, "{path}: {count} lines\n{help}");
            // A column of a word each is short lines that begin far to the right.
            let squeezed = help.lines().filter(|line| {
                let text = line.trim_start();
                line.len() - text.len() > 50
            });
            assert_eq!(squeezed.count(), 0, "{path}:\n{help}");
        }
        for below in command.get_subcommands() {
            check(below, &format!("{path} {}", below.get_name()));
        }
    }
    check(&super::line::command(), "onefold");
}

#[test]
fn the_long_help_documents_every_exit_code() {
    let help = super::line::command().render_long_help().to_string();
    for (code, meaning) in crate::exit::CODES {
        let start: String = meaning.chars().take(20).collect();
        let line = format!("{code:>3}  {start}");
        assert!(help.contains(&line), "{line}: {help}");
    }
}

#[test]
fn the_guide_has_the_same_table_of_exit_codes() {
    let guide = include_str!("../../../docs/src/troubleshooting.md");
    let (_, table) = guide.split_once("## Exit codes\n").expect("a section");
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let row = |(code, meaning): &(u8, &str)| format!("| {code} | {meaning} |");
    let wanted: Vec<String> = crate::exit::CODES.iter().map(row).collect();
    assert_eq!(rows.skip(1).collect::<Vec<_>>(), wanted);
}

#[test]
fn a_failure_under_json_is_one_line_with_kind_message_and_exit_code() {
    let failure = subsystem::errors::Failure::new(dedup::ErrorKind::NotFound, "there is\nno 'a'");
    let line = super::Exit::from(failure).to_json();
    assert_eq!(line.lines().count(), 1);
    let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let wanted =
        serde_json::json!({"kind": "not_found", "message": "there is\nno 'a'", "exit_code": 66});
    assert_eq!(value, wanted);
    let asks = |line: &str| {
        let words: Vec<_> = line.split(' ').map(Into::into).collect();
        super::line::asks_for_json(&words)
    };
    assert!(asks("onefold volume show x --json") && asks("onefold nonsense --json"));
    assert!(!asks("onefold volume show x") && !asks("onefold volume show -- --json"));
}

#[test]
fn a_pool_to_check_is_named_as_everywhere_else() {
    let dir = |line: &str| match parse(line) {
        Ok(Command::Pool(PoolCommand::Check { place, .. } | PoolCommand::Repair { place, .. })) => {
            place.dir()
        }
        other => panic!("{line}: {other:?}"),
    };
    for (line, expected) in [
        ("onefold pool check", "./onefold-data"),
        ("onefold pool check /srv/p", "/srv/p"),
        ("onefold pool check --pool /srv/p", "/srv/p"),
        ("onefold pool check /srv/p --pool /srv/p", "/srv/p"),
        ("onefold pool repair --pool /srv/p --yes", "/srv/p"),
    ] {
        assert_eq!(dir(line).expect(line), PathBuf::from(expected), "{line}");
    }
    assert!(dir("onefold pool check /srv/a --pool /srv/b").is_err());
}

#[test]
fn a_volume_can_be_given_its_identity() {
    const UUID: &str = "6f6e6566-6f6c-4d00-8000-000000000001";
    for text in [UUID, "6f6e65666f6c4d008000000000000001"] {
        let volume: VolumeArg = format!("a=5G,uuid={text}").parse().expect("a volume");
        assert_eq!(
            volume.uuid.map(|uuid| uuid.to_string()).as_deref(),
            Some(UUID)
        );
        let line = format!("onefold volume create a --size 1G --uuid {text}");
        let Ok(Command::Volume(VolumeCommand::Create { uuid, .. })) = parse(&line) else {
            panic!("{line}")
        };
        assert_eq!(uuid.map(|uuid| uuid.to_string()).as_deref(), Some(UUID));
    }
    assert!(parse("onefold volume create a --size 1G --uuid 1111").is_err());
}

#[test]
fn volumes_that_make_no_sense_are_refused() {
    for text in [
        "vol0",
        "=5G",
        "a=",
        "a=5G,lba=520",
        "a=5G,x=1",
        "a=5G,",
        "a=5G,dedup=no",
        "a=5G,compression=gzip",
        "a=5G,compression=",
        "a=5G,verify=often",
    ] {
        assert!(text.parse::<VolumeArg>().is_err(), "{text}");
    }
}

#[test]
fn compression_is_off_unless_it_is_asked_for_by_name() {
    for (name, expected) in [
        ("off", Compression::Off),
        ("lz4", Compression::Lz4),
        ("zstd", Compression::Zstd),
    ] {
        let parsed: VolumeArg = format!("a=5G,compression={name}").parse().unwrap();
        assert_eq!(parsed.compression, expected);
        let line = format!("onefold volume create a --size 1G --compression {name}");
        let Ok(Command::Volume(VolumeCommand::Create { compression, .. })) = parse(&line) else {
            panic!("{line}")
        };
        assert_eq!(compression, expected);
    }
    let Ok(Command::Volume(VolumeCommand::Create { compression, .. })) =
        parse("onefold volume create a --size 1G")
    else {
        panic!("no compression named")
    };
    assert_eq!(compression, Compression::Off);
    assert!(parse("onefold volume create a --size 1G --compression fast").is_err());
}

#[test]
fn deduplication_is_on_unless_it_is_switched_off() {
    let parsed = "a=5G,dedup=off,lba=512".parse();
    let expected = VolumeArg {
        name: "a".into(),
        size_bytes: 5 << 30,
        lba_bytes: 512,
        dedup: false,
        compression: Compression::Off,
        verify: VerifyPolicy::Trust,
        domain: String::new(),
        uuid: None,
    };
    assert_eq!(parsed, Ok(expected));
    for (line, expected) in [
        ("onefold volume create a --size 1G", true),
        ("onefold volume create a --size 1G --dedup on", true),
        ("onefold volume create a --size 1G --dedup off", false),
    ] {
        let Ok(Command::Volume(VolumeCommand::Create { dedup, .. })) = parse(line) else {
            panic!("{line}")
        };
        assert_eq!(dedup, expected, "{line}");
    }
    assert!(parse("onefold volume create a --size 1G --dedup maybe").is_err());
}

#[test]
fn a_volume_can_have_its_duplicates_compared_and_a_domain_of_its_own() {
    let parsed = "a=5G,verify=compare,domain=tenant".parse::<VolumeArg>();
    let volume = parsed.expect("a volume");
    assert_eq!(volume.verify, VerifyPolicy::Compare);
    assert_eq!(volume.domain, "tenant");
    for (options, expected) in [
        ("", (VerifyPolicy::Trust, "")),
        ("--verify compare", (VerifyPolicy::Compare, "")),
        (
            "--verify background --domain b",
            (VerifyPolicy::Background, "b"),
        ),
    ] {
        let line = format!("onefold volume create a --size 1G {options}");
        let Ok(Command::Volume(VolumeCommand::Create { verify, domain, .. })) = parse(&line) else {
            panic!("{line}")
        };
        assert_eq!((verify, domain.as_str()), expected, "{line}");
    }
    assert!(parse("onefold volume create a --size 1G --verify never").is_err());
}

#[test]
fn perf_needs_an_end_and_a_subsystem() {
    let target = "rdma://127.0.0.1:4420/nqn.2026-11.dev.onefold:default";
    assert!(parse(&format!("onefold perf {target} --rw read")).is_err());
    assert!(parse("onefold perf rdma://127.0.0.1:4420 --rw read --time 1").is_err());
    let line =
        format!("onefold perf {target} --rw randrw --bs 128k --qd 16 --time 5 --dup 50 --verify");
    let Ok(Command::Perf(args)) = parse(&line) else {
        panic!("perf")
    };
    assert_eq!(
        (args.rw, args.bs, args.qd, args.dup),
        (Pattern::RandMixed, 128 << 10, 16, 50)
    );
    assert!(args.verify && !args.json);
    assert!(
        parse(&format!(
            "onefold perf {target} --rw read --time 1 --dup 101"
        ))
        .is_err()
    );
    assert!(parse(&format!("onefold perf {target} --rw sideways --time 1")).is_err());
}

#[test]
fn a_subsystem_address_has_both_parts() {
    let parsed: SubsystemAddress = "rdma://[::1]:4420/nqn.2026-11.dev.onefold:default"
        .parse()
        .expect("one");
    assert_eq!(parsed.nqn.as_str(), "nqn.2026-11.dev.onefold:default");
    assert_eq!(parsed.address.to_string(), "rdma://[::1]:4420");
    for text in [
        "",
        "rdma://",
        "rdma://1.2.3.4:4420",
        "rdma://1.2.3.4:4420/",
        "rdma://1.2.3.4:4420/x",
    ] {
        assert!(text.parse::<SubsystemAddress>().is_err(), "{text}");
    }
}

#[test]
fn dangerous_volume_commands_have_a_word_of_their_own() {
    let Ok(Command::Volume(VolumeCommand::Delete { yes, .. })) = parse("onefold volume delete a")
    else {
        panic!("delete")
    };
    assert!(!yes);
    let Ok(Command::Volume(VolumeCommand::Resize { size, shrink, .. })) =
        parse("onefold volume resize a --size 2G --shrink")
    else {
        panic!("resize")
    };
    assert_eq!((size, shrink), (2 << 30, true));
}

#[test]
fn benchmarks_have_a_quick_form_and_a_form_for_scripts() {
    let Ok(Command::Bench(BenchCommand::Engine(args))) =
        parse("onefold bench engine --quick --json --dir /srv --blocks 5000")
    else {
        panic!("bench engine")
    };
    assert!(args.quick && args.json);
    assert_eq!((args.dir, args.blocks), (PathBuf::from("/srv"), Some(5000)));
    assert!(parse("onefold bench engine --blocks 0").is_err());
    let Ok(Command::Bench(BenchCommand::Engine(args))) =
        parse("onefold bench engine --only read-4k,large")
    else {
        panic!("some workloads")
    };
    assert_eq!(args.only, ["read-4k", "large"]);
    assert!(parse("onefold bench engine --only read-5k").is_err());
    assert!(parse("onefold bench").is_err());
    let Ok(Command::Bench(BenchCommand::Transports(args))) =
        parse("onefold bench transports tcp://192.0.2.5:4420/nqn.2014-08.org.example:disk")
    else {
        panic!("bench transports")
    };
    assert!(
        !args.run.overwrite,
        "others are only read unless told otherwise"
    );
    assert_eq!(args.others.len(), 1);
    for wrong in ["--runs 0", "--seconds 0", "--runs 100", "--pid 0"] {
        let line = format!("onefold bench transports {wrong}");
        assert!(parse(&line).is_err(), "{wrong}");
    }
    let Ok(Command::Bench(BenchCommand::Exports(args))) =
        parse("onefold bench exports --only read-4k,write-128k /run/other/vhost.0")
    else {
        panic!("bench exports")
    };
    assert!(!args.run.overwrite, "other disks are only read as well");
    assert_eq!(args.only, ["read-4k", "write-128k"]);
    assert!(parse("onefold bench exports --only read-5k").is_err());
}

#[test]
fn an_option_overrides_the_file_and_the_file_the_default() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("onefold.toml");
    let text = "[memory]\nbuffers = '64M'\n[limits]\nhosts = 7\n[pool]\nwarn_at = [70, 75]\n\
                [listen]\naddresses = ['tcp://192.0.2.5']\nmdns = true\ntcp_pacing = true\n";
    std::fs::write(&file, text).expect("written");
    let serve =
        |more: &str| match parse(&format!("onefold serve --config {} {more}", file.display())) {
            Ok(Command::Serve(args)) => args,
            other => panic!("{more}: {other:?}"),
        };
    let args = serve(
        "--buffers 1M --listen tcp://192.0.2.6 --listen tcp://192.0.2.7 --mdns=off --warn-at 50",
    );
    assert_eq!(args.buffers, 1 << 20, "the option");
    assert_eq!(args.listen.len(), 2, "the option's alone");
    assert_eq!(args.warn_at, [50]);
    assert!(!args.mdns);
    assert_eq!(args.bounds.hosts, Some(7), "the file");
    assert!(args.tcp_pacing);
    assert_eq!(args.metadata_cache, 1 << 30, "the default");
    let args = serve("");
    assert_eq!((args.buffers, args.listen.len()), (64 << 20, 1));
    assert!(args.mdns && serve("--mdns --").mdns);
    assert_eq!(args.warn_at, [70, 75]);

    std::fs::write(&file, "[memory]\nbufers = '64M'\nbuffers = true\n").expect("written");
    let refused =
        parse(&format!("onefold serve --config {}", file.display())).expect_err("mistakes");
    let told = refused.to_string();
    for line in [2, 3] {
        assert!(
            told.contains(&format!("{}:{line}: ", file.display())),
            "{told}"
        );
    }
    let gone = parse("onefold serve --config /nowhere/onefold.toml").expect_err("no file");
    assert!(
        gone.to_string()
            .contains("'/nowhere/onefold.toml' cannot be read"),
        "{gone}"
    );
}

#[test]
fn every_command_answers_scripts_in_json_unless_what_it_prints_has_a_form_of_its_own() {
    /// Its result is a program's, a file's or a shell's own form, or it runs until it is ended.
    const OF_ITS_OWN: [&str; 5] = [
        "serve",
        "sled serve",
        "config example",
        "completions",
        "man",
    ];
    fn check(command: &clap::Command, path: &str, without: &mut Vec<String>) {
        let below = command
            .get_subcommands()
            .filter(|it| it.get_name() != "help");
        let mut is_leaf = true;
        for sub in below {
            is_leaf = false;
            let path = format!("{path} {}", sub.get_name());
            check(sub, path.trim(), without);
        }
        let mut options = command.get_arguments();
        if is_leaf && !options.any(|option| option.get_long() == Some("json")) {
            without.push(path.to_owned());
        }
    }
    let mut without = Vec::new();
    check(&super::line::command(), "", &mut without);
    without.retain(|path| !OF_ITS_OWN.contains(&path.as_str()));
    assert!(without.is_empty(), "no --json: {without:?}");
}
