//! The node table of a namespace, as a host asks for it.

use fabric::HostData;
use nvme::node_table::{NodeTableCommand, TableReceive, TableSend};
use reactor::Buffer;

use super::Namespace;
use crate::{Error, blank_buffer, buffer};

impl Namespace {
    /// Changes an entry, sends a piece of the description, or replaces the list of drained machines; `data` are as of
    /// [`nvme::node_table::SentText`].
    ///
    /// # Errors
    /// See [`Error`]. [`nvme::Status::NODE_ENTRY_KEPT`]: another node keeps the entry.
    /// [`nvme::Status::DESCRIPTION_OLDER`]: there is a description with a later revision.
    /// [`nvme::Status::DRAINED_REPLACED`]: the list has another revision than the one to replace.
    pub async fn node_table_send(&self, what: TableSend, data: &[u8]) -> Result<(), Error> {
        self.node_table_send_to(self.nsid, what, data).await
    }

    /// The same, of another namespace of the controller, by the queue of this one.
    ///
    /// # Errors
    /// As of [`node_table_send`](Self::node_table_send), or there is no such namespace.
    pub async fn node_table_send_to(
        &self,
        nsid: u32,
        what: TableSend,
        data: &[u8],
    ) -> Result<(), Error> {
        let length = self.table_bytes(data.len())?;
        let command = NodeTableCommand::Send { nsid, what, length };
        let mut memory = buffer(data.len()).await;
        memory[..data.len()].copy_from_slice(data);
        let data = HostData::ToTarget(memory, data.len());
        let queue = self.queue()?;
        let name = "Node Table Send";
        queue.submit(name, command.to_sqe(), data).await.map(drop)
    }

    /// What the table holds, in a buffer of so many bytes: [`nvme::node_table::NodeEntries`], or
    /// [`nvme::node_table::DescriptionPiece`].
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn node_table_receive(
        &self,
        what: TableReceive,
        bytes: usize,
    ) -> Result<Buffer, Error> {
        self.node_table_receive_of(self.nsid, what, bytes).await
    }

    /// The same, of another namespace of the controller, by the queue of this one.
    ///
    /// # Errors
    /// See [`Error`]; also if there is no such namespace.
    pub async fn node_table_receive_of(
        &self,
        nsid: u32,
        what: TableReceive,
        bytes: usize,
    ) -> Result<Buffer, Error> {
        let length = self.table_bytes(bytes)?;
        let command = NodeTableCommand::Receive { nsid, what, length };
        let data = HostData::FromTarget(blank_buffer(bytes).await, bytes);
        let queue = self.queue()?;
        let name = "Node Table Receive";
        let (_, memory) = queue.submit(name, command.to_sqe(), data).await?;
        memory.ok_or_else(|| queue.wrong(name, "no data"))
    }

    /// Bytes of a command's data, if one command may move them.
    fn table_bytes(&self, bytes: usize) -> Result<u32, Error> {
        let most = self.controller.max_transfer_bytes();
        let length = u32::try_from(bytes).ok().filter(|_| bytes <= most);
        length.ok_or_else(|| Error::Range {
            nsid: self.nsid,
            offset: 0,
            len: bytes as u64,
            size: self.size_bytes(),
            lba_bytes: self.lba_bytes,
            max_bytes: most,
        })
    }
}
