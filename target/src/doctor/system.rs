//! Kernel, memory, limits and clock.

use subsystem::limits::Limits;

use super::{Finding, Machine, State};
use crate::descriptors::{self, Asked};
use crate::machine::available_of;
use crate::size::format_human;

/// The oldest kernel whose io_uring has what the reactors need.
const KERNEL_MIN: (u32, u32) = (5, 13);
/// The oldest kernel that the tests run on.
const KERNEL_TESTED: (u32, u32) = (6, 1);

/// What a daemon with default options takes before the index grows: buffers, maps of volumes, capsules.
const MEMORY_BYTES: u64 = 2 << 30;

/// Locked memory for the buffers of a default daemon, which the ring and RDMA devices register.
const LOCKED_BYTES: u64 = 512 << 20;

/// The first second of 2025: a clock before it was never set.
const CLOCK_MIN: u64 = 1_735_689_600;

/// Clock sources that a program reads without a system call, or nearly so.
const FAST_CLOCKS: [&str; 5] = [
    "tsc",
    "kvm-clock",
    "arch_sys_counter",
    "hyperv_clocksource_tsc_page",
    "xen",
];

/// Files by which a service that sets the clock shows that it runs.
const TIME_SERVICES: [&str; 5] = [
    "/run/systemd/timesync/synchronized",
    "/run/chrony/chronyd.pid",
    "/run/chronyd.pid",
    "/run/ntpd.pid",
    "/run/openntpd.pid",
];

pub(super) fn kernel(machine: &Machine) -> Finding {
    const CHECK: &str = "kernel";
    let Some(release) = machine.read("/proc/sys/kernel/osrelease") else {
        return Finding::warn(CHECK, "its version cannot be read", "mount /proc");
    };
    let found = format!("Linux {release}");
    match version(&release) {
        Some(version) if version >= KERNEL_TESTED => Finding::ok(CHECK, found),
        Some(version) if version >= KERNEL_MIN => Finding::warn(
            CHECK,
            format!("{found}: it works, and is not tested"),
            "use Linux 6.1 or newer",
        ),
        Some(_) => Finding::fail(
            CHECK,
            format!("{found}: its io_uring is too old"),
            "use Linux 6.1 or newer",
        ),
        None => Finding::warn(
            CHECK,
            format!("{found}: no version is recognised"),
            "use Linux 6.1 or newer",
        ),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(['.', '-']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

pub(super) fn io_uring(machine: &Machine, tried: &Result<(), String>) -> Finding {
    const CHECK: &str = "io_uring";
    let why = match tried {
        Ok(()) => return Finding::ok(CHECK, "available"),
        Err(why) => why,
    };
    match machine.number("/proc/sys/kernel/io_uring_disabled") {
        Some(2) => Finding::fail(
            CHECK,
            "switched off for everybody (kernel.io_uring_disabled is 2)",
            "`sysctl kernel.io_uring_disabled=0`, and keep it in /etc/sysctl.d",
        ),
        Some(1) => Finding::fail(
            CHECK,
            "switched off for this user (kernel.io_uring_disabled is 1)",
            "add the user to the group that `sysctl kernel.io_uring_group` names, or set \
             kernel.io_uring_disabled=0",
        ),
        _ => Finding::fail(
            CHECK,
            format!("not available: {why}"),
            "in a container, use a seccomp profile that allows io_uring_setup, io_uring_enter and io_uring_register",
        ),
    }
}

pub(super) fn memory(machine: &Machine) -> Finding {
    const CHECK: &str = "memory";
    let meminfo = machine.read("/proc/meminfo").unwrap_or_default();
    let Some(available) = available_of(&meminfo) else {
        return Finding::warn(CHECK, "/proc/meminfo cannot be read", "mount /proc");
    };
    let found = format!("{} available", format_human(available));
    match available < MEMORY_BYTES {
        true => Finding::warn(
            CHECK,
            format!("{found}: the defaults of `onefold serve` may take more"),
            "free memory, or lower --buffers, --metadata-cache and --index-memory",
        ),
        false => Finding::ok(CHECK, found),
    }
}

/// The buffers of reactors ask for transparent huge pages.
pub(super) fn huge_pages(machine: &Machine) -> Finding {
    const CHECK: &str = "huge pages";
    let text = machine.read("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = text.as_deref().and_then(|text| {
        let (_, rest) = text.split_once('[')?;
        Some(rest.split_once(']')?.0)
    });
    match chosen {
        Some("never") => Finding::warn(
            CHECK,
            "transparent huge pages are switched off: buffers cost more address look-ups",
            "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`",
        ),
        Some(chosen) => Finding::ok(CHECK, format!("transparent: {chosen}")),
        None => Finding::ok(CHECK, "this kernel has no transparent ones"),
    }
}

/// The hard limit of a line of `/proc/PID/limits`, of the daemon if there is one, and whose it is; `u64::MAX` without a
/// limit.
///
/// # Errors
/// The file cannot be read, or has no such line.
fn hard_limit(
    machine: &Machine,
    daemon: Option<u32>,
    name: &str,
) -> Result<(u64, &'static str), String> {
    let path = match daemon {
        Some(process) => format!("/proc/{process}/limits"),
        None => "/proc/self/limits".to_owned(),
    };
    let whose = match daemon {
        Some(_) => "to the daemon",
        None => "to this shell (a service has limits of its own)",
    };
    let limits = machine.read(&path).unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix(name));
    let limit = line.and_then(|line| match line.split_whitespace().nth(1)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    });
    match limit {
        Some(limit) => Ok((limit, whose)),
        None => Err(format!("{path} cannot be read")),
    }
}

pub(super) fn open_files(machine: &Machine, daemon: Option<u32>) -> Finding {
    const CHECK: &str = "open files";
    let (files, whose) = match hard_limit(machine, daemon, "Max open files") {
        Ok(found) => found,
        Err(why) => return Finding::warn(CHECK, why, "mount /proc"),
    };
    let mut bounds = Limits::default();
    descriptors::fit(files, &mut bounds, Asked::default());
    let room = format!(
        "{files} allowed {whose}: room for {} hosts with {} I/O queues each over TCP",
        bounds.controllers, bounds.io_queues
    );
    match bounds.descriptors {
        None => Finding::ok(CHECK, room),
        Some(_) => Finding::warn(
            CHECK,
            room,
            "LimitNOFILE=524288 in the systemd unit, or `ulimit -Hn 524288`",
        ),
    }
}

pub(super) fn locked_memory(machine: &Machine, daemon: Option<u32>) -> Finding {
    const CHECK: &str = "locked memory";
    let (bytes, whose) = match hard_limit(machine, daemon, "Max locked memory") {
        Ok(found) => found,
        Err(why) => return Finding::warn(CHECK, why, "mount /proc"),
    };
    let remedy = "LimitMEMLOCK=infinity in the systemd unit, or `ulimit -l unlimited`";
    if bytes == u64::MAX {
        return Finding::ok(CHECK, format!("no limit {whose}"));
    }
    let found = format!("{} allowed {whose}", format_human(bytes));
    if bytes >= LOCKED_BYTES {
        return Finding::ok(CHECK, found);
    }
    let has_rdma = !machine.names("/sys/class/infiniband").is_empty();
    Finding {
        state: if has_rdma { State::Fail } else { State::Warn },
        ..Finding::warn(
            CHECK,
            match has_rdma {
                true => format!("{found}: RDMA devices cannot register the buffers"),
                false => format!("{found}: buffers may not be registered, and I/O costs more"),
            },
            remedy,
        )
    }
}

pub(super) fn clock_source(machine: &Machine) -> Finding {
    const CHECK: &str = "clock source";
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    match machine.read(path) {
        Some(name) if FAST_CLOCKS.contains(&name.as_str()) => Finding::ok(CHECK, name),
        Some(name) => Finding::warn(
            CHECK,
            format!("{name}: reading the time takes a system call or longer"),
            format!(
                "find out why the kernel gave up the processor's own (dmesg), then write its name to {path}"
            ),
        ),
        None => Finding::warn(CHECK, "the kernel does not tell", "mount /sys"),
    }
}

pub(super) fn time(machine: &Machine, unix_seconds: u64) -> Finding {
    const CHECK: &str = "time";
    if unix_seconds < CLOCK_MIN {
        return Finding::fail(
            CHECK,
            "the clock was never set: it is before 2025",
            "set it (`timedatectl set-time`), and run systemd-timesyncd or chrony",
        );
    }
    match TIME_SERVICES.iter().find(|path| machine.exists(path)) {
        Some(path) => Finding::ok(CHECK, format!("a service sets it ({path})")),
        None => Finding::warn(
            CHECK,
            "no service that sets the clock is seen: times in logs and events drift",
            "run systemd-timesyncd or chrony",
        ),
    }
}
