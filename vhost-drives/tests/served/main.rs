//! Drives of a server in this process, which lies where it is told to, and of QEMU's.

mod conforms;
mod hostile;
mod lending;
mod losses;
mod qemu;
mod server;
mod story;
mod transfers;
