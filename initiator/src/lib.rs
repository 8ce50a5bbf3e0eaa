//! The host side of NVMe over Fabrics as a library: discover, connect, and use namespaces.
//!
//! ```no_run
//! use fabric::{Connector, TransportAddress};
//! use initiator::{ConnectOptions, Controller, Host};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let target: TransportAddress = "tcp://192.0.2.1:4420".parse()?;
//! let connector = Connector::to_reach(&target)?;
//! let options = ConnectOptions::new(target.socket_addr(), "nqn.2026-11.dev.onefold:default".parse()?, Host::generate());
//! let controller = Controller::connect(&connector, options).await?;
//! let namespace = controller.namespace(1).await?;
//! let buffer = initiator::buffer(4096).await;
//! let (result, buffer) = namespace.read(0, buffer).await;
//! result?;
//! println!("the first byte is {}", buffer[0]);
//! controller.disconnect().await;
//! # Ok(()) }
//! ```
//!
//! What it guarantees:
//! - A command ends with the target's status, with an error that names the target, or after the
//!   command timeout; nothing waits for ever.
//! - What the target reports (sizes, limits, lists) is checked before it is used.
//! - The controller is kept alive while it exists, and its queues end when it is dropped.
//!
//! Everything runs on one reactor; the types are clones of one `Rc` and are not `Send`.

#![forbid(unsafe_code)]

mod authenticate;
mod controller;
mod discovery;
mod error;
mod host;
mod namespace;
mod paths;

pub use controller::{ConnectOptions, Controller};
pub use discovery::discover;
pub use error::Error;
pub use host::Host;
pub use namespace::{CopySource, Namespace, UnreadableRanges};

/// A buffer for a page of the target: zeros. Over RDMA the host cannot see how much a target wrote, so a page that is
/// cut short must not go on with what the pool's memory held before.
pub(crate) async fn blank_buffer(len: usize) -> reactor::Buffer {
    let mut memory = buffer(len).await;
    memory.fill(0);
    memory
}

/// A buffer of `len` bytes from this reactor's pool, with whatever it held before; waits until there is one.
///
/// # Panics
/// Outside a reactor.
pub async fn buffer(len: usize) -> reactor::Buffer {
    let pool = reactor::current()
        .expect("the initiator runs on a reactor")
        .buffers()
        .clone();
    pool.alloc(len).await
}
