//! The commands but `serve`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bench::perf::{Interrupt, Limit, Options, OptionsError, PerfError};
use dedup::{CheckOptions, CheckReport, DamageStatus, ErrorKind};
use fabric::{Connector, Scheme, TcpHostConfig};
use nvme::log::{DiscoveryEntry, DiscoverySubtype, Transport};
use tokio::signal::unix::{SignalKind, signal};

use super::args::{DiscoverArgs, PerfArgs, StatusArgs, VolumeCommand};
use super::ask::{self, Attached};
use super::{Exit, Outcome, print, print_json};
use crate::api::{CreateVolume, ResizeVolume, VolumeView};
use crate::client::Client;
use crate::errors::{EXIT_FAILED, EXIT_INCONSISTENT, EXIT_INTERRUPTED, Failure};
use crate::size::format_human;
use crate::socket::is_served;
use crate::status::{Align, nsid_text, render, table};

/// Runs a conversation with the daemon.
pub(super) fn converse<T>(talk: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::new(ErrorKind::Internal, format!("cannot start: {e}")))?;
    runtime.block_on(talk)
}

/// `onefold volume ...`
pub(super) fn volume(command: VolumeCommand) -> Outcome {
    match command {
        VolumeCommand::Create {
            name,
            size,
            lba,
            dedup,
            compression,
            verify,
            domain,
            subsystem,
            uuid,
            pool,
            json,
        } => {
            let request = CreateVolume {
                name,
                size_bytes: size,
                lba_bytes: lba,
                dedup,
                compression,
                verify,
                domain,
                subsystem,
                uuid,
            };
            let client = Client::new(&pool.pool);
            let view = converse(client.create_volume(&request))?;
            let done = show_volume("created", &view, json)?;
            let open = converse(client.subsystems())?
                .into_iter()
                .find(|subsystem| {
                    let mut shown = subsystem.namespaces.iter();
                    subsystem.allow_any_host && shown.any(|namespace| namespace.volume == view.name)
                });
            ask::tell(open.map(|subsystem| {
                let nqn = subsystem.nqn;
                format!(
                    "Volume '{}' is in subsystem '{nqn}', which admits any host: `onefold subsystem allow {nqn} \
                     HOSTNQN` admits only hosts on its list.",
                    view.name
                )
            }));
            Ok(done)
        }
        VolumeCommand::List { pool, json } => {
            let views = converse(Client::new(&pool.pool).volumes())?;
            if json {
                print_json(&views)?;
            } else {
                print(&volume_table(&views));
            }
            Ok(ExitCode::SUCCESS)
        }
        VolumeCommand::Show { name, pool, json } => {
            let view = converse(Client::new(&pool.pool).volume(&name))?;
            show_volume("", &view, json)
        }
        VolumeCommand::Resize {
            name,
            size,
            shrink,
            pool,
            json,
        } => {
            let request = ResizeVolume {
                size_bytes: size,
                shrink,
            };
            let view = converse(Client::new(&pool.pool).resize_volume(&name, &request))?;
            show_volume("resized", &view, json)
        }
        VolumeCommand::Delete {
            name,
            yes,
            pool,
            json,
        } => {
            let client = Client::new(&pool.pool);
            let known = async { Ok((client.volume(&name).await?, Attached::of(&client).await?)) };
            let (view, attached) = converse(known)?;
            let facts = attached.facts_of_volume(&name);
            let act = format!(
                "Delete volume '{name}' with {} of data, for good",
                format_human(view.logical_bytes)
            );
            ask::agree(yes, &facts, &act, "its name", &name)?;
            let view = converse(client.delete_volume(&name))?;
            ask::tell(facts);
            show_volume("deleted", &view, json)
        }
    }
}

fn show_volume(done: &str, view: &VolumeView, json: bool) -> Outcome {
    if json {
        print_json(view)?;
    } else if done.is_empty() {
        print(&format!(
            "name         {}\nnsid         {}\nuuid         {}\nnguid        {}\nsize         {} ({} bytes)\n\
             lba          {} bytes\nlogical      {} ({} bytes)\ndedup        {}\ncompression  {}\n\
             verify       {}\ndomain       {}\n",
            view.name,
            nsid_text(&view.namespaces),
            view.uuid,
            view.nguid,
            format_human(view.size_bytes),
            view.size_bytes,
            view.lba_bytes,
            format_human(view.logical_bytes),
            view.logical_bytes,
            on_or_off(view.dedup),
            view.compression,
            view.verify,
            domain_name(&view.domain),
        ));
    } else {
        print(&format!(
            "{done} {}: {}, NSID {}, {}-byte blocks\n",
            view.name,
            format_human(view.size_bytes),
            nsid_text(&view.namespaces),
            view.lba_bytes
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The pool's own domain has no name.
const fn domain_name(name: &str) -> &str {
    if name.is_empty() { "-" } else { name }
}

pub(super) const fn on_or_off(switch: bool) -> &'static str {
    if switch { "on" } else { "off" }
}

fn volume_table(views: &[VolumeView]) -> String {
    if views.is_empty() {
        return "There is no volume: `onefold volume create NAME --size SIZE` makes one.\n"
            .to_owned();
    }
    let rows: Vec<_> = views
        .iter()
        .map(|view| {
            vec![
                view.name.clone(),
                nsid_text(&view.namespaces),
                format_human(view.size_bytes),
                format_human(view.logical_bytes),
                view.lba_bytes.to_string(),
                on_or_off(view.dedup).to_owned(),
                view.compression.to_string(),
                view.verify.to_string(),
                domain_name(&view.domain).to_owned(),
                view.uuid.clone(),
            ]
        })
        .collect();
    table(
        &[
            "VOLUME",
            "NSID",
            "SIZE",
            "LOGICAL",
            "LBA",
            "DEDUP",
            "COMPRESSION",
            "VERIFY",
            "DOMAIN",
            "UUID",
        ],
        &rows,
        &[
            Align::Left,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Right,
            Align::Left,
            Align::Left,
            Align::Left,
            Align::Left,
            Align::Left,
        ],
    )
}

/// `onefold status`
pub(super) fn status(args: &StatusArgs) -> Outcome {
    let pool = &args.pool.pool;
    let client = Client::new(pool);
    if args.survey {
        converse(client.survey())?;
    }
    if args.json {
        print_json(&converse(client.status())?)?;
    } else {
        let talk = async { Ok((client.status().await?, client.space_detail().await?)) };
        let (status, detail) = converse(talk)?;
        print(&render(&status, &detail, &pool.display().to_string()));
    }
    Ok(ExitCode::SUCCESS)
}

/// `onefold pool check`: 0 consistent, 2 inconsistent, 1 could not run.
pub(super) fn pool_check(dir: &Path, data: bool, json: bool) -> Outcome {
    let report = dedup::check_pool(dir, CheckOptions { data })
        .map_err(|error| Exit::could_not_run(unless_online(error.into(), dir)))?;
    if json {
        print_json(&report).map_err(Exit::could_not_run)?;
    } else {
        print(&check_text(&report, dir));
    }
    Ok(if report.consistent {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_INCONSISTENT)
    })
}

/// A pool that a daemon serves can be checked all the same.
fn unless_online(mut failure: Failure, dir: &Path) -> Failure {
    if failure.kind == ErrorKind::Unavailable && is_served(dir) {
        failure.message += ", or check the pool while it is served: --online";
    }
    failure
}

fn check_text(report: &CheckReport, dir: &Path) -> String {
    let mut text = format!(
        "{}: {}\nvolumes {}, mappings {}, blocks {}, journal records {}, data blocks compared {}\n",
        dir.display(),
        verdict(&Checked {
            findings: report.findings_total - report.findings_of_data,
            damage: &report.damage,
            not_looked_at: &report.not_looked_at,
        }),
        report.volumes,
        report.mappings,
        report.blocks,
        report.journal_records,
        report.data_blocks_checked,
    );
    if report.unproven > 0 {
        text += &format!(
            "{} sub-blocks whose unflushed data was lost return to their old content when the pool is opened\n",
            report.unproven
        );
    }
    if report.duplicate_fingerprints > 0 {
        text += &format!(
            "{} blocks hold content that another block holds too (wasted, not wrong)\n",
            report.duplicate_fingerprints
        );
    }
    for finding in &report.findings {
        text += &format!("{}: {}\n", finding.object, finding.detail);
    }
    let more = report
        .findings_total
        .saturating_sub(report.findings.len() as u64);
    if more > 0 {
        text += &format!("... and {more} more\n");
    }
    text + &advice(&report.damage, &report.not_looked_at)
}

/// What a check's verdict is made of.
pub(super) struct Checked<'a> {
    /// Findings about maps, counts and files.
    pub(super) findings: u64,
    /// Damaged data.
    pub(super) damage: &'a DamageStatus,
    /// What was not looked at.
    pub(super) not_looked_at: &'a [String],
}

/// One verdict, offline as online.
pub(super) fn verdict(checked: &Checked<'_>) -> &'static str {
    if checked.findings > 0 {
        "INCONSISTENT"
    } else if checked.damage.damaged_blocks > 0 {
        "DAMAGED DATA (maps and counts are consistent)"
    } else if checked.not_looked_at.is_empty() {
        "consistent"
    } else {
        "consistent, as far as it was looked at"
    }
}

/// What is damaged, what helps, and what was not looked at.
pub(super) fn advice(damage: &DamageStatus, not_looked_at: &[String]) -> String {
    let mut text = super::scrub::damage_text(damage);
    if damage.damaged_blocks > 0 {
        text += "What helps: write these ranges again from a backup, or trim them. A repair cannot bring data back.\n";
    }
    for what in not_looked_at {
        text += &format!("not looked at: {what}\n");
    }
    text
}

/// Runs host-side work on a reactor of its own, on this thread.
pub(super) fn on_reactor<T>(
    buffer_bytes: usize,
    work: impl Future<Output = T>,
) -> Result<T, Failure> {
    let config = reactor::Config {
        name: "onefold-host".to_owned(),
        buffer_pool: reactor::PoolConfig {
            bytes: buffer_bytes,
        },
        ..reactor::Config::default()
    };
    reactor::run(config, work)
        .map_err(|e| Failure::unavailable(format!("the reactor cannot start: {e}")))
}

/// Memory for discovery: a few admin commands.
const DISCOVER_BUFFER_BYTES: usize = 4 << 20;

/// An entry of the discovery log as `discover --json` prints it.
#[derive(serde::Serialize)]
struct Offer {
    transport: &'static str,
    address: String,
    port: String,
    subsystem: String,
    kind: &'static str,
}

impl From<&DiscoveryEntry> for Offer {
    fn from(entry: &DiscoveryEntry) -> Self {
        Self {
            transport: match entry.transport {
                Transport::Rdma { .. } => "rdma",
                Transport::Tcp { .. } => "tcp",
            },
            address: entry.traddr.clone(),
            port: entry.trsvcid.clone(),
            subsystem: entry.subnqn.to_string(),
            kind: match entry.subtype {
                DiscoverySubtype::Nvme => "nvme",
                DiscoverySubtype::Referral => "referral",
                DiscoverySubtype::CurrentDiscovery => "discovery",
            },
        }
    }
}

/// `onefold discover`
pub(super) fn discover(args: &DiscoverArgs) -> Outcome {
    let address = args.address;
    let host = initiator::Host::of(args.hostnqn.as_ref());
    let tls = args
        .tls
        .config(args.hostnqn.as_ref(), nvme::nqn::DISCOVERY)?;
    if tls.is_some() && address.scheme != Scheme::Tcp {
        let error = OptionsError::Tls {
            scheme: address.scheme,
        };
        return Err(Failure::invalid(error.to_string()).into());
    }
    let work = async move {
        let connector = match tls {
            Some(_) => Connector::tcp(TcpHostConfig {
                tls,
                ..TcpHostConfig::default()
            }),
            None => {
                Connector::to_reach(&address).map_err(|e| Failure::unavailable(e.to_string()))?
            }
        };
        let entries = initiator::discover(&connector, address.socket_addr(), host)
            .await
            .map_err(|e| Failure::unavailable(e.to_string()))?;
        connector.shutdown().await;
        Ok::<_, Failure>(entries)
    };
    let entries = on_reactor(DISCOVER_BUFFER_BYTES, work)??;
    let offers: Vec<Offer> = entries.iter().map(Offer::from).collect();
    if args.json {
        print_json(&offers)?;
    } else if offers.is_empty() {
        print("The target offers nothing at this address.\n");
    } else {
        let rows: Vec<_> = offers
            .into_iter()
            .map(|o| {
                vec![
                    o.transport.into(),
                    o.address,
                    o.port,
                    o.kind.into(),
                    o.subsystem,
                ]
            })
            .collect();
        let headings = ["TRANSPORT", "ADDRESS", "PORT", "KIND", "SUBSYSTEM"];
        print(&table(&headings, &rows, &[Align::Left; 5]));
    }
    Ok(ExitCode::SUCCESS)
}

/// Memory that every load needs, besides its data.
const PERF_BUFFER_BYTES_MIN: usize = 8 << 20;

/// `onefold perf`: 0 all right, 2 wrong data was read, 1 commands failed, nothing was verified that should have been,
/// or it could not run, 130 it was interrupted.
pub(super) fn perf(args: PerfArgs) -> Outcome {
    let limit = match (args.time, args.size) {
        (Some(seconds), _) => Limit::Time(Duration::from_secs(seconds)),
        (None, Some(bytes)) => Limit::Bytes(bytes),
        (None, None) => return Err(Failure::invalid("perf needs --time or --size").into()),
    };
    let block_bytes = usize::try_from(args.bs)
        .ok()
        .filter(|bs| (1..=reactor::MAX_BUFFER_BYTES).contains(bs))
        .ok_or_else(|| Failure::invalid(format!("--bs {} is no usable block size", args.bs)))?;
    if args.verify && args.rw.only_reads() && args.seed.is_none() {
        return Err(Failure::invalid(
            "--verify cannot know what is to be read: name the --seed that it was written with",
        )
        .into());
    }
    // Without a seed no run repeats what another one wrote.
    let seed = args
        .seed
        .unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().1);
    let (host, subsystem) = (args.identity.hostnqn.as_ref(), &args.subsystem.nqn);
    let tls = args.tls.config(host, subsystem.as_str())?;
    let options = Options {
        address: args.subsystem.address,
        subsystem: args.subsystem.nqn,
        nsid: args.nsid,
        pattern: args.rw,
        block_bytes,
        depth: args.qd,
        queues: args.queues,
        limit,
        range_bytes: args.range,
        duplicate_percent: args.dup,
        zero_percent: args.zero,
        seed,
        verify: args.verify,
        header_digest: args.header_digest,
        data_digest: args.data_digest,
        tls,
        host: args.identity.hostnqn.clone(),
        keys: args.identity.keys()?,
        interrupt: Interrupt::default(),
    };
    options
        .check_alone()
        .map_err(|e| Failure::invalid(e.to_string()))?;
    // Buffers are handed out in powers of two.
    let in_flight = usize::from(options.depth) * usize::from(options.queues);
    let buffer_bytes = block_bytes
        .next_power_of_two()
        .max(4096)
        .saturating_mul(in_flight)
        .saturating_mul(2)
        .max(PERF_BUFFER_BYTES_MIN);
    on_interrupt(&options.interrupt)?;
    let report = on_reactor(buffer_bytes, bench::perf::run(&options))?.map_err(|error| {
        let failure = match &error {
            PerfError::Options(_) => Failure::invalid(error.to_string()),
            _ => Failure::unavailable(error.to_string()),
        };
        Exit::could_not_run(failure)
    })?;
    if args.json {
        print_json(&report)?;
    } else {
        print(&format!("{report}, seed {seed}\n"));
    }
    if let Some(why) = report.nothing_verified() {
        return Err(Exit::could_not_run(Failure::invalid(why)));
    }
    Ok(match (report.verify_errors, report.errors) {
        (0, 0) if report.interrupted => ExitCode::from(EXIT_INTERRUPTED),
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => ExitCode::from(EXIT_FAILED),
        _ => ExitCode::from(EXIT_INCONSISTENT),
    })
}

/// Lets Ctrl-C and SIGTERM end the load, so that it still reports; where it has nothing to report, and when they come
/// again, they end the program at once.
fn on_interrupt(load: &Interrupt) -> Result<(), Failure> {
    let cannot = |e: std::io::Error| {
        Failure::new(ErrorKind::Internal, format!("cannot wait for signals: {e}"))
    };
    let load = load.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(cannot)?;
    let signals = {
        let _here = runtime.enter();
        [SignalKind::interrupt(), SignalKind::terminate()].map(signal)
    };
    let [interrupt, terminate] = signals;
    let (mut interrupt, mut terminate) = (interrupt.map_err(cannot)?, terminate.map_err(cannot)?);
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if !load.set() {
                    std::process::exit(EXIT_INTERRUPTED.into());
                }
            }
        })
    });
    Ok(())
}
