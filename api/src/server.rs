//! What the handlers of all nouns need.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dedup::{Engine, PoolStatus, Redundancy};
use fabric::TransportAddress;
use futures_util::future::BoxFuture;
use futures_util::lock::Mutex;
use meta::PoolDir;
use nvme::Nqn;
use serde::{Deserialize, Serialize};
use subsystem::catalog::{Catalog, ExportConfig, PortChange, PortConfig};
use subsystem::errors::Failure;
use subsystem::figures::Report;
use subsystem::target::Target;

use crate::drive_health::DriveHealth;
use crate::event_log::EventLog;
use crate::history_log::History;
use crate::rates::Rates;
use crate::refused::Refused;
use crate::reliability::{Reliability, ReliabilityGoal};
use crate::task_list::Tasks;

/// What the interface asks of the program that serves the pool.
pub trait Daemon: Send + Sync {
    /// Gives the pool to another node, and becomes its standby; the machines of the other nodes.
    fn give_away(&self) -> BoxFuture<'_, Result<Vec<String>, Failure>>;

    /// What the listeners of each reactor saw. A reactor that does not answer is left out.
    fn reports(&self) -> BoxFuture<'_, Vec<Report>>;

    /// Listens at one more address, for good.
    fn add_listener(
        &self,
        address: TransportAddress,
        set: PortChange,
    ) -> BoxFuture<'_, Result<PortConfig, Failure>>;

    /// Changes a listener, from the next connection on.
    fn set_listener(&self, id: u16, set: PortChange) -> BoxFuture<'_, Result<PortConfig, Failure>>;

    /// Removes a listener; the associations of hosts that came to it end.
    fn remove_listener(&self, id: u16) -> BoxFuture<'_, Result<PortConfig, Failure>>;

    /// The exports that are served now, by their numbers.
    fn exports(&self) -> BoxFuture<'_, BTreeMap<u16, ExportState>>;

    /// Adds an export for good, and serves it; its number is given to it.
    fn create_export(&self, export: ExportConfig) -> BoxFuture<'_, Result<ExportConfig, Failure>>;

    /// Removes an export; its users lose the volume.
    fn delete_export(&self, id: u16) -> BoxFuture<'_, Result<ExportConfig, Failure>>;

    /// Reads the configuration file again, and says what that changed.
    fn reload_config(&self) -> BoxFuture<'_, Result<Reloaded, Failure>>;

    /// Adds a drive to the pool, or a spare.
    fn add_drive(&self, add: AddDrive) -> BoxFuture<'_, Result<(), Failure>>;

    /// Changes the drive at a path.
    fn change_drive(
        &self,
        path: PathBuf,
        change: DriveChange,
    ) -> BoxFuture<'_, Result<(), Failure>>;

    /// What the drives are called that hold a copy of the pool's metadata.
    fn metadata_drives(&self) -> Vec<String>;

    /// What drives tell of their own health, by what they are called. Those of which nothing is known are left out.
    fn drive_health(&self) -> BTreeMap<String, DriveHealth>;

    /// Changes how many copies of all data there are to be.
    fn set_redundancy(&self, redundancy: Redundancy) -> BoxFuture<'_, Result<(), Failure>>;

    /// How rarely the pool loses data as it is at this moment, beside what is wanted of it.
    fn reliability(&self, goal: &ReliabilityGoal, space: &PoolStatus) -> Reliability;
}

/// Which drive to add.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddDrive {
    /// An absolute path: of a block device, of a file, or of a file to be made. Or an address: of a namespace of another
    /// target, `nvme+tcp://HOST:PORT/NQN#NSID`, of a vhost-user-blk server, `vhost-user:/SOCKET`, or of a drive in a Ceph
    /// cluster, `rados:POOL/NAME`.
    pub path: PathBuf,
    /// The size of a file, or of a drive in a cluster, to be made, in bytes.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Use it even if it holds data.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Its failure domain: copies lie on drives of different ones. Without one it fails alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// It waits, empty, to take the place of a drive that fails.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spare: bool,
}

/// What becomes of a drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum DriveChange {
    /// It is neither read nor written.
    Offline,
    /// It is rebuilt, and online when it has all of its data; or it is not emptied any more.
    Online,
    /// Another drive takes its place, and is rebuilt.
    Replace(AddDrive),
    /// The pool does without it: a spare at once, a drive when all that lies there is on others.
    Remove,
}

/// An export that is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportState {
    /// Who uses it now.
    pub connections: u64,
}

/// What a file that was read again changed. Keys are named TABLE.KEY.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// The file.
    pub file: PathBuf,
    /// Keys whose new values count now.
    pub applied: Vec<String>,
    /// Keys whose new values count after a restart.
    pub waiting: Vec<String>,
}

/// What the handlers need.
#[derive(Clone)]
pub struct ApiState {
    /// The target whose hosts are shown.
    pub target: Arc<Target>,
    /// The engine.
    pub engine: Arc<Engine>,
    /// The pool's folder, which knows its drives.
    pub dir: Arc<Mutex<PoolDir>>,
    /// Where the engine's control work runs.
    pub control: reactor::Handle,
    /// The program that serves the pool.
    pub daemon: Arc<dyn Daemon>,
    /// What happened.
    pub events: Arc<EventLog>,
    /// What is worked at for a while.
    pub tasks: Arc<Tasks>,
    /// What the pool held and what hosts did, over time.
    pub history: Arc<History>,
    /// What hosts do in a second, of late.
    pub rates: Arc<Rates>,
    /// Requests that were refused for who asked.
    pub refused: Arc<Refused>,
    /// Changes take turns, so that the log knows whose each is.
    pub audit: Arc<Mutex<()>>,
}

/// Runs engine work on the control reactor. It runs to its end even if the client goes away.
pub(crate) async fn on_control<F, Fut, T>(state: &ApiState, work: F) -> Result<T, Failure>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = dedup::Result<T>> + 'static,
    T: Send + 'static,
{
    Ok(state.control.spawn(work).await??)
}

/// Changes the configuration on the control reactor. It runs to its end even if the client goes away.
pub(crate) async fn change<T: Send + 'static>(
    state: &ApiState,
    change: impl FnOnce(&mut Catalog) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let target = state.target.clone();
    let work = move || async move { target.change(change).await };
    state.control.spawn(work).await?
}

/// Runs work to its end even if the client goes away.
pub(crate) async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let joined = tokio::spawn(work).await;
    joined.map_err(|e| Failure::new(dedup::ErrorKind::Internal, e.to_string()))?
}

/// A name out of a request.
pub(crate) fn parse_nqn(text: &str) -> Result<Nqn, Failure> {
    text.parse()
        .map_err(|e| Failure::invalid(format!("'{text}' is no NQN: {e}")))
}

/// Refuses a new name that the specification does not allow: with a mistyped name a host could never connect, or a
/// subsystem never be found.
pub(crate) fn check_new<'a>(names: impl IntoIterator<Item = &'a Nqn>) -> Result<(), Failure> {
    for nqn in names {
        let wrong = |e| Failure::invalid(format!("'{nqn}' cannot be a name: {e}"));
        nqn.check_form().map_err(wrong)?;
    }
    Ok(())
}

/// Refuses a path that depends on where the daemon was started. The address of a namespace does not.
pub(crate) fn check_absolute(path: &Path) -> Result<(), Failure> {
    match path.is_absolute() || meta::is_remote_drive(path) {
        true => Ok(()),
        false => Err(Failure::invalid(format!(
            "'{}' is not an absolute path, and the daemon has a working directory of its own: begin it with /",
            path.display()
        ))),
    }
}
