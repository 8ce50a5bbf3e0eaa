//! Why there is no client of a cluster, in words, with the remedy.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use drives::ErrorKind;

use crate::address::RadosAddress;
use crate::client::{Errno, Refusal};

/// Where Ceph's own tools look first.
const USUAL_CONF: &str = "/etc/ceph/ceph.conf";

/// Where the system's users are (passwd(5)).
const USERS: &str = "/etc/passwd";

pub(super) fn refused(kind: ErrorKind, text: impl Into<String>) -> Refusal {
    Refusal {
        kind,
        text: text.into(),
    }
}

/// The first file with keys that is there.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Key {
    Missing,
    /// This process may not read it.
    Unreadable(PathBuf),
    Readable(PathBuf),
}

impl Key {
    pub(super) fn find(keyrings: &[PathBuf]) -> Self {
        Self::find_by(keyrings, |file| File::open(file).map(drop))
    }

    fn find_by(keyrings: &[PathBuf], open: impl Fn(&Path) -> io::Result<()>) -> Self {
        let found = keyrings.iter().find_map(|file| match open(file) {
            Ok(()) => Some(Self::Readable(file.clone())),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Some(Self::Unreadable(file.clone()))
            }
            Err(_) => None,
        });
        found.unwrap_or(Self::Missing)
    }
}

/// The files that the option `keyring` names.
pub(super) fn files_in(option: &str) -> Vec<PathBuf> {
    let names = option.split([',', ';', ' ']);
    let names = names.filter(|name| !name.is_empty());
    names.map(PathBuf::from).collect()
}

/// Why the configuration was not read.
pub(super) fn unread(conf: Option<&Path>, error: Errno) -> Refusal {
    let file = conf.unwrap_or(Path::new(USUAL_CONF)).display();
    match error {
        Errno(libc::EINVAL) => refused(
            ErrorKind::Io,
            format!(
                "the cluster's configuration '{file}' cannot be understood ({error}): mend it, or copy it from a node of the cluster"
            ),
        ),
        error => refused(
            match error {
                Errno::NOT_FOUND => ErrorKind::NotFound,
                _ => ErrorKind::Io,
            },
            format!(
                "the cluster's configuration '{file}' cannot be read ({error}): name it with ?conf=FILE, or copy it and the \
                 keyring from a node of the cluster"
            ),
        ),
    }
}

/// Why there is no connection.
pub(super) fn unconnected(address: &RadosAddress, error: Errno, key: &Key) -> Refusal {
    let user = address.user();
    match (error, key) {
        (Errno::TIMED_OUT, _) => refused(
            ErrorKind::Unreachable,
            "the cluster's monitors do not answer: check the network, `mon host` in the configuration, and `ceph -s`",
        ),
        (_, Key::Unreadable(file)) => {
            let (own, file) = (own_name(), file.display());
            refused(
                ErrorKind::Io,
                format!(
                    "the keyring '{file}' cannot be read by the user '{own}', as which this process runs: `chown {own} {file}`, or \
                     let a group of that user read it"
                ),
            )
        }
        (Errno::NOT_FOUND, _) | (Errno::NO_ACCESS | Errno::NOT_PERMITTED, Key::Missing) => refused(
            ErrorKind::NotFound,
            format!(
                "there is no key for the Ceph user client.{user}: put its keyring where the cluster's configuration says \
                 (/etc/ceph/ceph.client.{user}.keyring), or name another user with ?user=NAME"
            ),
        ),
        (Errno::NO_ACCESS | Errno::NOT_PERMITTED, Key::Readable(file)) => refused(
            ErrorKind::Io,
            format!(
                "the cluster does not accept client.{user}: its keyring '{}' has no key of it, or another one than \
                 `ceph auth get client.{user}` says",
                file.display()
            ),
        ),
        (error, Key::Readable(file)) => refused(
            ErrorKind::Io,
            format!(
                "the cluster cannot be connected to ({error}): look whether the keyring '{file}' is damaged, and write it anew with \
                 `ceph auth get client.{user} -o {file}`",
                file = file.display()
            ),
        ),
        (error, Key::Missing) => refused(
            ErrorKind::Io,
            format!(
                "the cluster cannot be connected to ({error}): see what `ceph -s --id {user}` says on this machine"
            ),
        ),
    }
}

/// The name of this process's user, or its number.
fn own_name() -> String {
    let own = rustix::process::geteuid().as_raw();
    let users = fs::read_to_string(USERS).unwrap_or_default();
    name_in(&users, own).unwrap_or_else(|| own.to_string())
}

fn name_in(users: &str, number: u32) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, of_user) = (fields.next()?, fields.nth(1)?);
        (of_user.parse() == Ok(number)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyring_that_is_there_and_cannot_be_read_is_named_and_so_is_the_user() {
        let keyrings = files_in("/a, /b;/c,");
        assert_eq!(keyrings, ["/a", "/b", "/c"].map(PathBuf::from));
        let find = |kind: io::ErrorKind| {
            Key::find_by(&keyrings, |file| match file == Path::new("/a") {
                true => Err(io::ErrorKind::NotFound.into()),
                false => Err(kind.into()),
            })
        };
        assert_eq!(find(io::ErrorKind::NotFound), Key::Missing);
        let unreadable = find(io::ErrorKind::PermissionDenied);
        assert_eq!(unreadable, Key::Unreadable("/b".into()));
        let address: RadosAddress = "rados:pool?user=one".parse().expect("an address");
        let told = |error, key: &Key| unconnected(&address, error, key).text;
        let text = told(Errno::NO_ACCESS, &unreadable);
        assert!(text.contains("'/b' cannot be read by"), "{text}");
        assert!(told(Errno::NO_ACCESS, &Key::Missing).contains("there is no key"));
        let damaged = told(Errno(libc::EIO), &Key::Readable("/c".into()));
        assert!(
            damaged.contains("ceph auth get client.one -o /c"),
            "{damaged}"
        );
        assert_eq!(
            name_in("root:x:0:0::/:/bin/sh\nonefold:x:990:991:", 990).as_deref(),
            Some("onefold")
        );
    }

    #[test]
    fn a_configuration_that_cannot_be_understood_is_told_apart_from_one_that_is_not_there() {
        let malformed = unread(Some(Path::new("/a.conf")), Errno(libc::EINVAL));
        assert!(malformed.text.contains("'/a.conf' cannot be understood"));
        assert_eq!(unread(None, Errno::NOT_FOUND).kind, ErrorKind::NotFound);
    }
}
