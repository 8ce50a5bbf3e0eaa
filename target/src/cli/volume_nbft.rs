//! `onefold volume nbft`: the table by which a machine boots from a volume.
//!
//! Guarantee: each address in the table is one that the named interfaces reach, and that a host without keys may use.

use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use api::client::Client;
use api::hosts::HostView;
use api::listeners::ListenerView;
use api::namespaces::NamespaceView;
use api::subsystems::SubsystemView;
use clap::Args;
use dedup::ErrorKind;
use fabric::{Scheme, TlsMode, TransportAddress};
use nvme::Nqn;
use nvme::nbft::{Host, Interface, Namespace, Nbft};
use serde::Serialize;
use subsystem::errors::Failure;
use uuid::Uuid;

use super::ask;
use super::run::converse;
use super::subsystem::Answer;
use super::{Outcome, print, print_json};
use crate::options::parse_uuid;

/// Names that hold a UUID begin with this.
const UUID_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// The port number of an address that no listener of the daemon has: the discovery log has none such.
const NO_PORT_ID: u16 = 0;

/// `onefold volume nbft`
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  onefold volume nbft vm1 vm1.nbft --host HOSTNQN \\\n      \
                  --nic 52:54:00:12:34:56=192.0.2.50/24,gateway=192.0.2.254\n  \
                  qemu-system-x86_64 -acpitable file=vm1.nbft ...\n\n\
                  The table (NVM Express Boot Specification) says who the machine is, which addresses its network\n\
                  interfaces have, and where the volume is: `nvme connect-all --nbft` and initramfs tools such as dracut read it.\n\
                  It has no secrets, so the host cannot use TLS or authentication with it."
)]
pub struct NbftArgs {
    /// The volume's name
    name: String,
    /// Where the table goes: a new file, or - for standard output
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The name by which the machine connects
    #[arg(long, value_name = "HOSTNQN")]
    host: Nqn,
    /// The machine's host identifier [default: the UUID in HOSTNQN]
    #[arg(long, value_name = "UUID", value_parser = parse_uuid)]
    host_id: Option<Uuid>,
    /// A network interface of the machine: its MAC address, and the IP address that it gets (repeatable, the preferred one
    /// first)
    #[arg(
        long = "nic",
        value_name = "MAC=ADDR/PREFIX[,gateway=ADDR][,vlan=N][,dns=ADDR]",
        required = true
    )]
    nics: Vec<NicArg>,
    /// The subsystem, where several show the volume
    #[arg(long, value_name = "NQN")]
    subsystem: Option<Nqn>,
    /// Where the machine reaches the target (repeatable) [default: the daemon's TCP listeners]
    #[arg(long = "address", value_name = "tcp://ADDR:PORT")]
    addresses: Vec<TransportAddress>,
    /// Replace a file that exists
    #[arg(long)]
    overwrite: bool,
    /// The daemon to ask, and how to print its answer.
    #[command(flatten)]
    answer: Answer,
}

/// `MAC=ADDR/PREFIX[,gateway=ADDR][,vlan=N][,dns=ADDR][,dns=ADDR]`
#[derive(Clone, Debug, PartialEq, Eq)]
struct NicArg(Interface);

impl FromStr for NicArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!("{why}: write MAC=ADDR/PREFIX, such as 52:54:00:12:34:56=192.0.2.50/24")
        };
        let (mac, rest) = text
            .split_once('=')
            .ok_or_else(|| wrong(&format!("'{text}' has no '='")))?;
        let mac =
            parse_mac(mac).ok_or_else(|| wrong(&format!("'{mac}' is no MAC address of a card")))?;
        let mut parts = rest.split(',');
        let network = parts.next().unwrap_or_default();
        let (address, prefix) = parse_network(network)
            .ok_or_else(|| wrong(&format!("'{network}' is no address of a host and a prefix")))?;
        let mut interface = Interface {
            mac,
            vlan: None,
            address,
            prefix,
            gateway: None,
            dns: [None; 2],
        };
        for part in parts {
            let other = |value: &str| {
                let other: Option<IpAddr> = value.parse().ok();
                other
                    .filter(|other| other.is_ipv4() == address.is_ipv4() && !other.is_unspecified())
                    .ok_or_else(|| format!("'{part}' has no IP address of the family of {address}"))
            };
            match part.split_once('=') {
                Some(("gateway", value)) => interface.gateway = Some(other(value)?),
                Some(("vlan", value)) => {
                    let vlan: Option<u16> = value.parse().ok();
                    let vlan = vlan.filter(|vlan| (1..=4094).contains(vlan));
                    interface.vlan =
                        Some(vlan.ok_or_else(|| format!("'{part}': a VLAN is 1 to 4094"))?);
                }
                Some(("dns", value)) => {
                    let server = Some(other(value)?);
                    let free = interface.dns.iter_mut().find(|slot| slot.is_none());
                    *free.ok_or("a table has room for two dns= of an interface")? = server;
                }
                _ => {
                    return Err(format!(
                        "'{part}' is none of gateway=ADDR, vlan=N, dns=ADDR"
                    ));
                }
            }
        }
        Ok(Self(interface))
    }
}

/// Six bytes with colons or dashes between them, of one card: neither zeros nor a group's.
fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut bytes = text.split([':', '-']);
    for slot in &mut mac {
        let byte = bytes.next()?;
        let is_byte = byte.len() == 2 && byte.bytes().all(|b| b.is_ascii_hexdigit());
        *slot = u8::from_str_radix(byte, 16).ok().filter(|_| is_byte)?;
    }
    let is_of_a_card = mac != [0; 6] && mac[0] & 1 == 0 && bytes.next().is_none();
    is_of_a_card.then_some(mac)
}

fn parse_network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let prefix: u8 = prefix.parse().ok()?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let is_of_a_host = !address.is_unspecified() && !address.is_multicast();
    (is_of_a_host && (1..=bits).contains(&prefix)).then_some((address, prefix))
}

/// Whether an address is in the network of an interface.
fn is_in_network(interface: &Interface, address: IpAddr) -> bool {
    let is_same = |one: u128, other: u128, bits: u32| {
        let beyond = bits.saturating_sub(interface.prefix.into());
        one.checked_shr(beyond) == other.checked_shr(beyond)
    };
    match (interface.address, address) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            is_same(one.to_bits().into(), other.to_bits().into(), u32::BITS)
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => is_same(one.to_bits(), other.to_bits(), u128::BITS),
        _ => false,
    }
}

/// Numbers of the interfaces that lead to an address: those in its network, otherwise those with a gateway.
fn ways(interfaces: &[Interface], address: IpAddr) -> Result<Vec<u8>, Failure> {
    let numbered = || (1_u8..).zip(interfaces);
    let near = numbered().filter(|(_, nic)| is_in_network(nic, address));
    let near: Vec<u8> = near.map(|(number, _)| number).collect();
    if !near.is_empty() {
        return Ok(near);
    }
    let far = numbered()
        .filter(|(_, nic)| nic.address.is_ipv4() == address.is_ipv4() && nic.gateway.is_some());
    let far: Vec<u8> = far.map(|(number, _)| number).collect();
    match far.is_empty() {
        false => Ok(far),
        true => Err(Failure::invalid(format!(
            "no --nic reaches {address}: none is in its network or has a gateway=ADDR; name one that does, or another \
             --address"
        ))),
    }
}

/// What was written.
#[derive(Debug, Serialize)]
struct Written {
    volume: String,
    bytes: usize,
    subsystem: Nqn,
    nsid: u32,
    host: Nqn,
    host_id: Uuid,
    addresses: Vec<String>,
}

/// `onefold volume nbft`
pub(super) fn run(args: &NbftArgs) -> Outcome {
    let client = Client::new(&args.answer.pool.pool);
    let asked = async {
        // A volume that is not there is named first.
        client.volume(&args.name).await?;
        let (subsystems, listeners) = (client.subsystems().await?, client.listeners().await?);
        Ok((subsystems, listeners, client.hosts().await?))
    };
    let (subsystems, listeners, hosts) = converse(asked)?;
    let host_id = host_id(args)?;
    let (subsystem, shown) = place(args, &subsystems)?;
    let addresses = addresses(args, &listeners)?;
    let interfaces: Vec<Interface> = args.nics.iter().map(|nic| nic.0.clone()).collect();
    let namespace = |(address, port_id): &(TransportAddress, u16)| {
        Ok(Namespace {
            address: address.host,
            port: address.port,
            port_id: *port_id,
            subsystem: subsystem.nqn.clone(),
            nsid: shown.nsid,
            uuid: shown.uuid.into_bytes(),
            interfaces: ways(&interfaces, address.host)?,
        })
    };
    let namespaces: Result<Vec<_>, Failure> = addresses.iter().map(namespace).collect();
    let table = Nbft {
        host: Host {
            nqn: args.host.clone(),
            id: host_id.into_bytes(),
        },
        namespaces: namespaces?,
        interfaces,
    };
    let table = table.encode();
    let table = table.map_err(|error| Failure::invalid(error.to_string()))?;
    write(&args.file, args.overwrite, &table)?;
    let known = hosts.iter().find(|it| it.nqn == args.host);
    ask::tell(doubts(&args.host, known, subsystem, shown));
    let written = Written {
        volume: args.name.clone(),
        bytes: table.len(),
        subsystem: subsystem.nqn.clone(),
        nsid: shown.nsid,
        host: args.host.clone(),
        host_id,
        addresses: addresses.iter().map(|(it, _)| it.to_string()).collect(),
    };
    let text = format!(
        "{}: NSID {} of {} at {}, for {}\n",
        written.volume,
        written.nsid,
        written.subsystem,
        written.addresses.join(", "),
        written.host
    );
    match (args.file.as_os_str() == "-", args.answer.json) {
        // Standard output has the table.
        (true, _) => ask::tell([text.trim_end().to_owned()]),
        (false, true) => print_json(&written)?,
        (false, false) => print(&text),
    }
    Ok(ExitCode::SUCCESS)
}

/// The host identifier: what is said, or what the name holds.
fn host_id(args: &NbftArgs) -> Result<Uuid, Failure> {
    let in_name = args.host.as_str().strip_prefix(UUID_NQN);
    let in_name = in_name.and_then(|uuid| uuid.parse().ok());
    let id = args.host_id.or(in_name).ok_or_else(|| {
        Failure::invalid(format!(
            "'{}' holds no UUID: say which one is the host's identifier with --host-id",
            args.host
        ))
    })?;
    match id.is_nil() {
        false => Ok(id),
        true => Err(Failure::invalid(
            "a host identifier of zeros is none: say another one with --host-id",
        )),
    }
}

/// The subsystem that shows the volume, and the namespace by which it does.
fn place<'a>(
    args: &NbftArgs,
    subsystems: &'a [SubsystemView],
) -> Result<(&'a SubsystemView, &'a NamespaceView), Failure> {
    let is_meant = |nqn: &Nqn| args.subsystem.as_ref().is_none_or(|meant| meant == nqn);
    let shows = subsystems
        .iter()
        .filter(|subsystem| is_meant(&subsystem.nqn));
    let shows = shows.filter_map(|subsystem| {
        let mut namespaces = subsystem.namespaces.iter();
        Some((subsystem, namespaces.find(|it| it.volume == args.name)?))
    });
    let shows: Vec<_> = shows.collect();
    match shows.as_slice() {
        [only] => Ok(*only),
        [] => {
            let where_to = args.subsystem.as_ref().map_or("NQN", Nqn::as_str);
            Err(Failure::new(
                ErrorKind::NotFound,
                format!(
                    "volume '{}' is not in {}: `onefold namespace attach {where_to} {}` puts it there",
                    args.name,
                    match &args.subsystem {
                        Some(nqn) => format!("subsystem '{nqn}'"),
                        None => "any subsystem, so no host sees it".to_owned(),
                    },
                    args.name
                ),
            ))
        }
        several => {
            let names: Vec<&str> = several.iter().map(|(it, _)| it.nqn.as_str()).collect();
            Err(Failure::invalid(format!(
                "several subsystems show volume '{}': say which one with --subsystem: {}",
                args.name,
                names.join(", ")
            )))
        }
    }
}

/// Where the machine reaches the target, and the number of the listener there.
fn addresses(
    args: &NbftArgs,
    listeners: &[ListenerView],
) -> Result<Vec<(TransportAddress, u16)>, Failure> {
    if let Some(other) = args.addresses.iter().find(|it| it.scheme != Scheme::Tcp) {
        return Err(Failure::invalid(format!(
            "{other}: a table for booting holds addresses of TCP alone, such as tcp://192.0.2.1:4420"
        )));
    }
    if let Some(all) = args.addresses.iter().find(|it| it.host.is_unspecified()) {
        return Err(Failure::invalid(format!(
            "{all} is every address of the node: say one that the machine reaches"
        )));
    }
    if !args.addresses.is_empty() {
        let port_of = |address: &TransportAddress| {
            let mut all = listeners.iter();
            all.find(|it| it.address == *address)
                .map_or(NO_PORT_ID, |it| it.id)
        };
        return Ok(args.addresses.iter().map(|it| (*it, port_of(it))).collect());
    }
    let fits = |listener: &&ListenerView| {
        listener.address.scheme == Scheme::Tcp
            && !listener.address.host.is_unspecified()
            && listener.tls != TlsMode::Required
    };
    let found = listeners.iter().filter(fits).map(|it| (it.address, it.id));
    let found: Vec<_> = found.collect();
    match found.is_empty() {
        false => Ok(found),
        true => Err(Failure::invalid(
            "the daemon has no listener for the table, which is one for TCP at an address of its own that takes hosts \
             without TLS: say where the machine reaches the daemon with --address tcp://ADDR:PORT",
        )),
    }
}

/// What would keep the machine from its volume now.
fn doubts(
    host: &Nqn,
    known: Option<&HostView>,
    subsystem: &SubsystemView,
    shown: &NamespaceView,
) -> Vec<String> {
    let mut doubts = Vec::new();
    if known.is_some_and(|known| known.dhchap_secret.is_some() || known.tls_only) {
        doubts.push(
            "The host has to show a secret or a key, and the table has none: its initramfs needs it from elsewhere."
                .to_owned(),
        );
    }
    if !subsystem.allow_any_host && !subsystem.hosts.contains(host) {
        doubts.push(format!(
            "Subsystem '{0}' does not admit the host yet: `onefold subsystem allow {0} {host}`.",
            subsystem.nqn
        ));
    }
    let hosts = shown.hosts.as_ref();
    if hosts.is_some_and(|hosts| !hosts.contains(host)) {
        doubts.push(format!(
            "Namespace {0} is hidden from the host: `onefold namespace set {1} {0} --hosts HOSTNQN,...` says who sees it.",
            shown.nsid, subsystem.nqn
        ));
    }
    doubts
}

fn write(path: &Path, overwrite: bool, table: &[u8]) -> Result<(), Failure> {
    let failed = |error: io::Error| {
        let name = path.display();
        match error.kind() {
            io::ErrorKind::AlreadyExists => Failure::invalid(format!(
                "'{name}' exists already: name another file, or replace it with --overwrite"
            )),
            _ => Failure::unavailable(format!("'{name}' cannot be written: {error}")),
        }
    };
    if path.as_os_str() == "-" {
        return io::stdout().lock().write_all(table).map_err(failed);
    }
    let mut options = File::options();
    match overwrite {
        true => options.write(true).create(true).truncate(true),
        false => options.write(true).create_new(true),
    };
    let mut file = options.open(path).map_err(failed)?;
    file.write_all(table).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(text: &str) -> Interface {
        let nic: NicArg = text.parse().expect(text);
        nic.0
    }

    #[test]
    fn an_interface_is_read_as_it_is_written() {
        let one = nic(
            "52:54:00:12:34:56=192.0.2.50/24,gateway=192.0.2.254,vlan=7,dns=192.0.2.1,dns=192.0.2.2",
        );
        assert_eq!(one.mac, [0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        assert_eq!(
            (one.address.to_string(), one.prefix),
            ("192.0.2.50".to_owned(), 24)
        );
        assert_eq!(one.vlan, Some(7));
        assert_eq!(one.gateway, "192.0.2.254".parse().ok());
        assert_eq!(
            one.dns,
            ["192.0.2.1", "192.0.2.2"].map(|it| it.parse().ok())
        );
        let other = nic("52-54-00-AB-cd-ef=fd77::2/64");
        assert_eq!(other.mac[3..], [0xab, 0xcd, 0xef]);
        assert_eq!(other.prefix, 64);
    }

    #[test]
    fn an_interface_that_cannot_be_is_refused_with_what_is_wrong() {
        for (text, says) in [
            ("192.0.2.50/24", "no '='"),
            ("52:54:00:12:34=192.0.2.50/24", "52:54:00:12:34"),
            ("52:54:00:12:34:56:78=192.0.2.50/24", "MAC"),
            ("00:00:00:00:00:00=192.0.2.50/24", "MAC"),
            ("01:00:5e:00:00:01=192.0.2.50/24", "MAC"),
            ("+2:54:00:12:34:56=192.0.2.50/24", "MAC"),
            ("52:54:00:12:34:56=192.0.2.50", "prefix"),
            ("52:54:00:12:34:56=192.0.2.50/33", "prefix"),
            ("52:54:00:12:34:56=192.0.2.50/0", "prefix"),
            ("52:54:00:12:34:56=0.0.0.0/24", "address of a host"),
            ("52:54:00:12:34:56=192.0.2.50/24,gateway=fd77::1", "family"),
            ("52:54:00:12:34:56=192.0.2.50/24,vlan=4095", "4094"),
            ("52:54:00:12:34:56=192.0.2.50/24,mtu=9000", "mtu=9000"),
            (
                "52:54:00:12:34:56=192.0.2.50/24,dns=192.0.2.1,dns=192.0.2.2,dns=192.0.2.3",
                "two",
            ),
        ] {
            let error = text.parse::<NicArg>().expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn the_way_to_an_address_leads_through_its_network_and_otherwise_through_a_gateway() {
        let nics = [
            nic("52:54:00:00:00:01=192.0.2.50/24"),
            nic("52:54:00:00:00:02=198.51.100.50/24,gateway=198.51.100.1"),
            nic("52:54:00:00:00:03=fd77::2/64"),
            nic("52:54:00:00:00:04=192.0.2.51/32"),
        ];
        let to = |address: &str| ways(&nics, address.parse().expect("an address"));
        assert_eq!(to("192.0.2.1"), Ok(vec![1]));
        assert_eq!(to("192.0.3.1"), Ok(vec![2]));
        assert_eq!(to("fd77::1"), Ok(vec![3]));
        assert_eq!(to("192.0.2.51"), Ok(vec![1, 4]));
        let error = to("fd78::1").expect_err("there is no gateway of its family");
        assert!(error.message.contains("fd78::1"), "{error}");
    }
}
