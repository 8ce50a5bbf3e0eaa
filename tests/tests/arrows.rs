//! The folders use each other only downwards, as the table in ARCHITECTURE.md says.

use std::{collections::BTreeMap, process::Command};

/// Who may use whom. A folder that is missing here may use nothing of ours.
const ARROWS: &[(&str, &[&str])] = &[
    ("reactor", &[]),
    ("nvme", &[]),
    ("roce", &[]),
    ("power-cut", &[]),
    ("meta", &["power-cut"]),
    ("drives", &["reactor"]),
    ("dedup", &["meta", "drives", "reactor"]),
    ("fabric", &["nvme", "roce", "reactor"]),
    ("initiator", &["fabric", "nvme", "reactor"]),
    (
        "bench",
        &[
            "initiator",
            "fabric",
            "nvme",
            "dedup",
            "meta",
            "drives",
            "reactor",
        ],
    ),
    (
        "onefold",
        &[
            "dedup",
            "meta",
            "drives",
            "fabric",
            "nvme",
            "reactor",
            "initiator",
            "bench",
        ],
    ),
    (
        "tests",
        &[
            "onefold",
            "initiator",
            "fabric",
            "meta",
            "nvme",
            "reactor",
            "roce",
        ],
    ),
    ("fuzz", &["dedup", "meta", "nvme", "roce"]),
];

/// Every workspace package with the workspace packages it depends on.
fn dependencies() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("cargo metadata runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("packages is a list");
    let name = |value: &serde_json::Value| value["name"].as_str().expect("a name").to_owned();
    let ours: Vec<String> = packages.iter().map(name).collect();
    packages
        .iter()
        .map(|package| {
            let used = package["dependencies"]
                .as_array()
                .expect("dependencies is a list");
            let used = used
                .iter()
                .map(name)
                .filter(|other| ours.contains(other))
                .collect();
            (name(package), used)
        })
        .collect()
}

#[test]
fn folders_use_only_what_lies_below_them() {
    for (package, used) in dependencies() {
        let allowed = ARROWS
            .iter()
            .find_map(|(name, allowed)| (*name == package).then_some(*allowed))
            .unwrap_or_else(|| panic!("{package} is not in the table of arrows: add it there"));
        for other in used {
            assert!(
                allowed.contains(&other.as_str()),
                "{package} must not use {other}"
            );
        }
    }
}
