//! The options of `onefold serve` for what hosts may take.

use std::time::Duration;

use clap::Args;
use drives::FLUSH_FACTOR;
use subsystem::limits::{Limits, QueueLimits};

use crate::size::parse_size;
use crate::time::{parse_drive_return, parse_hedge_after, parse_timeout};

/// In-capsule data comes in whole pages.
const PAGE_BYTES: u64 = 4096;
/// The most in-capsule data: larger writes are asked for, which costs less than keeping memory for them.
const IN_CAPSULE_BYTES_MAX: u64 = 128 << 10;

/// Bounds of hosts, queues and the memory that waits for them. What goes beyond is refused with a status
/// that says so, or has to wait; nobody else notices.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "What hosts may take")]
pub struct BoundsArgs {
    /// Hosts at one time [default: 1024; fewer if open files are limited]
    ///
    /// Further ones are told that the controller is busy.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=0xff00))]
    pub hosts: Option<u16>,
    /// I/O queues of a host [default: 128; fewer if open files are limited]
    ///
    /// One that asks for more is granted so many.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub io_queues: Option<u16>,
    /// Commands on an I/O queue [default: 1024 over TCP, 256 over RDMA]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=1024))]
    pub queue_depth: Option<u16>,
    /// Data that a write over TCP may bring along
    ///
    /// 4k to 128k, in steps of 4k. Larger writes are asked for.
    #[arg(long, value_name = "SIZE", default_value = "16k", value_parser = parse_in_capsule)]
    pub in_capsule: u64,
    /// A queue may hold one part in N of its thread's free --buffers
    ///
    /// It begins a command only if it then holds no more.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub queue_share: u16,
    /// The same for all queues of a host together
    ///
    /// One command of each queue is always begun.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub host_share: u16,
    /// Memory beside --buffers for writes over TCP that find none free
    ///
    /// Further ones are told to try again.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    pub tcp_capsules: u64,
    /// Memory for the receives of RDMA queues
    ///
    /// Queues beyond it are refused for lack of resources.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    pub rdma_capsules: u64,
    /// Messages that may wait at an RDMA device, for each data-plane thread
    ///
    /// They are from all hosts of the device; those beyond are sent again. 0: each queue has receives of its own.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(0..=32_768))]
    pub rdma_shared_receives: u32,
    /// TCP connections at each address on each data-plane thread [default: those of all hosts]
    ///
    /// More are closed at once. The limit of open files bounds the default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub tcp_connections: Option<u32>,
    /// How long a TCP connection may stay silent before it speaks NVMe
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_timeout)]
    pub handshake_timeout: Duration,
    /// How long a host may keep the target waiting in the middle of something
    ///
    /// Over TCP: in a PDU, a transfer or an answer.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_timeout)]
    pub stall_timeout: Duration,
    /// The same for a host that holds memory when it is short
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_timeout)]
    pub stall_timeout_short: Duration,
    /// How long a drive may take for what other drives have as well
    ///
    /// In a pool with copies it is offline then. A flush has ten times that.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_timeout, hide_short_help = true)]
    pub drive_timeout: Duration,
    /// Ask another drive too for a read that takes this long; 0: never
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = parse_hedge_after, hide_short_help = true)]
    pub hedge_after: Duration,
    /// Use a drive that failed again after this long, if it answers; 0: never
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_drive_return, hide_short_help = true)]
    pub drive_return: Duration,
}

impl BoundsArgs {
    /// The bounds as the target knows them.
    #[must_use]
    pub fn limits(&self) -> Limits {
        let usual = Limits::default();
        let bytes = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
        Limits {
            controllers: self.hosts.map_or(usual.controllers, usize::from),
            io_queues: self.io_queues.unwrap_or(usual.io_queues),
            rdma: QueueLimits {
                depth: self.queue_depth.unwrap_or(usual.rdma.depth),
                capsule_bytes_max: bytes(self.rdma_capsules),
                ..usual.rdma
            },
            tcp: QueueLimits {
                depth: self.queue_depth.unwrap_or(usual.tcp.depth),
                in_capsule_bytes: bytes(self.in_capsule),
                capsule_bytes_max: bytes(self.tcp_capsules),
            },
            rdma_shared_receives: bytes(self.rdma_shared_receives.into()),
            tcp_connections: match self.tcp_connections {
                Some(asked) => bytes(asked.into()),
                None => usual.tcp_connections,
            },
            queue_share: self.queue_share.into(),
            host_share: self.host_share.into(),
            handshake_timeout: self.handshake_timeout,
            stall_timeout: self.stall_timeout,
            stall_timeout_short: self.stall_timeout_short,
            // A command that writes waits for a transfer, and for a flush after it.
            quiesce_time: self.drive_timeout.saturating_mul(1 + FLUSH_FACTOR),
            ..usual
        }
    }
}

/// Parses the bytes of in-capsule data.
fn parse_in_capsule(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    if bytes.is_multiple_of(PAGE_BYTES) && (PAGE_BYTES..=IN_CAPSULE_BYTES_MAX).contains(&bytes) {
        return Ok(bytes);
    }
    Err(format!("'{text}' is not 4k to 128k in steps of 4k"))
}
