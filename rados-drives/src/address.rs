//! Where such a drive is: `rados:POOL[/NAME][?conf=FILE][&user=NAME]`.
//!
//! Guarantee: what is printed is read again as the same address.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// How the address of such a drive begins.
const SCHEME: &str = "rados:";

/// The name of a drive that is given none.
const DEFAULT_NAME: &str = "onefold";

/// The Ceph user of a drive that is given none, as of Ceph's own tools.
const DEFAULT_USER: &str = "admin";

/// Longest name of a pool, drive or user, in bytes: names of objects stay far below `osd_max_object_name_len` (2048).
const NAME_BYTES_MAX: usize = 128;

/// A drive in a pool of a Ceph cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RadosAddress {
    pool: String,
    name: String,
    conf: Option<PathBuf>,
    user: String,
}

/// Why a text is not the address of such a drive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not the address of a drive in a Ceph cluster: {reason}; write rados:POOL, rados:POOL/NAME or \
     rados:POOL/NAME?conf=/etc/ceph/ceph.conf&user=NAME"
)]
pub struct RadosAddressError {
    text: String,
    reason: String,
}

impl RadosAddress {
    /// Whether a text is meant as such an address.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// The pool of the cluster.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// The drive's name in that pool.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The cluster's configuration file; without one, librados looks where Ceph's own tools do.
    #[must_use]
    pub fn conf(&self) -> Option<&Path> {
        self.conf.as_deref()
    }

    /// The Ceph user, without `client.`.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The address as the path of a drive.
    #[must_use]
    pub fn to_path(&self) -> PathBuf {
        PathBuf::from(self.to_string())
    }
}

impl fmt::Display for RadosAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.pool, self.name)?;
        let mut before = '?';
        if let Some(conf) = &self.conf {
            write!(f, "{before}conf={}", conf.display())?;
            before = '&';
        }
        if self.user != DEFAULT_USER {
            write!(f, "{before}user={}", self.user)?;
        }
        Ok(())
    }
}

/// Letters, digits, and what names of pools and users have besides.
fn check_name(what: &str, name: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match name.len() {
        0 => Err(format!("it has no {what}")),
        1..=NAME_BYTES_MAX if name.bytes().all(is_plain) => Ok(name.to_owned()),
        1..=NAME_BYTES_MAX => Err(format!(
            "the {what} '{name}' has other characters than letters, digits, '.', '_' and '-'"
        )),
        _ => Err(format!("the {what} has more than {NAME_BYTES_MAX} bytes")),
    }
}

fn check_conf(file: &str) -> Result<PathBuf, String> {
    let path = Path::new(file);
    match path.is_absolute() && !file.contains(['?', '&', '=']) && !file.contains(char::is_control)
    {
        true => Ok(path.to_owned()),
        false => Err(format!(
            "the path of the configuration file '{}' does not begin with / or has '?', '&' or '=' in it",
            file.escape_debug()
        )),
    }
}

fn parse(text: &str) -> Result<RadosAddress, String> {
    let Some(rest) = text.strip_prefix(SCHEME) else {
        return Err(format!("it does not begin with {SCHEME}"));
    };
    let (place, query) = match rest.split_once('?') {
        Some((place, query)) => (place, Some(query)),
        None => (rest, None),
    };
    let (pool, name) = place.split_once('/').unwrap_or((place, DEFAULT_NAME));
    let mut address = RadosAddress {
        pool: check_name("pool", pool)?,
        name: check_name("name", name)?,
        conf: None,
        user: DEFAULT_USER.to_owned(),
    };
    for field in query.into_iter().flat_map(|query| query.split('&')) {
        match field.split_once('=') {
            Some(("conf", file)) => address.conf = Some(check_conf(file)?),
            Some(("user", user)) => {
                let user = user.strip_prefix("client.").unwrap_or(user);
                address.user = check_name("user", user)?;
            }
            _ => return Err(format!("'{field}' is neither conf=FILE nor user=NAME")),
        }
    }
    Ok(address)
}

impl FromStr for RadosAddress {
    type Err = RadosAddressError;

    fn from_str(text: &str) -> Result<Self, RadosAddressError> {
        parse(text).map_err(|reason| RadosAddressError {
            text: text.to_owned(),
            reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_printed_as_it_is_read_with_what_is_usual_left_out() {
        for (text, printed) in [
            ("rados:rbd", "rados:rbd/onefold"),
            ("rados:rbd/vm.1", "rados:rbd/vm.1"),
            ("rados:p?user=client.admin", "rados:p/onefold"),
            ("rados:p/a?user=x&conf=/c", "rados:p/a?conf=/c&user=x"),
        ] {
            let address: RadosAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), printed);
            assert_eq!(printed.parse(), Ok(address));
        }
    }

    #[test]
    fn what_names_no_drive_is_refused_with_the_form_to_write() {
        for text in [
            "rados:",
            "rados:/a",
            "rados:p/",
            "rados:p/a/b",
            "rados:p=16G",
            "rados:p?conf=ceph.conf",
            "rados:p?conf=/c=16G",
            "rados:p?user",
            "rados:p?keyring=/k",
            "rados:p\n",
            "ceph:p",
        ] {
            let error = text.parse::<RadosAddress>().expect_err(text).to_string();
            assert!(error.contains("write rados:POOL"), "{error}");
        }
    }
}
