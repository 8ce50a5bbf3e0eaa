//! Networks of their own and guests with real Linux kernels (`tests/lab/` holds the scripts).

use std::{
    ffi::OsStr,
    fs::{self, File},
    os::fd::AsFd,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

/// The target's address in every lab network.
pub const TARGET_V4: &str = "10.77.0.1";
/// The target's IPv6 address in every lab network.
pub const TARGET_V6: &str = "fd77::1";

static NETWORKS: AtomicU32 = AtomicU32::new(0);

/// The folder with the lab's scripts.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lab")
}

/// The lab's cache of kernels and images.
///
/// # Panics
/// When neither `LAB_CACHE` nor `HOME` is set.
pub fn cache() -> PathBuf {
    match std::env::var_os("LAB_CACHE") {
        Some(path) => path.into(),
        None => {
            PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache/onefold-lab")
        }
    }
}

/// A network namespace with a bridge for the target and a tap for each guest.
#[derive(Debug)]
pub struct Network {
    name: String,
    mtu: u32,
}

impl Network {
    /// Makes the network.
    ///
    /// # Panics
    /// When it cannot be made: this needs root.
    pub fn new(guests: u32, mtu: u32) -> Self {
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let name = format!("onefold-{}-{number}", std::process::id());
        let status = Command::new(folder().join("net"))
            .args(["up", &name, &guests.to_string(), &mtu.to_string()])
            .status()
            .expect("tests/lab/net runs");
        assert!(
            status.success(),
            "no lab network: this needs root, iproute2 and /dev/net/tun"
        );
        Self { name, mtu }
    }

    /// The namespace's name, for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A node with a cable to the bridge.
    ///
    /// # Panics
    /// There is one of that number.
    pub fn node(&self, number: u8) -> Node {
        let status = Command::new(folder().join("net"))
            .args(["node", &self.name, &number.to_string()])
            .status();
        let is_made = status.is_ok_and(|status| status.success());
        assert!(is_made, "no node {number} in {}", self.name);
        Node {
            name: format!("{}-node{number}", self.name),
            address: format!("10.77.0.{}", 100 + u32::from(number)),
        }
    }
}

/// A node of a [`Network`], with which it ends.
#[derive(Debug)]
pub struct Node {
    name: String,
    address: String,
}

impl Node {
    /// The name of its namespace, for `ip netns exec`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Runs something there: what it connects to, and the threads and programs that it starts, are on the node.
    ///
    /// # Panics
    /// This needs root.
    pub fn runs<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            let network =
                File::open(Path::new("/run/netns").join(&self.name)).expect("it is there");
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(network.as_fd(), kind).expect("root may enter it");
            work()
        };
        let ended = thread::scope(|scope| scope.spawn(enter).join());
        ended.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Pulls its cable: nobody hears from it, or the other way round, until what is returned is dropped.
    ///
    /// # Panics
    /// It has no cable.
    #[must_use]
    pub fn pull_cable(&self) -> CutOff<'_> {
        self.run("ip", "link set v down");
        CutOff {
            node: self,
            end: ("ip", "link set v up"),
        }
    }

    /// Drops all that it sends to an address until what is returned is dropped.
    ///
    /// # Panics
    /// There is no nftables.
    #[must_use]
    pub fn cut_off_from(&self, address: &str) -> CutOff<'_> {
        self.run("nft", "add table inet cut");
        self.run(
            "nft",
            "add chain inet cut out { type filter hook output priority 0 ; }",
        );
        let rule = format!("add rule inet cut out ip daddr {address} drop");
        self.run("nft", &rule);
        CutOff {
            node: self,
            end: ("nft", "delete table inet cut"),
        }
    }

    fn run(&self, program: &str, arguments: &str) {
        let status = Command::new("ip")
            .args(["netns", "exec", &self.name, program])
            .args(arguments.split(' '))
            .status();
        let is_done = status.is_ok_and(|status| status.success());
        // A test that fails already says why.
        assert!(
            is_done || thread::panicking(),
            "'{program} {arguments}' failed on {}",
            self.name
        );
    }
}

/// A node that is cut off from something.
#[derive(Debug)]
pub struct CutOff<'a> {
    node: &'a Node,
    end: (&'static str, &'static str),
}

impl Drop for CutOff<'_> {
    fn drop(&mut self) {
        let (program, arguments) = self.end;
        self.node.run(program, arguments);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = Command::new(folder().join("net"))
            .args(["down", &self.name])
            .status();
    }
}

/// A guest that runs one story. Dropping it kills it.
#[derive(Debug)]
pub struct Guest {
    child: Child,
    share: TempDir,
    name: String,
}

/// How a guest is to be made.
#[derive(Debug, Clone, Copy)]
pub struct GuestSpec<'a> {
    /// Host name; it also decides the host NQN.
    pub name: &'a str,
    /// Kernel series: `7`, `6.12` or `6.1`.
    pub kernel: &'a str,
    /// Number of the guest on its network: address 10.77.0.(number + 2) on tap `number`.
    pub number: u32,
    /// Its processors.
    pub cpus: u32,
    /// The script in `tests/lab/stories`.
    pub story: &'a str,
    /// Arguments of the story (no spaces, no commas).
    pub arguments: &'a [&'a str],
    /// Seconds until the guest is killed.
    pub limit_seconds: u32,
    /// Files that the story finds in its folder.
    pub files: &'a [PathBuf],
}

/// What a guest's machine has beside processors, memory and a network.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hardware<'a> {
    /// Images of disks, and sockets of exports by vhost-user-blk: `/dev/vda`, `/dev/vdb` and so on.
    pub disks: &'a [PathBuf],
    /// A table that its firmware shows to the kernel.
    pub acpi_table: Option<&'a Path>,
    /// More arguments of QEMU. A `-machine` among them takes the place of the lab's machine and memory.
    pub qemu: &'a [String],
}

/// The MAC address of the guest of that name.
///
/// # Panics
/// When `tests/lab/mac` does not run.
pub fn mac_of(name: &str) -> String {
    let made = Command::new(folder().join("mac")).arg(name).output();
    let made = made.expect("tests/lab/mac runs").stdout;
    String::from_utf8_lossy(&made).trim().to_owned()
}

impl Guest {
    /// Boots the guest and starts its story.
    ///
    /// # Panics
    /// When the lab has not been set up (`tests/lab/setup.sh`).
    pub fn start(network: &Network, spec: &GuestSpec<'_>) -> Self {
        Self::start_with(network, spec, &Hardware::default())
    }

    /// [`Guest::start`], with images of disks: `/dev/vda`, `/dev/vdb` and so on.
    ///
    /// # Panics
    /// As [`Guest::start`].
    pub fn start_with_disks(network: &Network, spec: &GuestSpec<'_>, disks: &[PathBuf]) -> Self {
        let hardware = Hardware {
            disks,
            ..Hardware::default()
        };
        Self::start_with(network, spec, &hardware)
    }

    /// [`Guest::start`], on a machine with more hardware.
    ///
    /// # Panics
    /// As [`Guest::start`].
    pub fn start_with(network: &Network, spec: &GuestSpec<'_>, hardware: &Hardware<'_>) -> Self {
        let disks = hardware.disks.iter().map(|disk| ("-D", disk.as_os_str()));
        let table = hardware.acpi_table.map(|table| ("-A", table.as_os_str()));
        let qemu = hardware.qemu.iter().map(|it| ("-Q", OsStr::new(it)));
        let hardware = disks.chain(table).chain(qemu);
        let hardware = hardware.flat_map(|(option, value)| [OsStr::new(option), value]);
        let image = cache().join(format!("initramfs-{}.cpio", spec.kernel));
        assert!(
            image.exists(),
            "{} is missing: run tests/lab/setup.sh",
            image.display()
        );
        let share = tempfile::Builder::new()
            .prefix(&format!("onefold-{}-", spec.name))
            .tempdir()
            .expect("a folder can be made");
        let story = format!("{}.sh", spec.story);
        fs::copy(
            folder().join("stories").join(&story),
            share.path().join(&story),
        )
        .expect("the story exists");
        let fields = "fields.sh";
        fs::copy(folder().join(fields), share.path().join(fields)).expect("it is in the lab");
        for file in spec.files {
            let name = file.file_name().expect("a file has a name");
            fs::copy(file, share.path().join(name)).expect("the story's file can be copied");
        }
        let number = spec.number + 2;
        let child = Command::new(folder().join("vm"))
            .args(["-k", spec.kernel, "-n", spec.name, "-x", &network.name])
            .arg("-d")
            .arg(share.path())
            .args(["-T", &format!("tap{}", spec.number)])
            .args(["-i", &format!("10.77.0.{number}/24,fd77::{number}/64")])
            .args(["-c", &spec.cpus.to_string()])
            .args([
                "-M",
                &network.mtu.to_string(),
                "-t",
                &spec.limit_seconds.to_string(),
            ])
            .args(hardware)
            .arg(&story)
            .args(spec.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("tests/lab/vm runs");
        Self {
            child,
            share,
            name: spec.name.to_owned(),
        }
    }

    /// The folder that the guest sees as `/lab`.
    pub fn share(&self) -> &Path {
        self.share.path()
    }

    /// Waits until the story gives this sign (`signal NAME` in the guest).
    ///
    /// # Panics
    /// With the console, when the guest ends first or takes longer than `limit`.
    pub fn await_signal(&mut self, sign: &str, limit: Duration) {
        let file = self.share.path().join(format!("sync.{sign}"));
        self.wait_for(&format!("to say '{sign}'"), limit, |guest| {
            if file.exists() {
                return Some(());
            }
            if let Some(status) = guest.ended() {
                panic!(
                    "guest {} ended ({status}) before '{sign}':\n{}",
                    guest.name,
                    guest.console()
                );
            }
            None
        });
    }

    /// Waits for a condition, as long as the guest's kernel is not stuck at its start.
    fn wait_for<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut condition: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let start = std::time::Instant::now();
        loop {
            if let Some(value) = condition(self) {
                return value;
            }
            let (name, console) = (&self.name, self.console());
            assert!(
                !is_stuck_at_start(&console),
                "the kernel of guest {name} does not start:\n{console}"
            );
            assert!(
                start.elapsed() < limit,
                "waited {limit:?} in vain for guest {name} {what}:\n{console}"
            );
            // A poll interval between looks at another machine.
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Its exit status, if it has ended.
    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Gives the story a sign that it awaits.
    ///
    /// # Panics
    /// When the shared folder is gone.
    pub fn signal(&self, sign: &str) {
        File::create(self.share.path().join(format!("sync.{sign}"))).expect("the folder exists");
    }

    /// Waits for the end of the story.
    ///
    /// # Panics
    /// With the console, when the story failed or ran out of time.
    pub fn finish(mut self, limit: Duration) -> String {
        let status = self.wait_for("to end", limit, Self::ended);
        let console = self.console();
        // isa-debug-exit: ((16 + code) << 1) | 1, so 33 is the story's exit code 0.
        assert!(
            status.code() == Some(33),
            "guest {} failed ({status}):\n{console}",
            self.name
        );
        console
    }

    /// Pulls the plug.
    ///
    /// # Panics
    /// When the guest has ended by itself.
    pub fn kill(mut self) {
        assert!(
            self.ended().is_none(),
            "guest {} had ended before it was killed:\n{}",
            self.name,
            self.console()
        );
        self.kill_quietly();
    }

    /// What the guest printed so far.
    pub fn console(&self) -> String {
        let read = |name: &str| {
            let bytes = fs::read(self.share.path().join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        read("console.log") + &read("qemu.log")
    }

    fn kill_quietly(&mut self) {
        // `timeout` passes a SIGTERM on to qemu, which ends at once; SIGKILL would orphan it.
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill_quietly();
    }
}

/// Times that a story is told when the emulator breaks its guests.
const TELLINGS_MAX: u32 = 3;

/// Tells a story with guests, and tells it again when it failed because the emulator broke a guest's
/// processor or its timer ([`is_emulators_fault`]), and for no other reason.
///
/// # Panics
/// As the story does.
pub fn steadily(story: impl Fn()) {
    for telling in 1.. {
        let Err(panic) = catch_unwind(AssertUnwindSafe(&story)) else {
            return;
        };
        let text = panic.downcast_ref::<String>().map_or("", String::as_str);
        if telling == TELLINGS_MAX || !is_emulators_fault(text) {
            resume_unwind(panic);
        }
        eprintln!(
            "THE EMULATOR BROKE A GUEST (EFLAGS that no processor has, or no timer): the story is told again"
        );
    }
}

/// Whether a guest's console shows what no machine does, and an emulator was seen to do.
///
/// - EFLAGS that no processor has: bits 22 to 31 always read as zero (Intel 64 and IA-32 Architectures Software
///   Developer's Manual, volume 1, figure 3-8). QEMU 7.2 was seen to mix an address into them.
/// - A kernel that stops before its first program runs, because a processor gets no timer interrupts, or none any more.
pub fn is_emulators_fault(console: &str) -> bool {
    let flags = console.split("EFLAGS: ").skip(1);
    is_stuck_at_start(console)
        || flags
            .filter_map(|rest| u32::from_str_radix(rest.get(..8)?, 16).ok())
            .any(|flags| flags >> 22 != 0)
}

/// What a kernel says of timers that do not fire: `rcu_check_gp_kthread_expired_fqs_timer` in the kernel's
/// `kernel/rcu/tree_stall.h`, and `check_timer` in `arch/x86/kernel/apic/io_apic.c`, seen where the machine had no time for
/// its guest.
const TIMER_COMPLAINTS: [&str; 2] = [
    "kthread timer wakeup didn't happen",
    "IO-APIC + timer doesn't work!",
];

/// Whether a kernel says that its timers do not fire, and its first program, `guest/init`, was not there yet. Later the same
/// words may mean no more than a busy machine.
fn is_stuck_at_start(console: &str) -> bool {
    let complains = TIMER_COMPLAINTS.iter().any(|it| console.contains(it));
    complains && !console.contains("LAB-READY")
}

/// The program as guests can run it, with the libraries that it needs, put into `folder`: a story finds
/// it with `onefold_here`.
///
/// # Panics
/// When the program has not been built, or a library is missing (`tests/lab/setup.sh` installs them).
pub fn program_for_guests(folder: &Path) -> Vec<PathBuf> {
    let program = folder.join("onefold");
    // Without its line tables it is a tenth as long, and guests read it through 9p.
    let stripped = Command::new("strip")
        .arg("-o")
        .args([&program, &crate::daemon::program()])
        .status()
        .expect("strip runs");
    assert!(stripped.success(), "strip makes {}", program.display());
    let linked = Command::new("ldd").arg(&program).output();
    let linked = linked.expect("ldd runs").stdout;
    let linked = String::from_utf8_lossy(&linked);
    let libraries = linked.lines().filter_map(|line| {
        let (_, path) = line.split_once("=> ")?;
        path.split_whitespace().next().map(PathBuf::from)
    });
    // Loaded at run time; guests have libibverbs already.
    let cm = PathBuf::from("/usr/lib/x86_64-linux-gnu/librdmacm.so.1");
    assert!(
        cm.exists(),
        "{} is missing: run tests/lab/setup.sh",
        cm.display()
    );
    libraries.chain([cm]).chain([program]).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const BROKEN: &str = "RSP: 0018:ffa00000005e3c40 EFLAGS: 074e3202\n";
    const RIGHT: &str = "RSP: 0018:ffa00000005e3c40 EFLAGS: 00010246\n";

    #[test]
    fn only_flags_that_no_processor_has_are_the_emulators_fault() {
        assert!(is_emulators_fault(&format!("{RIGHT}{BROKEN}")));
        assert!(!is_emulators_fault(RIGHT));
        assert!(!is_emulators_fault(
            "Kernel panic - not syncing: EFLAGS: none"
        ));
    }

    #[test]
    fn timers_that_do_not_fire_are_the_emulators_fault_until_the_first_program_runs() {
        let stuck =
            "rcu: rcu_preempt kthread timer wakeup didn't happen for 5248 jiffies! g-807 f0x0\n";
        assert!(is_emulators_fault(stuck));
        let none =
            "Kernel panic - not syncing: IO-APIC + timer doesn't work!  Boot with apic=debug\n";
        assert!(is_emulators_fault(none));
        let started = "LAB-READY hotplug up=13.80s kernel=6.12.117+deb12-amd64\n";
        assert!(!is_emulators_fault(&format!("{started}{stuck}")));
        assert!(!is_emulators_fault(
            "rcu: rcu_preempt self-detected stall on CPU\n"
        ));
    }

    #[test]
    fn a_story_is_told_again_for_the_emulators_faults_alone() {
        let told = Cell::new(0);
        steadily(|| {
            told.set(told.get() + 1);
            assert!(told.get() == 2, "guest ended:\n{BROKEN}");
        });
        assert_eq!(told.get(), 2);
        for (words, tellings) in [(RIGHT, 1), (BROKEN, TELLINGS_MAX)] {
            let told = Cell::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                steadily(|| {
                    told.set(told.get() + 1);
                    panic!("guest ended:\n{words}");
                });
            }));
            assert!(outcome.is_err());
            assert_eq!(told.get(), tellings);
        }
    }
}
