//! A drive whose data a sync of the journal takes along.

use std::io;
use std::sync::{Mutex, MutexGuard};

use super::*;

/// An area in memory that notes what it is told.
struct Area {
    inner: MemoryArea,
    told: Mutex<Vec<(&'static str, u64)>>,
}

impl Area {
    fn told(&self) -> MutexGuard<'_, Vec<(&'static str, u64)>> {
        self.told.lock().unwrap()
    }
}

impl MetadataArea for Area {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.inner.read(block, bytes)
    }

    fn write(&self, block: u64, bytes: Arc<Vec<u8>>) -> PendingIo {
        self.told().push(("write", block));
        self.inner.write(block, bytes)
    }

    fn flush(&self) -> PendingIo {
        self.told().push(("flush", 0));
        self.inner.flush()
    }

    fn flushes_data(&self) -> bool {
        true
    }

    fn write_with_data(&self, block: u64, bytes: Arc<Vec<u8>>) -> PendingIo {
        self.told().push(("with data", block));
        let written = self.inner.write(block, bytes).wait();
        PendingIo::new(move || written)
    }
}

fn open_with_data() -> (Pool, Open, Arc<Area>) {
    let pool = Pool::new(0);
    let area = Arc::new(Area {
        inner: MemoryArea::new(AREA_BLOCKS),
        told: Mutex::default(),
    });
    let areas = [(0, area.clone() as Arc<dyn MetadataArea>)];
    let open = pool.open_with(&areas);
    assert!(!open.journal.flushes_data(), "no drive has the journal");
    open.copies.join(&areas).unwrap();
    (pool, open, area)
}

#[test]
fn a_sync_of_the_journal_takes_the_data_of_the_only_drive_along_and_flushes_nothing_else() {
    let (_pool, open, area) = open_with_data();
    assert!(open.journal.flushes_data());
    area.told().clear();
    open.journal.write_at(8192, &[1; 4096]).unwrap();
    open.journal.write_at(100 << 10, &[2; 4096]).unwrap();
    open.journal.sync().unwrap();
    let told = area.told().clone();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told.iter().all(|(what, _)| *what == "with data"),
        "{told:?}"
    );
    assert_eq!(
        told[1].1 - told[0].1,
        (100 - 8) / 4,
        "in the order of the journal"
    );
}

#[test]
fn no_sync_ends_well_when_the_drive_that_has_data_in_memory_lost_the_journal() {
    let (_pool, open, area) = open_with_data();
    open.journal.write_at(8192, &[1; 4096]).unwrap();
    area.inner.fail_after(Some(0));
    open.journal.sync().unwrap_err();
    assert!(!open.journal.flushes_data());
    let error = open.journal.sync().unwrap_err();
    assert!(
        error.to_string().contains("start the daemon again"),
        "{error}"
    );
}
