//! What the NVMe device behind a file or block device tells of its own health.
//!
//! Guarantees: the device is asked on a thread of its own, which may hang as long as the device does, and harms nobody; what is
//! no NVMe device, or lies on several, is not asked.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use nvme::admin::GetLogPage;
use nvme::log::{LogPage, SMART_LOG_BYTES, SmartLog};
use reactor::device::read_by_admin_command;
use reactor::sync::oneshot;

/// Devices that are looked through, one on the other, until one of NVMe is found.
const LAYERS_MAX: usize = 8;

/// Asks the device behind a file or block device.
///
/// # Errors
/// It is one of NVMe, and cannot be asked, or does not answer.
pub(crate) async fn ask(drive: Arc<OwnedFd>) -> io::Result<Option<SmartLog>> {
    let (answer, answered) = oneshot::channel();
    // Not among the reactors' helpers: these are few, and journals wait for them.
    thread::Builder::new()
        .name("drive-health".to_owned())
        .spawn(move || {
            // Nobody may be waiting any more.
            let _ = answer.send(ask_now(&drive));
        })?;
    answered.await.unwrap_or(Ok(None))
}

fn ask_now(drive: &OwnedFd) -> io::Result<Option<SmartLog>> {
    let file = File::from(drive.try_clone()?);
    let found = file.metadata()?;
    let is_device = found.file_type().is_block_device();
    let number = if is_device { found.rdev() } else { found.dev() };
    let sys = Path::new("/sys");
    let Some(device) = nvme_device(sys, &shown(number)) else {
        return Ok(None);
    };
    if is_device && device.number == shown(number) {
        return read_log(&file);
    }
    let path = Path::new("/dev").join(&device.name);
    let cannot = |error: io::Error| {
        let text = format!("its device {} cannot be opened: {error}", path.display());
        io::Error::new(error.kind(), text)
    };
    let opened = File::open(&path).map_err(cannot)?;
    let is_it = shown(opened.metadata()?.rdev()) == device.number;
    if is_it { read_log(&opened) } else { Ok(None) }
}

/// As sysfs names devices.
fn shown(number: u64) -> String {
    format!(
        "{}:{}",
        rustix::fs::major(number),
        rustix::fs::minor(number)
    )
}

/// The log page of the controller that a block device belongs to.
fn read_log(device: impl AsFd) -> io::Result<Option<SmartLog>> {
    let get = GetLogPage {
        lid: LogPage::Smart.as_u8(),
        lsp: 0,
        retain_event: true,
        length: SMART_LOG_BYTES as u64,
        offset: 0,
        offset_is_index: false,
        nsid: u32::MAX,
        csi: 0,
    };
    let mut page = [0; SMART_LOG_BYTES];
    match read_by_admin_command(device, &get.to_sqe().0, &mut page) {
        Ok(()) => Ok(SmartLog::decode(&page)),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(io::Error::new(
            error.kind(),
            "the kernel lets only processes with CAP_SYS_ADMIN ask the device; give the daemon that right, or ask by smartctl",
        )),
        Err(error) => Err(error),
    }
}

/// A block device of the kernel's NVMe driver.
#[derive(Debug, PartialEq, Eq)]
struct NvmeDevice {
    name: String,
    number: String,
}

/// The NVMe device that a block device is, is a part of, or lies on alone: device-mapper says what it lies on.
fn nvme_device(sys: &Path, number: &str) -> Option<NvmeDevice> {
    let mut number = number.to_owned();
    for _ in 0..LAYERS_MAX {
        let folder = sys.join("dev/block").join(&number);
        let folder = folder.canonicalize().ok()?;
        let name = folder.file_name()?.to_str()?;
        if is_nvme(name) {
            let name = name.to_owned();
            return Some(NvmeDevice { name, number });
        }
        let below = folder.join("slaves");
        let mut devices = fs::read_dir(&below).ok()?.flatten();
        let (Some(one), None) = (devices.next(), devices.next()) else {
            return None;
        };
        let told = fs::read_to_string(one.path().join("dev")).ok()?;
        told.trim().clone_into(&mut number);
    }
    None
}

/// Whether the kernel's NVMe driver calls a namespace so, or a partition of one: `nvme0n1`, `nvme0n1p2`.
fn is_nvme(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let numbers = name.strip_prefix("nvme").and_then(|it| it.split_once('n'));
    numbers.is_some_and(|(controller, rest)| {
        let (namespace, partition) = match rest.split_once('p') {
            Some((namespace, partition)) => (namespace, Some(partition)),
            None => (rest, None),
        };
        is_number(controller) && is_number(namespace) && partition.is_none_or(is_number)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A machine with an NVMe drive of one partition, on which an encrypted device lies; with a mirror over two drives; and with a SATA disk.
    fn machine() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let sys = folder.path();
        let device = |number: &str, path: &str| {
            let made = sys.join("devices").join(path);
            fs::create_dir_all(made.join("slaves")).expect("made");
            fs::write(made.join("dev"), format!("{number}\n")).expect("written");
            fs::create_dir_all(sys.join("dev/block")).expect("made");
            symlink(&made, sys.join("dev/block").join(number)).expect("linked");
        };
        device("259:0", "pci/nvme0/nvme0n1");
        device("259:1", "pci/nvme0/nvme0n1/nvme0n1p1");
        device("259:2", "pci/nvme1/nvme1n1");
        device("8:0", "pci/ata1/sda");
        device("253:0", "virtual/dm-0");
        device("253:1", "virtual/dm-1");
        device("9:0", "virtual/md0");
        let lies_on = |upper: &str, lower: &str| {
            let name = Path::new(lower).file_name().expect("a name");
            let link = sys.join("devices").join(upper).join("slaves").join(name);
            symlink(sys.join("devices").join(lower), link).expect("linked");
        };
        lies_on("virtual/dm-0", "pci/nvme0/nvme0n1/nvme0n1p1");
        lies_on("virtual/md0", "pci/nvme0/nvme0n1");
        lies_on("virtual/md0", "pci/nvme1/nvme1n1");
        lies_on("virtual/dm-1", "virtual/dm-1");
        folder
    }

    #[test]
    fn a_partition_and_what_is_encrypted_have_the_health_of_the_drive_below() {
        let sys = machine();
        let found = |number: &str| nvme_device(sys.path(), number).map(|it| it.name);
        assert_eq!(found("259:0").as_deref(), Some("nvme0n1"));
        assert_eq!(found("259:1").as_deref(), Some("nvme0n1p1"));
        assert_eq!(found("253:0").as_deref(), Some("nvme0n1p1"));
    }

    #[test]
    fn a_mirror_a_disk_and_what_is_not_there_have_no_health() {
        let sys = machine();
        // A device that lies on itself is one of many layers.
        for number in ["9:0", "8:0", "253:1", "0:42"] {
            assert_eq!(nvme_device(sys.path(), number), None, "{number}");
        }
    }

    #[test]
    fn the_controller_itself_and_other_devices_are_not_taken_for_drives() {
        assert!(is_nvme("nvme12n3") && is_nvme("nvme0n1p12"));
        for name in [
            "nvme0",
            "nvme0n",
            "nvme0c1n1",
            "nvmen1",
            "ng0n1",
            "nvme0n1p",
        ] {
            assert!(!is_nvme(name), "{name}");
        }
    }
}
