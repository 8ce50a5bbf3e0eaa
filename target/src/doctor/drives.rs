//! The drives of a pool, as sysfs and the file systems tell of them.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use drives::block_device_of;
use meta::{DriveSpec, is_remote_drive};
use serde_json::Value;

use super::{Finding, Machine, PoolFound};
use crate::opened_drive::{is_in_cluster, kind_of_address, open_for_reading};
use crate::room;

/// The engine reads and writes whole blocks of this size.
const BLOCK_BYTES: u64 = 4096;
/// What sysfs counts starts of partitions in.
const SECTOR_BYTES: u64 = 512;

/// Wear at which a solid-state drive should be replaced soon, in percent of what its maker foresaw.
const WORN_PERCENT: u64 = 90;

pub(super) fn of_pool(
    machine: &Machine,
    pool: &PoolFound,
    asked: fn(&Path) -> Result<Value, String>,
) -> Vec<Finding> {
    const CHECK: &str = "pool";
    let dir = pool.dir.display();
    let identity = match &pool.identity {
        None => {
            let found =
                format!("there is none in '{dir}': no drives to look at (--pool names another)");
            return vec![Finding::ok(CHECK, found)];
        }
        Some(Err(why)) => {
            return vec![Finding::warn(
                CHECK,
                format!("'{dir}' cannot be looked at: {why}"),
                "run this as the user of the daemon, or `onefold pool check`",
            )];
        }
        Some(Ok(identity)) => identity,
    };
    let path = |drive: &DriveSpec| match is_remote_drive(&drive.path) {
        true => drive.path.clone(),
        false => pool.dir.join(&drive.path),
    };
    let paths = identity.drives.iter().map(path);
    let paths: Vec<_> = paths.collect();
    let mut findings: Vec<Finding> = paths
        .iter()
        .flat_map(|path| drive(machine, path, asked))
        .collect();
    for shortage in room::shortages(&paths) {
        findings.push(Finding::warn(
            "drive",
            shortage,
            "make room before the pool fills: `onefold status` says how much it has",
        ));
    }
    findings
}

fn drive(
    machine: &Machine,
    path: &Path,
    asked: fn(&Path) -> Result<Value, String>,
) -> Vec<Finding> {
    const CHECK: &str = "drive";
    let name = path.display();
    if is_remote_drive(path) {
        let kind = kind_of_address(path);
        if is_in_cluster(path) {
            // Librados, the configuration, the key, the monitors: each failure has its remedy.
            return vec![match open_for_reading(path) {
                Ok(_) => Finding::ok(CHECK, format!("'{name}' is {kind}, which answers")),
                Err(error) => Finding::fail(
                    CHECK,
                    format!("'{name}' cannot be opened"),
                    error.to_string(),
                ),
            }];
        }
        let found = format!("'{name}' is {kind}, which tells of its drives");
        return vec![Finding::ok(CHECK, found)];
    }
    let block = block_device_of(path);
    let path = block.as_deref().unwrap_or(path);
    match std::fs::metadata(path) {
        Err(error) => vec![Finding::fail(
            CHECK,
            format!("'{name}' is not there or cannot be looked at: {error}"),
            "connect it: the pool needs all of its drives",
        )],
        Ok(found) if found.file_type().is_block_device() => {
            let device = found.rdev();
            let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
            let (name, device) = (name.to_string(), format!("/sys/dev/block/{major}:{minor}"));
            let mut findings = device_findings(machine, &name, &device);
            // Devices that the kernel makes of others, or of files, have no health of their own.
            let is_made = |kind: &str| machine.exists(&format!("{device}/{kind}"));
            if !["loop", "dm", "md", "ram"].into_iter().any(is_made) {
                findings.push(health(&name, &asked(path)));
            }
            findings
        }
        Ok(found) if found.is_file() => vec![Finding::ok(CHECK, format!("'{name}' is a file"))],
        Ok(_) => vec![Finding::fail(
            CHECK,
            format!("'{name}' is neither a file nor a block device"),
            "name the drive's path in pool.toml",
        )],
    }
}

/// A block device, whose folder in sysfs is `device`. Of a partition the queue is that of the whole device.
pub(super) fn device_findings(machine: &Machine, name: &str, device: &str) -> Vec<Finding> {
    const CHECK: &str = "drive";
    let is_partition = machine.exists(&format!("{device}/partition"));
    let whole = match is_partition {
        true => format!("{device}/.."),
        false => device.to_owned(),
    };
    let number = |file: &str| machine.number(&format!("{device}/{file}"));
    let queue = |file: &str| machine.number(&format!("{whole}/queue/{file}"));
    let mut findings = Vec::new();
    let remedy = "make the partition begin at a multiple of 1 MiB, and copy the data";
    match (
        number("alignment_offset"),
        is_partition.then(|| number("start")).flatten(),
    ) {
        (Some(offset @ 1..), _) => findings.push(Finding::warn(
            CHECK,
            format!(
                "'{name}' lies {offset} bytes off the drive's own blocks: each write costs two"
            ),
            remedy,
        )),
        (_, Some(start)) if !(start * SECTOR_BYTES).is_multiple_of(BLOCK_BYTES) => {
            findings.push(Finding::warn(
                CHECK,
                format!("'{name}' begins at sector {start}, which is no multiple of 4 KiB: each write costs two"),
                remedy,
            ));
        }
        _ => {}
    }
    match (queue("logical_block_size"), queue("physical_block_size")) {
        (Some(logical), _) if logical > BLOCK_BYTES => findings.push(Finding::fail(
            CHECK,
            format!("'{name}' has blocks of {logical} bytes; the pool writes 4096"),
            "use a drive with blocks of 512 or 4096 bytes",
        )),
        (_, Some(physical)) if physical > BLOCK_BYTES => findings.push(Finding::warn(
            CHECK,
            format!("'{name}' writes {physical} bytes inside for each block of 4096"),
            "use a drive with physical blocks of 4096 bytes or less",
        )),
        _ => {}
    }
    let text = |file: &str| machine.read(&format!("{whole}/{file}"));
    let state = text("device/state").unwrap_or_default();
    if !["", "live", "running"].contains(&state.as_str()) {
        findings.push(Finding::fail(
            CHECK,
            format!("'{name}' is in the state '{state}'"),
            "look into `dmesg`; replace or reset the drive",
        ));
    }
    // SCSI and SATA count in hexadecimal what went wrong.
    let errors = text("device/ioerr_cnt");
    let errors =
        errors.and_then(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok());
    if let Some(errors @ 1..) = errors {
        findings.push(Finding::warn(
            CHECK,
            format!("'{name}' has {errors} failed commands since it was found"),
            format!(
                "`smartctl -a {name}` tells of its health; `onefold scrub start` proves the data"
            ),
        ));
    }
    let kind = match queue("rotational") {
        Some(1) => "rotating",
        Some(_) => "solid state",
        None => "block device",
    };
    let cache = text("queue/write_cache").unwrap_or_else(|| "unknown".to_owned());
    // What a SCSI or SATA drive says of its cache itself.
    let disks = machine.names(&format!("{whole}/device/scsi_disk"));
    let own = disks
        .first()
        .and_then(|disk| text(&format!("device/scsi_disk/{disk}/cache_type")));
    if cache == "write through" && own.is_some_and(|own| own.starts_with("write back")) {
        findings.push(Finding::fail(
            CHECK,
            format!("'{name}' keeps writes in a cache, and the kernel was told not to flush it: a loss of power loses data"),
            "write 'write back' to queue/write_cache of the device in /sys/block",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            CHECK,
            format!("'{name}': {kind}, aligned, write cache: {cache}"),
        ));
    }
    if kind == "rotating" {
        findings.push(Finding::warn(
            CHECK,
            format!(
                "'{name}' is a rotating drive: deduplication reads and writes at random places"
            ),
            "use a solid-state drive",
        ));
    }
    findings
}

/// The health of a drive by its own account, as `smartctl --json` prints it.
pub(super) fn health(name: &str, asked: &Result<Value, String>) -> Finding {
    const CHECK: &str = "health";
    let told = match asked {
        Ok(told) => told,
        Err(why) => {
            return Finding::warn(
                CHECK,
                format!("that of '{name}' is not known: {why}"),
                "install smartmontools, and run this as root",
            );
        }
    };
    let number = |path: &str| told.pointer(path).and_then(Value::as_u64);
    let log = |field: &str| number(&format!("/nvme_smart_health_information_log/{field}"));
    let passed = told
        .pointer("/smart_status/passed")
        .and_then(Value::as_bool);
    let replace = "make a backup of its data, and replace it soon";
    let spare_is_low = matches!(
        (log("available_spare"), log("available_spare_threshold")),
        (Some(spare), Some(threshold)) if spare < threshold
    );
    if passed == Some(false)
        || spare_is_low
        || log("critical_warning").is_some_and(|bits| bits != 0)
    {
        return Finding::fail(CHECK, format!("'{name}' says that it fails"), replace);
    }
    let worn = log("percentage_used");
    let errors = log("media_errors");
    if let Some(percent) = worn.filter(|percent| *percent >= WORN_PERCENT) {
        return Finding::warn(CHECK, format!("'{name}' is worn to {percent} %"), replace);
    }
    if let Some(errors @ 1..) = errors {
        return Finding::warn(
            CHECK,
            format!("'{name}' has lost data {errors} times"),
            "`onefold scrub start` finds what of the pool is damaged; replace the drive if the number grows",
        );
    }
    if passed.is_none() {
        let why = told
            .pointer("/smartctl/messages/0/string")
            .and_then(Value::as_str);
        return Finding::warn(
            CHECK,
            format!(
                "'{name}' does not tell it: {}",
                why.unwrap_or("it has no SMART")
            ),
            "look at it by the tool of its maker, or of the machine that lends it",
        );
    }
    let temperature = number("/temperature/current").map(|degrees| format!(", {degrees} °C"));
    let worn = worn.map(|percent| format!(", worn to {percent} %"));
    Finding::ok(
        CHECK,
        format!(
            "'{name}' says that it is well{}{}",
            worn.unwrap_or_default(),
            temperature.unwrap_or_default()
        ),
    )
}
