//! What every kind of drive must do.

use std::sync::Arc;

use conformance::Races;

use crate::sled::{Sled, story};

#[test]
fn a_namespace_does_what_every_drive_must() {
    for lba_bytes in [512, 4096] {
        let sled = Sled::start(lba_bytes);
        story(async || {
            let drive = Arc::new(sled.open().await.expect("it opens"));
            conformance::check(drive, Races::ReadsAreWhole, lba_bytes as u64).await;
        });
    }
}
