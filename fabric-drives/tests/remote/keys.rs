//! A target that takes hosts by TLS alone: the key is that of a file, at each connection.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;

use drives::{Drive, ErrorKind};
use fabric_drives::KeyFolder;
use nvme::auth::{ConfiguredPsk, Hash};
use tempfile::TempDir;

use crate::sled::{Key, SUBSYSTEM, Sled, read, story, write};

fn psk(number: u8) -> ConfiguredPsk {
    ConfiguredPsk::from_random(Hash::Sha256, &[number; 64])
}

/// A folder with keys.
struct Keys(TempDir);

impl Keys {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn folder(&self) -> KeyFolder {
        KeyFolder::new(self.0.path())
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join(format!("{SUBSYSTEM}.tls-key"))
    }

    fn put(&self, key: &ConfiguredPsk) {
        fs::write(self.path(), key.to_text().as_bytes()).expect("a file");
        let mode = fs::Permissions::from_mode(0o600);
        fs::set_permissions(self.path(), mode).expect("its mode");
    }
}

#[test]
fn a_drive_is_used_by_tls_and_each_connection_takes_the_key_that_the_file_holds_then() {
    let key = Key::new(psk(1));
    let mut sled = Sled::start_with(4096, Some(key.clone()));
    let keys = Keys::new();
    keys.put(&psk(1));
    story(async || {
        let drive = sled.open_with(keys.folder()).await.expect("it opens");
        write(&drive, 5, 1).await.expect("written");
        // Both sides get another one, and the connection that there is stays.
        key.change(psk(2));
        keys.put(&psk(2));
        write(&drive, 5, 2).await.expect("written");
        drive.flush().await.expect("flushed");
        sled.die();
        sled.come_back();
        assert_eq!(read(&drive, 5).await.expect("by the new key"), 2);
        assert_eq!(key.failed.load(Ordering::Acquire), 0);
    });
}

#[test]
fn a_wrong_key_is_told_at_once_and_not_tried_again_and_again() {
    let key = Key::new(psk(1));
    let mut sled = Sled::start_with(4096, Some(key.clone()));
    let keys = Keys::new();
    keys.put(&psk(1));
    story(async || {
        let drive = sled.open_with(keys.folder()).await.expect("it opens");
        write(&drive, 5, 1).await.expect("written");
        drive.flush().await.expect("flushed");
        sled.die();
        key.change(psk(2));
        sled.come_back();
        let error = read(&drive, 5).await.expect_err("another key");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let file = keys.path();
        let told = error.to_string();
        assert!(told.contains(file.to_str().expect("text")), "{told}");
        // A key has four identities, each of which is tried once.
        let failed = key.failed.load(Ordering::Acquire);
        assert!((1..=4).contains(&failed), "{failed} handshakes");
    });
}

#[test]
fn without_its_key_a_drive_is_not_reached_in_clear() {
    // A target that takes hosts in clear, as one that pretends to be it.
    let mut sled = Sled::start(4096);
    let keys = Keys::new();
    keys.put(&psk(1));
    story(async || {
        let error = sled.open_with(keys.folder()).await.expect_err("in clear");
        assert!(error.to_string().contains("TLS"), "{error}");
        assert!(sled.media().connected.is_empty(), "something was sent");
        sled.die();
    });
    let key = Key::new(psk(1));
    let mut sled = Sled::start_with(4096, Some(key));
    story(async || {
        let drive = sled.open_with(keys.folder()).await.expect("it opens");
        write(&drive, 5, 1).await.expect("written");
        sled.die();
        fs::remove_file(keys.path()).expect("it was there");
        sled.come_back();
        let error = read(&drive, 5).await.expect_err("the key is gone");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("is gone"), "{error}");
        assert_eq!(sled.media().connected.len(), 1);
    });
}
