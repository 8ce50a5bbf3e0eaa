//! How a host reaches its targets.

use crate::address::{Scheme, TransportAddress};
use crate::device::{Device, DeviceConfig, Provider};
use crate::error::DeviceError;
use crate::tcp::TcpHostConfig;

/// What a host connects its queues with. Clones are the same.
#[derive(Clone, Debug)]
pub enum Connector {
    /// By RDMA, from this device.
    Rdma(Device),
    /// By TCP.
    Tcp(TcpHostConfig),
}

impl Connector {
    /// A connector that reaches `address`. Call it on the reactor that shall own the queues.
    ///
    /// # Errors
    /// If there is no device for it.
    pub fn to_reach(address: &TransportAddress) -> Result<Self, DeviceError> {
        match address.scheme {
            Scheme::Tcp => Ok(Self::tcp(TcpHostConfig::default())),
            Scheme::Rdma => Self::rdma(address, Provider::Auto),
            Scheme::RdmaVerbs => Self::rdma(address, Provider::Verbs),
            Scheme::RdmaSoft => Self::rdma(address, Provider::Soft),
        }
    }

    fn rdma(address: &TransportAddress, provider: Provider) -> Result<Self, DeviceError> {
        if address.host.is_unspecified() {
            let address = address.host;
            return Err(DeviceError::Unspecified { address });
        }
        let config = DeviceConfig::to_reach(address.host).provided_by(provider);
        Device::open(config).map(Self::Rdma)
    }

    /// By TCP.
    pub fn tcp(config: TcpHostConfig) -> Self {
        Self::Tcp(config)
    }

    /// Closes what queues left behind: an RDMA device waits a bounded time for its peers to agree.
    pub async fn shutdown(&self) {
        match self {
            Self::Rdma(device) => device.shutdown().await,
            Self::Tcp(_) => {}
        }
    }
}

impl From<Device> for Connector {
    fn from(device: Device) -> Self {
        Self::Rdma(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_connects_to_every_address() {
        for text in ["rdma://0.0.0.0:4420", "rdma+soft://[::]:4420"] {
            let address = text.parse().expect("an address to listen on");
            let error = Connector::to_reach(&address).expect_err("no address to connect to");
            assert!(error.to_string().contains("every address"), "{error}");
        }
    }
}
