//! The commands, and what several of them take. The arguments of a noun stand with its command.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::ana::AnaCommand;
use super::bench::BenchCommand;
use super::cluster::ClusterCommand;
use super::config::ConfigCommand;
use super::default_pool::default_pool;
use super::discover::DiscoverArgs;
use super::doctor::DoctorArgs;
use super::drive::DriveCommand;
use super::estimate::EstimateArgs;
use super::events::EventsArgs;
use super::exports::ExportCommand;
use super::generate::{CompletionsArgs, ManArgs};
use super::host::HostCommand;
use super::listener::ListenerCommand;
use super::perf::PerfArgs;
use super::pool::PoolCommand;
use super::receive::ReceiveArgs;
use super::reservation::ReservationCommand;
use super::scrub::ScrubCommand;
use super::send::SendArgs;
use super::sled::SledCommand;
use super::snapshot::SnapshotCommand;
use super::status::StatusArgs;
use super::subsystem::{NamespaceCommand, ReferralCommand, SubsystemCommand};
use super::task::TaskCommand;
use super::token::TokenCommand;
use super::top::TopArgs;
use super::trace::TraceArgs;
use super::volume::VolumeCommand;
use crate::options::{POOL_VARIABLE, ServeArgs};

/// Onefold: an NVMe-oF target that stores every block once.
#[derive(Debug, Parser)]
#[command(
    name = "onefold",
    version,
    about,
    long_about = None,
    after_help = "Examples:\n  onefold serve\n  onefold status\n  onefold volume create backup --size 1T\n\n\
                  Sizes are bytes, or a number with k, M, G or T (binary).\n\
                  ONEFOLD_POOL names the pool of commands without --pool (default: ./onefold-data, or\n\
                  the pool of /etc/onefold/onefold.toml where only that is).\n\
                  ONEFOLD_LOG sets what is logged to standard error (default: info)."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Open a pool and serve its volumes to hosts, in the foreground
    Serve(Box<ServeArgs>),
    /// Check and reload the file of `onefold serve`; export and import what is configured in a pool
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Create, list, show, resize and delete volumes of a running daemon
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// List and add drives of a running daemon
    #[command(subcommand)]
    Drive(DriveCommand),
    /// Take, list and delete snapshots of a running daemon's volumes, and roll back to them
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Write a snapshot, or its changes since another one, to standard output, for `onefold receive`
    Send(SendArgs),
    /// Make a volume with its snapshot out of what `onefold send` wrote, or bring its changes to one
    Receive(ReceiveArgs),
    /// Create, list, show, change and delete subsystems of a running daemon, and say who may use them
    #[command(subcommand)]
    Subsystem(SubsystemCommand),
    /// Make volumes namespaces of subsystems, and say how they are shown
    #[command(subcommand)]
    Namespace(NamespaceCommand),
    /// Keep keys by which hosts authenticate, and make some
    #[command(subcommand)]
    Host(HostCommand),
    /// Add, remove and list listeners of a running daemon
    #[command(subcommand)]
    Listener(ListenerCommand),
    /// Make volumes of a running daemon reachable for virtual machines
    #[command(subcommand)]
    Export(ExportCommand),
    /// Tell hosts of other discovery services
    #[command(subcommand)]
    Referral(ReferralCommand),
    /// Show and set how listeners reach namespaces: which paths hosts use
    #[command(subcommand)]
    Ana(AnaCommand),
    /// Show and clear reservations of a running daemon's volumes
    #[command(subcommand)]
    Reservation(ReservationCommand),
    /// Make, list and remove tokens for the API of a running daemon over HTTP
    #[command(subcommand)]
    Token(TokenCommand),
    /// Show a running daemon's volumes, attached hosts and space
    Status(StatusArgs),
    /// Show live what volumes, hosts and reactors do
    Top(TopArgs),
    /// Show what happened: hosts that came and went, changes and who made them, alerts
    Events(EventsArgs),
    /// Show a host's commands live, and where their time goes
    Trace(TraceArgs),
    /// Read all data of a running daemon in the background, and prove it
    #[command(subcommand)]
    Scrub(ScrubCommand),
    /// List, show and cancel what a daemon works at for a while
    #[command(subcommand)]
    Task(TaskCommand),
    /// Check and repair a pool
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Show the pools of a Ceph cluster, or on sleds, and the nodes that offer them, and drain a node
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Serve raw drives to pools of other machines
    #[command(subcommand)]
    Sled(SledCommand),
    /// Ask a target which subsystems it offers
    Discover(DiscoverArgs),
    /// Load a target over its network interface, verify the data, and report like fio
    Perf(PerfArgs),
    /// Measure this machine: the engine beside the machine's own limits
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Tell what deduplication and compression would save on files, folders or devices; only reads
    Estimate(EstimateArgs),
    /// Look whether this machine suits a target, and say what to do
    Doctor(DoctorArgs),
    /// Print a script that completes commands in a shell
    Completions(CompletionsArgs),
    /// Write the manual pages of all commands
    Man(ManArgs),
}

/// The pool whose daemon is asked.
#[derive(Clone, Debug, Args)]
pub struct PoolArg {
    /// The pool's folder
    #[arg(long, value_name = "DIR", default_value = default_pool(), env = POOL_VARIABLE, hide_env_values = true)]
    pub pool: PathBuf,
}
