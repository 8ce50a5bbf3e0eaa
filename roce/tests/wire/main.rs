//! The wire formats against packets that the Linux kernel sent, and against bytes that nobody
//! would send.

mod captures;
mod golden;
mod pcap;
mod properties;
