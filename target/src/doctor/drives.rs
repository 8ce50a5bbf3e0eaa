//! The drives of a pool, as sysfs and the file systems tell of them.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::{Finding, Machine, PoolFound};
use crate::room;

/// The engine reads and writes whole blocks of this size.
const BLOCK_BYTES: u64 = 4096;
/// What sysfs counts starts of partitions in.
const SECTOR_BYTES: u64 = 512;

pub(super) fn of_pool(machine: &Machine, pool: &PoolFound) -> Vec<Finding> {
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
    let paths = identity
        .drives
        .iter()
        .map(|drive| pool.dir.join(&drive.path));
    let paths: Vec<_> = paths.collect();
    let mut findings: Vec<Finding> = paths.iter().flat_map(|path| drive(machine, path)).collect();
    for shortage in room::shortages(&paths) {
        findings.push(Finding::warn(
            "drive",
            shortage,
            "make room before the pool fills: `onefold status` says how much it has",
        ));
    }
    findings
}

fn drive(machine: &Machine, path: &Path) -> Vec<Finding> {
    const CHECK: &str = "drive";
    let name = path.display();
    match std::fs::metadata(path) {
        Err(error) => vec![Finding::fail(
            CHECK,
            format!("'{name}' is not there or cannot be looked at: {error}"),
            "connect it: the pool needs all of its drives",
        )],
        Ok(found) if found.file_type().is_block_device() => {
            let device = found.rdev();
            let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
            device_findings(
                machine,
                &name.to_string(),
                &format!("/sys/dev/block/{major}:{minor}"),
            )
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
