//! NVMe Qualified Names (Base 2.0, section 4.5).

use std::fmt;

/// Bytes of the field that carries a name on the wire; a name is at most 223 bytes and ends with NUL.
pub const NQN_FIELD_BYTES: usize = 256;

/// The longest name.
pub const NQN_MAX_BYTES: usize = 223;

/// The subsystem that every discovery controller answers to (NVMe-oF 1.1, section 5).
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// A name that is well formed: `nqn.` first, at most 223 bytes of printable UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nqn(String);

/// Why bytes are no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    /// The field has no terminating NUL, or the text is longer than 223 bytes.
    #[error("an NQN has at most {NQN_MAX_BYTES} bytes")]
    TooLong,
    /// Not UTF-8, or control characters or spaces in it.
    #[error("an NQN is printable UTF-8 text without spaces")]
    NotText,
    /// Something else than `nqn.` at the start, or nothing behind it.
    #[error("an NQN starts with 'nqn.' and a date, as in nqn.2026-11.org.example:name")]
    Prefix,
}

/// Names made from a UUID begin with this (Base 2.0, section 4.5, the second format).
const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// Lengths of the groups of hexadecimal digits of a UUID (RFC 4122, section 3).
const UUID_GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

/// Why a name does not follow the specification (Base 2.0, section 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NqnFormError {
    /// No year and month behind `nqn.`
    #[error(
        "behind 'nqn.' there has to be a year and a month of 01 to 12, as in nqn.2026-11.org.example:name"
    )]
    Date,
    /// No domain behind the date.
    #[error(
        "behind the month there has to be a domain in reverse order, as in nqn.2026-11.org.example:name"
    )]
    Domain,
    /// Nothing behind the domain, or what stands for a name that is still to be filled in.
    #[error(
        "behind the domain there has to be a colon and a name, as in nqn.2026-11.org.example:name"
    )]
    Name,
    /// Something else than a UUID where one is announced.
    #[error(
        "behind 'uuid:' there has to be a UUID, 8-4-4-4-12 hexadecimal digits, as /etc/nvme/hostnqn of a host shows it"
    )]
    Uuid,
}

impl Nqn {
    /// Checks what the specification says of a name beyond its beginning and length: date, domain, and the UUID of
    /// names that have one. Hosts and subsystems with other names exist, so it is for names that people write anew.
    ///
    /// # Errors
    /// See [`NqnFormError`].
    pub fn check_form(&self) -> Result<(), NqnFormError> {
        if self.is_discovery() {
            return Ok(());
        }
        if let Some(uuid) = self.0.strip_prefix(UUID_PREFIX) {
            let groups = uuid.split('-');
            let is_group = |(text, len): (&str, &usize)| {
                text.len() == *len && text.bytes().all(|b| b.is_ascii_hexdigit())
            };
            let fits = groups.clone().count() == UUID_GROUPS.len()
                && groups.zip(&UUID_GROUPS).all(is_group);
            return if fits {
                Ok(())
            } else {
                Err(NqnFormError::Uuid)
            };
        }
        let rest = self.0.strip_prefix("nqn.").ok_or(NqnFormError::Date)?;
        let (date, rest) = rest.split_once('.').ok_or(NqnFormError::Date)?;
        let (year, month) = date.split_once('-').ok_or(NqnFormError::Date)?;
        let is_number =
            |text: &str, len| text.len() == len && text.bytes().all(|b| b.is_ascii_digit());
        let month_is_right = is_number(month, 2) && ("01"..="12").contains(&month);
        if !is_number(year, 4) || !month_is_right {
            return Err(NqnFormError::Date);
        }
        let (domain, name) = rest.split_once(':').ok_or(NqnFormError::Name)?;
        let is_label = |label: &str| {
            let first = label.bytes().next();
            first.is_some_and(|b| b.is_ascii_alphanumeric())
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-')
        };
        if !domain.split('.').all(is_label) {
            return Err(NqnFormError::Domain);
        }
        if name.is_empty() || name.ends_with("...") {
            return Err(NqnFormError::Name);
        }
        Ok(())
    }

    /// Checks a text.
    ///
    /// # Errors
    /// See [`NqnError`].
    pub fn new(text: &str) -> Result<Self, NqnError> {
        if text.len() > NQN_MAX_BYTES {
            return Err(NqnError::TooLong);
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(NqnError::NotText);
        }
        match text.strip_prefix("nqn.") {
            Some(rest) if !rest.is_empty() => Ok(Self(text.to_owned())),
            _ => Err(NqnError::Prefix),
        }
    }

    /// Takes the name out of a 256-byte field, up to its first NUL.
    ///
    /// # Errors
    /// See [`NqnError`]; a field without a NUL is too long.
    pub fn from_field(field: &[u8; NQN_FIELD_BYTES]) -> Result<Self, NqnError> {
        let end = field
            .iter()
            .position(|byte| *byte == 0)
            .ok_or(NqnError::TooLong)?;
        let text = std::str::from_utf8(&field[..end]).map_err(|_| NqnError::NotText)?;
        Self::new(text)
    }

    /// The 256-byte field, padded with NULs.
    #[must_use]
    pub fn to_field(&self) -> [u8; NQN_FIELD_BYTES] {
        let mut field = [0; NQN_FIELD_BYTES];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// This is the well-known discovery name.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        self.0 == DISCOVERY
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nqn({})", self.0)
    }
}

/// As its text.
impl serde::Serialize for Nqn {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// From its text, checked.
impl<'de> serde::Deserialize<'de> for Nqn {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Self::new(&text).map_err(serde::de::Error::custom)
    }
}

impl std::str::FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Self, NqnError> {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_without_a_terminating_nul_is_refused() {
        assert_eq!(Nqn::from_field(&[b'n'; 256]), Err(NqnError::TooLong));
    }

    #[test]
    fn a_name_reads_back_from_its_field() {
        let nqn = Nqn::new("nqn.2026-11.dev.onefold:default").unwrap();
        assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
    }

    #[test]
    fn names_with_wrong_beginnings_or_characters_are_refused() {
        for (text, error) in [
            ("", NqnError::Prefix),
            ("nqn.", NqnError::Prefix),
            ("iqn.2026-11.x", NqnError::Prefix),
            ("nqn.a b", NqnError::NotText),
            ("nqn.\u{1}", NqnError::NotText),
        ] {
            assert_eq!(Nqn::new(text), Err(error), "{text:?}");
        }
        assert!(Nqn::new(&format!("nqn.{}", "x".repeat(219))).is_ok());
        assert_eq!(
            Nqn::new(&format!("nqn.{}", "x".repeat(220))),
            Err(NqnError::TooLong)
        );
    }

    #[test]
    fn names_that_follow_the_specification_are_told_from_those_that_do_not() {
        for text in [
            DISCOVERY,
            "nqn.2026-11.dev.onefold:default",
            "nqn.2014-08.com.example:nvme:nvm-subsystem-sn-d78432",
            "nqn.2014-08.org.nvmexpress:uuid:F81D4FAE-7dec-11d0-a765-00a0c91e6bf6",
            "nqn.2014-08.org.nvmexpress:NVMf:uuid:old",
            "nqn.2026-01.x:other",
            "nqn.2026-01.com.my-example:other",
        ] {
            assert_eq!(Nqn::new(text).unwrap().check_form(), Ok(()), "{text}");
        }
        use NqnFormError::{Date, Domain, Name, Uuid};
        for (text, error) in [
            ("nqn.2014-08.org.nvmexpress:uuid:...", Uuid),
            ("nqn.2014-08.org.nvmexpress:uuid:1111", Uuid),
            (
                "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6-0",
                Uuid,
            ),
            (
                "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bfg",
                Uuid,
            ),
            ("nqn.2026-13.org.example:a", Date),
            ("nqn.2026-00.org.example:a", Date),
            ("nqn.2026-1.org.example:a", Date),
            ("nqn.26-11.org.example:a", Date),
            ("nqn.2026-1é.org.example:a", Date),
            ("nqn.org.example:a", Date),
            ("nqn.x", Date),
            ("nqn.2026-11.:a", Domain),
            ("nqn.2026-11.org..example:a", Domain),
            ("nqn.2026-11.org.my_example:a", Domain),
            ("nqn.2026-11.-x:a", Domain),
            ("nqn.2026-11.org.example", Name),
            ("nqn.2026-11.org.example:", Name),
            ("nqn.2026-11.org.example:...", Name),
        ] {
            assert_eq!(Nqn::new(text).unwrap().check_form(), Err(error), "{text}");
        }
    }
}
