//! A pool that its owner is to give to another node.

use std::sync::Arc;

use subsystem::errors::Failure;
use tokio::sync::Notify;

use super::blocking::blocking;
use super::node::Node;

/// Gives the pool of this daemon away, once somebody asks for that.
pub(crate) struct Handover {
    /// `None`: this node would not come back as a standby.
    node: Option<Arc<Node>>,
    asked: Notify,
}

impl Handover {
    pub(crate) fn new(node: Option<Arc<Node>>) -> Self {
        Self {
            node,
            asked: Notify::new(),
        }
    }

    /// Waits until the pool is to be given away.
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Whether this node would be a standby of the pool afterwards.
    pub(crate) fn is_possible(&self) -> bool {
        self.node.is_some()
    }

    /// Gives the pool away, as whoever serves it: another node offers it.
    pub(crate) fn begin(&self) {
        self.asked.notify_one();
    }

    /// Gives the pool to a standby; returns the machines that may take it.
    ///
    /// # Errors
    /// This node would not be a standby, or no other one offers the pool.
    pub(crate) async fn ask(&self) -> Result<Vec<String>, Failure> {
        let Some(node) = self.node.clone() else {
            return Err(Failure::invalid(
                "this daemon was not started with --join, so no other node can have its pool while it goes on",
            ));
        };
        let others = blocking(move || node.others()).await?;
        if others.is_empty() {
            return Err(Failure::unavailable(
                "no other node offers the pool: start `onefold serve --join` with the same --drive on another machine",
            ));
        }
        self.begin();
        Ok(others.into_iter().map(|other| other.machine).collect())
    }
}
