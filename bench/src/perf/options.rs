//! What to run, and whether it can be run.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use fabric::{Connector, DeviceError, Scheme, TcpHostConfig, TlsHostConfig, TransportAddress};
use nvme::{Nqn, auth::HostKeys};

use super::{Interrupt, Progress, content::SUB_BLOCK_BYTES};

/// The largest range that can be verified: what lies in each sub-block is kept in memory, 8 bytes each.
const VERIFY_RANGE_MAX: u64 = 1 << 40;
/// Most I/O queues.
const QUEUES_MAX: u16 = 64;
/// Most commands in flight on a queue: one entry of an NVMe/RDMA queue of 1024 stays free.
const DEPTH_MAX: u16 = 1023;

/// Order and kind of the commands, named as fio's `rw`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Random, half reads and half writes.
    RandMixed,
    /// Sequential, half reads and half writes.
    Mixed,
}

impl Pattern {
    const NAMES: [(&'static str, Self); 6] = [
        ("read", Self::Read),
        ("write", Self::Write),
        ("randread", Self::RandRead),
        ("randwrite", Self::RandWrite),
        ("randrw", Self::RandMixed),
        ("rw", Self::Mixed),
    ];
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::NAMES
            .iter()
            .find_map(|(name, pattern)| (*name == text).then_some(*pattern))
            .ok_or_else(|| {
                format!("'{text}' is no pattern: read, write, randread, randwrite, randrw or rw")
            })
    }
}

impl Pattern {
    /// Whether nothing is written.
    #[must_use]
    pub const fn only_reads(self) -> bool {
        matches!(self, Self::Read | Self::RandRead)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES
            .iter()
            .find_map(|(name, pattern)| (pattern == self).then_some(*name));
        f.pad(name.unwrap_or("?"))
    }
}

/// When a run ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// After this time.
    Time(Duration),
    /// After this many bytes, reads and writes together.
    Bytes(u64),
}

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The target.
    pub address: TransportAddress,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The name of the host; a new one if there is none.
    pub host: Option<Nqn>,
    /// What the host authenticates with, if the target asks it to.
    pub keys: Option<Arc<HostKeys>>,
    /// The namespace.
    pub nsid: u32,
    /// Kind of load.
    pub pattern: Pattern,
    /// Bytes of a command: a multiple of 4096, or of the LBA size below that.
    pub block_bytes: usize,
    /// Commands in flight on each queue.
    pub depth: u16,
    /// I/O queues.
    pub queues: u16,
    /// When to end.
    pub limit: Limit,
    /// Use only the first so many bytes of the namespace; all of it otherwise.
    pub range_bytes: Option<u64>,
    /// Percent of the written sub-blocks that repeat content written before.
    pub duplicate_percent: u8,
    /// Percent of the written sub-blocks that are zeroes.
    pub zero_percent: u8,
    /// Percent of each written sub-block that are zeroes, at its end: so much of it a compression saves, and little more.
    pub compress_percent: u8,
    /// The seed of contents and places: the same seed makes the same run.
    pub seed: u64,
    /// Compare what is read with what was written.
    pub verify: bool,
    /// Over TCP: protect headers with a digest.
    pub header_digest: bool,
    /// Over TCP: protect data with a digest.
    pub data_digest: bool,
    /// Over TCP: come by TLS, with the host's keys for the subsystem.
    pub tls: Option<TlsHostConfig>,
    /// Ends the run before its time.
    pub interrupt: Interrupt,
    /// Tells how far the run has come.
    pub progress: Progress,
}

/// Why options cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The block size does not fit the namespace or the controller.
    #[error(
        "blocks of {block_bytes} bytes cannot be used: the namespace has blocks of {lba_bytes}, one \
         command moves at most {max_bytes}, and above 4096 it has to be a multiple of 4096; \
         choose another --bs"
    )]
    BlockSize {
        /// Bytes of a command that were asked for.
        block_bytes: usize,
        /// Bytes of the namespace's logical blocks.
        lba_bytes: u32,
        /// The most that the controller takes in one command.
        max_bytes: usize,
    },
    /// The range does not fit the namespace.
    #[error(
        "a range of {range_bytes} bytes cannot be used: the namespace has {size_bytes}, and one \
         block is {block_bytes}; choose another --range"
    )]
    Range {
        /// Bytes that were asked for.
        range_bytes: u64,
        /// Bytes of the namespace.
        size_bytes: u64,
        /// Bytes of a command.
        block_bytes: usize,
    },
    /// Verify needs memory for each sub-block.
    #[error("--verify takes ranges up to 1 TiB: set a --range")]
    VerifyRange,
    /// Duplicates and zeroes together are more than everything.
    #[error("--dup {duplicate_percent} and --zero {zero_percent} are more than 100 percent")]
    Percent {
        /// Duplicates that were asked for.
        duplicate_percent: u8,
        /// Zeroes that were asked for.
        zero_percent: u8,
    },
    /// Too few or too many queues or commands.
    #[error(
        "{queues} queues of {depth} commands cannot be used: 1 to {QUEUES_MAX} queues of 1 to {DEPTH_MAX}"
    )]
    Depth {
        /// Queues that were asked for.
        queues: u16,
        /// Commands on each that were asked for.
        depth: u16,
    },
    /// Digests were asked for over another transport than TCP.
    #[error(
        "digests protect NVMe/TCP alone: RDMA has its own; leave them out for {scheme}:// targets"
    )]
    Digests {
        /// The transport of the target's address.
        scheme: Scheme,
    },
    /// TLS was asked for over another transport than TCP.
    #[error("TLS protects NVMe/TCP alone; leave it out for {scheme}:// targets")]
    Tls {
        /// The transport of the target's address.
        scheme: Scheme,
    },
    /// The thread is no reactor.
    #[error("the load generator was not started on a reactor")]
    NoReactor,
}

impl Options {
    /// Checks what does not depend on the target.
    ///
    /// # Errors
    /// See [`OptionsError`].
    pub fn check_alone(&self) -> Result<(), OptionsError> {
        let (duplicate_percent, zero_percent) = (self.duplicate_percent, self.zero_percent);
        if u16::from(duplicate_percent) + u16::from(zero_percent) > 100 {
            return Err(OptionsError::Percent {
                duplicate_percent,
                zero_percent,
            });
        }
        if !(1..=QUEUES_MAX).contains(&self.queues) || !(1..=DEPTH_MAX).contains(&self.depth) {
            return Err(OptionsError::Depth {
                queues: self.queues,
                depth: self.depth,
            });
        }
        let scheme = self.address.scheme;
        if (self.header_digest || self.data_digest) && scheme != Scheme::Tcp {
            return Err(OptionsError::Digests { scheme });
        }
        if self.tls.is_some() && scheme != Scheme::Tcp {
            return Err(OptionsError::Tls { scheme });
        }
        Ok(())
    }

    /// What reaches the target.
    pub(super) fn connector(&self) -> Result<Connector, DeviceError> {
        match self.address.scheme {
            Scheme::Tcp => Ok(Connector::tcp(TcpHostConfig {
                header_digest: self.header_digest,
                data_digest: self.data_digest,
                tls: self.tls.clone(),
                ..TcpHostConfig::default()
            })),
            _ => Connector::to_reach(&self.address),
        }
    }

    /// Checks everything against the namespace, and gives the bytes of the range.
    pub(super) fn check(
        &self,
        size_bytes: u64,
        lba_bytes: u32,
        max_bytes: usize,
    ) -> Result<u64, OptionsError> {
        self.check_alone()?;
        let block_bytes = self.block_bytes;
        let whole = block_bytes >= lba_bytes as usize
            && block_bytes.is_multiple_of(lba_bytes as usize)
            && (block_bytes <= SUB_BLOCK_BYTES || block_bytes.is_multiple_of(SUB_BLOCK_BYTES))
            && block_bytes <= max_bytes;
        if !whole {
            return Err(OptionsError::BlockSize {
                block_bytes,
                lba_bytes,
                max_bytes,
            });
        }
        let range_bytes = self.range_bytes.unwrap_or(size_bytes);
        if range_bytes > size_bytes || range_bytes < block_bytes as u64 {
            return Err(OptionsError::Range {
                range_bytes,
                size_bytes,
                block_bytes,
            });
        }
        if self.verify && range_bytes > VERIFY_RANGE_MAX {
            return Err(OptionsError::VerifyRange);
        }
        Ok(range_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_fios_names() {
        for (name, pattern) in Pattern::NAMES {
            assert_eq!(name.parse(), Ok(pattern));
            assert_eq!(pattern.to_string(), name);
        }
        assert!("trim".parse::<Pattern>().unwrap_err().contains("randwrite"));
    }
}
