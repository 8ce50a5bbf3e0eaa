//! An image in a file, on a block device, or in a named pipe.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;
use subsystem::errors::Failure;

use super::stream::Stream;
use super::{GRAIN, HEAD_BYTES, PART_BYTES, Part, Source, sparse};

/// An open image.
#[derive(Debug)]
pub(super) struct ImageFile {
    file: File,
    path: PathBuf,
    identity: String,
    /// Its length; `None` of a pipe.
    bytes: Option<u64>,
    /// The next byte.
    at: u64,
    /// Its bytes before this one are data, as far as the file system knows.
    data_upto: u64,
    /// What was read of a pipe.
    head: Vec<u8>,
}

impl ImageFile {
    /// Opens it. A device that is in use is refused: what is read of it would be of no one moment.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| cannot_open(path, &error);
        let metadata = std::fs::metadata(path).map_err(failed)?;
        let kind = metadata.file_type();
        let mut options = File::options();
        options.read(true);
        if kind.is_block_device() {
            options.custom_flags(OFlags::EXCL.bits().cast_signed());
        }
        let name = path.display();
        if !kind.is_file() && !kind.is_block_device() && !kind.is_fifo() {
            return Err(Failure::invalid(format!(
                "'{name}' is no image: name a file, a block device, or - for standard input"
            )));
        }
        let mut file = options.open(path).map_err(failed)?;
        let (bytes, identity) = if kind.is_fifo() {
            (None, "stream".to_owned())
        } else if kind.is_block_device() {
            let bytes = file.seek(std::io::SeekFrom::End(0)).map_err(failed)?;
            (Some(bytes), format!("device of {bytes} bytes"))
        } else {
            let bytes = metadata.len();
            let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
            let identity = format!("file of {bytes} bytes, changed {seconds}.{nanoseconds:09}");
            (Some(bytes), identity)
        };
        if bytes == Some(0) {
            return Err(Failure::invalid(format!("the image '{name}' is empty")));
        }
        Ok(Self {
            file,
            path: path.to_owned(),
            identity,
            bytes,
            at: 0,
            data_upto: 0,
            head: Vec::new(),
        })
    }

    pub(super) fn is_pipe(&self) -> bool {
        self.bytes.is_none()
    }

    /// The pipe with what was read of it.
    pub(super) fn into_stream(self) -> Stream<File> {
        let name = format!("'{}'", self.path.display());
        Stream::begun(self.file, name, self.head)
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        Failure::invalid(format!(
            "the image '{}' cannot be read at byte {}: {error}",
            self.path.display(),
            self.at
        ))
    }

    /// Looks where data are from here on. Returns how many bytes there are none of.
    fn look(&mut self, end: u64) -> Result<u64, Failure> {
        let next = match seek(&self.file, SeekFrom::Data(self.at)) {
            Ok(next) => next - next % GRAIN,
            // A hole up to the end.
            Err(Errno::NXIO) => end,
            // The file system does not know.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                self.data_upto = end;
                return Ok(0);
            }
            Err(error) => return Err(self.failed(&error.into())),
        };
        let next = next.clamp(self.at, end);
        self.data_upto = match seek(&self.file, SeekFrom::Hole(next)) {
            Ok(hole) => hole.next_multiple_of(GRAIN).clamp(next, end),
            Err(_) => end,
        };
        Ok(next - self.at)
    }
}

impl Source for ImageFile {
    fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    fn identity(&self) -> &str {
        &self.identity
    }

    fn head(&mut self) -> Result<Vec<u8>, Failure> {
        if self.is_pipe() {
            if self.head.is_empty() {
                let mut head = Vec::new();
                let read = (&self.file).take(HEAD_BYTES as u64).read_to_end(&mut head);
                read.map_err(|error| self.failed(&error))?;
                self.head = head;
            }
            return Ok(self.head.clone());
        }
        let mut head = vec![0; HEAD_BYTES];
        let mut len = 0;
        while len < head.len() {
            match self.file.read_at(&mut head[len..], len as u64) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        head.truncate(len);
        Ok(head)
    }

    fn skip_to(&mut self, offset: u64) -> Result<(), Failure> {
        self.at = offset.min(self.bytes.unwrap_or(offset));
        self.data_upto = 0;
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Part>, Failure> {
        let end = self.bytes.unwrap_or(0);
        if self.at >= end {
            return Ok(None);
        }
        if self.at >= self.data_upto {
            let zeros = self.look(end)?;
            if zeros > 0 {
                self.at += zeros;
                return Ok(Some(Part::Zeros(zeros)));
            }
        }
        let len = (self.data_upto.max(self.at + 1) - self.at).min(PART_BYTES as u64);
        let mut data = vec![0; len as usize];
        let mut read = 0;
        while read < data.len() {
            match self.file.read_at(&mut data[read..], self.at + read as u64) {
                Ok(0) => {
                    return Err(Failure::invalid(format!(
                        "the image '{}' ends at byte {}, and had {end} when the import began: it is being changed",
                        self.path.display(),
                        self.at + read as u64
                    )));
                }
                Ok(more) => read += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        self.at += len;
        Ok(Some(match sparse::is_zero(&data) {
            true => Part::Zeros(len),
            false => Part::Data(data),
        }))
    }
}

/// Why an image cannot be opened, and what to do.
fn cannot_open(path: &Path, error: &std::io::Error) -> Failure {
    let name = path.display();
    let kind = match error.kind() {
        ErrorKind::NotFound => dedup::ErrorKind::NotFound,
        _ => dedup::ErrorKind::Invalid,
    };
    let text = match error.kind() {
        ErrorKind::NotFound => format!("there is no file '{name}'"),
        ErrorKind::PermissionDenied => {
            format!("the image '{name}' may not be read by this user: run the command as its owner")
        }
        ErrorKind::ResourceBusy => format!(
            "the device '{name}' is in use: unmount it, and stop what uses it, or its image would be of no one moment"
        ),
        _ => format!("the image '{name}' cannot be opened: {error}"),
    };
    Failure::new(kind, text)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    /// All of an image, put together again, and how much of it was read as data.
    fn whole(source: &mut dyn Source) -> (Vec<u8>, usize) {
        let (mut all, mut read) = (Vec::new(), 0);
        while let Some(part) = source.next().expect("it can be read") {
            assert!(all.len().is_multiple_of(GRAIN as usize));
            match part {
                Part::Data(data) => {
                    read += data.len();
                    all.extend(data);
                }
                Part::Zeros(bytes) => all.resize(all.len() + bytes as usize, 0),
            }
        }
        (all, read)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn a_sparse_file_is_given_whole_and_its_holes_are_not_read(
            written in proptest::collection::vec((0usize..300, 1usize..9000), 0..6),
            bytes in 1usize..1_300_000,
            skip in 0u64..300,
        ) {
            let file = tempfile::NamedTempFile::new().expect("a file");
            file.as_file().set_len(bytes as u64).expect("a length");
            let mut wanted = vec![0u8; bytes];
            for (page, len) in written {
                let at = (page * 4096 + 100).min(bytes);
                let end = (at + len).min(bytes);
                wanted[at..end].fill(page as u8 | 1);
                file.as_file().write_all_at(&wanted[at..end], at as u64).expect("a write");
            }
            let mut image = ImageFile::open(file.path()).expect("an image");
            prop_assert_eq!(image.bytes(), Some(bytes as u64));
            let (all, read) = whole(&mut image);
            prop_assert!(all == wanted);
            prop_assert!(read <= 6 * (9000 + 2 * 4096) + 4096, "{} bytes were read", read);
            let skip = (skip * GRAIN).min(bytes as u64);
            image.skip_to(skip).expect("it is longer");
            prop_assert!(whole(&mut image).0 == wanted[skip as usize..]);
        }
    }

    #[test]
    fn what_is_no_image_is_refused_with_its_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let refused = |path: &Path| ImageFile::open(path).expect_err("it is refused").message;
        assert!(refused(&folder.path().join("none")).contains("there is no file"));
        assert!(refused(folder.path()).contains("is no image"));
        let empty = folder.path().join("empty");
        File::create(&empty).expect("a file");
        assert!(refused(&empty).contains("is empty"));
    }

    #[test]
    fn an_image_that_becomes_shorter_is_not_taken_for_whole() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(&[7; 20000]).expect("a write");
        let mut image = ImageFile::open(file.path()).expect("an image");
        file.as_file().set_len(10000).expect("a length");
        let refused = image.next().expect_err("it ends early").message;
        assert!(refused.contains("ends at byte 10000"), "{refused}");
    }
}
