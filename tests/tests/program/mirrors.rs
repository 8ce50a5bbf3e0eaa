//! A pool with copies survives its drives: the commands of the guide's chapter about it.

use std::fs;

use rustix::process::Signal;

use crate::harness::{Pool, fails, json, run, succeeds, wait_for};

/// The states of the drives, in their order.
fn states(pool: &Pool) -> Vec<String> {
    let drives = json(&["drive", "list", "--pool", pool.dir(), "--json"]);
    let drives = drives.as_array().expect("a list").iter();
    let state = |drive: &serde_json::Value| drive["state"].as_str().expect("a word").to_owned();
    drives.map(state).collect()
}

#[test]
fn a_pool_with_copies_goes_on_without_a_drive_and_a_new_one_gets_all_of_it() {
    let pool = Pool::new();
    let folder = pool.dir.parent().expect("a folder").to_owned();
    let path = |name: &str| folder.join(name).display().to_string();
    let (first, second, third) = (path("first"), path("second"), path("third"));
    let sized = |path: &str| format!("{path}=256M");
    let mirror = ["--create", "0", "--redundancy", "mirror=2"];
    let named = ["--drive", &sized(&first), "--drive", &sized(&second)];
    let volume = ["--volume", "vol0=64M"];
    let daemon = pool.serve(&[&mirror[..], &named, &volume].concat());
    let image = path("image");
    let bytes: Vec<u8> = (0..32u32 << 18).flat_map(u32::to_le_bytes).collect();
    fs::write(&image, &bytes).expect("written");
    succeeds(&["volume", "import", "--pool", pool.dir(), "data", &image]);
    let status = pool.status();
    assert_eq!(status["pool"]["redundancy"], "mirror=2");
    assert_eq!(status["pool"]["at_risk_bytes"], 0);
    let verify = || {
        let copy = path("copy");
        let _ = fs::remove_file(&copy);
        succeeds(&["volume", "export", "--pool", pool.dir(), "data", &copy]);
        assert!(fs::read(&copy).expect("exported") == bytes);
    };

    // A drive is gone when the daemon starts.
    daemon.stop(Signal::TERM);
    fs::remove_file(&first).expect("it was there");
    let daemon = pool.serve(&[]);
    assert_eq!(states(&pool), ["offline", "online"]);
    assert!(pool.status()["pool"]["at_risk_bytes"].as_u64() > Some(0));
    verify();
    fails(
        &["drive", "offline", "--pool", pool.dir(), &second],
        65,
        &["no other drive has"],
    );
    fails(
        &["drive", "online", "--pool", pool.dir(), &first],
        66,
        &[&first],
    );
    fails(
        &["drive", "online", "--pool", pool.dir(), &image],
        66,
        &["not a drive of this pool"],
    );

    // Another one takes its place, and then the other one can go.
    succeeds(&[
        "drive",
        "replace",
        "--pool",
        pool.dir(),
        &first,
        &sized(&third),
    ]);
    wait_for("the rebuild", || states(&pool) == ["online", "online"]);
    assert_eq!(pool.status()["pool"]["rebuild"], serde_json::Value::Null);
    // Its label knows less than that of the one before: a killed daemon uses it all the same.
    daemon.kill();
    let daemon = pool.serve(&[]);
    assert_eq!(states(&pool), ["online", "online"]);
    succeeds(&["drive", "offline", "--pool", pool.dir(), &second]);
    verify();
    let health = run(&["status", "--pool", pool.dir()]);
    let health = String::from_utf8_lossy(&health.stdout).into_owned();
    wait_for("the alert", || {
        let status = run(&["status", "--pool", pool.dir()]);
        String::from_utf8_lossy(&status.stdout).contains("is offline")
    });
    assert!(health.contains("mirror=2"), "{health}");
    succeeds(&["drive", "online", "--pool", pool.dir(), &second]);
    wait_for("the rebuild", || states(&pool) == ["online", "online"]);
    daemon.stop(Signal::TERM);
    let checked = run(&["pool", "check", "--pool", pool.dir(), "--data"]);
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn a_spare_takes_the_place_of_a_drive_that_failed_and_of_none_that_somebody_took_offline() {
    let pool = Pool::new();
    let folder = pool.dir.parent().expect("a folder").to_owned();
    let path = |name: &str| folder.join(name).display().to_string();
    let (first, second, spare) = (path("first"), path("second"), path("spare"));
    let mirror = ["--create", "0", "--redundancy", "mirror=2"];
    let named = [first.clone() + "=256M", second.clone() + "=256M"];
    let named = ["--drive", &named[0], "--drive", &named[1]];
    let daemon = pool.serve(&[&mirror[..], &named, &["--volume", "vol0=64M"]].concat());
    let on = |act: &str, drive: &str| {
        json(&["drive", act, "--pool", pool.dir(), drive, "--json"]);
    };
    let small = path("small") + "=64M";
    fails(
        &["drive", "spare", "--pool", pool.dir(), &small],
        65,
        &["name a larger one"],
    );
    assert!(!folder.join("small").exists(), "it was not made");
    fails(
        &["drive", "spare", "--pool", pool.dir(), &second],
        65,
        &["is a drive of this pool already"],
    );
    fails(
        &["drive", "remove", "--pool", pool.dir(), &second],
        65,
        &["add a drive"],
    );
    on("spare", &(spare.clone() + "=256M"));
    assert_eq!(states(&pool), ["online", "online", "spare"]);
    on("remove", &spare);
    assert_eq!(states(&pool), ["online", "online"]);
    on("spare", &spare);
    on("offline", &first);
    // A daemon that starts again knows who took it offline.
    daemon.stop(Signal::TERM);
    let daemon = pool.serve(&[]);
    assert_eq!(states(&pool), ["offline", "online", "spare"]);
    on("online", &first);
    wait_for("the rebuild", || {
        states(&pool) == ["online", "online", "spare"]
    });
    daemon.stop(Signal::TERM);

    // It has something now that somebody may need: it is left alone.
    let held = fs::read(&spare).expect("it was made");
    assert!(held.iter().all(|byte| *byte == 0), "a spare holds nothing");
    fs::remove_file(&first).expect("it was there");
    let mut text = held.clone();
    text[1080] = 0x53;
    text[1081] = 0xef; // ext4's magic number
    fs::write(&spare, &text).expect("written");
    let daemon = pool.serve(&[]);
    wait_for("the refusal", || {
        let events = run(&["events", "--pool", pool.dir()]);
        let events = String::from_utf8_lossy(&events.stdout).into_owned();
        events.contains("a spare cannot take the place of a drive that failed")
    });
    assert_eq!(states(&pool), ["offline", "online", "spare"]);
    daemon.stop(Signal::TERM);
    assert!(fs::read(&spare).expect("it is there") == text);
    fs::write(&spare, &held).expect("written");
    let daemon = pool.serve(&[]);
    wait_for("the spare", || states(&pool) == ["online", "online"]);
    let drives = json(&["drive", "list", "--pool", pool.dir(), "--json"]);
    assert_eq!(drives[0]["path"], spare.as_str());
    assert_eq!(
        (&drives[0]["stale_bytes"], &drives[0]["errors"]),
        (&0.into(), &0.into())
    );
    assert_eq!(drives[0]["used_bytes"], drives[1]["used_bytes"]);
    daemon.stop(Signal::TERM);
    let checked = run(&["pool", "check", "--pool", pool.dir(), "--data"]);
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn copies_lie_in_different_failure_domains_and_a_pool_with_too_few_is_not_made() {
    let pool = Pool::new();
    let folder = pool.dir.parent().expect("a folder").to_owned();
    let drive =
        |name: &str, domain: &str| format!("{}=256M,domain={domain}", folder.join(name).display());
    let mirror = ["--create", "0", "--redundancy", "mirror=2"];
    let named = [drive("a", "left"), drive("b", "left"), drive("c", "right")];
    let one = ["--drive", &named[0], "--drive", &named[1]];
    pool.fails_to_serve(&[&mirror[..], &one].concat(), 65, &["more domains"]);
    assert!(!pool.dir.exists(), "no pool is made");
    let nameless = drive("a", "no good");
    let bad = ["--drive", &nameless, "--drive", &named[2]];
    pool.fails_to_serve(
        &[&mirror[..], &bad].concat(),
        65,
        &["failure domain 'no good'"],
    );
    let both = [&one[..], &["--drive", &named[2]]].concat();
    let daemon = pool.serve(&[&mirror[..], &both].concat());
    let list = || json(&["drive", "list", "--pool", pool.dir(), "--json"]);
    let domains = |list: serde_json::Value| {
        let drives = list.as_array().expect("a list").clone();
        let domain = |drive: serde_json::Value| drive["domain"].as_str().map(str::to_owned);
        drives.into_iter().filter_map(domain).collect::<Vec<_>>()
    };
    assert_eq!(domains(list()), ["left", "left", "right"]);
    // All copies of one side are on the other.
    let at = |name: &str| folder.join(name).display().to_string();
    succeeds(&["drive", "offline", "--pool", pool.dir(), &at("a")]);
    succeeds(&["drive", "offline", "--pool", pool.dir(), &at("b")]);
    daemon.stop(Signal::TERM);
    let daemon = pool.serve(&[]);
    assert_eq!(domains(list()), ["left", "left", "right"]);
    daemon.stop(Signal::TERM);
}

#[test]
fn a_plan_says_which_redundancy_is_enough_and_why() {
    let ask = |drives: &str, loss: &str| {
        json(&[
            "pool",
            "plan",
            "--drives",
            drives,
            "--afr",
            "0.9",
            "--loss",
            loss,
            "--fill",
            "100",
            "--rebuild-rate",
            "1G",
            "--json",
        ])
    };
    let plan = ask("24x1T", "1e-5/y");
    assert_eq!(plan["recommended"], "mirror=2");
    assert_eq!(plan["choices"][1]["capacity_bytes"], 12u64 << 40);
    assert_eq!(plan["choices"][2]["survives_drives"], 2);
    // 24 drives, each other one 23 x 1024 s after.
    let losses = plan["choices"][1]["losses_per_year"]
        .as_f64()
        .expect("a number");
    assert!((1.4e-6..1.5e-6).contains(&losses), "{losses}");
    assert_eq!(ask("24x1T", "1e-9/y")["recommended"], "mirror=3");
    assert_eq!(
        ask("1x1T", "1e-9/y")["recommended"],
        serde_json::Value::Null
    );
    for wrong in [
        ["--drives", "six"],
        ["--drives", "0x4T"],
        ["--afr", "0"],
        ["--afr", "101"],
        ["--loss", "0"],
        ["--fill", "0"],
    ] {
        let line = ["pool", "plan", "--drives", "2x1T"];
        fails(&[&line[..], &wrong].concat(), 64, &[wrong[0]]);
    }
}

#[test]
fn copies_that_the_drives_have_no_room_for_are_refused_and_no_pool_is_made() {
    let pool = Pool::new();
    let drive = pool.dir.parent().expect("a folder").join("only");
    let drive = format!("{}=256M", drive.display());
    let arguments = [
        "--create",
        "0",
        "--redundancy",
        "mirror=2",
        "--drive",
        &drive,
    ];
    pool.fails_to_serve(&arguments, 65, &["name more drives"]);
    assert!(!pool.dir.exists(), "no pool is made");
}
