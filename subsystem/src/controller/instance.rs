//! Which life of a controller a host means.
//!
//! Guarantee: a controller that was reset, and one that has the identifier of an earlier one, is another instance: by its
//! random number of 64 bits, also after a restart and on another node.

use uuid::Uuid;

/// What names one life of a controller, from its Connect or its last reset on (CIU and CIRN of Identify Controller, TP8028).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    /// CIU: rises with each reset; never 0.
    pub(crate) uniquifier: u8,
    /// CIRN: random; never 0.
    pub(crate) random: u64,
}

impl Instance {
    /// That of a new controller.
    pub(crate) fn new() -> Self {
        Self {
            uniquifier: 1,
            random: random(),
        }
    }

    /// That of the same controller after a reset.
    pub(crate) fn next(self) -> Self {
        Self {
            uniquifier: self.uniquifier.checked_add(1).unwrap_or(1),
            random: random(),
        }
    }
}

/// A random number that is not 0.
fn random() -> u64 {
    // The halves of a version-4 UUID have a few fixed bits each, at different places.
    let (high, low) = Uuid::new_v4().as_u64_pair();
    (high ^ low).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_reset_gives_a_controller_an_instance_that_it_had_before() {
        let mut instance = Instance::new();
        for _ in 0..600 {
            let next = instance.next();
            assert_ne!(next.uniquifier, instance.uniquifier);
            assert_ne!(next.random, instance.random);
            assert!(next.uniquifier != 0 && next.random != 0);
            instance = next;
        }
    }
}
