//! The connection management state machine (chapter 12.9), pure: datagrams and time come in as
//! arguments, datagrams and events come out of queues.
//!
//! What this module guarantees:
//! - Everything is bounded by [`Config`]: connections, requests that wait for an answer, datagrams
//!   that wait to be sent. What exceeds a bound is answered with a rejection or dropped, never
//!   stored.
//! - Nothing that a peer sends panics, and a datagram changes a connection only if it came from
//!   that connection's peer.
//! - For each connection the events come in the order of [`Event`]'s description, and the last one
//!   is `Rejected` or `Disconnected`, exactly once, unless the endpoint itself rejected the request.
//!
//! How an endpoint drives it:
//! - Passive: [`Manager::listen`]; on [`Event::ConnectRequest`] make a queue pair in the state
//!   "ready to receive" with the peer's values, then [`Manager::accept`] (or [`Manager::reject`]).
//!   The peer's first data can arrive before its RTU: the endpoint processes it, and reports it
//!   with [`Manager::data_received`], which stands for the RTU. [`Event::Established`] follows.
//! - Active: [`Manager::connect`] with the number of a queue pair and the sequence number that the
//!   peer shall start with; on [`Event::ReplyReceived`] bring the queue pair to "ready to send",
//!   then [`Manager::establish`], which sends the RTU.
//! - Both: [`Manager::disconnect`]; [`Event::Disconnected`] follows when the peer agreed, or did not
//!   answer.

mod connection;
mod event;
mod manager;
mod messages;

pub use event::{
    Accept, CmError, Config, ConnId, Connect, DisconnectReason, Dropped, Event, Local, Peer,
    Transmit,
};
pub use manager::Manager;
