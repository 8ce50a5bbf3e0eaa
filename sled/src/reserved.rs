//! The reservations of a drive, and the folder that keeps those which are to survive the end of this program.
//!
//! Guarantees:
//! - A reservation that is to persist is on stable storage before it is in force.
//! - What was kept and cannot be understood stops the start; it is never taken for no reservation: without it a host that was shut
//!   out could write again.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use drives::replace_file;
use nvme::Status;
use nvme::reservation::RESCAP_ALL;
use reservations::{Current, HostId, NotStored, Reservations, Watch};

use crate::export::Export;

/// RESCAP bit 0, PTPLS: reservations may persist through a loss of power.
const RESCAP_PERSISTENCE: u8 = 1;

/// What of a file's name stands behind the drive's UUID.
const FILE_ENDING: &str = "reservations";

/// A folder with a file for each drive that has reservations which are to persist, named after the drive's UUID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationFolder(PathBuf);

impl ReservationFolder {
    /// The folder, which is made if it is not there, for this user alone.
    ///
    /// # Errors
    /// It cannot be made, or nothing can be made in it.
    pub fn open(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let missing = path.ancestors().take_while(is_missing).count();
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)?;
        // What was made keeps its name after a loss of power, too.
        for above in path.ancestors().skip(1).take(missing) {
            match above.as_os_str().is_empty() {
                true => File::open(".")?.sync_all()?,
                false => File::open(above)?.sync_all()?,
            }
        }
        // Whether it can be written is found out now, and not when a host has to be shut out.
        let probe = path.join(format!("probe-{}", std::process::id()));
        File::create(&probe)?;
        fs::remove_file(&probe)?;
        Ok(Self(path.to_owned()))
    }

    fn file(&self, export: &Export) -> PathBuf {
        let uuid = HostId::from_bytes(export.uuid());
        self.0.join(format!("{uuid}.{FILE_ENDING}"))
    }
}

/// Why the reservations of a drive are not known.
#[derive(Debug)]
pub(crate) enum NotLoaded {
    /// The file cannot be read.
    Unreadable(PathBuf, io::Error),
    /// It says nothing that can be understood.
    Damaged(PathBuf, NotStored),
}

impl std::fmt::Display for NotLoaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (file, why): (_, &dyn std::fmt::Display) = match self {
            Self::Unreadable(file, why) => (file, why),
            Self::Damaged(file, why) => (file, why),
        };
        write!(
            f,
            "'{}', which keeps a drive's reservations, cannot be read: {why}; without it a host that was shut out could write \
             again. Remove it only if no host but the drive's present one can reach this machine",
            file.display()
        )
    }
}

impl std::error::Error for NotLoaded {}

/// The reservations of a drive.
#[derive(Debug)]
pub(crate) struct Reserved {
    current: Current,
    /// Where they are kept, if they can be.
    file: Option<PathBuf>,
    /// There is a file.
    is_stored: AtomicBool,
}

/// What a queue's host may do with a drive.
pub(crate) type Watched = Watch<Reserved>;

impl AsRef<Current> for Reserved {
    fn as_ref(&self) -> &Current {
        &self.current
    }
}

impl Reserved {
    /// Those of a drive. Of one that forgets what it holds when this program ends, nothing is kept. One that was made now has none.
    pub(crate) fn load(
        folder: Option<&ReservationFolder>,
        export: &Export,
    ) -> Result<Self, NotLoaded> {
        let file = folder.filter(|_| !export.is_volatile());
        let file = file.map(|folder| folder.file(export));
        if let Some(file) = file.as_ref().filter(|_| export.is_new()) {
            let removed = store(file, &Reservations::default());
            removed.map_err(|why| NotLoaded::Unreadable(file.clone(), why))?;
        }
        let stored = match file.as_ref().map(fs::read) {
            None => None,
            Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => None,
            Some(read) => Some(read),
        };
        let reservations = match (stored, &file) {
            (Some(read), Some(file)) => {
                let bytes = read.map_err(|why| NotLoaded::Unreadable(file.clone(), why))?;
                let known = Reservations::from_bytes(&bytes);
                Some(known.map_err(|why| NotLoaded::Damaged(file.clone(), why))?)
            }
            _ => None,
        };
        Ok(Self {
            is_stored: AtomicBool::new(reservations.is_some()),
            current: Current::new(reservations.unwrap_or_default()),
            file,
        })
    }

    /// RESCAP of the namespace.
    pub(crate) fn capabilities(&self) -> u8 {
        match self.file {
            Some(_) => RESCAP_ALL,
            None => RESCAP_ALL & !RESCAP_PERSISTENCE,
        }
    }

    /// As they are now.
    pub(crate) fn now(&self) -> Arc<Reservations> {
        self.current.now()
    }

    /// Changes them. When this returns the change is in force, and durable if it is to persist.
    ///
    /// # Errors
    /// What `change` says; or they are to persist and cannot; or they cannot be kept now. Then nothing has changed, but that the
    /// next start may find the change.
    pub(crate) async fn change<T>(
        &self,
        change: impl FnOnce(&mut Reservations) -> Result<T, Status>,
    ) -> Result<T, Status> {
        self.current
            .change(change, async |next| self.keep(next).await)
            .await
    }

    async fn keep(&self, next: &Reservations) -> Result<(), Status> {
        let persists = next.persists();
        let Some(file) = &self.file else {
            return match persists {
                true => Err(Status::INVALID_FIELD.with_dnr()),
                false => Ok(()),
            };
        };
        if !persists && !self.is_stored.load(Ordering::Acquire) {
            return Ok(());
        }
        let (next, path) = (next.clone(), file.clone());
        let kept = reactor::unblock(move || store(&path, &next)).await;
        kept.map_err(|error| {
            tracing::error!(
                file = %file.display(),
                %error,
                "the reservations of a drive cannot be kept, so they do not change: see to the file's folder"
            );
            Status::INTERNAL
        })?;
        self.is_stored.store(persists, Ordering::Release);
        Ok(())
    }
}

fn store(path: &Path, next: &Reservations) -> io::Result<()> {
    match next.persists() {
        true => {
            let bytes = next.to_bytes().map_err(io::Error::other)?;
            replace_file(path, &bytes)
        }
        false => match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all(),
        },
    }
}

#[cfg(test)]
mod tests {
    use drives::MemoryDrive;
    use nvme::reservation::{KeyPair, RegisterAction};
    use reservations::Request;

    use super::*;

    fn export() -> Export {
        Export::new(Arc::new(MemoryDrive::new(1)), [7; 16])
    }

    fn register(persist: Option<bool>) -> impl FnOnce(&mut Reservations) -> Result<(), Status> {
        let request = Request::Register {
            action: RegisterAction::Register,
            ignore_key: false,
            persist,
            keys: KeyPair {
                current: 0,
                other: 9,
            },
        };
        move |now| now.apply(HostId::from_u128(1), request).map(drop)
    }

    #[test]
    fn what_is_to_persist_is_there_after_a_start_and_nothing_else() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = ReservationFolder::open(&dir.path().join("new")).expect("a folder");
        let told = reactor::run(reactor::Config::default(), async move {
            for persists in [false, true, false] {
                let reserved = Reserved::load(Some(&folder), &export()).expect("readable");
                let registered = reserved.change(register(Some(persists))).await;
                registered.expect("registered");
                let again = Reserved::load(Some(&folder), &export()).expect("readable");
                assert_eq!(again.now().has_registrants(), persists);
                assert_eq!(again.capabilities(), RESCAP_ALL);
            }
            let reserved = Reserved::load(Some(&folder), &export()).expect("readable");
            let registered = reserved.change(register(Some(true))).await;
            registered.expect("registered");
            let made = Reserved::load(Some(&folder), &export().made()).expect("readable");
            assert!(!made.now().has_registrants(), "it is another drive");
            let left = fs::read_dir(&folder.0).expect("a folder").count();
            assert_eq!(left, 0, "what does not persist leaves no file");
        });
        told.expect("a reactor");
    }

    #[test]
    fn a_file_that_says_nothing_sensible_stops_the_start() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = ReservationFolder::open(dir.path()).expect("a folder");
        for text in ["", "{}", r#"{"version": 2}"#] {
            fs::write(folder.file(&export()), text).expect("written");
            let refused = Reserved::load(Some(&folder), &export()).expect_err("damaged");
            assert!(refused.to_string().contains("shut out"), "{refused}");
        }
    }

    #[test]
    fn without_a_folder_nothing_persists_and_a_host_is_told_so() {
        let told = reactor::run(reactor::Config::default(), async {
            let reserved = Reserved::load(None, &export()).expect("nothing to read");
            assert_eq!(reserved.capabilities() & RESCAP_PERSISTENCE, 0);
            let refused = reserved.change(register(Some(true))).await;
            assert_eq!(refused, Err(Status::INVALID_FIELD.with_dnr()));
            assert!(!reserved.now().has_registrants());
            reserved.change(register(None)).await.expect("registered");
        });
        told.expect("a reactor");
    }
}
