//! Why RDMA verbs cannot be used, with the remedy.

use std::fmt;
use std::io;
use std::net::IpAddr;

/// Why RDMA verbs cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerbsError {
    /// A library is missing or too old.
    #[error(
        "RDMA verbs need {file}, which cannot be loaded ({reason}); install rdma-core's libraries (Debian: apt install libibverbs1 librdmacm1 ibverbs-providers), or use rdma+soft://"
    )]
    LibraryMissing {
        /// The library's file name.
        file: String,
        /// What the dynamic linker said.
        reason: String,
    },
    /// There is no RDMA device.
    #[error(
        "this machine has no RDMA device; load its driver, make a software one (rdma link add rxe0 type rxe netdev eth0), or use rdma+soft://"
    )]
    NoDevice,
    /// The RDMA connection manager cannot be reached.
    #[error(
        "the RDMA connection manager cannot be opened: {reason}; load its module (modprobe rdma_ucm) and give this user access to /dev/infiniband/rdma_cm"
    )]
    NoConnectionManager {
        /// What the system said.
        reason: String,
    },
    /// No RDMA device has the address.
    #[error(
        "no RDMA device owns the address {address} (devices: {}): {reason}; use an address of the network interface that belongs to one (rdma link shows it), or rdma+soft://",
        List(devices)
    )]
    NotOwned {
        /// The address.
        address: IpAddr,
        /// The names of the devices that there are.
        devices: Vec<String>,
        /// What the system said.
        reason: String,
    },
    /// The limit on locked memory is too low.
    #[error(
        "{device} cannot register {bytes} bytes of memory: this process may lock {limit} bytes; raise the limit (ulimit -l unlimited, or LimitMEMLOCK=infinity in the systemd unit), or use rdma+soft://"
    )]
    LockedMemory {
        /// The device.
        device: String,
        /// How many bytes were to be registered.
        bytes: usize,
        /// `RLIMIT_MEMLOCK`.
        limit: u64,
    },
    /// The device is of a kind that is not supported.
    #[error("{device} is {kind}; only InfiniBand and RoCE devices are supported: use rdma+soft://")]
    Unsupported {
        /// The device.
        device: String,
        /// What it is.
        kind: &'static str,
    },
    /// A call failed.
    #[error("cannot {action} on {device}: {reason}")]
    Failed {
        /// The device.
        device: String,
        /// What was being done.
        action: &'static str,
        /// What the system said.
        reason: String,
    },
}

impl VerbsError {
    pub(crate) fn failed(device: &str, action: &'static str, error: &io::Error) -> Self {
        Self::Failed {
            device: device.to_owned(),
            action,
            reason: error.to_string(),
        }
    }
}

/// Names with commas, or 'none'.
struct List<'a>(&'a [String]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("none"),
            names => f.write_str(&names.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_limit_on_locked_memory_names_both_ways_to_raise_it() {
        let error = VerbsError::LockedMemory {
            device: "rxe0".into(),
            bytes: 67_108_864,
            limit: 65_536,
        };
        let text = error.to_string();
        for part in ["rxe0", "67108864", "65536", "ulimit -l", "LimitMEMLOCK"] {
            assert!(text.contains(part), "{part} in: {text}");
        }
    }

    #[test]
    fn an_address_of_no_device_is_named_beside_the_devices() {
        let error = VerbsError::NotOwned {
            address: [192, 0, 2, 1].into(),
            devices: vec!["mlx5_0".into(), "rxe0".into()],
            reason: "No such device".into(),
        };
        let text = error.to_string();
        for part in ["192.0.2.1", "mlx5_0, rxe0", "rdma+soft://"] {
            assert!(text.contains(part), "{part} in: {text}");
        }
    }
}
