//! Names that stay the same over restarts: of the sled, and of each of its drives.
//!
//! Guarantees:
//! - A block device has the UUID of its hardware where the kernel tells one (its WWID, or its serial number; of a partition
//!   with its number), in whatever machine it is and by whatever path it is named.
//! - Any other drive has the UUID of its path on a sled of that name. The default name comes from the machine's
//!   identifier (machine-id(5)), which cannot be told from it.
//! - A drive in memory has another UUID at each start, because it has lost what its hosts wrote.
//! - What is derived is derived by BLAKE3 under a context of its own, and is a UUID of version 8 (RFC 9562, section 5.8).

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nvme::Nqn;
use nvme::nqn::NqnError;

/// What the derived values are for; another text gives other values.
const UUID_CONTEXT: &str = "onefold sled 2026-11 uuid of a drive";
const NAME_CONTEXT: &str = "onefold sled 2026-11 name of a machine";
const SERIAL_CONTEXT: &str = "onefold sled 2026-11 serial number";

/// Where a machine keeps its identifier.
const MACHINE_ID: &str = "/etc/machine-id";
/// Hexadecimal digits of a machine's identifier.
const MACHINE_ID_DIGITS: usize = 32;
/// Hexadecimal digits of a default name.
const NAME_DIGITS: usize = 16;
/// Characters of a serial number (SN of Identify Controller).
const SERIAL_CHARACTERS: usize = 20;
/// What is read of an attribute in /sys.
const ATTRIBUTE_BYTES_MAX: usize = 1024;

/// The name of a sled that was given none: made from the machine's identifier. `None` if the machine has none.
#[must_use]
pub fn default_name() -> Option<String> {
    name_of_machine(&fs::read_to_string(MACHINE_ID).ok()?)
}

fn name_of_machine(machine_id: &str) -> Option<String> {
    let id = machine_id.trim();
    let is_one = id.len() == MACHINE_ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_one.then(|| {
        let derived = blake3::derive_key(NAME_CONTEXT, id.as_bytes());
        hex(&derived)[..NAME_DIGITS].to_owned()
    })
}

/// The NQN of the sled of that name.
///
/// # Errors
/// The name has blanks or control characters, or is too long.
pub fn nqn_of(name: &str) -> Result<Nqn, NqnError> {
    Nqn::new(&format!("nqn.2026-11.dev.onefold:sled:{name}"))
}

/// The serial number of the sled with that NQN.
pub(crate) fn serial_of(nqn: &Nqn) -> String {
    let derived = blake3::derive_key(SERIAL_CONTEXT, nqn.as_str().as_bytes());
    hex(&derived)[..SERIAL_CHARACTERS].to_owned()
}

/// The UUID of the drive at that path, on the sled of that name.
///
/// # Errors
/// There is nothing at the path, or it cannot be looked at.
pub fn uuid_of_path(path: &Path, name: &str) -> io::Result<[u8; 16]> {
    let metadata = fs::metadata(path)?;
    if metadata.file_type().is_block_device() {
        let number = metadata.rdev();
        let number = format!(
            "{}:{}",
            rustix::fs::major(number),
            rustix::fs::minor(number)
        );
        if let Some(hardware) = hardware_of(&PathBuf::from("/sys/dev/block").join(number)) {
            return Ok(derived_uuid(&["hardware", &hardware]));
        }
    }
    let path = path.canonicalize()?;
    Ok(derived_uuid(&["path", name, &path.to_string_lossy()]))
}

/// A UUID that nothing else has: that of a drive in memory.
///
/// # Errors
/// The system has no random bytes.
pub fn random_uuid() -> io::Result<[u8; 16]> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    Ok(with_version(random, 4))
}

/// What the kernel tells of the hardware of a block device; `folder` is the device's in /sys.
fn hardware_of(folder: &Path) -> Option<String> {
    let attribute = |folder: &Path, name: &str| {
        let text = fs::read(folder.join(name)).ok()?;
        let text = String::from_utf8_lossy(&text[..text.len().min(ATTRIBUTE_BYTES_MAX)]);
        // SCSI pads with blanks, and some firmware with NULs.
        let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
        (!text.is_empty()).then(|| text.to_owned())
    };
    if let Some(partition) = attribute(folder, "partition") {
        // The folder is a link to one within that of the whole device.
        let whole = folder.canonicalize().ok()?;
        let hardware = hardware_of(whole.parent()?)?;
        return Some(format!("{hardware} partition {partition}"));
    }
    // NVMe and others; SCSI; device-mapper; virtio.
    ["wwid", "device/wwid", "dm/uuid", "serial", "device/serial"]
        .iter()
        .find_map(|name| attribute(folder, name))
}

/// The UUID of these texts. Each stands with its length, so that no two lists are alike.
fn derived_uuid(parts: &[&str]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new_derive_key(UUID_CONTEXT);
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    with_version(uuid, 8)
}

fn with_version(mut uuid: [u8; 16], version: u8) -> [u8; 16] {
    uuid[6] = uuid[6] & 0x0f | version << 4;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(attributes: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in attributes {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }
        folder
    }

    #[test]
    fn a_device_is_known_by_its_hardware_and_a_partition_by_its_number_too() {
        let disk = device(&[
            ("wwid", "eui.0025388b710c1234\n"),
            ("device/serial", "S4EV\n"),
            ("nvme0n1p2/partition", "2\n"),
            ("nvme0n1p3/partition", "3\n"),
        ]);
        assert_eq!(
            hardware_of(disk.path()).as_deref(),
            Some("eui.0025388b710c1234")
        );
        let second = hardware_of(&disk.path().join("nvme0n1p2"));
        assert_eq!(second.as_deref(), Some("eui.0025388b710c1234 partition 2"));
        assert_ne!(second, hardware_of(&disk.path().join("nvme0n1p3")));
        let scsi = device(&[("device/wwid", "t10.ATA     SAMSUNG  \0\0\n")]);
        assert_eq!(
            hardware_of(scsi.path()).as_deref(),
            Some("t10.ATA     SAMSUNG")
        );
    }

    #[test]
    fn a_device_that_tells_nothing_has_no_hardware_identity() {
        assert_eq!(hardware_of(device(&[("serial", " \n")]).path()), None);
        assert_eq!(hardware_of(device(&[("p1/partition", "1")]).path()), None);
        assert_eq!(hardware_of(Path::new("/nowhere")), None);
    }

    #[test]
    fn a_file_keeps_its_uuid_by_any_path_and_has_another_on_another_sled() {
        let folder = device(&[("a", "data"), ("b", "data")]);
        let uuid =
            |file: &str, name: &str| uuid_of_path(&folder.path().join(file), name).expect("a UUID");
        let first = uuid("a", "s1");
        assert_eq!((first[6] >> 4, first[8] >> 6), (8, 2));
        std::os::unix::fs::symlink("a", folder.path().join("link")).expect("a link");
        assert_eq!(first, uuid("link", "s1"));
        assert_ne!(first, uuid("b", "s1"));
        assert_ne!(first, uuid("a", "s2"));
        assert!(uuid_of_path(&folder.path().join("none"), "s1").is_err());
    }

    #[test]
    fn lists_of_texts_that_read_alike_have_uuids_of_their_own() {
        assert_ne!(derived_uuid(&["ab", "c"]), derived_uuid(&["a", "bc"]));
        assert_ne!(derived_uuid(&["ab"]), derived_uuid(&["ab", ""]));
    }

    #[test]
    fn a_machine_has_one_name_that_does_not_tell_its_identifier() {
        let id = "0123456789abcdef0123456789abcdef";
        let name = name_of_machine(&format!("{id}\n")).expect("a name");
        assert_eq!(name.len(), NAME_DIGITS);
        assert!(!id.contains(&name));
        assert_eq!(Some(name), name_of_machine(id));
        for wrong in ["", "uninitialized\n", "0123"] {
            assert_eq!(name_of_machine(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_name_makes_an_nqn_that_follows_the_specification() {
        let nqn = nqn_of("rack1").expect("a name");
        assert_eq!(nqn.as_str(), "nqn.2026-11.dev.onefold:sled:rack1");
        assert_eq!(nqn.check_form(), Ok(()));
        assert!(nqn_of("two words").is_err());
        assert!(nqn_of(&"x".repeat(250)).is_err());
        assert_eq!(serial_of(&nqn).len(), SERIAL_CHARACTERS);
    }
}
