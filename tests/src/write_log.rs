//! The log of device-mapper's target `log-writes`: what reached a disk, in the order in which it cannot be lost any
//! more.
//!
//! The kernel logs a write when a later flush completes, and a write with FUA when it completes. So a disk that holds
//! what stands in the log before some place, and nothing else, is what a loss of power at that moment leaves of a disk
//! whose cache lost all that it was allowed to lose. Marks are logged when they are set.
//!
//! ```text
//! sector 0    magic, version, number of entries (64 bits each), bytes of a sector (32 bits), all little endian
//! sector 1    an entry: first sector, number of sectors, flags, bytes of the mark's name (64 bits each), and the name
//! then        the data of the entry, unless it is a mark or a discard; the next entry, and so on
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: u64 = 0x6a_7366_7773_6872;
const VERSION: u64 = 1;
const FLUSH: u64 = 1 << 0;
const FUA: u64 = 1 << 1;
const DISCARD: u64 = 1 << 2;
const MARK: u64 = 1 << 3;
/// Bytes of the fields of an entry.
const FIELDS: usize = 32;

/// A log that is complete: its last entry is a mark, or a write with FUA.
#[derive(Debug)]
pub struct WriteLog {
    log: File,
    entries: Vec<Entry>,
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// Where it begins on the disk, in bytes.
    start: u64,
    bytes: u64,
    change: Change,
    /// Whether it, or what was written before, cannot be lost from here on.
    settles: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    /// Data, and where they are in the log.
    Write { from: u64 },
    /// The data there are needed no more.
    Discard,
    /// Somebody gave this moment a name.
    Mark(String),
}

impl WriteLog {
    /// Reads the log on this image of a disk.
    ///
    /// # Panics
    /// If it is no such log, or cut short.
    pub fn open(path: &Path) -> Self {
        let log = File::open(path).expect("the image can be opened");
        let head = read(&log, 0, FIELDS);
        let [magic, version, count, sector] = words(&head);
        assert_eq!((magic, version), (MAGIC, VERSION), "no log of log-writes");
        let sector = sector & 0xffff_ffff;
        assert!(
            sector.is_power_of_two() && (512..=4096).contains(&sector),
            "sectors of {sector} bytes"
        );
        let mut entries = Vec::new();
        let mut at = sector;
        for number in 0..count {
            let fields = read(&log, at, FIELDS);
            let [start, sectors, flags, name] = words(&fields);
            assert!(
                flags < MARK << 2 && sectors < 1 << 32 && name < sector,
                "entry {number} of {count} is none"
            );
            let from = at + sector;
            let change = if flags & MARK != 0 {
                let name = read(&log, at + FIELDS as u64, name as usize);
                Change::Mark(String::from_utf8(name).expect("marks have readable names"))
            } else if flags & DISCARD != 0 {
                Change::Discard
            } else {
                Change::Write { from }
            };
            at = match change {
                Change::Write { .. } => from + sectors * sector,
                _ => from,
            };
            entries.push(Entry {
                start: start * sector,
                bytes: sectors * sector,
                change,
                settles: flags & (FLUSH | FUA) != 0,
            });
        }
        Self { log, entries }
    }

    /// How many entries stand before this mark.
    ///
    /// # Panics
    /// If the mark was not set, or more than once.
    pub fn mark(&self, name: &str) -> usize {
        let is_it = |entry: &Entry| matches!(&entry.change, Change::Mark(mark) if mark == name);
        let places: Vec<usize> = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, e)| is_it(e))
            .map(|(at, _)| at)
            .collect();
        match places[..] {
            [at] => at,
            _ => panic!("mark {name} is {} times in the log", places.len()),
        }
    }

    /// The moments after `from` and up to `to` at which a flush or a write with FUA completed, each as the number of
    /// entries before it ended.
    pub fn settled(&self, from: usize, to: usize) -> Vec<usize> {
        (from..to)
            .filter(|at| self.entries[*at].settles)
            .map(|at| at + 1)
            .collect()
    }

    /// Makes what the entries from `from` up to `to` did once more, on the image of a disk. What was discarded becomes
    /// zeros.
    ///
    /// # Panics
    /// If the image cannot be written.
    pub fn replay(&self, disk: &File, from: usize, to: usize) {
        for entry in &self.entries[from..to] {
            let data = match entry.change {
                Change::Write { from } => read(&self.log, from, entry.bytes as usize),
                Change::Discard => vec![0; entry.bytes as usize],
                Change::Mark(_) => continue,
            };
            disk.write_all_at(&data, entry.start)
                .expect("the image can be written");
        }
    }
}

fn read(log: &File, at: u64, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    log.read_exact_at(&mut buffer, at)
        .expect("the log is whole");
    buffer
}

fn words(fields: &[u8]) -> [u64; 4] {
    std::array::from_fn(|at| {
        let bytes = fields[at * 8..][..8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log with these entries: sector, sectors, flags, and the mark's name or one letter a sector.
    fn log(entries: &[(u64, u64, u64, &str)]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut bytes = Vec::new();
        let add = |bytes: &mut Vec<u8>, words: [u64; 4], name: &str| {
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            bytes.extend(name.as_bytes());
            bytes.resize(bytes.len().next_multiple_of(512), 0);
        };
        add(&mut bytes, [MAGIC, VERSION, entries.len() as u64, 512], "");
        for (sector, sectors, flags, text) in entries {
            let is_mark = flags & MARK != 0;
            let name = if is_mark { text } else { "" };
            add(
                &mut bytes,
                [*sector, *sectors, *flags, name.len() as u64],
                name,
            );
            if !is_mark {
                bytes.extend(text.bytes().flat_map(|letter| [letter; 512]));
            }
        }
        file.as_file().write_all_at(&bytes, 0).expect("written");
        file
    }

    #[test]
    fn a_log_is_replayed_up_to_marks_and_flushes() {
        let file = log(&[
            (2, 2, 0, "ab"),
            (0, 0, FLUSH, ""),
            (0, 0, MARK, "one"),
            (3, 1, FUA, "c"),
            (2, 1, DISCARD, ""),
            (0, 1, 0, "d"),
            (0, 0, MARK, "two"),
        ]);
        let log = WriteLog::open(file.path());
        let (one, two) = (log.mark("one"), log.mark("two"));
        assert_eq!((one, two), (2, 6));
        assert_eq!(log.settled(0, one), [2]);
        assert_eq!(log.settled(one, two), [4]);
        let disk = tempfile::tempfile().expect("a file");
        disk.set_len(4 * 512).expect("a size");
        let letters = || -> Vec<u8> { read(&disk, 0, 4 * 512).into_iter().step_by(512).collect() };
        log.replay(&disk, 0, one);
        assert_eq!(letters(), *b"\0\0ab");
        log.replay(&disk, one, 4);
        assert_eq!(letters(), *b"\0\0ac");
        log.replay(&disk, 4, two);
        assert_eq!(letters(), *b"d\0\0c");
    }

    #[test]
    #[should_panic(expected = "the log is whole")]
    fn a_log_that_is_cut_short_is_none() {
        let file = log(&[(2, 2, 0, "a")]);
        let cut = file.as_file();
        cut.set_len(cut.metadata().expect("a size").len() - 512)
            .expect("cut");
        let log = WriteLog::open(file.path());
        log.replay(&tempfile::tempfile().expect("a file"), 0, 1);
    }
}
