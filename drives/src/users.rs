//! Who uses a file or a block device, as the kernel tells: mounts, swap space, holders (device-mapper, md, bcache),
//! loop devices.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Most users that are named, and most partitions that are looked at.
const NAMED_MAX: usize = 8;

/// Where the kernel tells it.
struct Kernel {
    /// `/proc/self/mountinfo`
    mounts: String,
    /// `/proc/swaps`
    swaps: String,
    /// `/sys`
    sys: PathBuf,
}

/// Who uses it, each as in "it ..."; nothing if nobody is seen. What cannot be read is left out.
pub(crate) fn of(path: &Path) -> Vec<String> {
    let Ok(metadata) = fs::metadata(path) else {
        return Vec::new();
    };
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let kernel = Kernel {
        mounts: fs::read_to_string("/proc/self/mountinfo").unwrap_or_default(),
        swaps: fs::read_to_string("/proc/swaps").unwrap_or_default(),
        sys: PathBuf::from("/sys"),
    };
    let mut users = if metadata.file_type().is_block_device() {
        let number = metadata.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        kernel.of_device(&path, &format!("{major}:{minor}"))
    } else {
        kernel.of_file(&path)
    };
    users.truncate(NAMED_MAX);
    users
}

impl Kernel {
    /// `number`: `MAJOR:MINOR`.
    fn of_device(&self, path: &Path, number: &str) -> Vec<String> {
        let mut users = self.of_one(path, number);
        let folder = self.sys.join("dev/block").join(number);
        for name in names(&folder) {
            let part = folder.join(&name);
            if !part.join("partition").exists() {
                continue;
            }
            let number = fs::read_to_string(part.join("dev")).unwrap_or_default();
            let of_part = self.of_one(&Path::new("/dev").join(&name), number.trim());
            users.extend(
                of_part
                    .into_iter()
                    .map(|user| format!("has the partition {name}, which {user}")),
            );
        }
        users
    }

    fn of_one(&self, path: &Path, number: &str) -> Vec<String> {
        let shown = path.display().to_string();
        let mut users = Vec::new();
        for mount in self.mounts.lines() {
            // Number, parent, device, root, mount point, options, ... - type, source, options (proc(5)).
            let words: Vec<&str> = mount.split(' ').collect();
            let source = words.iter().position(|word| *word == "-").map(|at| at + 2);
            let source = source.and_then(|at| words.get(at));
            // A file system of several devices has a number of its own.
            if let [_, _, device, _, point, ..] = words[..]
                && (device == number || source == Some(&shown.as_str()))
            {
                users.push(format!("is mounted at {point}"));
            }
        }
        users.extend(self.swap(&shown));
        let holders = self.sys.join("dev/block").join(number).join("holders");
        users.extend(names(&holders).into_iter().map(|name| {
            let mapped = fs::read_to_string(holders.join(&name).join("dm/name"));
            match mapped {
                Ok(mapped) => format!("belongs to the device {name} ({})", mapped.trim()),
                Err(_) => format!("belongs to the device {name}"),
            }
        }));
        users
    }

    fn of_file(&self, path: &Path) -> Vec<String> {
        let mut users: Vec<String> = self.swap(&path.display().to_string()).into_iter().collect();
        let block = self.sys.join("block");
        for name in names(&block) {
            let file = fs::read_to_string(block.join(&name).join("loop/backing_file"));
            if file.is_ok_and(|file| Path::new(file.trim_end_matches('\n')) == path) {
                users.push(format!(
                    "is the file behind /dev/{name} (`losetup -d` ends that)"
                ));
            }
        }
        users
    }

    fn swap(&self, shown: &str) -> Option<String> {
        let mut used = self
            .swaps
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        used.any(|name| name == shown)
            .then(|| "is in use as swap space".to_owned())
    }
}

/// What is in a folder, in order; nothing if there is none.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with a disk of two partitions, one under LVM, and a file behind a loop device.
    fn machine() -> (tempfile::TempDir, Kernel) {
        let folder = tempfile::tempdir().expect("a folder");
        let sys = folder.path().to_owned();
        let write = |path: &str, text: &str| {
            let path = sys.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        write("dev/block/8:0/sda1/partition", "1\n");
        write("dev/block/8:0/sda1/dev", "8:1\n");
        write("dev/block/8:0/sda2/partition", "2\n");
        write("dev/block/8:0/sda2/dev", "8:2\n");
        write("dev/block/8:0/queue/rotational", "0\n");
        write("dev/block/8:2/holders/dm-0/dm/name", "vg-root\n");
        write("dev/block/8:16/holders/md0/md/level", "raid1\n");
        write("block/loop3/loop/backing_file", "/srv/disk.img\n");
        let mounts = "36 35 8:1 / /boot rw,noatime shared:1 - ext4 /dev/sda1 rw\n\
                      37 35 0:42 /@ /data rw - btrfs /dev/sdc rw\n";
        let swaps = "Filename\tType\tSize\tUsed\tPriority\n/dev/sdd partition 1 0 -2\n/swapfile file 1 0 -3\n";
        let kernel = Kernel {
            mounts: mounts.to_owned(),
            swaps: swaps.to_owned(),
            sys,
        };
        (folder, kernel)
    }

    #[test]
    fn whoever_uses_a_device_or_a_file_is_named() {
        let (_folder, kernel) = machine();
        let device = |name: &str, number: &str| kernel.of_device(Path::new(name), number);
        assert_eq!(device("/dev/sda1", "8:1"), ["is mounted at /boot"]);
        assert_eq!(
            device("/dev/sda", "8:0"),
            [
                "has the partition sda1, which is mounted at /boot",
                "has the partition sda2, which belongs to the device dm-0 (vg-root)"
            ]
        );
        assert_eq!(device("/dev/sdb", "8:16"), ["belongs to the device md0"]);
        assert_eq!(device("/dev/sdc", "8:32"), ["is mounted at /data"]);
        assert_eq!(device("/dev/sdd", "8:48"), ["is in use as swap space"]);
        assert!(device("/dev/sde", "8:64").is_empty());
        let file = |name: &str| kernel.of_file(Path::new(name));
        assert_eq!(file("/swapfile"), ["is in use as swap space"]);
        assert_eq!(file("/srv/disk.img").len(), 1);
        assert!(file("/srv/disk").is_empty());
    }
}
