//! The process as Linux sees it, by the names that every exporter uses.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::page::{Page, bytes, plain, seconds};

/// Ticks of `/proc/PID/stat` in a second: USER_HZ, which is 100 on every architecture that Onefold runs on (proc(5)).
const TICKS_PER_SECOND: f64 = 100.0;

/// Fields of `/proc/self/stat` behind the program's name, counted from the state (proc(5): field 3).
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;
const THREADS: usize = 17;
const START_TICKS: usize = 19;

/// What the system says of this process. What it does not say is 0.
#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    cpu_seconds: f64,
    /// When it started, in seconds since 1970.
    started_at: f64,
    threads: u64,
    resident_bytes: u64,
    open_files: u64,
    /// Processor time of threads, by their names.
    thread_seconds: BTreeMap<String, f64>,
}

impl Process {
    pub(super) fn look() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        let open_files = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        Self {
            open_files: open_files as u64,
            thread_seconds: threads(),
            ..Self::of(
                &text("/proc/self/stat"),
                &text("/proc/self/status"),
                &text("/proc/stat"),
            )
        }
    }

    /// What these texts say: of the process, and of the system.
    fn of(stat: &str, status: &str, system: &str) -> Self {
        let (_, fields) = fields_of(stat);
        let number = |at: usize| fields.get(at).and_then(|text| text.parse().ok());
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))
            .and_then(|kib| kib.trim().parse::<u64>().ok());
        let booted = system
            .lines()
            .find_map(|line| line.strip_prefix("btime ")?.trim().parse::<u64>().ok());
        let started = booted.zip(number(START_TICKS));
        let started =
            started.map(|(booted, ticks)| booted as f64 + ticks as f64 / TICKS_PER_SECOND);
        Self {
            cpu_seconds: cpu_seconds(&fields),
            started_at: started.unwrap_or(0.0),
            threads: number(THREADS).unwrap_or(0),
            resident_bytes: resident.unwrap_or(0).saturating_mul(1024),
            open_files: 0,
            thread_seconds: BTreeMap::new(),
        }
    }
}

/// The name in a line of `stat`, and the fields behind it. The name is in parentheses, and may hold any character.
fn fields_of(stat: &str) -> (&str, Vec<&str>) {
    let (before, fields) = stat.rsplit_once(')').unwrap_or_default();
    let name = before.split_once('(').map_or("", |(_, name)| name);
    (name, fields.split_whitespace().collect())
}

/// The processor time in the fields of a line of `stat`.
fn cpu_seconds(fields: &[&str]) -> f64 {
    let ticks = [USER_TICKS, SYSTEM_TICKS].into_iter();
    let ticks = ticks.filter_map(|at| fields.get(at)?.parse::<u64>().ok());
    ticks.sum::<u64>() as f64 / TICKS_PER_SECOND
}

/// The processor time of all threads, by their names.
fn threads() -> BTreeMap<String, f64> {
    let mut seconds = BTreeMap::new();
    for thread in fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        // A thread may end meanwhile.
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let (name, fields) = fields_of(&stat);
        if !name.is_empty() {
            *seconds.entry(name.to_owned()).or_default() += cpu_seconds(&fields);
        }
    }
    seconds
}

impl Collector for Process {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.write(&mut Page::new(encoder))
    }
}

impl Process {
    pub(super) fn write(&self, page: &mut Page<'_>) -> fmt::Result {
        let cpu = seconds("cpu", "Processor time of the daemon, user and system");
        page.counter(cpu, self.cpu_seconds)?;
        let threads = self.thread_seconds.iter();
        page.counters(
            seconds(
                "thread_cpu",
                "Processor time of threads, with the time in which data-plane threads poll",
            ),
            threads.map(|(name, seconds)| (vec![("thread", name.as_str())], *seconds)),
        )?;
        let start = seconds("start_time", "When the daemon started, since 1970");
        page.gauge(start, self.started_at)?;
        let resident = bytes("resident_memory", "Memory of the daemon that is in RAM");
        page.gauge(resident, self.resident_bytes)?;
        page.gauge(plain("open_fds", "Open file descriptors"), self.open_files)?;
        page.gauge(plain("threads", "Threads"), self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_from_what_linux_says_of_it() {
        let stat = "7 (one) fold) S 1 7 7 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 12 0 99 1 2";
        let system = "cpu  1 2 3\nbtime 1790000000\nprocesses 7\n";
        let process = Process::of(stat, "Name:\tonefold\nVmRSS:\t    2048 kB\n", system);
        assert_eq!(process.started_at, 1_790_000_000.99);
        assert_eq!(process.cpu_seconds, 2.0);
        assert_eq!(process.threads, 12);
        assert_eq!(process.resident_bytes, 2 << 20);
        assert_eq!(Process::of("", "", "").resident_bytes, 0);
        assert_eq!(
            Process::of(stat, "", "").started_at,
            0.0,
            "the system says nothing"
        );
    }
}
