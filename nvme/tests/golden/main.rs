//! Pages as the specification's figures lay them out: every byte range below is written down from the
//! specification, not taken from the crate's tables, so a field that is moved or changed for another one is
//! noticed. The ranges are written as the figures do, last byte first ('Bytes 79:78 CNTLID').
//!
//! Structures are named field by field: one that gets a field does not compile here until its bytes are
//! known.

mod commands;
mod features;
mod identify;
mod logs;
mod nbft;

/// A page of which every named byte says where it stands.
struct Golden {
    bytes: Vec<u8>,
    named: Vec<bool>,
}

impl Golden {
    fn new(len: usize) -> Self {
        Self {
            bytes: vec![0; len],
            named: vec![false; len],
        }
    }

    /// The bytes of a field, most significant place first as in the figures. No other field may have them.
    fn bytes<const N: usize>(&mut self, last: usize, first: usize) -> [u8; N] {
        assert_eq!(last + 1 - first, N, "bytes {last}:{first}");
        let mut value = [0; N];
        for (at, slot) in (first..=last).zip(&mut value) {
            // Two fields of the same width never have the same bytes within 251.
            *slot = (at % 251) as u8 + 1;
            self.set(at, *slot);
        }
        value
    }

    fn u8(&mut self, at: usize) -> u8 {
        u8::from_le_bytes(self.bytes(at, at))
    }

    fn u16(&mut self, last: usize, first: usize) -> u16 {
        u16::from_le_bytes(self.bytes(last, first))
    }

    fn u32(&mut self, last: usize, first: usize) -> u32 {
        u32::from_le_bytes(self.bytes(last, first))
    }

    fn u64(&mut self, last: usize, first: usize) -> u64 {
        u64::from_le_bytes(self.bytes(last, first))
    }

    fn u128(&mut self, last: usize, first: usize) -> u128 {
        u128::from_le_bytes(self.bytes(last, first))
    }

    /// A byte whose value is not free.
    fn set(&mut self, at: usize, value: u8) {
        assert!(!self.named[at], "byte {at} belongs to two fields");
        self.named[at] = true;
        self.bytes[at] = value;
    }

    /// The same for several.
    fn set_all(&mut self, first: usize, value: &[u8]) {
        for (at, byte) in (first..).zip(value) {
            self.set(at, *byte);
        }
    }

    /// A text that begins with its place, and the padding behind it.
    fn text(&mut self, last: usize, first: usize, padding: u8) -> String {
        let text = format!("at{first}");
        self.set_all(first, text.as_bytes());
        for at in first + text.len()..=last {
            self.set(at, padding);
        }
        text
    }

    /// Says which byte differs, and not 4096 of them.
    #[track_caller]
    fn is(&self, page: &[u8]) {
        assert_eq!(page.len(), self.bytes.len());
        for (at, (got, want)) in page.iter().zip(&self.bytes).enumerate() {
            assert_eq!(got, want, "byte {at}");
        }
    }
}
