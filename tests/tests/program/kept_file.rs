//! A pool with a file in it that must stay as it is, for stories about its drives.

use std::fs;
use std::path::PathBuf;

use crate::harness::{Pool, json, succeeds, wait_for};

/// The pool, and the file.
pub(crate) struct KeptFile {
    pub(crate) pool: Pool,
    /// Where drives may be.
    folder: PathBuf,
    bytes: Vec<u8>,
}

impl KeptFile {
    /// A file of so many MiB, all of whose blocks differ.
    pub(crate) fn new(mib: u32) -> Self {
        let pool = Pool::new();
        let folder = pool.dir.parent().expect("a folder").to_owned();
        let bytes: Vec<u8> = (0..mib << 18).flat_map(u32::to_le_bytes).collect();
        fs::write(folder.join("image"), &bytes).expect("written");
        Self {
            pool,
            folder,
            bytes,
        }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Puts the file into the pool, as a new volume.
    #[track_caller]
    pub(crate) fn import_image(&self, volume: &str) {
        let (pool, image) = (self.pool.dir(), self.path("image"));
        succeeds(&["volume", "import", "--pool", pool, volume, &image]);
    }

    /// The volume is that file.
    #[track_caller]
    pub(crate) fn verify(&self, volume: &str) {
        let copy = self.path("copy");
        let _ = fs::remove_file(&copy);
        let pool = self.pool.dir();
        succeeds(&["volume", "export", "--pool", pool, volume, &copy]);
        assert!(fs::read(&copy).expect("exported") == self.bytes);
    }

    /// Path and state of each drive.
    pub(crate) fn drives(&self) -> Vec<(String, String)> {
        let drives = json(&["drive", "list", "--pool", self.pool.dir(), "--json"]);
        let text =
            |drive: &serde_json::Value, key: &str| drive[key].as_str().expect("a text").to_owned();
        let drives = drives.as_array().expect("a list").iter();
        drives
            .map(|drive| (text(drive, "path"), text(drive, "state")))
            .collect()
    }

    /// Waits until these are the drives, all of them online.
    #[track_caller]
    pub(crate) fn wait_for_drives(&self, paths: &[&str]) {
        let online = |path: &&str| ((*path).to_owned(), "online".to_owned());
        let wanted: Vec<_> = paths.iter().map(online).collect();
        wait_for("the drives", || self.drives() == wanted);
    }

    pub(crate) fn lose_the_folder(&self) {
        fs::remove_dir_all(&self.pool.dir).expect("it was there");
    }
}
