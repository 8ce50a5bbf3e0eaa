//! The node table of one drive, as the nodes that share the drive's pool use it.
//!
//! Guarantees:
//! - A call makes one attempt to connect at most, and ends within the limits. After a failure of the connection, and after
//!   a command without an answer, the next call connects again.
//! - The target counts a lease from when it got the command. A node that counts from before its call never takes its entry
//!   for kept when the target does not.
//! - Only a sled gets the commands of node tables: they are vendor specific, and mean something else elsewhere.
//! - What the target answers is checked as any bytes from the network are; a description comes whole, and of one revision.
//! - The drive itself is not opened, read or written, and no reservation is looked at. The same process may open it.
//! - Calls are served one after the other, in their order.

use std::sync::Arc;
use std::time::Duration;

use drives::{DriveError, ErrorKind};
use futures_util::lock::Mutex;
use futures_util::stream::{self, StreamExt as _};
use initiator::Error;
use nvme::node_table::{
    DESCRIPTION_BYTES_MAX, DRAINED_BYTES_MAX, DescriptionPiece, ENTRIES_BYTES_MAX, ENTRIES_MAX,
    ENTRY_TEXT_BYTES_MAX, LEASE_MS_MAX, MODEL, NodeEntries, NodeEntry, SENT_HEADER_BYTES, SentText,
    TableReceive, TableSend,
};
use nvme::{Nqn, Status};
use reactor::Buffer;
use uuid::Uuid;

use crate::address::RemoteAddress;
use crate::connect::{Live, connect};
use crate::drained::Drained;
use crate::keys::KeyFolder;
use crate::shared::Shared;
use crate::{Limits, OpenOptions};

/// Bytes of data that one command moves at most: so that a slow network moves them within the limit.
const TRANSFER_BYTES_MAX: usize = 128 << 10;

/// Commands in flight: there is one, and one that nobody waits for any more.
const DEPTH: u16 = 4;

/// How often a description is sent or read from its start, because another node sent one meanwhile.
const ATTEMPTS: usize = 4;

/// Tables that are read at the same time.
const READS_MAX: usize = 2;

/// Namespaces of a target whose tables are looked at.
const NAMESPACES_MAX: usize = 256;

/// What a target sent that no node table can be.
const CANNOT_BE_READ: &str = "a node table that cannot be read";

/// The times after which something is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTableLimits {
    /// Keep Alive Timeout (KATO).
    pub keep_alive: Duration,
    /// How long an attempt to connect may take.
    pub connect: Duration,
    /// How long a command may take.
    pub command: Duration,
}

impl Default for NodeTableLimits {
    /// 4 s; 2 s; 1 s.
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(4),
            connect: Duration::from_secs(2),
            command: Duration::from_secs(1),
        }
    }
}

/// An entry that is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// Which one: 0 to 15.
    pub number: u16,
    /// Who keeps it, or kept it last.
    pub node: Uuid,
    /// How long ago that was, by the target's clock.
    pub age: Duration,
    /// For how long the node keeps it.
    pub lease: Duration,
    /// What the node says of itself.
    pub text: Vec<u8>,
}

impl TableEntry {
    /// Whether its node kept it when the target was asked: then no other one could have it.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.age < self.lease
    }
}

impl From<NodeEntry> for TableEntry {
    fn from(entry: NodeEntry) -> Self {
        Self {
            number: entry.number,
            node: Uuid::from_bytes(entry.node),
            age: Duration::from_millis(entry.age_ms.into()),
            lease: Duration::from_millis(entry.lease_ms.into()),
            text: entry.text,
        }
    }
}

/// What a table holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSeen {
    /// The revision of the description; 0 if there is none.
    pub revision: u64,
    /// The pool that the description is about.
    pub pool: Option<Uuid>,
    /// The drained machines that it lists.
    pub drained: Drained,
    /// The revision of that list; 0 if there is none.
    pub drained_revision: u64,
    /// The entries that are not empty, by ascending number.
    pub entries: Vec<TableEntry>,
}

impl TableSeen {
    /// What a target sent, of at least so many bytes as were asked for; `None` if that is no table.
    fn decode(data: &[u8]) -> Option<Self> {
        let NodeEntries {
            revision,
            pool,
            drained,
            entries,
        } = NodeEntries::decode(data.get(..ENTRIES_BYTES_MAX)?)?;
        Some(Self {
            revision,
            pool: (revision != 0).then(|| Uuid::from_bytes(pool)),
            drained: Drained::read(&drained.text),
            drained_revision: drained.revision,
            entries: entries.into_iter().map(TableEntry::from).collect(),
        })
    }
}

/// What was published for all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDescription {
    /// The pool that it is about.
    pub pool: Uuid,
    /// Its revision; not 0.
    pub revision: u64,
    /// The text: 1 byte to 4 MiB.
    pub text: Vec<u8>,
}

/// The node table of a drive. It is used on the thread of one reactor.
pub struct NodeTable {
    shared: Arc<Shared>,
    /// The association. It is taken out for the time of a command: one that is given up halfway ends it.
    live: Mutex<Option<Live>>,
}

impl std::fmt::Debug for NodeTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("NodeTable").field(&self.shared.name).finish()
    }
}

impl NodeTable {
    /// The table of the drive at this address, for a host with that name and those keys. It connects when it is first used.
    #[must_use]
    pub fn new(
        address: RemoteAddress,
        host: Nqn,
        keys: KeyFolder,
        limits: NodeTableLimits,
    ) -> Self {
        let limits = Limits {
            keep_alive: limits.keep_alive,
            command: limits.command,
            connect: limits.connect,
            patience: limits.connect,
            depth: DEPTH,
            ..Limits::default()
        };
        let options = OpenOptions {
            limits,
            ..OpenOptions::new(host, keys)
        };
        Self {
            shared: Arc::new(Shared::new(address, options)),
            live: Mutex::new(None),
        }
    }

    /// The drive's name: its address.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The name of the drive's target: that of its subsystem.
    #[must_use]
    pub fn sled(&self) -> &str {
        self.shared.address.subsystem().as_str()
    }

    /// The drive's namespace in that subsystem.
    #[must_use]
    pub fn namespace(&self) -> u32 {
        self.shared.address.nsid()
    }

    /// The node keeps an entry (0 to 15) for the time of the lease: at least 1 ms, at most 10 minutes. The text has at most
    /// 4080 bytes. False: another node keeps it, and nothing has changed.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`]: the target is not reached, or does not answer in time; the entry may be kept then or not.
    /// [`ErrorKind::Invalid`]: the request is wrong, the target has no node tables, or a key for it cannot be used. Else what
    /// the target said.
    pub async fn keep(
        &self,
        number: u16,
        node: Uuid,
        lease: Duration,
        text: &[u8],
    ) -> Result<bool, DriveError> {
        self.check_number(number)?;
        let lease_ms = u32::try_from(lease.as_millis()).ok();
        let lease_ms = lease_ms.filter(|lease| (1..=LEASE_MS_MAX).contains(lease));
        let lease_ms = lease_ms.ok_or_else(|| {
            let text =
                format!("a node cannot keep an entry for {lease:?}: name 1 ms to 10 minutes");
            self.shared.error(ErrorKind::Invalid, text)
        })?;
        if text.len() > ENTRY_TEXT_BYTES_MAX {
            let text = format!(
                "the text of an entry has {} bytes; at most {ENTRY_TEXT_BYTES_MAX} fit",
                text.len()
            );
            return Err(self.shared.error(ErrorKind::Invalid, text));
        }
        self.send_entry(number, node, lease_ms, text).await
    }

    /// The node gives an entry up, if it has it. Afterwards the entry is empty or another node's.
    ///
    /// # Errors
    /// As of [`Self::keep`].
    pub async fn give_up(&self, number: u16, node: Uuid) -> Result<(), DriveError> {
        self.check_number(number)?;
        self.send_entry(number, node, 0, &[]).await.map(drop)
    }

    /// What the table holds now.
    ///
    /// # Errors
    /// As of [`Self::keep`].
    pub async fn look(&self) -> Result<TableSeen, DriveError> {
        let mut session = self.session().await?;
        let what = TableReceive::Entries;
        let data = session.receive(what, ENTRIES_BYTES_MAX).await?;
        TableSeen::decode(&data).ok_or_else(|| session.wrong(CANNOT_BE_READ))
    }

    /// Namespaces of the drive's target, by ascending identifier: the first 256 of them.
    ///
    /// # Errors
    /// As of [`Self::keep`].
    pub async fn namespaces(&self) -> Result<Vec<u32>, DriveError> {
        let mut session = self.session().await?;
        let listed = session.run(async |live| live.controller.namespaces().await);
        let mut listed = listed.await?.map_err(|status| session.refused(status))?;
        listed.truncate(NAMESPACES_MAX);
        Ok(listed)
    }

    /// What the tables of some namespaces of the drive's target hold now: of a few, because they have to come within the time of one
    /// command. One that is there no more is left out.
    ///
    /// # Errors
    /// As of [`Self::keep`].
    pub async fn look_at(&self, namespaces: &[u32]) -> Result<Vec<(u32, TableSeen)>, DriveError> {
        let mut session = self.session().await?;
        let read = session.run(async |live| read_tables(live, namespaces).await);
        let read = read.await?.map_err(|status| session.refused(status))?;
        let mut tables = Vec::new();
        for (nsid, data) in read {
            let seen = TableSeen::decode(&data);
            tables.push((nsid, seen.ok_or_else(|| session.wrong(CANNOT_BE_READ))?));
        }
        Ok(tables)
    }

    /// Replaces the list of drained machines in the table of a namespace of the drive's target, of the revision that is there (0: none),
    /// by one of a later revision; the list has at most 4000 bytes. False: another revision is there, and nothing has changed.
    ///
    /// # Errors
    /// As of [`Self::keep`].
    pub async fn drain(
        &self,
        namespace: u32,
        replaces: u64,
        drained: &Drained,
    ) -> Result<bool, DriveError> {
        let text = drained.text();
        let next = replaces.checked_add(1);
        let Some(revision) = next.filter(|_| text.len() <= DRAINED_BYTES_MAX) else {
            let text = format!(
                "a list of drained machines has at most {DRAINED_BYTES_MAX} bytes and follows an earlier one, and not {} bytes \
                 after {replaces}",
                text.len()
            );
            return Err(self.shared.error(ErrorKind::Invalid, text));
        };
        let mut session = self.session().await?;
        let what = TableSend::Drained { replaces, revision };
        match session.send_to(namespace, what, Uuid::nil(), &text).await? {
            Ok(()) => Ok(true),
            Err(Refused::ByAnother) => Ok(false),
            Err(Refused::OutOfOrder) => Err(session.wrong("that a list comes out of order")),
        }
    }

    /// Publishes a text of a pool for all nodes: 1 byte to 4 MiB; the revision is not 0. False: the table has a later revision
    /// of this pool, and nothing has changed. The text of another pool is replaced, and so is the one of this revision.
    ///
    /// # Errors
    /// As of [`Self::keep`]; or other nodes sent descriptions at the same time, again and again.
    pub async fn describe(
        &self,
        pool: Uuid,
        revision: u64,
        text: &[u8],
    ) -> Result<bool, DriveError> {
        if revision == 0 || text.is_empty() || text.len() > DESCRIPTION_BYTES_MAX {
            let text = format!(
                "a description has 1 to {DESCRIPTION_BYTES_MAX} bytes and a revision that is not 0, and not {} bytes of \
                 revision {revision}",
                text.len()
            );
            return Err(self.shared.error(ErrorKind::Invalid, text));
        }
        let mut session = self.session().await?;
        let piece_bytes = session.transfer_bytes() - SENT_HEADER_BYTES;
        'attempts: for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                self.let_others_end().await;
            }
            for (at, piece) in text.chunks(piece_bytes).enumerate() {
                // Both fit: the text has 4 MiB at most.
                let what = TableSend::Description {
                    offset: (at * piece_bytes) as u32,
                    total: text.len() as u32,
                    revision,
                };
                match session.send(what, pool, piece).await? {
                    Ok(()) => {}
                    Err(Refused::ByAnother) => return Ok(false),
                    Err(Refused::OutOfOrder) if at > 0 => continue 'attempts,
                    Err(Refused::OutOfOrder) => {
                        return Err(session.wrong("that the first piece does not come first"));
                    }
                }
            }
            return Ok(true);
        }
        Err(self.others_interfere())
    }

    /// What was published, if anything was: all of it, of one revision.
    ///
    /// # Errors
    /// As of [`Self::describe`].
    pub async fn description(&self) -> Result<Option<TableDescription>, DriveError> {
        let mut session = self.session().await?;
        let len = session.transfer_bytes();
        let cannot_be_read = "a description that cannot be read";
        'attempts: for _ in 0..ATTEMPTS {
            let mut text = Vec::new();
            let mut first = None;
            loop {
                // It fits: as long as there is more, the text has less than 4 MiB.
                let offset = text.len() as u32;
                let data = session
                    .receive(TableReceive::Description { offset }, len)
                    .await?;
                let piece = data.get(..len);
                let piece = piece.and_then(|data| DescriptionPiece::decode(data, offset));
                let piece = piece.ok_or_else(|| session.wrong(cannot_be_read))?;
                let Some(piece) = piece else {
                    match first {
                        // The target has forgotten it since.
                        Some(_) => continue 'attempts,
                        None => return Ok(None),
                    }
                };
                let edition = (piece.pool, piece.revision, piece.total);
                if *first.get_or_insert(edition) != edition {
                    continue 'attempts;
                }
                if piece.text.is_empty() {
                    return Err(session.wrong(cannot_be_read));
                }
                text.extend(piece.text);
                if text.len() == piece.total as usize {
                    return Ok(Some(TableDescription {
                        pool: Uuid::from_bytes(piece.pool),
                        revision: piece.revision,
                        text,
                    }));
                }
            }
        }
        Err(self.others_interfere())
    }

    fn check_number(&self, number: u16) -> Result<(), DriveError> {
        if usize::from(number) < ENTRIES_MAX {
            return Ok(());
        }
        let text = format!("there is no entry {number}: they are 0 to 15");
        Err(self.shared.error(ErrorKind::Invalid, text))
    }

    /// A pause of random length, a quarter of a command's limit at most: without it two nodes that begin anew at the same
    /// time would interrupt each other again.
    async fn let_others_end(&self) {
        let mut random = [0];
        // Without random bytes there is no pause.
        let _ = getrandom::fill(&mut random);
        reactor::sleep(self.shared.limits.command * u32::from(random[0]) / 1024).await;
    }

    fn others_interfere(&self) -> DriveError {
        let text =
            "other nodes sent descriptions at the same time, again and again; try again later";
        self.shared.error(ErrorKind::Io, text)
    }

    async fn send_entry(
        &self,
        number: u16,
        node: Uuid,
        lease_ms: u32,
        text: &[u8],
    ) -> Result<bool, DriveError> {
        let mut session = self.session().await?;
        let what = TableSend::Entry { number, lease_ms };
        match session.send(what, node, text).await? {
            Ok(()) => Ok(true),
            Err(Refused::ByAnother) => Ok(false),
            Err(Refused::OutOfOrder) => Err(session.wrong("that an entry comes out of order")),
        }
    }

    /// The association, for one caller: the one that there is, or by one attempt a new one.
    async fn session(&self) -> Result<Session<'_>, DriveError> {
        let shared = &*self.shared;
        if reactor::current().is_none() {
            return Err(shared.error(ErrorKind::Invalid, "is used on a thread without a reactor"));
        }
        let mut place = self.live.lock().await;
        let generation = shared.state().generation;
        let live = place.take().filter(|live| live.is_usable(generation));
        let live = match live {
            Some(live) => live,
            None => match reactor::timeout(shared.limits.connect, connect(shared)).await {
                Ok(connected) => connected.map_err(|error| self.of_connecting(error))?,
                Err(_) => {
                    let text = format!(
                        "the target does not answer within {:?}; check that it runs, and the network",
                        shared.limits.connect
                    );
                    return Err(shared.error(ErrorKind::Unreachable, text));
                }
            },
        };
        if live.controller.identify().mn != MODEL {
            return Err(self.has_no_tables("it is no sled of Onefold's"));
        }
        if live.controller.max_transfer_bytes() < ENTRIES_BYTES_MAX {
            return Err(self.has_no_tables("moves too few bytes by a command"));
        }
        *place = Some(live);
        Ok(Session { table: self, place })
    }

    /// The error of an attempt to connect that failed: the target is not reached, unless the error says what has to be changed.
    fn of_connecting(&self, error: DriveError) -> DriveError {
        match error.kind() {
            ErrorKind::Io => self.shared.error(ErrorKind::Unreachable, error.message()),
            _ => error,
        }
    }

    fn has_no_tables(&self, why: &str) -> DriveError {
        let text = format!(
            "its target has no node table ({why}): serve the drive with `onefold sled` of this version"
        );
        self.shared.error(ErrorKind::Invalid, text)
    }
}

/// Reads the tables of namespaces. One that is there no more is left out.
async fn read_tables(live: &Live, namespaces: &[u32]) -> Result<Vec<(u32, Buffer)>, Error> {
    let reads = namespaces.iter().map(|nsid| async {
        let by = &live.namespace;
        let read = by.node_table_receive_of(*nsid, TableReceive::Entries, ENTRIES_BYTES_MAX);
        (*nsid, read.await)
    });
    let mut reads = stream::iter(reads).buffered(READS_MAX);
    let mut tables = Vec::new();
    while let Some((nsid, read)) = reads.next().await {
        match read {
            Ok(data) => tables.push((nsid, data)),
            Err(error) if error.status().map(Status::code) == Some(Status::INVALID_NAMESPACE) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(tables)
}

/// Why the target did not do what was asked, where that is an answer.
enum Refused {
    /// Another node keeps the entry, the description is an older one, or the list is of another revision.
    ByAnother,
    /// The piece does not follow the one before.
    OutOfOrder,
}

/// An association that one caller uses. It is gone after a failure.
struct Session<'a> {
    table: &'a NodeTable,
    place: futures_util::lock::MutexGuard<'a, Option<Live>>,
}

impl Session<'_> {
    /// Bytes of data of one command.
    fn transfer_bytes(&self) -> usize {
        // At least ENTRIES_BYTES_MAX, which was checked.
        let most = self
            .place
            .as_ref()
            .map(|live| live.controller.max_transfer_bytes());
        most.map_or(ENTRIES_BYTES_MAX, |most| most.min(TRANSFER_BYTES_MAX))
    }

    async fn send(
        &mut self,
        what: TableSend,
        uuid: Uuid,
        text: &[u8],
    ) -> Result<Result<(), Refused>, DriveError> {
        let namespace = self.table.shared.address.nsid();
        self.send_to(namespace, what, uuid, text).await
    }

    async fn send_to(
        &mut self,
        namespace: u32,
        what: TableSend,
        uuid: Uuid,
        text: &[u8],
    ) -> Result<Result<(), Refused>, DriveError> {
        let uuid = uuid.into_bytes();
        let data = SentText { uuid, text }.encode();
        let send = async |live: &Live| {
            let by = &live.namespace;
            by.node_table_send_to(namespace, what, &data).await
        };
        let done = self.run(send);
        match done.await? {
            Ok(()) => Ok(Ok(())),
            Err(status) => match status.code() {
                Status::NODE_ENTRY_KEPT | Status::DESCRIPTION_OLDER | Status::DRAINED_REPLACED => {
                    Ok(Err(Refused::ByAnother))
                }
                Status::COMMAND_SEQUENCE => Ok(Err(Refused::OutOfOrder)),
                _ => Err(self.refused(status)),
            },
        }
    }

    /// At least so many bytes, unless the target sent fewer.
    async fn receive(&mut self, what: TableReceive, bytes: usize) -> Result<Buffer, DriveError> {
        let done = self.run(async |live| live.namespace.node_table_receive(what, bytes).await);
        done.await?.map_err(|status| self.refused(status))
    }

    /// Runs a command: its end, or the status that the target gave. Whatever else happens ends the association.
    async fn run<T>(
        &mut self,
        command: impl AsyncFnOnce(&Live) -> Result<T, Error>,
    ) -> Result<Result<T, Status>, DriveError> {
        let shared = &self.table.shared;
        let gone = || shared.error(ErrorKind::Unreachable, "the connection is lost");
        // Out of its place: who gives this call up ends the association.
        let live = self.place.take().ok_or_else(gone)?;
        let limit = shared.limits.command;
        let error = match reactor::timeout(limit, command(&live)).await {
            Ok(Ok(done)) => {
                *self.place = Some(live);
                return Ok(Ok(done));
            }
            Ok(Err(error)) => match error.status() {
                Some(status) => {
                    *self.place = Some(live);
                    return Ok(Err(status));
                }
                None => {
                    let kind = match error {
                        Error::Protocol { .. } | Error::Range { .. } => ErrorKind::Io,
                        _ => ErrorKind::Unreachable,
                    };
                    shared.error(kind, error.to_string())
                }
            },
            Err(_) => {
                let text = format!(
                    "the target does not answer within {limit:?}; check that it runs, and the network"
                );
                shared.error(ErrorKind::Unreachable, text)
            }
        };
        live.controller.close();
        Err(error)
    }

    /// The error of a status that is no answer.
    fn refused(&self, status: Status) -> DriveError {
        match status.code() {
            Status::INVALID_OPCODE => self.table.has_no_tables("it does not know the command"),
            _ => {
                let text = format!("its target refuses a command about the node table: {status}");
                self.table.shared.error(ErrorKind::Io, text)
            }
        }
    }

    /// The target said what cannot be: nothing more is asked by this association.
    fn wrong(&mut self, what: &str) -> DriveError {
        if let Some(live) = self.place.take() {
            live.controller.close();
        }
        let text = format!("its target sent {what}: see that it is `onefold sled` of this version");
        self.table.shared.error(ErrorKind::Io, text)
    }
}
