//! Sockets, RDMA devices, ports and the firewall.

use super::{Finding, Machine, Port, Protocol};
use crate::size::format_human;

/// What soft RoCE asks of `net.core.rmem_max` and `wmem_max` where it has no CAP_NET_ADMIN, as
/// packaging/onefold.sysctl gives it.
const RECEIVE_BYTES: u64 = 16 << 20;
const SEND_BYTES: u64 = 32 << 20;

/// What a TCP connection may grow to at 10 Gbit/s and some milliseconds.
const TCP_BYTES: u64 = 4 << 20;

/// States of sockets in `/proc/net/tcp` and `/proc/net/udp`: one that listens, and one that is bound.
const LISTENS: &str = "0A";
const BOUND: &str = "07";

pub(super) fn socket_buffers(machine: &Machine) -> Vec<Finding> {
    const CHECK: &str = "socket buffers";
    let mut findings = Vec::new();
    for (name, what, wanted) in [
        ("rmem_max", "received", RECEIVE_BYTES),
        ("wmem_max", "sent", SEND_BYTES),
    ] {
        let Some(bytes) = machine.number(&format!("/proc/sys/net/core/{name}")) else {
            findings.push(Finding::warn(
                CHECK,
                format!("net.core.{name} cannot be read"),
                "mount /proc",
            ));
            continue;
        };
        let found = format!("net.core.{name} is {}", format_human(bytes));
        findings.push(match bytes < wanted {
            true => Finding::warn(
                CHECK,
                format!("{found}: soft RoCE has less room for packets {what} than it asks for, without CAP_NET_ADMIN"),
                format!("`sysctl net.core.{name}={wanted}`, and keep it in /etc/sysctl.d"),
            ),
            false => Finding::ok(CHECK, found),
        });
    }
    for name in ["tcp_rmem", "tcp_wmem"] {
        let text = machine.read(&format!("/proc/sys/net/ipv4/{name}"));
        let most = text
            .as_deref()
            .and_then(|text| text.split_whitespace().nth(2)?.parse().ok());
        let Some(most): Option<u64> = most else {
            continue;
        };
        let found = format!("net.ipv4.{name} goes up to {}", format_human(most));
        findings.push(match most < TCP_BYTES {
            true => Finding::warn(
                CHECK,
                format!("{found}: few bytes for fast or long paths"),
                format!("raise its third number to {TCP_BYTES} (`sysctl net.ipv4.{name}`)"),
            ),
            false => Finding::ok(CHECK, found),
        });
    }
    findings
}

pub(super) fn rdma(machine: &Machine) -> Vec<Finding> {
    const CHECK: &str = "RDMA";
    let devices = machine.names("/sys/class/infiniband");
    if devices.is_empty() {
        let found = "no device of the kernel: Onefold's own RoCE serves RDMA on every address";
        return vec![Finding::ok(CHECK, found)];
    }
    let mut findings = Vec::new();
    if !machine.exists("/dev/infiniband/rdma_cm") {
        findings.push(Finding::fail(
            CHECK,
            "/dev/infiniband/rdma_cm is missing: devices of the kernel cannot be used",
            "`modprobe rdma_ucm`",
        ));
    }
    for device in &devices {
        let ports = format!("/sys/class/infiniband/{device}/ports");
        for port in machine.names(&ports) {
            let read = |file: &str| machine.read(&format!("{ports}/{port}/{file}"));
            let state = read("state").unwrap_or_default();
            // As '4: ACTIVE'.
            let state = state
                .split_once(':')
                .map_or(state.as_str(), |(_, name)| name)
                .trim();
            let link = read("link_layer").unwrap_or_else(|| "unknown".to_owned());
            let found = format!("{device} port {port}: {state}, {link}");
            findings.push(match state {
                "ACTIVE" => Finding::ok(CHECK, found),
                _ => Finding::warn(
                    CHECK,
                    format!("{found}: no host can use it"),
                    "plug the cable in, and set its network interface up (`ip link set DEV up`)",
                ),
            });
        }
    }
    findings
}

/// Whether others have the ports. Only sockets that listen or are bound on every address or on some count.
pub(super) fn ports(machine: &Machine, ports: &[Port], is_served: bool) -> Vec<Finding> {
    const CHECK: &str = "port";
    let is_taken = |port: &Port| {
        let (files, state) = match port.protocol {
            Protocol::Tcp => (["/proc/net/tcp", "/proc/net/tcp6"], LISTENS),
            Protocol::Udp => (["/proc/net/udp", "/proc/net/udp6"], BOUND),
        };
        let tables = files.iter().filter_map(|file| machine.read(file));
        tables
            .into_iter()
            .any(|table| has_socket(&table, port.number, state))
    };
    let one = |port: &Port| match (is_taken(port), is_served) {
        (true, true) => Finding::ok(CHECK, format!("{port} is in use, and the pool is served")),
        (true, false) => Finding::warn(
            CHECK,
            format!("{port} is in use, and not by a daemon of this pool"),
            in_use(port),
        ),
        (false, true) if port.protocol == Protocol::Udp => Finding::ok(
            CHECK,
            format!("{port} is free: RDMA comes by devices of the kernel"),
        ),
        (false, true) => Finding::warn(
            CHECK,
            format!("{port} is free, and the daemon is configured to listen there"),
            "`onefold listener list` shows where it listens; its log says why not there",
        ),
        (false, false) => Finding::ok(CHECK, format!("{port} is free")),
    };
    ports.iter().map(one).collect()
}

/// What to do about a port that another program has.
fn in_use(port: &Port) -> String {
    let number = port.number;
    match port.protocol {
        Protocol::Tcp => format!(
            "`ss -ltnp 'sport = :{number}'` shows the program (the kernel's nvmet has none: look into \
             /sys/kernel/config/nvmet); end it, or name another port with --listen"
        ),
        Protocol::Udp => format!(
            "rdma_rxe has it (`rdma link`), or a program (`ss -lunp 'sport = :{number}'`): RDMA works \
             through devices of the kernel alone then"
        ),
    }
}

/// Whether a table as `/proc/net/tcp` has a socket of a state on a port.
fn has_socket(table: &str, port: u16, state: &str) -> bool {
    let mut lines = table.lines().skip(1);
    lines.any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, _, its_state) = (fields.next(), fields.next(), fields.next());
        let its_port = local.and_then(|it| u16::from_str_radix(it.rsplit_once(':')?.1, 16).ok());
        its_port == Some(port) && its_state == Some(state)
    })
}

pub(super) fn firewall(
    machine: &Machine,
    rules: &Result<String, String>,
    ports: &[Port],
) -> Finding {
    const CHECK: &str = "firewall";
    let open: Vec<&Port> = ports.iter().filter(|port| port.is_open).collect();
    let names = |ports: &[&Port]| {
        let names: Vec<String> = ports.iter().map(ToString::to_string).collect();
        names.join(" and ")
    };
    let rules = match rules {
        Ok(rules) => rules,
        Err(why) => {
            return Finding::warn(
                CHECK,
                format!("its rules cannot be read: {why}"),
                format!(
                    "as root, look whether `nft list ruleset` (or `iptables -S INPUT`) lets {} in",
                    names(&open)
                ),
            );
        }
    };
    // The tables of the older iptables are in no ruleset of nftables.
    let older = ["ip_tables_names", "ip6_tables_names"]
        .map(|name| machine.read(&format!("/proc/net/{name}")));
    let filters = |table: &String| table.lines().any(|line| line == "filter");
    if older.iter().flatten().any(filters) {
        return Finding::warn(
            CHECK,
            "the older iptables has rules, which are not looked at",
            format!(
                "look whether `iptables-legacy -S INPUT` and `ip6tables-legacy -S INPUT` let {} in",
                names(&open)
            ),
        );
    }
    if !drops_input(rules) {
        return Finding::ok(CHECK, "no rule of nftables refuses what comes in unasked");
    }
    let word = |port: &Port| match port.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    };
    let missing: Vec<String> = open
        .iter()
        .filter(|port| !lets_in(rules, word(port), port.number))
        .map(|port| format!("{} dport {}", word(port), port.number))
        .collect();
    if missing.is_empty() {
        return Finding::ok(CHECK, format!("it lets {} in", names(&open)));
    }
    let commands: Vec<String> = missing
        .iter()
        .map(|what| format!("`nft add rule inet filter input {what} accept`"))
        .collect();
    Finding::warn(
        CHECK,
        format!(
            "it refuses what comes in unasked, and no rule accepts {}: hosts elsewhere cannot connect",
            missing.join(" and ")
        ),
        format!(
            "{} (with the table and chain that you have)",
            commands.join(" and ")
        ),
    )
}

/// Whether a chain at the input hook drops or rejects what no rule accepts.
fn drops_input(rules: &str) -> bool {
    let mut is_input = false;
    for line in rules.lines().map(str::trim) {
        if line.starts_with("chain ") {
            is_input = false;
        }
        if line.contains("hook input") {
            is_input = true;
            if line.contains("policy drop") {
                return true;
            }
        }
        let verdict = line.split_whitespace().next().unwrap_or_default();
        if is_input && ["drop", "reject", "counter"].contains(&verdict) && !line.contains("accept")
        {
            let refuses = line.contains("drop") || line.contains("reject");
            if refuses {
                return true;
            }
        }
    }
    false
}

/// Whether some rule accepts a port, alone, in a set or in a range.
fn lets_in(rules: &str, protocol: &str, port: u16) -> bool {
    let accepts = |line: &str| {
        let (_, ports) = line.split_once(&format!("{protocol} dport "))?;
        let (ports, _) = ports.split_once(" accept")?;
        let is_in = |part: &str| match part.trim().split_once('-') {
            Some((first, last)) => {
                let bounds = (first.trim().parse::<u16>(), last.trim().parse::<u16>());
                matches!(bounds, (Ok(first), Ok(last)) if (first..=last).contains(&port))
            }
            None => part.split_whitespace().any(|word| word.parse() == Ok(port)),
        };
        Some(ports.replace(['{', '}'], " ").split(',').any(is_in))
    };
    rules.lines().any(|line| accepts(line) == Some(true))
}
