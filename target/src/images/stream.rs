//! An image that comes through a pipe: its length is known at its end.

use std::io::Read;

use subsystem::errors::Failure;

use super::{HEAD_BYTES, PART_BYTES, Part, Source, sparse};

/// A stream of an image's bytes.
#[derive(Debug)]
pub(super) struct Stream<R> {
    input: R,
    name: String,
    /// What was read of the image, and not given yet.
    ahead: Vec<u8>,
}

impl<R: Read + Send> Stream<R> {
    pub(super) fn new(input: R, name: String) -> Self {
        Self {
            input,
            name,
            ahead: Vec::new(),
        }
    }

    /// One that has been read up to the end of `ahead`.
    pub(super) fn begun(input: R, name: String, ahead: Vec<u8>) -> Self {
        Self { input, name, ahead }
    }

    /// Reads until so many bytes are ahead, or the image ends.
    fn fill(&mut self, bytes: usize) -> Result<(), Failure> {
        let left = bytes.saturating_sub(self.ahead.len()) as u64;
        let read = (&mut self.input).take(left).read_to_end(&mut self.ahead);
        let read = read.map_err(|e| Failure::invalid(format!("{} cannot be read: {e}", self.name)));
        read.map(drop)
    }
}

impl<R: Read + Send> Source for Stream<R> {
    fn bytes(&self) -> Option<u64> {
        None
    }

    fn identity(&self) -> &str {
        "stream"
    }

    fn head(&mut self) -> Result<Vec<u8>, Failure> {
        self.fill(HEAD_BYTES)?;
        Ok(self.ahead[..self.ahead.len().min(HEAD_BYTES)].to_vec())
    }

    fn skip_to(&mut self, offset: u64) -> Result<(), Failure> {
        let mut left = offset;
        while left > 0 {
            let wanted = left.min(PART_BYTES as u64) as usize;
            self.fill(wanted)?;
            let passed = wanted.min(self.ahead.len());
            if passed == 0 {
                return Err(Failure::invalid(format!(
                    "{} ends before byte {offset}, up to which the image was imported already: it is another image",
                    self.name
                )));
            }
            self.ahead.drain(..passed);
            left -= passed as u64;
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Part>, Failure> {
        self.fill(PART_BYTES)?;
        let rest = self.ahead.split_off(self.ahead.len().min(PART_BYTES));
        let part = std::mem::replace(&mut self.ahead, rest);
        Ok(match part.len() {
            0 => None,
            bytes if sparse::is_zero(&part) => Some(Part::Zeros(bytes as u64)),
            _ => Some(Part::Data(part)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_given_whole_also_after_its_head_was_looked_at() {
        let image: Vec<u8> = (0..PART_BYTES + 8192).map(|at| (at / 100) as u8).collect();
        let mut stream = Stream::new(&image[..], "a test".to_owned());
        assert_eq!(stream.head().expect("a head"), &image[..HEAD_BYTES]);
        stream.skip_to(8192).expect("it is longer");
        let Ok(Some(Part::Data(first))) = stream.next() else {
            panic!("data");
        };
        assert_eq!(first.len(), PART_BYTES);
        assert_eq!(first, &image[8192..8192 + PART_BYTES]);
        assert!(stream.next().expect("no error").is_none());
    }

    #[test]
    fn a_part_of_a_stream_that_is_all_zeros_is_told_as_such() {
        let mut image = vec![7u8; PART_BYTES + 5000];
        image[PART_BYTES..].fill(0);
        let mut stream = Stream::new(&image[..], "a test".to_owned());
        assert!(matches!(stream.next(), Ok(Some(Part::Data(part))) if part.len() == PART_BYTES));
        assert!(matches!(stream.next(), Ok(Some(Part::Zeros(5000)))));
        assert!(matches!(stream.next(), Ok(None)));
    }

    #[test]
    fn a_stream_that_is_shorter_than_what_came_before_is_another_image() {
        let mut stream = Stream::new(&[1u8; 5000][..], "a test".to_owned());
        let refused = stream.skip_to(8192).expect_err("it ends").message;
        assert!(refused.contains("another image"), "{refused}");
    }
}
