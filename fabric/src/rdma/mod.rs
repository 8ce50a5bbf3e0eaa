//! NVMe/RDMA, on an RDMA device of any provider.
//!
//! `target` and `host` are the two sides of a queue, `listener` is where hosts come in, `reads` brings the data of a
//! target's commands.

pub(crate) mod host;
pub(crate) mod listener;
mod reads;
pub(crate) mod target;
