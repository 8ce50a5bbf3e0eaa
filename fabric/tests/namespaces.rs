//! A target and a host in network namespaces of their own, with a cable between them: what loopback
//! does not show. Needs root and `ip` (iproute2); says so and does nothing where they are missing.

#![allow(clippy::print_stdout)]

mod common;

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use fabric::{Device, DeviceConfig, HostQueue};
use futures_util::future::join_all;
use nvme::Status;
use roce::cm;
use roce::endpoint::{Path, PathMtu};
use roce::wire::cm::{CmTimeout, Message, tcp_service_id};
use roce::wire::icrc::{self, Flow};
use roce::wire::{Packet, Psn, UDP_PORT};

/// Which part of a test a child process plays, and between which addresses.
const ROLE: &str = "ONEFOLD_TEST_ROLE";

/// Two namespaces, `t` with 10.88.0.1 and fd88::1 and `h` with 10.88.0.2 and fd88::2, and a cable
/// between them. They go with the value.
struct Cable {
    name: String,
}

impl Cable {
    /// None, and a word about why, if this machine or this user cannot have namespaces.
    fn lay(mtu: u32) -> Option<Self> {
        let random = getrandom::u32().expect("randomness");
        let name = format!("of{random:08x}");
        let cable = Self { name };
        let steps = [
            format!("netns add {}t", cable.name),
            format!("netns add {}h", cable.name),
            format!(
                "-n {0}t link add v type veth peer name v netns {0}h",
                cable.name
            ),
        ];
        if let Err(error) = steps.iter().try_for_each(|step| ip(step)) {
            left_out(format_args!("no network namespaces here: {error}"));
            return None;
        }
        for (side, number) in [("t", 1), ("h", 2)] {
            for step in [
                format!("addr add 10.88.0.{number}/24 dev v"),
                format!("addr add fd88::{number}/64 dev v nodad"),
                format!("link set v mtu {mtu} addrgenmode eui64"),
                "link set lo up".into(),
                "link set v up".into(),
            ] {
                ip(&format!("-n {}{side} {step}", cable.name)).expect("a namespace of our own");
            }
        }
        Some(cable)
    }

    /// Makes the network of a side lose packets: by netem, which also delays and doubles them, or by a rule of nftables
    /// where the kernel has no netem.
    fn spoil(&self, side: &str) -> Result<(), String> {
        let run = |program: &str, arguments: &str| {
            let output = self
                .inside(side, program)
                .args(arguments.split(' '))
                .output();
            match output {
                Ok(output) if output.status.success() => Ok(()),
                Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
                Err(error) => Err(error.to_string()),
            }
        };
        let netem = "qdisc add dev v root netem loss 1% duplicate 0.5% delay 200us 100us";
        run("tc", netem).or_else(|no_netem| {
            let rules = [
                "add table inet cable",
                "add chain inet cable arriving { type filter hook prerouting priority 0 ; }",
                "add rule inet cable arriving meta l4proto udp numgen random mod 100 < 1 drop",
            ];
            let lost = rules.iter().try_for_each(|rule| run("nft", rule));
            lost.map_err(|no_rules| format!("{no_netem}; {no_rules}"))
        })
    }

    fn inside(&self, side: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{}{side}", self.name)]);
        command.arg(program);
        command
    }

    /// Runs this program's test `name` in a role; it says "ready" when others may begin.
    fn play(&self, side: &str, name: &str, role: &str) -> Player {
        let program = std::env::current_exe().expect("this program");
        let mut child = self
            .inside(side, program)
            .args(["--exact", name, "--nocapture"])
            .env(ROLE, role)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = lines
            .by_ref()
            .any(|line| line.is_ok_and(|l| l.contains("ready")));
        assert!(ready, "{role} ended before it was ready");
        std::thread::spawn(move || lines.for_each(|line| println!("{}", line.unwrap_or_default())));
        Player(child)
    }

    /// The link-local address and interface index of a side, once the address can be used.
    fn link_local(&self, side: &str) -> (Ipv6Addr, u32) {
        let start = Instant::now();
        loop {
            let shown = self
                .inside(side, "cat")
                .arg("/proc/net/if_inet6")
                .output()
                .expect("cat");
            // Address, index, prefix length, scope, flags, name; 0x40 in the flags is "tentative".
            for line in String::from_utf8_lossy(&shown.stdout).lines() {
                let fields: Vec<&str> = line.split_whitespace().collect();
                if let [address, index, _, "20", flags, "v"] = fields[..]
                    && u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & 0x40 == 0)
                {
                    let address = u128::from_str_radix(address, 16).expect("hexadecimal");
                    let index = u32::from_str_radix(index, 16).expect("hexadecimal");
                    return (Ipv6Addr::from_bits(address), index);
                }
            }
            assert!(start.elapsed() < Duration::from_secs(60), "no address");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for side in ["t", "h"] {
            let _ = ip(&format!("netns del {}{side}", self.name));
        }
    }
}

/// A child process; killed when the value goes.
struct Player(Child);

impl Player {
    fn end(mut self) {
        let status = self.0.wait().expect("the child's end");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments.split_whitespace())
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {arguments}: {}", said.trim()))
}

/// Serves on every address until it is killed.
fn serve() {
    run(async {
        let device = Device::open(DeviceConfig::wildcard()).expect("a device");
        let _target = Target::start_on(device);
        println!("ready");
        std::future::pending::<()>().await;
    });
}

/// Writes and reads back through a queue, and prints what the device counted.
fn use_target(target: IpAddr, own: IpAddr) {
    run(async {
        let host = Device::open(DeviceConfig::on(vec![own])).expect("a device");
        let queue = HostQueue::connect(&host.clone().into(), (target, PORT), IO)
            .await
            .expect("a queue");
        let queue = &queue;
        for (count, len) in [(64, 4096), (24, 131_072), (4, 1 << 20)] {
            join_all((0..count).map(|n| async move {
                let data = pattern((n + len) as u64, len);
                assert_eq!(write(queue, n * len, &data).await, Status::SUCCESS);
                assert!(
                    read(queue, n * len, len).await == data,
                    "{n} of {len} bytes"
                );
            }))
            .await;
        }
        let counters = host.counters();
        assert_eq!(counters.icrc_errors, 0);
        println!("{:?}", counters.endpoint);
        host.shutdown().await;
    });
}

/// Segments are cut by the kernel and packets really travel; then some are lost, and where the kernel has netem, late
/// and doubled too.
#[test]
fn data_is_right_over_a_cable_and_over_a_bad_one() {
    const NAME: &str = "data_is_right_over_a_cable_and_over_a_bad_one";
    match std::env::var(ROLE) {
        Ok(role) if role == "target" => return serve(),
        Ok(role) => {
            println!("ready");
            let words: Vec<&str> = role.split(' ').collect();
            let [target, own] = [1, 2].map(|word| words[word].parse().expect("an address"));
            return use_target(target, own);
        }
        Err(_) => {}
    }
    let Some(cable) = Cable::lay(1500) else {
        return;
    };
    let _target = cable.play("t", NAME, "target");
    let hosts = ["host 10.88.0.1 10.88.0.2", "host fd88::1 fd88::2"];
    for host in hosts {
        cable.play("h", NAME, host).end();
    }
    if let Err(why) = ["t", "h"].iter().try_for_each(|side| cable.spoil(side)) {
        return left_out(format_args!("nothing here loses packets: {why}"));
    }
    for host in hosts {
        cable.play("h", NAME, host).end();
    }
}

/// Asks a target for a connection as a host does, from a plain socket, and gives the answer.
fn ask(local: SocketAddrV6, target: SocketAddrV6) -> Message {
    let path = Path {
        local: IpAddr::V6(*local.ip()),
        remote: IpAddr::V6(*target.ip()),
    };
    let mut manager = cm::Manager::new(cm::Config::default(), [5; 32]);
    let asks = nvme::rdma_cm::RdmaCmRequest {
        qid: 0,
        hrqsize: 32,
        hsqsize: 31,
        cntlid: 0,
    };
    let connect = cm::Connect {
        path,
        service_id: tcp_service_id(PORT),
        local: cm::Local {
            qpn: 77,
            starting_psn: Psn::new(1),
            responder_resources: 16,
            initiator_depth: 0,
            ack_timeout: CmTimeout::from_code(17),
            retry_count: 7,
            rnr_retry_count: 7,
        },
        mtu: PathMtu::Mtu1024,
        private_data: asks.encode().to_vec(),
    };
    manager.connect(Instant::now(), connect).expect("room");
    let request = manager.poll_transmit().expect("a request");
    let mut bytes = Vec::new();
    request.packet(Psn::new(1)).write(&mut bytes);
    let flow = Flow::new(path.local, path.remote, local.port());
    let sum = icrc::compute(&flow, 0, &bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());

    let socket = UdpSocket::bind(local).expect("the RoCE port");
    socket
        .set_read_timeout(Some(Duration::from_secs(1)))
        .expect("a timeout");
    for _ in 0..30 {
        socket.send_to(&bytes, target).expect("sent");
        let mut answer = [0; 2048];
        if let Ok((len, from)) = socket.recv_from(&mut answer) {
            assert_eq!(from.ip(), path.remote, "from where it was asked");
            let packet = Packet::parse(&answer[..len - icrc::LEN]).expect("a packet");
            return Message::parse(packet.payload).expect("a message").1;
        }
    }
    panic!("{local} got no answer from {target}");
}

/// An IPv6 host whose own address is not ready yet asks from its link-local one, which says nothing
/// without the interface; so do hosts that were told the target's link-local address.
#[test]
fn a_host_that_asks_from_or_to_a_link_local_address_is_answered() {
    const NAME: &str = "a_host_that_asks_from_or_to_a_link_local_address_is_answered";
    match std::env::var(ROLE) {
        Ok(role) if role == "target" => return serve(),
        Ok(role) => {
            println!("ready");
            let words: Vec<&str> = role.split(' ').collect();
            let [local, target] = [1, 2].map(|word| words[word].parse().expect("an address"));
            let index = words[3].parse().expect("an index");
            let answer = ask(
                SocketAddrV6::new(local, UDP_PORT, 0, index),
                SocketAddrV6::new(target, UDP_PORT, 0, index),
            );
            assert!(matches!(answer, Message::Rep(_)), "{answer:?}");
            return;
        }
        Err(_) => {}
    }
    let Some(cable) = Cable::lay(1500) else {
        return;
    };
    let _target = cable.play("t", NAME, "target");
    let (of_target, _) = cable.link_local("t");
    let (own, index) = cable.link_local("h");
    let global = |number: u16| Ipv6Addr::new(0xfd88, 0, 0, 0, 0, 0, 0, number);
    for (local, target) in [
        (global(2), global(1)),
        (own, global(1)),
        (own, of_target),
        (global(2), of_target),
    ] {
        let role = format!("host {local} {target} {index}");
        cable.play("h", NAME, &role).end();
    }
}
