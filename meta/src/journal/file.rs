//! A journal in a preallocated file.
//!
//! ```text
//! byte 0      header: magic, version, pool uuid, ring bytes, CRC-32C   (4096 bytes)
//! byte 4096   the ring
//! ```
//! The file is written with zeros once, when it is made: appends overwrite allocated blocks, need no
//! space from the file system and no change of its metadata, so they cannot fail for want of space, and
//! a data sync writes data only.

use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use uuid::Uuid;

use super::media::{JournalMedia, in_bounds, out_of_bounds};
use crate::codec::{Reader, crc32c};
use crate::error::MetaError;
use crate::pool::JOURNAL_BYTES_DEFAULT;

/// First bytes of a journal file.
const MAGIC: [u8; 8] = *b"OFJRNL\r\n";
/// Version of the header and of the frames behind it. 2: blocks with or without a fingerprint.
/// 3: volumes with a verify policy, a domain and a compression; addresses of fragments.
const VERSION: u32 = 3;
/// Bytes before the ring.
const HEADER_BYTES: u64 = 4096;
/// Bytes of the header that carry something; the rest is zero.
const HEADER_USED: usize = 8 + 4 + 16 + 8 + 4;
/// Bytes written at a time when the file is made. They become the units of the system's cache, and ext4
/// looks at every block of a unit at each write: an append to units of 1 MiB costs a microsecond more.
const FILL_BYTES: usize = 16 << 10;

const REMEDY_DAMAGED: &str =
    "restore it from a copy that is as new as `metadata/`; nothing was changed";

/// A journal file. Dropping it closes the file.
pub struct FileMedia {
    file: File,
    path: PathBuf,
    capacity: u64,
}

impl FileMedia {
    /// Makes the file `path` (which must not exist) for a ring of `ring_bytes` bytes, allocates and
    /// writes all of it, and syncs it. The caller syncs the folder.
    pub fn create(path: &Path, pool: Uuid, ring_bytes: u64) -> Result<Self, MetaError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| MetaError::io(path, "create the journal file", error))?;
        let fill = || -> io::Result<()> {
            match rustix::fs::fallocate(
                &file,
                FallocateFlags::empty(),
                0,
                HEADER_BYTES + ring_bytes,
            ) {
                // Where the file system cannot preallocate, the zeros below allocate.
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
            let zeros = vec![0; FILL_BYTES];
            let mut offset = HEADER_BYTES;
            while offset < HEADER_BYTES + ring_bytes {
                let len = (HEADER_BYTES + ring_bytes - offset).min(FILL_BYTES as u64);
                file.write_all_at(&zeros[..len as usize], offset)?;
                offset += len;
            }
            file.write_all_at(&encode_header(pool, ring_bytes), 0)?;
            file.sync_all()
        };
        fill().map_err(|error| {
            // Best effort: a file without a valid header would be in the way of the next attempt.
            let _ = std::fs::remove_file(path);
            MetaError::io(path, "allocate the journal file", error)
        })?;
        Ok(Self {
            file,
            path: path.to_path_buf(),
            capacity: ring_bytes,
        })
    }

    /// Opens an existing file and proves that it is the journal of `pool`, whole and allocated.
    pub fn open(path: &Path, pool: Uuid) -> Result<Self, MetaError> {
        Self::open_for(path, pool, true)
    }

    /// As [`Self::open`], for reading alone: nothing is changed, and holes of a copy stay as they are.
    pub fn open_read_only(path: &Path, pool: Uuid) -> Result<Self, MetaError> {
        Self::open_for(path, pool, false)
    }

    /// Makes the file `copy` with what is left of the journal `path` of `pool`, which is cut, or has lost its header,
    /// or is gone; zeros stand for the rest. Also says how many bytes of the ring are left.
    ///
    /// # Errors
    /// [`MetaError::WrongPool`] if it is the journal of another pool, and what reading and writing gives.
    pub fn recover(path: &Path, copy: &Path, pool: Uuid) -> Result<(Self, u64), MetaError> {
        let old = match File::open(path) {
            Ok(old) => Some(old),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(MetaError::io(path, "open the journal file", error)),
        };
        let mut header = vec![0; HEADER_BYTES as usize];
        let mut left = 0;
        let mut ring_bytes = JOURNAL_BYTES_DEFAULT;
        if let Some(old) = &old {
            let bytes = old
                .metadata()
                .map_err(|error| MetaError::io(path, "read the size", error))?
                .len();
            left = bytes.saturating_sub(HEADER_BYTES);
            ring_bytes = ring_bytes.max(left);
            let read = old.read_exact_at(&mut header, 0).is_ok();
            match decode_header(path, &header, pool) {
                Ok(known) if read => ring_bytes = known,
                Err(error @ (MetaError::WrongPool { .. } | MetaError::WrongVersion { .. })) => {
                    return Err(error);
                }
                _ => {}
            }
        }
        let left = left.min(ring_bytes);
        let media = Self::create(copy, pool, ring_bytes)?;
        let mut buffer = vec![0; 1 << 20];
        let mut offset = 0;
        while let Some(old) = old.as_ref().filter(|_| offset < left) {
            let some = &mut buffer[..(left - offset).min(1 << 20) as usize];
            old.read_exact_at(some, HEADER_BYTES + offset)
                .map_err(|error| MetaError::io(path, "read the journal", error))?;
            media
                .write_at(offset, some)
                .map_err(|error| MetaError::io(copy, "copy the journal", error))?;
            offset += some.len() as u64;
        }
        media
            .sync()
            .map_err(|error| MetaError::io(copy, "copy the journal", error))?;
        Ok((media, left))
    }

    fn open_for(path: &Path, pool: Uuid, takes_writes: bool) -> Result<Self, MetaError> {
        let file = OpenOptions::new()
            .read(true)
            .write(takes_writes)
            .open(path)
            .map_err(|error| {
                if error.kind() == io::ErrorKind::NotFound {
                    MetaError::missing(path, REMEDY_DAMAGED)
                } else {
                    MetaError::io(path, "open the journal file", error)
                }
            })?;
        let metadata = file
            .metadata()
            .map_err(|error| MetaError::io(path, "read the size", error))?;
        if metadata.len() < HEADER_BYTES {
            return Err(MetaError::corrupt(
                path,
                format!("truncated to {} bytes", metadata.len()),
                REMEDY_DAMAGED,
            ));
        }
        let mut header = vec![0; HEADER_BYTES as usize];
        file.read_exact_at(&mut header, 0)
            .map_err(|error| MetaError::io(path, "read the header", error))?;
        let ring_bytes = decode_header(path, &header, pool)?;
        if metadata.len() < HEADER_BYTES + ring_bytes {
            return Err(MetaError::corrupt(
                path,
                format!(
                    "truncated: {} bytes, expected {}",
                    metadata.len(),
                    HEADER_BYTES + ring_bytes
                ),
                REMEDY_DAMAGED,
            ));
        }
        // A copy of the file may have become sparse: allocate its holes again, before an append needs
        // them. `blocks` counts 512-byte units.
        if takes_writes && metadata.blocks().saturating_mul(512) < HEADER_BYTES + ring_bytes {
            match rustix::fs::fallocate(
                &file,
                FallocateFlags::empty(),
                0,
                HEADER_BYTES + ring_bytes,
            ) {
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
                Err(error) => {
                    return Err(MetaError::io(
                        path,
                        "allocate the journal file",
                        error.into(),
                    ));
                }
            }
        }
        Ok(Self {
            file,
            path: path.to_path_buf(),
            capacity: ring_bytes,
        })
    }

    /// Proves that these are the first bytes of a journal file of `pool`, called `path` in messages, and
    /// says how many bytes its ring has.
    ///
    /// # Errors
    /// [`MetaError::Corrupt`], [`MetaError::WrongVersion`] or [`MetaError::WrongPool`].
    pub fn check_header(path: &Path, header: &[u8], pool: Uuid) -> Result<u64, MetaError> {
        decode_header(path, header, pool)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl JournalMedia for FileMedia {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if !in_bounds(offset, buf.len(), self.capacity) {
            return Err(out_of_bounds(offset, buf.len(), self.capacity));
        }
        self.file.read_exact_at(buf, HEADER_BYTES + offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if !in_bounds(offset, bytes.len(), self.capacity) {
            return Err(out_of_bounds(offset, bytes.len(), self.capacity));
        }
        self.file.write_all_at(bytes, HEADER_BYTES + offset)
    }

    /// A page that the system has dropped from its cache would have to be read first, while an append waits.
    fn will_write(&self, offset: u64, bytes: u64) {
        let bytes = bytes.min(self.capacity.saturating_sub(offset));
        let Some(bytes) = NonZeroU64::new(bytes) else {
            return;
        };
        let (from, advice) = (HEADER_BYTES + offset, rustix::fs::Advice::WillNeed);
        // Best effort: without it, an append is slower.
        let _ = rustix::fs::fadvise(&self.file, from, Some(bytes), advice);
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn encode_header(pool: Uuid, ring_bytes: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES as usize);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(pool.as_bytes());
    out.extend_from_slice(&ring_bytes.to_le_bytes());
    out.extend_from_slice(&crc32c(&out).to_le_bytes());
    debug_assert_eq!(out.len(), HEADER_USED);
    out.resize(HEADER_BYTES as usize, 0);
    out
}

/// Proves the header and returns the ring's size.
fn decode_header(path: &Path, header: &[u8], pool: Uuid) -> Result<u64, MetaError> {
    let damaged =
        |detail: &str| MetaError::corrupt(path, format!("the header {detail}"), REMEDY_DAMAGED);
    let short = |_| damaged("ends too early");
    let mut reader = Reader::new(header);
    if reader.array().map_err(short)? != MAGIC {
        return Err(damaged("is not that of a journal"));
    }
    let version = reader.u32().map_err(short)?;
    let found = Uuid::from_bytes(reader.array().map_err(short)?);
    let ring_bytes = reader.u64().map_err(short)?;
    let crc = reader.u32().map_err(short)?;
    // The checksum first: a flipped bit in the version is damage, not another version.
    if crc != crc32c(header.get(..HEADER_USED - 4).unwrap_or_default()) {
        return Err(damaged("has a wrong checksum"));
    }
    if version != VERSION {
        return Err(MetaError::WrongVersion {
            path: path.to_path_buf(),
            found: u64::from(version),
            supported: u64::from(VERSION),
        });
    }
    if found != pool {
        return Err(MetaError::WrongPool {
            path: path.to_path_buf(),
            found,
            expected: pool,
            remedy: "put the journal of this pool back in its place".to_owned(),
        });
    }
    if ring_bytes > u64::MAX - HEADER_BYTES {
        return Err(damaged("says that its ring is larger than a file can be"));
    }
    Ok(ring_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::MetaErrorKind;

    const RING: u64 = 3 << 20;

    fn made() -> (tempfile::TempDir, PathBuf, Uuid) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let pool = Uuid::new_v4();
        FileMedia::create(&path, pool, RING).unwrap();
        (dir, path, pool)
    }

    #[test]
    fn a_new_journal_file_is_fully_allocated_and_reopens() {
        let (_dir, path, pool) = made();
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(metadata.len(), HEADER_BYTES + RING);
        assert!(
            metadata.blocks() * 512 >= metadata.len(),
            "the file has holes"
        );
        assert_eq!(metadata.mode() & 0o777, 0o600);

        let media = FileMedia::open(&path, pool).unwrap();
        assert_eq!(media.capacity(), RING);
        media.write_at(RING - 3, b"end").unwrap();
        media.sync().unwrap();
        let mut back = [0; 3];
        media.read_at(RING - 3, &mut back).unwrap();
        assert_eq!(&back, b"end");
        assert!(media.write_at(RING - 2, b"end").is_err());
        assert!(media.read_at(u64::MAX, &mut back).is_err());
    }

    #[test]
    fn a_journal_file_is_never_made_over_another() {
        let (_dir, path, pool) = made();
        assert_eq!(
            FileMedia::create(&path, pool, RING).err().unwrap().kind(),
            MetaErrorKind::Io
        );
        FileMedia::open(&path, pool).unwrap();
    }

    #[test]
    fn a_missing_truncated_or_damaged_journal_file_is_named() {
        let (_dir, path, pool) = made();
        let open = || {
            let error = FileMedia::open(&path, pool).err().expect("it opened");
            assert!(
                error.to_string().contains(path.to_str().unwrap()),
                "{error}"
            );
            error.kind()
        };
        let whole = std::fs::read(&path).unwrap();

        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(open(), MetaErrorKind::Corrupt);
        std::fs::write(&path, &whole[..100]).unwrap();
        assert_eq!(open(), MetaErrorKind::Corrupt);
        for byte in 0..HEADER_USED {
            let mut damaged = whole.clone();
            damaged[byte] ^= 0x10;
            std::fs::write(&path, &damaged).unwrap();
            assert_eq!(open(), MetaErrorKind::Corrupt, "byte {byte}");
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(open(), MetaErrorKind::Missing);
    }

    #[test]
    fn a_journal_of_another_pool_or_version_is_refused() {
        let (_dir, path, _pool) = made();
        let error = FileMedia::open(&path, Uuid::new_v4()).err().unwrap();
        assert_eq!(error.kind(), MetaErrorKind::WrongPool);

        let pool = Uuid::new_v4();
        let mut header = encode_header(pool, RING);
        header[8] = 9;
        let crc = crc32c(&header[..HEADER_USED - 4]);
        header[HEADER_USED - 4..HEADER_USED].copy_from_slice(&crc.to_le_bytes());
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&header, 0).unwrap();
        let error = FileMedia::open(&path, pool).err().unwrap();
        assert_eq!(error.kind(), MetaErrorKind::WrongVersion);
        assert!(error.to_string().contains("version 9"), "{error}");
    }

    #[test]
    fn a_sparse_copy_of_a_journal_file_is_allocated_again_when_it_is_opened() {
        let (_dir, path, pool) = made();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(HEADER_BYTES).unwrap();
        file.set_len(HEADER_BYTES + RING).unwrap();
        FileMedia::open(&path, pool).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        assert!(
            metadata.blocks() * 512 >= metadata.len(),
            "the file has holes"
        );
    }
}
