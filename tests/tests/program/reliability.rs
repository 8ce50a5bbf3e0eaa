//! How rarely a pool loses data: what is wanted of it, and what it achieves while a drive is lost, and after that.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json as value};

use crate::harness::{Pool, fails, json, run, succeeds, wait_for};

fn reliability(pool: &Pool) -> Value {
    pool.status()["reliability"].clone()
}

fn number(of: &Value, name: &str) -> f64 {
    of[name].as_f64().unwrap_or_else(|| panic!("{name}: {of}"))
}

/// What `onefold status` says of it.
fn line(pool: &Pool) -> String {
    let status = run(&["status", "--pool", pool.dir()]);
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    let mut lines = text.lines();
    let line = lines.find(|line| line.starts_with("Loss of data"));
    line.expect("a line").to_owned()
}

#[test]
fn a_lost_drive_makes_losses_likely_until_another_one_is_filled_and_how_fast_is_measured() {
    let pool = Pool::new();
    let folder = pool.dir.parent().expect("a folder").to_owned();
    let path = |name: &str| folder.join(name).display().to_string();
    let (first, second, third) = (path("first"), path("second"), path("third"));
    let sized = |path: &str| format!("{path}=512M");
    let mirror = ["--create", "0", "--redundancy", "mirror=2"];
    let named = ["--drive", &sized(&first), "--drive", &sized(&second)];
    let daemon = pool.serve(&[&mirror[..], &named, &["--volume", "vol0=64M"]].concat());
    let image = path("image");
    let bytes: Vec<u8> = (0..96u32 << 18).flat_map(u32::to_le_bytes).collect();
    fs::write(&image, &bytes).expect("written");
    succeeds(&["volume", "import", "--pool", pool.dir(), "data", &image]);
    let set = |changes: &[&str]| {
        let all = [
            &["pool", "set", "--pool", pool.dir(), "--json"][..],
            changes,
        ]
        .concat();
        json(&all)["reliability"].clone()
    };

    // Nobody has said yet what is wanted.
    let unasked = reliability(&pool);
    assert_eq!(
        (&unasked["wanted_losses_per_year"], &unasked["is_met"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(unasked["copies_min"], 2);
    assert_eq!(unasked["rebuild_bytes_per_second"], 200 << 20);
    assert_eq!(unasked["is_rebuild_measured"], false);
    assert!(line(&pool).ends_with("(assumed), 1d 0h after a failure for lack of a spare"));
    let refused: [&[&str]; 6] = [
        &[],
        &["--loss", "0"],
        &["--loss", "never"],
        &["--afr", "0"],
        &["--afr", "101"],
        &["--replace-after", "soon"],
    ];
    for wrong in refused {
        let all = [&["pool", "set", "--pool", pool.dir()][..], wrong].concat();
        fails(&all, 64, &[wrong.first().copied().unwrap_or("--loss")]);
    }
    fails(
        &[
            "pool",
            "set",
            "--pool",
            pool.dir(),
            "--replace-after",
            "400d",
        ],
        65,
        &["a year, at most"],
    );

    // Two drives, a day until one is replaced: 2 x 0.01511 x 0.01511 x 24 h / 8766 h.
    let wanted = set(&["--loss", "1e-5/y", "--afr", "1.5"]);
    assert_eq!(wanted["is_met"], true);
    let whole = number(&wanted, "losses_per_year");
    assert!((1.2e-6..1.3e-6).contains(&whole), "{whole}");
    let more = set(&["--loss", "1e-6/y"]);
    assert_eq!(more["is_met"], false);
    let remedy = more["remedy"].as_str().expect("a remedy");
    assert!(remedy.contains("onefold drive spare"), "{remedy}");
    set(&["--loss", "1e-5/y"]);
    assert!(line(&pool).ends_with("wanted 1e-5: met"), "{}", line(&pool));

    // A drive is lost. What is wanted is still known.
    daemon.stop(Signal::TERM);
    fs::remove_file(&first).expect("it was there");
    let daemon = pool.serve(&[]);
    let degraded = reliability(&pool);
    assert_eq!(degraded["wanted_losses_per_year"], 1e-5);
    assert_eq!(degraded["annual_failure_percent"], 1.5);
    assert_eq!(
        (&degraded["is_met"], &degraded["copies_min"]),
        (&value!(false), &value!(1))
    );
    let now = number(&degraded, "losses_per_year");
    assert!(
        (0.0151..0.0152).contains(&now),
        "the other one fails: {now}"
    );
    assert!((number(&degraded, "losses_per_year_when_online") / whole - 1.0).abs() < 0.01);
    let remedy = degraded["remedy"].as_str().expect("a remedy");
    assert!(remedy.contains("onefold drive replace"), "{remedy}");
    let said = line(&pool);
    assert!(
        said.contains("one copy online") && said.ends_with("NOT met"),
        "{said}"
    );

    // Another one is filled.
    succeeds(&[
        "drive",
        "replace",
        "--pool",
        pool.dir(),
        &first,
        &sized(&third),
    ]);
    // It is measured a moment before its drive counts.
    wait_for("the rebuild", || {
        let now = reliability(&pool);
        now["is_rebuild_measured"] == true && now["is_met"] == true
    });
    let filled = reliability(&pool);
    assert_eq!(
        (&filled["is_met"], &filled["copies_min"]),
        (&value!(true), &value!(2))
    );
    assert_eq!(filled["remedy"], Value::Null);
    assert!((number(&filled, "losses_per_year") / whole - 1.0).abs() < 0.1);
    let speed = number(&filled, "rebuild_bytes_per_second");
    assert!(speed > 0.0 && speed != f64::from(200 << 20), "{speed}");
    assert!(line(&pool).contains("(measured)"), "{}", line(&pool));

    // Both survive a restart, and a spare waits instead of somebody who has to come.
    daemon.stop(Signal::TERM);
    let daemon = pool.serve(&[]);
    let again = reliability(&pool);
    assert_eq!(number(&again, "rebuild_bytes_per_second"), speed);
    succeeds(&[
        "drive",
        "spare",
        "--pool",
        pool.dir(),
        &sized(&path("spare")),
    ]);
    let spared = reliability(&pool);
    assert_eq!(spared["replace_seconds"], 0);
    assert!(
        number(&spared, "losses_per_year") < whole / 100.0,
        "{spared}"
    );
    let off = set(&["--loss", "off", "--replace-after", "2h"]);
    assert_eq!(
        (&off["wanted_losses_per_year"], &off["is_met"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(off["annual_failure_percent"], 1.5);
    daemon.stop(Signal::TERM);
}

#[test]
fn a_pool_with_one_copy_says_that_a_drive_that_fails_loses_data_and_what_helps() {
    let pool = Pool::new();
    let daemon = pool.serve(&["--create", "256M", "--volume", "vol0=64M"]);
    let said = line(&pool);
    assert!(
        said.ends_with("the failure of a drive loses what is on it"),
        "{said}"
    );
    let set = json(&[
        "pool",
        "set",
        "--pool",
        pool.dir(),
        "--loss",
        "1e-4",
        "--json",
    ]);
    let one = &set["reliability"];
    assert_eq!(
        (&one["is_met"], &one["copies_min"]),
        (&value!(false), &value!(1))
    );
    // 1 % of drives fail in a year: 0.01005 failures.
    assert!((number(one, "losses_per_year") - 0.01005).abs() < 1e-5);
    let remedy = one["remedy"].as_str().expect("a remedy");
    assert!(
        remedy.starts_with("add a drive (`onefold drive add PATH`) and keep 2 copies"),
        "{remedy}"
    );
    let health = json(&["status", "--pool", pool.dir(), "--json"]);
    assert_eq!(
        health["health"]["state"], "ok",
        "it is no fault of the pool"
    );
    daemon.stop(Signal::TERM);
}
