//! A page as a table of byte ranges and fields, from which both the encoder and the decoder come.
//!
//! One table for both directions means that they cannot disagree; that the ranges ascend, do not
//! overlap, fit the page and have the width of their type is checked when the crate is compiled.

/// A value with a fixed little-endian form.
pub(crate) trait Wire: Sized {
    /// Bytes on the wire.
    const BYTES: usize;

    /// Writes the value into a slice of exactly [`Self::BYTES`] bytes.
    fn put(&self, out: &mut [u8]);

    /// Reads the value from a slice of exactly [`Self::BYTES`] bytes; any bytes are a value.
    fn take(bytes: &[u8]) -> Self;
}

macro_rules! integers {
    ($($type:ty)*) => {
        $(impl Wire for $type {
            const BYTES: usize = size_of::<$type>();

            fn put(&self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }

            fn take(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$type>()];
                raw.copy_from_slice(bytes);
                Self::from_le_bytes(raw)
            }
        })*
    };
}

integers!(u8 u16 u32 u64 u128);

impl<T: Wire + Copy + Default, const N: usize> Wire for [T; N] {
    const BYTES: usize = T::BYTES * N;

    fn put(&self, out: &mut [u8]) {
        for (value, slot) in self.iter().zip(out.chunks_exact_mut(T::BYTES)) {
            value.put(slot);
        }
    }

    fn take(bytes: &[u8]) -> Self {
        let mut values = [T::default(); N];
        for (value, slot) in values.iter_mut().zip(bytes.chunks_exact(T::BYTES)) {
            *value = T::take(slot);
        }
        values
    }
}

/// The width that a table gives a field whose type fixes it; for the check at compile time.
pub(crate) const fn width<T: Wire>() -> usize {
    T::BYTES
}

/// Text of printable ASCII, left justified and padded with spaces, as Base 2.0 has it.
pub(crate) mod ascii {
    /// Writes what fits; anything that is not printable ASCII becomes a question mark.
    pub(crate) fn put(text: &str, out: &mut [u8]) {
        out.fill(b' ');
        for (slot, c) in out.iter_mut().zip(text.chars()) {
            *slot = if matches!(c, ' '..='~') {
                c as u8
            } else {
                b'?'
            };
        }
    }

    /// Reads the text without its padding; NULs count as padding since some controllers send them.
    pub(crate) fn take(bytes: &[u8]) -> Option<String> {
        let end = bytes
            .iter()
            .rposition(|byte| !matches!(byte, 0 | b' '))
            .map_or(0, |last| last + 1);
        let text = bytes[..end].iter().map(|byte| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '?',
        });
        Some(text.collect())
    }
}

/// UTF-8 text with a NUL behind it, as qualified names are.
pub(crate) mod name {
    /// Writes what fits in front of the last byte, which stays NUL.
    pub(crate) fn put(text: &str, out: &mut [u8]) {
        out.fill(0);
        let room = text.len().min(out.len().saturating_sub(1));
        let length = (0..=room)
            .rev()
            .find(|at| text.is_char_boundary(*at))
            .unwrap_or(0);
        out[..length].copy_from_slice(&text.as_bytes()[..length]);
    }

    /// Reads up to the first NUL; `None` if there is none, or if that is not UTF-8.
    pub(crate) fn take(bytes: &[u8]) -> Option<String> {
        let end = bytes.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&bytes[..end]).ok().map(str::to_owned)
    }
}

/// Defines a structure by its table: `first..end => field: Type`, with ` as codec` behind the type
/// for a field that another module writes (`codec::put`, `codec::take`).
///
/// It gets private `put_fields` and `take_fields`, which work on a slice of exactly the page's size.
macro_rules! layout {
    (@put $value:expr, $out:expr) => { $crate::identify::layout::Wire::put(&$value, $out) };
    (@put $value:expr, $out:expr, $codec:ident) => { $codec::put(&$value, $out) };
    (@take $type:ty, $bytes:expr) => {
        <$type as $crate::identify::layout::Wire>::take($bytes)
    };
    (@take $type:ty, $bytes:expr, $codec:ident) => { $codec::take($bytes)? };
    (@width $type:ty, $first:literal, $end:literal) => {
        assert!($crate::identify::layout::width::<$type>() == $end - $first)
    };
    (@width $type:ty, $first:literal, $end:literal, $codec:ident) => { assert!($end > $first) };
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident [$size:ident] {
            $(
                $(#[$field_meta:meta])*
                $first:literal..$end:literal => $field:ident: $type:ty $(as $codec:ident)?,
            )*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $(
                $(#[$field_meta])*
                #[doc = concat!("\n\nBytes ", stringify!($first), " up to ", stringify!($end), ".")]
                $vis $field: $type,
            )*
        }

        const _: () = {
            let mut last = 0;
            $(
                assert!(last <= $first);
                layout!(@width $type, $first, $end $(, $codec)?);
                last = $end;
            )*
            assert!(last <= $size);
        };

        impl $name {
            fn put_fields(&self, out: &mut [u8]) {
                $(layout!(@put self.$field, &mut out[$first..$end] $(, $codec)?);)*
            }

            // `Option` is for the tables that have a codec which can refuse.
            #[allow(clippy::unnecessary_wraps)]
            fn take_fields(bytes: &[u8]) -> Option<Self> {
                Some(Self {
                    $($field: layout!(@take $type, &bytes[$first..$end] $(, $codec)?),)*
                })
            }
        }
    };
}
pub(crate) use layout;

#[cfg(test)]
mod tests {
    use super::{Wire, ascii, name};

    #[test]
    fn text_that_is_too_long_is_cut_between_characters() {
        let mut field = [0xff; 8];
        name::put("nqn.12\u{e9}", &mut field);
        assert_eq!(name::take(&field).as_deref(), Some("nqn.12"));
        ascii::put("0123456789", &mut field);
        assert_eq!(ascii::take(&field).as_deref(), Some("01234567"));
    }

    #[test]
    fn short_ascii_is_padded_with_spaces_and_odd_characters_are_replaced() {
        let mut field = [0; 6];
        ascii::put("a\u{e9}\n", &mut field);
        assert_eq!(&field, b"a??   ");
    }

    #[test]
    fn arrays_are_little_endian_element_by_element() {
        let mut out = [0; 4];
        [0x0102_u16, 0x0304].put(&mut out);
        assert_eq!(out, [2, 1, 4, 3]);
        assert_eq!(<[u16; 2]>::take(&out), [0x0102, 0x0304]);
    }
}
