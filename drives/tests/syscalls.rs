//! What a file drive asks of the kernel, seen from outside by strace, and what it makes of a refusal.

mod strace;

use std::future::Future;
use std::path::{Path, PathBuf};

use drives::{BLOCK_BYTES, Drive, Extent, FileDrive, OpenOptions};
use futures_util::FutureExt;
use reactor::Config;

const BLOCKS: u64 = 64;

fn on_a_reactor<T>(future: impl Future<Output = T>) -> T {
    reactor::run(Config::default(), future).expect("this machine permits io_uring")
}

/// A folder on a real file system: the temporary one is often in memory, without O_DIRECT.
fn folder() -> tempfile::TempDir {
    let beside_the_tests = std::env::current_exe().expect("a path");
    let parent = beside_the_tests.parent().expect("a folder").to_owned();
    tempfile::tempdir_in(parent).expect("a folder")
}

fn drive_path(folder: &Path) -> PathBuf {
    folder.join("drive0")
}

fn opened(folder: &Path) -> FileDrive {
    let options = OpenOptions {
        create_bytes: Some(BLOCKS * BLOCK_BYTES as u64),
        ..OpenOptions::default()
    };
    FileDrive::open(drive_path(folder), &options).expect("made")
}

async fn write(drive: &FileDrive) {
    let buffers = reactor::current().expect("inside").buffers().clone();
    let mut buffer = buffers.alloc(BLOCK_BYTES).await;
    buffer.fill(7);
    let extent = Extent {
        block: 3,
        buffer_offset: 0,
        blocks: 1,
    };
    drive.write(buffer, &[extent]).await.0.expect("written");
}

/// How often the drive of this folder was synced by this test under strace.
fn syncs(name: &str, faults: &[&str]) -> Vec<String> {
    let folder = folder();
    let path = drive_path(folder.path());
    strace::run(name, folder.path(), &path, "fdatasync,fsync", faults)
        .into_iter()
        // The file's size is synced with fsync, once, when it is made.
        .filter(|line| line.contains("fdatasync("))
        .collect()
}

#[test]
fn every_flush_syncs_the_data_of_the_file() {
    let Some(folder) = strace::folder() else {
        let syncs = syncs("every_flush_syncs_the_data_of_the_file", &[]);
        assert_eq!(syncs.len(), 2, "{syncs:?}");
        assert!(syncs.iter().all(|line| line.ends_with("= 0")), "{syncs:?}");
        return;
    };
    on_a_reactor(async {
        let drive = opened(&folder);
        for _ in 0..2 {
            write(&drive).await;
            drive.flush().await.expect("flushed");
        }
    });
}

#[test]
fn a_drive_whose_sync_failed_once_is_never_called_flushed_again() {
    let Some(folder) = strace::folder() else {
        let syncs = syncs(
            "a_drive_whose_sync_failed_once_is_never_called_flushed_again",
            &["fdatasync:error=EIO:when=1"],
        );
        assert_eq!(syncs.len(), 1, "the kernel is not asked again: {syncs:?}");
        return;
    };
    on_a_reactor(async {
        let drive = opened(&folder);
        write(&drive).await;
        let error = drive.flush().await.expect_err("the kernel refused");
        assert!(error.to_string().contains("os error 5"), "{error}");
        assert!(error.to_string().contains("drive0"), "{error}");
        write(&drive).await;
        // The kernel would say that all is well.
        let error = drive.flush().await.expect_err("a write was lost");
        assert!(
            error.to_string().contains("earlier flush failed"),
            "{error}"
        );
    });
}

#[test]
fn a_sync_that_fails_after_its_caller_went_away_is_not_forgotten() {
    let Some(folder) = strace::folder() else {
        let syncs = syncs(
            "a_sync_that_fails_after_its_caller_went_away_is_not_forgotten",
            &["fdatasync:error=EIO:delay_enter=200000:when=1"],
        );
        assert_eq!(syncs.len(), 1, "the kernel is not asked again: {syncs:?}");
        return;
    };
    on_a_reactor(async {
        let drive = opened(&folder);
        write(&drive).await;
        assert!(drive.flush().now_or_never().is_none(), "it takes a while");
        let error = drive.flush().await.expect_err("a write was lost");
        assert!(error.to_string().contains("os error 5"), "{error}");
    });
}

#[test]
fn a_drive_in_the_page_cache_is_read_from_the_drive_itself_when_it_is_opened_again() {
    let Some(folder) = strace::folder() else {
        let name =
            "a_drive_in_the_page_cache_is_read_from_the_drive_itself_when_it_is_opened_again";
        let folder = folder();
        let path = drive_path(folder.path());
        on_a_reactor(async { drop(opened(folder.path())) });
        let calls = "openat,fadvise64,pread64";
        // The file system refuses O_DIRECT.
        let faults = ["openat:error=EINVAL:when=1"];
        let log = strace::run(name, folder.path(), &path, calls, &faults);
        let at = |word: &str| log.iter().position(|line| line.contains(word));
        let forgot = at("POSIX_FADV_DONTNEED").expect("the cache is dropped");
        assert!(log[forgot].ends_with("= 0"), "{log:?}");
        assert!(at("pread64(").is_none_or(|read| forgot < read), "{log:?}");
        return;
    };
    on_a_reactor(async {
        let drive = opened(&folder);
        assert!(!drive.is_direct(), "O_DIRECT was refused");
        write(&drive).await;
        drive.flush().await.expect("flushed");
    });
}

#[test]
fn nobody_looks_at_a_drive_or_wipes_it_without_asking_the_kernel_who_uses_it() {
    let Some(folder) = strace::folder() else {
        let name = "nobody_looks_at_a_drive_or_wipes_it_without_asking_the_kernel_who_uses_it";
        let folder = folder();
        on_a_reactor(async { drop(opened(folder.path())) });
        let swaps = Path::new("/proc/swaps");
        let asked = strace::run(name, folder.path(), swaps, "openat", &[]);
        assert_eq!(asked.len(), 2, "{asked:?}");
        return;
    };
    on_a_reactor(async {
        let (path, drive) = (drive_path(&folder), opened(&folder));
        assert_eq!(drive.content(&path).expect("looked at"), None);
        drive.wipe_signatures(&path).expect("wiped");
    });
}
