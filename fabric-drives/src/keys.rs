//! By what this host proves itself to a target, and encrypts its connections: files of a folder.
//!
//! A target's files are named after its subsystem. `NQN.dhchap-secret` has this host's secret, `NQN.dhchap-ctrl-secret` the
//! controller's, by which the target has to prove itself too, and `NQN.tls-key` the key for TLS. Their text is that of
//! `nvme gen-dhchap-key` and `nvme gen-tls-key`. A '/' in the name of a subsystem is `%2F` in those of its files.
//!
//! Guarantees: the files are read for each connection, so a key is changed by replacing its file; one that other users can read
//! is refused; what is wrong with a file is told with its name and the remedy, and without the key.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fabric::TlsHostConfig;
use nvme::Nqn;
use nvme::auth::{ConfiguredPsk, HostKeys, Secret};
use rustix::fs::OFlags;
use zeroize::Zeroizing;

/// The longest file, in bytes: a key is one line of 59 to 104.
const FILE_BYTES_MAX: u64 = 4096;

/// A key for a target, by what its file's name ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyKind {
    HostSecret,
    ControllerSecret,
    TlsKey,
}

impl KeyKind {
    /// As options of commands and names of files have it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::HostSecret => "dhchap-secret",
            Self::ControllerSecret => "dhchap-ctrl-secret",
            Self::TlsKey => "tls-key",
        }
    }
}

/// The folder with the keys of all targets. It need not exist: then there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFolder(PathBuf);

/// The keys for one target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys {
    pub(crate) dhchap: Option<Arc<HostKeys>>,
    pub(crate) tls: Option<TlsHostConfig>,
}

impl Keys {
    /// Whether there is a key of that kind.
    pub(crate) fn has(&self, kind: KeyKind) -> bool {
        let dhchap = self.dhchap.as_ref();
        match kind {
            KeyKind::HostSecret => dhchap.is_some(),
            KeyKind::ControllerSecret => {
                dhchap.is_some_and(|keys| keys.controller_secret.is_some())
            }
            KeyKind::TlsKey => self.tls.is_some(),
        }
    }

    /// The kinds that there are.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = KeyKind> {
        let all = [
            KeyKind::HostSecret,
            KeyKind::ControllerSecret,
            KeyKind::TlsKey,
        ];
        all.into_iter().filter(|kind| self.has(*kind))
    }
}

impl KeyFolder {
    /// The folder at this path.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The file of a key for a subsystem.
    pub(crate) fn file(&self, subsystem: &Nqn, kind: KeyKind) -> PathBuf {
        let name = subsystem.as_str().replace('/', "%2F");
        self.0.join(format!("{name}.{}", kind.name()))
    }

    /// What this host has for a subsystem. Blocks.
    ///
    /// # Errors
    /// A file is there and cannot be used, with the remedy.
    pub(crate) fn read(&self, host: &Nqn, subsystem: &Nqn) -> Result<Keys, String> {
        let secret = |kind| self.read_one(subsystem, kind, Secret::parse);
        let controller_secret = secret(KeyKind::ControllerSecret)?;
        let dhchap = match (secret(KeyKind::HostSecret)?, controller_secret) {
            (None, None) => None,
            (Some(secret), controller) => Some(Arc::new(HostKeys::new(secret, controller))),
            (None, Some(_)) => {
                return Err(format!(
                    "{} has the controller's secret, and there is none of this host: write that to {}",
                    self.file(subsystem, KeyKind::ControllerSecret).display(),
                    self.file(subsystem, KeyKind::HostSecret).display(),
                ));
            }
        };
        let key = self.read_one(subsystem, KeyKind::TlsKey, ConfiguredPsk::parse)?;
        let of_key = |key| TlsHostConfig::of(&key, host.as_str(), subsystem.as_str());
        let tls = key.map(of_key).transpose().map_err(|error| {
            let file = self.file(subsystem, KeyKind::TlsKey);
            format!("{}: {error}", file.display())
        })?;
        Ok(Keys { dhchap, tls })
    }

    fn read_one<T, E: Display>(
        &self,
        subsystem: &Nqn,
        kind: KeyKind,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, String> {
        let path = self.file(subsystem, kind);
        match read_key_file(&path, parse) {
            Ok(key) => Ok(Some(key)),
            Err(KeyFileError::Unreadable { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                Ok(None)
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Why a key cannot be taken from a file.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The system does not give it.
    #[error("{}: {source}; let it be there, and belong to the user that this program runs as", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is a folder, a device, or the like.
    #[error("{}: this is no file; name one that holds a key", path.display())]
    NoFile {
        /// What is there.
        path: PathBuf,
    },
    /// Others than this program's user can read it.
    #[error(
        "{}: other users can read this key: let it belong to the user that this program runs as (`chown`), and to nobody \
         else (`chmod 600`); who may have read it knows it, so make a new one",
        path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// What is in it is no key.
    #[error("{}: {reason}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

/// A key of a file that no other user can read, root aside. Blocks.
///
/// # Errors
/// Why it cannot be had, with the file and the remedy.
pub fn read_key_file<T, E: Display>(
    path: &Path,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, KeyFileError> {
    let unreadable = |source| KeyFileError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut options = OpenOptions::new();
    // So that nobody waits for who writes to a pipe.
    options
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32);
    let file = options.open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(KeyFileError::NoFile {
            path: path.to_owned(),
        });
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(KeyFileError::Open {
            path: path.to_owned(),
        });
    }
    // Room for all of it from the start, so that no copy is left where it grew.
    let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize));
    file.take(FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(unreadable)?;
    parse(&text).map_err(|error| KeyFileError::Wrong {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use nvme::auth::Hash;

    use super::*;

    fn nqn(text: &str) -> Nqn {
        Nqn::new(text).expect("a name")
    }

    fn sled() -> Nqn {
        nqn("nqn.2026-11.dev.onefold:sled:one")
    }

    fn host() -> Nqn {
        nqn("nqn.2026-11.dev.onefold:a-pool")
    }

    fn write(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).expect("a file");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
    }

    fn secret() -> String {
        Secret::from_random(Some(Hash::Sha256), &[7; 64])
            .to_text()
            .to_string()
            + "\n"
    }

    #[test]
    fn a_target_without_files_has_no_keys_and_neither_has_one_of_a_folder_that_is_not_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let keys = KeyFolder::new(folder.path());
        write(&keys.file(&sled(), KeyKind::HostSecret), &secret(), 0o600);
        let other = nqn("nqn.2026-11.dev.onefold:sled:two");
        let none = KeyFolder::new(folder.path().join("none"));
        for read in [keys.read(&host(), &other), none.read(&host(), &sled())] {
            assert_eq!(read.expect("no keys").kinds().count(), 0);
        }
    }

    #[test]
    fn each_file_of_a_target_is_taken_for_what_its_name_says() {
        let folder = tempfile::tempdir().expect("a folder");
        let keys = KeyFolder::new(folder.path());
        let tls = ConfiguredPsk::from_random(Hash::Sha384, &[3; 64]).to_text();
        for (kind, text) in [
            (KeyKind::HostSecret, secret()),
            (KeyKind::ControllerSecret, secret()),
            (KeyKind::TlsKey, tls.to_string()),
        ] {
            write(&keys.file(&sled(), kind), &text, 0o400);
            let read = keys.read(&host(), &sled()).expect("keys");
            assert_eq!(read.kinds().last(), Some(kind));
        }
        let read = keys.read(&host(), &sled()).expect("keys");
        let tls = read.tls.expect("a key").psks;
        assert!(tls.iter().all(|psk| psk.identity.contains(sled().as_str())));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_refused_with_its_name_and_the_remedy_and_without_the_key() {
        let folder = tempfile::tempdir().expect("a folder");
        let keys = KeyFolder::new(folder.path());
        let file = keys.file(&sled(), KeyKind::HostSecret);
        let refused = |remedy: &str| {
            let told = keys.read(&host(), &sled()).expect_err("refused");
            let name = file.to_str().expect("text");
            assert!(told.contains(name) && told.contains(remedy), "{told}");
            assert!(!told.contains("BwcHBw"), "{told} shows the key");
        };
        for mode in [0o640, 0o604, 0o620] {
            write(&file, &secret(), mode);
            refused("chmod 600");
        }
        write(&file, &secret().replacen("BwcHBw", "CwcHBw", 1), 0o600);
        refused("gen-dhchap-key");
        fs::remove_file(&file).expect("it was there");
        fs::create_dir(&file).expect("a folder");
        refused("no file");
        let controller = keys.file(&sled(), KeyKind::ControllerSecret);
        fs::remove_dir(&file).expect("it was there");
        write(&controller, &secret(), 0o600);
        refused("write that to");
    }

    #[test]
    fn the_name_of_a_subsystem_leads_to_no_other_folder() {
        let keys = KeyFolder::new("/keys");
        let file = keys.file(&nqn("nqn.2026-11.dev.onefold:../../other"), KeyKind::TlsKey);
        assert_eq!(file.parent(), Some(Path::new("/keys")));
    }
}
