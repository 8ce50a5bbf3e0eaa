//! Packet sequence numbers.
//!
//! Guarantee: a [`Psn`] is always below 2^24; arithmetic wraps, and comparison is serial (the
//! distance of at most half the space decides), as chapter 9.7.2 asks.

use std::ops::{Add, AddAssign, Sub};

/// A 24-bit packet sequence number.
///
/// It has no `Ord`: with wrapping numbers there is no total order. Use [`Psn::diff`] and
/// [`Psn::is_before`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The number of bits that matter.
    pub const MASK: u32 = 0x00ff_ffff;

    /// The sequence number of the lower 24 bits.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The next one.
    #[inline]
    pub const fn next(self) -> Self {
        Self::new(self.0 + 1)
    }

    /// The previous one.
    #[inline]
    pub const fn prev(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// How far `self` is ahead of `other`: positive if later, negative if earlier, within
    /// -2^23..2^23.
    #[inline]
    pub const fn diff(self, other: Psn) -> i32 {
        // Bring the 24-bit difference to the top so that its sign bit is the number's sign bit.
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }

    /// How many steps lead from `other` to `self`, going forward (0..2^24).
    #[inline]
    pub const fn distance_from(self, other: Psn) -> u32 {
        self.0.wrapping_sub(other.0) & Self::MASK
    }

    /// Whether this number comes before `other`.
    #[inline]
    pub const fn is_before(self, other: Psn) -> bool {
        self.diff(other) < 0
    }

    /// Whether this number comes after `other`.
    #[inline]
    pub const fn is_after(self, other: Psn) -> bool {
        self.diff(other) > 0
    }
}

impl Add<u32> for Psn {
    type Output = Psn;
    #[inline]
    fn add(self, steps: u32) -> Psn {
        Psn::new(self.0.wrapping_add(steps))
    }
}

impl AddAssign<u32> for Psn {
    #[inline]
    fn add_assign(&mut self, steps: u32) {
        *self = *self + steps;
    }
}

impl Sub<u32> for Psn {
    type Output = Psn;
    #[inline]
    fn sub(self, steps: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(steps))
    }
}

impl From<u32> for Psn {
    /// Takes the lower 24 bits.
    fn from(value: u32) -> Self {
        Self::new(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_around_at_24_bits() {
        assert_eq!(Psn::new(0xff_ffff).next(), Psn::new(0));
        assert_eq!(Psn::new(0).prev(), Psn::new(0xff_ffff));
        assert_eq!(Psn::new(0xff_fff0) + 0x20, Psn::new(0x10));
        assert_eq!(Psn::new(0x10) - 0x20, Psn::new(0xff_fff0));
        assert_eq!(Psn::new(0x0100_0001), Psn::new(1));
    }

    #[test]
    fn the_shorter_way_round_decides_what_is_earlier() {
        assert_eq!(Psn::new(0x10).diff(Psn::new(0xff_fff0)), 0x20);
        assert_eq!(Psn::new(0xff_fff0).diff(Psn::new(0x10)), -0x20);
        assert!(Psn::new(0xff_ffff).is_before(Psn::new(0)));
        assert!(Psn::new(0).is_after(Psn::new(0xff_ffff)));
        assert_eq!(Psn::new(0x80_0000).diff(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(5).distance_from(Psn::new(0xff_ffff)), 6);
    }
}
