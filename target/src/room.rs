//! Whether the file systems under a pool's drives can hold what the drives promise.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::size::format_human;

/// Bytes of the blocks that `st_blocks` counts (stat(2)).
const STAT_BLOCK_BYTES: u64 = 512;

/// Files of one file system that are thin.
struct Thin {
    first: PathBuf,
    files: usize,
    /// What they may still take there.
    missing: u64,
}

/// One warning for each file system whose free space is less than the drive files on it may still take.
/// Devices, and files that cannot be looked at, take nothing.
pub(crate) fn shortages(drives: &[PathBuf]) -> Vec<String> {
    let mut systems: BTreeMap<u64, Thin> = BTreeMap::new();
    for path in drives {
        let Ok(file) = std::fs::metadata(path) else {
            continue;
        };
        if !file.is_file() {
            continue;
        }
        let taken = file.blocks().saturating_mul(STAT_BLOCK_BYTES);
        let thin = systems.entry(file.dev()).or_insert_with(|| Thin {
            first: path.clone(),
            files: 0,
            missing: 0,
        });
        thin.files += 1;
        thin.missing += file.len().saturating_sub(taken);
    }
    systems.into_values().filter_map(shortage).collect()
}

fn shortage(thin: Thin) -> Option<String> {
    let system = rustix::fs::statvfs(&thin.first).ok()?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    if free >= thin.missing {
        return None;
    }
    let others = match thin.files {
        1 => String::new(),
        several => format!(" and {} more of the pool's drives", several - 1),
    };
    Some(format!(
        "the file system of '{}'{others} has {} free, and the drives there may take {} more: when it is full, \
         writes fail; free space there, make it larger, or make the drives smaller",
        thin.first.display(),
        format_human(free),
        format_human(thin.missing),
    ))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn thin_files_that_their_file_system_cannot_hold_are_named_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let make = |name: &str, bytes: u64| {
            let path = folder.path().join(name);
            let file = File::create(&path).expect("a file");
            file.set_len(bytes).expect("its length");
            path
        };
        let small = make("small", 4096);
        assert_eq!(
            shortages(std::slice::from_ref(&small)),
            Vec::<String>::new()
        );
        let system = rustix::fs::statvfs(folder.path()).expect("statvfs");
        let half = system.f_blocks * system.f_frsize / 2 + (1 << 30);
        let (a, b) = (make("a", half), make("b", half));
        let found = shortages(&[a.clone(), small, b]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(&a.display().to_string()), "{found:?}");
        assert!(found[0].contains("and 2 more"), "{found:?}");
        assert!(shortages(&[PathBuf::from("/dev/null"), PathBuf::from("/nowhere")]).is_empty());
    }
}
