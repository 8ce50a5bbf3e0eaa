//! Formats of images, as their first bytes tell them, and what is refused of them before any program opens them.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use subsystem::errors::Failure;

/// Bits of a qcow2 image that a reader has to know (docs/interop/qcow2.rst of QEMU).
const EXTERNAL_DATA_FILE: u64 = 1 << 2;
/// Bytes of a VMDK's sector, in which it tells where its description is.
const SECTOR_BYTES: usize = 512;

/// What an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// The bytes of the disk.
    Raw,
    /// QEMU's.
    Qcow2,
    /// VMware's, in one file.
    Vmdk,
    /// VirtualBox's.
    Vdi,
    /// Hyper-V's.
    Vhdx,
}

impl Format {
    const ALL: [Self; 5] = [Self::Raw, Self::Qcow2, Self::Vmdk, Self::Vdi, Self::Vhdx];

    /// Its name, as QEMU calls it too.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Vmdk => "vmdk",
            Self::Vdi => "vdi",
            Self::Vhdx => "vhdx",
        }
    }

    /// What the first bytes of a file say that it is.
    pub(crate) fn of(head: &[u8]) -> Self {
        let has = |at: usize, magic: &[u8]| head.get(at..at + magic.len()) == Some(magic);
        if has(0, b"QFI\xfb") {
            Self::Qcow2
        } else if has(0, b"KDMV") || has(0, b"# Disk DescriptorFile") {
            Self::Vmdk
        } else if has(64, &[0x7f, 0x10, 0xda, 0xbe]) {
            Self::Vdi
        } else if has(0, b"vhdxfile") {
            Self::Vhdx
        } else {
            Self::Raw
        }
    }

    /// Refuses an image whose first bytes name other files, or that nobody could read.
    pub(crate) fn check(self, path: &Path, head: &[u8], backing: bool) -> Result<(), Failure> {
        let name = path.display();
        let found = Self::of(head);
        if found != self {
            return Err(Failure::invalid(format!(
                "'{name}' is said to be {self}, and its first bytes are those of a {found} image"
            )));
        }
        match self {
            Self::Qcow2 => check_qcow2(&name, head, backing),
            Self::Vmdk => check_vmdk(&name, head),
            Self::Raw | Self::Vdi | Self::Vhdx => Ok(()),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|format| format.name() == text);
        known.ok_or_else(|| {
            format!("'{text}' is no format of images that can be read: use raw, qcow2, vmdk, vdi or vhdx")
        })
    }
}

/// A number of `N` bytes at a place, if the head is that long.
fn bytes<const N: usize>(head: &[u8], at: usize) -> Option<[u8; N]> {
    head.get(at..)?.first_chunk().copied()
}

fn check_qcow2(name: &dyn fmt::Display, head: &[u8], backing: bool) -> Result<(), Failure> {
    let invalid = |text: String| Err(Failure::invalid(text));
    let big = |at| bytes(head, at).map(u64::from_be_bytes);
    let number = |at| bytes(head, at).map(u32::from_be_bytes);
    let fields = (number(4), big(8), number(16), number(32));
    let (Some(version), Some(backing_at), Some(backing_bytes), Some(encryption)) = fields else {
        return invalid(format!(
            "the qcow2 image '{name}' ends in the middle of its header"
        ));
    };
    if encryption != 0 {
        return invalid(format!(
            "the qcow2 image '{name}' is encrypted: `qemu-img convert` with its key makes one that can be read"
        ));
    }
    let features = if version >= 3 { big(72) } else { Some(0) };
    if features.is_none_or(|bits| bits & EXTERNAL_DATA_FILE != 0) {
        return invalid(format!(
            "the qcow2 image '{name}' keeps its data in another file, which may be any file of this machine: \
             `qemu-img convert` makes an image of its own of it"
        ));
    }
    if backing_at != 0 && !backing {
        let file = usize::try_from(backing_at).ok().and_then(|at| {
            let end = at.checked_add(backing_bytes as usize)?;
            head.get(at..end)
        });
        let file = file.map_or_else(String::new, |file| {
            format!(" '{}'", String::from_utf8_lossy(file).escape_default())
        });
        return invalid(format!(
            "the qcow2 image '{name}' has a backing file{file}, which may be any file of this machine: \
             if you know both, --backing reads it too"
        ));
    }
    Ok(())
}

fn check_vmdk(name: &dyn fmt::Display, head: &[u8]) -> Result<(), Failure> {
    let number = |at| bytes(head, at).map(u64::from_le_bytes);
    let described = || {
        // Without a capacity QEMU takes the description for one that names other files.
        let capacity = number(12)?;
        let at = usize::try_from(number(28)?)
            .ok()?
            .checked_mul(SECTOR_BYTES)?;
        let len = usize::try_from(number(36)?)
            .ok()?
            .checked_mul(SECTOR_BYTES)?;
        let text = head.get(at..at.checked_add(len)?)?;
        let text = String::from_utf8_lossy(text);
        let has = |words: &str| {
            text.lines()
                .any(|line| line.trim_end_matches('\0').trim() == words)
        };
        let is_one_file =
            has("createType=\"monolithicSparse\"") || has("createType=\"streamOptimized\"");
        let is_alone = !text.contains("parentFileNameHint") && has("parentCID=ffffffff");
        Some(head.starts_with(b"KDMV") && capacity != 0 && is_one_file && is_alone)
    };
    match described() {
        Some(true) => Ok(()),
        Some(false) | None => Err(Failure::invalid(format!(
            "the VMDK image '{name}' may name other files of this machine: only monolithicSparse and streamOptimized \
             images without a parent are read; `qemu-img convert` makes one"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The header of a qcow2 image of version 3.
    fn qcow2() -> Vec<u8> {
        let mut head = vec![0; 1024];
        head[..4].copy_from_slice(b"QFI\xfb");
        head[7] = 3;
        head
    }

    fn refused(head: &[u8], backing: bool) -> String {
        let format = Format::of(head);
        let checked = format.check(Path::new("x.img"), head, backing);
        checked
            .err()
            .map_or_else(String::new, |failure| failure.message)
    }

    #[test]
    fn an_image_that_names_another_file_is_refused() {
        assert_eq!(refused(&qcow2(), false), "");
        let mut with_backing = qcow2();
        with_backing[14] = 2;
        with_backing[19] = 11;
        with_backing[512..523].copy_from_slice(b"/etc/shadow");
        let text = refused(&with_backing, false);
        assert!(
            text.contains("'/etc/shadow'") && text.contains("--backing"),
            "{text}"
        );
        assert_eq!(refused(&with_backing, true), "");

        let mut external = qcow2();
        external[79] = 4;
        assert!(refused(&external, true).contains("keeps its data in another file"));
        let mut encrypted = qcow2();
        encrypted[35] = 1;
        assert!(refused(&encrypted, false).contains("is encrypted"));
        assert!(refused(&qcow2()[..20], false).contains("ends in the middle"));
        assert!(refused(b"# Disk DescriptorFile\n", true).contains("may name other files"));
    }

    #[test]
    fn formats_are_known_by_their_names() {
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        assert!("qcow".parse::<Format>().is_err());
    }

    proptest! {
        #[test]
        fn any_first_bytes_are_judged(
            magic in prop::sample::select(vec![&b"QFI\xfb"[..], b"KDMV", b"vhdxfile", b""]),
            rest in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let head = [magic, &rest].concat();
            let _ = Format::of(&head).check(Path::new("x.img"), &head, false);
        }
    }
}
