//! The machine that a figure was taken on, and which core a thread runs on.
//!
//! A figure says little without them: every report names the processor, the kernel and the file system.

use std::io;
use std::path::Path;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// What a report says of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// As `/proc/cpuinfo` names it.
    pub processor: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Vector instructions that hashing uses.
    pub simd: String,
    /// As `uname -r` prints it.
    pub kernel: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// File system of the benchmark's folder, and what it lies on.
    pub file_system: String,
    /// The benchmark's own build: checks cost time.
    pub build: String,
}

impl Machine {
    /// This machine, with the file system of `dir`. What the kernel does not tell is "unknown".
    pub fn look(dir: &Path) -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let line = |key: &str| {
            let mut lines = cpuinfo.lines();
            let found = lines.find_map(|line| {
                let (name, value) = line.split_once(':')?;
                (name.trim() == key).then(|| value.trim().to_owned())
            });
            found.unwrap_or_else(|| "unknown".to_owned())
        };
        let flags = line("flags");
        let has = |flag: &str| flags.split(' ').any(|own| own == flag);
        let simd = match (has("avx512f") && has("avx512vl"), has("avx2")) {
            (true, _) => "AVX-512",
            (false, true) => "AVX2",
            (false, false) => "unknown",
        };
        let build = if cfg!(debug_assertions) {
            "with debug assertions"
        } else {
            "without debug assertions"
        };
        Self {
            processor: line("model name"),
            cores: cores().len(),
            simd: simd.to_owned(),
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            memory_bytes: memory_bytes(),
            file_system: file_system(dir).unwrap_or_else(|| "unknown".to_owned()),
            build: build.to_owned(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}, {} cores, {}, {} GiB, Linux {}, {}, built {}",
            self.processor,
            self.cores,
            self.simd,
            self.memory_bytes >> 30,
            self.kernel,
            self.file_system,
            self.build
        )
    }
}

fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kilobytes(&text, "MemTotal").unwrap_or(0)
}

/// Resident memory of this process, in bytes; 0 if the kernel does not tell.
pub(crate) fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    kilobytes(&text, "VmRSS").unwrap_or(0)
}

/// How far the resident memory of this process, in bytes, rises above what it is now while something is done; 0 if the kernel
/// does not tell.
pub(crate) fn resident_rise<T>(done: impl FnOnce() -> T) -> (T, u64) {
    // proc_pid_clear_refs(5): the peak begins anew.
    let is_told = std::fs::write("/proc/self/clear_refs", "5").is_ok();
    let before = resident_bytes();
    let result = done();
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = kilobytes(&text, "VmHWM").filter(|_| is_told);
    (result, peak.map_or(0, |peak| peak.saturating_sub(before)))
}

/// The bytes behind `key:` in a list whose values are in kB.
fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| {
        let rest = line.strip_prefix(key);
        rest.is_some_and(|rest| rest.starts_with(':'))
    })?;
    let number = line.split_whitespace().nth(1)?;
    Some(number.parse::<u64>().ok()? * 1024)
}

/// Bytes that this process has caused to be written to storage, those taken back subtracted.
///
/// # Errors
/// If the kernel keeps no such account (`CONFIG_TASK_IO_ACCOUNTING`).
pub(crate) fn written_bytes() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let number = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        let number = line.and_then(|rest| rest.trim_start_matches(':').trim().parse::<u64>().ok());
        number.ok_or_else(|| io::Error::other("/proc/self/io tells no written bytes"))
    };
    Ok(number("write_bytes")?.saturating_sub(number("cancelled_write_bytes")?))
}

/// Type and source of the file system that `dir` is on.
fn file_system(dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    // proc(5): ID PARENT MAJ:MIN ROOT MOUNT-POINT OPTIONS [TAGS...] - TYPE SOURCE SUPER-OPTIONS
    let of_line = |line: &str| {
        let (front, back) = line.split_once(" - ")?;
        let point = front.split(' ').nth(4)?.to_owned();
        let mut back = back.split(' ');
        let (kind, source) = (back.next()?, back.next()?);
        dir.starts_with(&point)
            .then(|| (point.len(), format!("{kind} on {source}")))
    };
    // The longest mount point; of several on the same one, the last is on top.
    mounts
        .lines()
        .filter_map(of_line)
        .max_by_key(|(length, _)| *length)
        .map(|(_, text)| text)
}

/// The cores that this thread may use.
pub fn cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect()
}

fn set_of(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core);
    }
    set
}

/// Binds the calling thread to these cores.
///
/// # Errors
/// If the process may not use them.
pub fn bind_thread(cores: &[usize]) -> io::Result<()> {
    Ok(sched_setaffinity(None, &set_of(cores))?)
}

/// How the threads begin that work in the background: those of `reactor::unblock`, RocksDB's, io_uring's.
const HELPERS: [&str; 3] = ["blocking", "rocksdb", "iou-wrk"];

/// Binds this process's helper threads: they begin on the core of whoever started them, and would take
/// its time.
pub(crate) fn bind_helpers(cores: &[usize]) {
    let set = set_of(cores);
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return;
    };
    for thread in threads.flatten() {
        let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        if !HELPERS.iter().any(|helper| name.starts_with(helper)) {
            continue;
        }
        let id = thread.file_name().to_string_lossy().parse().ok();
        if let Some(pid) = id.and_then(Pid::from_raw) {
            // The kernel's own workers may refuse, and threads may have ended.
            let _ = sched_setaffinity(Some(pid), &set);
        }
    }
}

/// Processor time that the calling thread has used, in seconds.
pub(crate) fn thread_seconds() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}

/// Processor time that all threads of this process have used, in seconds.
pub(crate) fn process_seconds() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::look(Path::new("/"));
        assert!(machine.cores > 0 && machine.memory_bytes > 1 << 20);
        assert!(!machine.kernel.is_empty());
        assert!(
            machine.file_system.contains(" on "),
            "{}",
            machine.file_system
        );
    }

    #[test]
    fn a_bound_thread_stays_on_its_core() {
        let last = *cores().last().expect("a core");
        std::thread::spawn(move || {
            bind_thread(&[last]).expect("a core of ours");
            assert_eq!(cores(), [last]);
        })
        .join()
        .expect("bound");
    }

    #[test]
    fn processor_time_and_memory_are_told() {
        let before = thread_seconds();
        let mut sum = 0u64;
        while thread_seconds() <= before {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(process_seconds() >= thread_seconds());
        assert!(resident_bytes() > 1 << 16);
    }
}
