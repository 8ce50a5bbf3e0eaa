//! The client of a daemon's API: JSON over HTTP on the pool's unix socket.

use std::path::{Path, PathBuf};

use dedup::{DriveStatus, OnlineCheckReport, Survey};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use nvme::Nqn;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::ana::api::{AnaView, SetAna};
use crate::api::{CreateVolume, ResizeVolume, VolumeView};
use crate::backup::{BackupView, MakeBackup};
use crate::drive_api::AddDrive;
use crate::errors::{ErrorBody, Failure};
use crate::host_api::{AddTlsKey, CreateHost, HostView, SetHost, TlsKeyView};
use crate::listener_api::{AddListener, ListenerView, SetListener};
use crate::reservation::api::ReservationView;
use crate::socket::SocketPath;
use crate::status::{SpaceDetail, Status};
use crate::subsystem_api::{
    AddReferral, AllowHost, AttachNamespace, CreateSubsystem, NamespaceView, ReferralView,
    SetNamespace, SetSubsystem, SubsystemView,
};
use crate::trust::{ScrubView, StartScrub};

/// The longest answer that is read, in bytes: status with all volumes and hosts stays far below.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Talks to the daemon that serves a pool.
#[derive(Debug)]
pub struct Client {
    pool: PathBuf,
}

impl Client {
    /// A client of the daemon that serves the pool in `pool`.
    #[must_use]
    pub fn new(pool: &Path) -> Self {
        Self {
            pool: pool.to_owned(),
        }
    }

    /// Volumes, hosts, space.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn status(&self) -> Result<Status, Failure> {
        self.get("/v1/status").await
    }

    /// The rest of the pool's space.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn space_detail(&self) -> Result<SpaceDetail, Failure> {
        self.get("/v1/space").await
    }

    /// All volumes.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn volumes(&self) -> Result<Vec<VolumeView>, Failure> {
        self.get("/v1/volumes").await
    }

    /// One volume.
    ///
    /// # Errors
    /// There is no such volume, or no daemon serves the pool.
    pub async fn volume(&self, name: &str) -> Result<VolumeView, Failure> {
        self.get(&volume_path(name)?).await
    }

    /// Creates a volume.
    ///
    /// # Errors
    /// The daemon refuses (name taken, size not usable), or no daemon serves the pool.
    pub async fn create_volume(&self, request: &CreateVolume) -> Result<VolumeView, Failure> {
        self.send(Method::POST, "/v1/volumes", Some(request)).await
    }

    /// Changes a volume's size.
    ///
    /// # Errors
    /// The daemon refuses, or no daemon serves the pool.
    pub async fn resize_volume(
        &self,
        name: &str,
        request: &ResizeVolume,
    ) -> Result<VolumeView, Failure> {
        self.send(Method::PATCH, &volume_path(name)?, Some(request))
            .await
    }

    /// Deletes a volume and its data; answers with what it was.
    ///
    /// # Errors
    /// There is no such volume, or no daemon serves the pool.
    pub async fn delete_volume(&self, name: &str) -> Result<VolumeView, Failure> {
        self.send(Method::DELETE, &volume_path(name)?, None::<&()>)
            .await
    }

    /// All subsystems.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn subsystems(&self) -> Result<Vec<SubsystemView>, Failure> {
        self.get("/v1/subsystems").await
    }

    /// One subsystem.
    ///
    /// # Errors
    /// There is no such subsystem, or no daemon serves the pool.
    pub async fn subsystem(&self, nqn: &Nqn) -> Result<SubsystemView, Failure> {
        self.get(&subsystem_path(nqn)).await
    }

    /// Creates a subsystem.
    ///
    /// # Errors
    /// The daemon refuses (name taken, bounds), or no daemon serves the pool.
    pub async fn create_subsystem(
        &self,
        request: &CreateSubsystem,
    ) -> Result<SubsystemView, Failure> {
        self.send(Method::POST, "/v1/subsystems", Some(request))
            .await
    }

    /// Changes a subsystem.
    ///
    /// # Errors
    /// There is no such subsystem, or no daemon serves the pool.
    pub async fn set_subsystem(
        &self,
        nqn: &Nqn,
        request: &SetSubsystem,
    ) -> Result<SubsystemView, Failure> {
        self.send(Method::PATCH, &subsystem_path(nqn), Some(request))
            .await
    }

    /// Deletes a subsystem; its volumes stay. Answers with what it was.
    ///
    /// # Errors
    /// There is no such subsystem, it is the default one, or no daemon serves the pool.
    pub async fn delete_subsystem(&self, nqn: &Nqn) -> Result<SubsystemView, Failure> {
        self.send(Method::DELETE, &subsystem_path(nqn), None::<&()>)
            .await
    }

    /// Puts a host on a subsystem's list.
    ///
    /// # Errors
    /// There is no such subsystem, or no daemon serves the pool.
    pub async fn allow_host(&self, nqn: &Nqn, host: &Nqn) -> Result<SubsystemView, Failure> {
        let path = format!("{}/hosts", subsystem_path(nqn));
        let request = AllowHost { nqn: host.clone() };
        self.send(Method::POST, &path, Some(&request)).await
    }

    /// Takes a host off a subsystem's list.
    ///
    /// # Errors
    /// There is no such subsystem or host, or no daemon serves the pool.
    pub async fn disallow_host(&self, nqn: &Nqn, host: &Nqn) -> Result<SubsystemView, Failure> {
        let path = format!("{}/hosts/{}", subsystem_path(nqn), segment(host.as_str()));
        self.send(Method::DELETE, &path, None::<&()>).await
    }

    /// Makes a volume a namespace of a subsystem.
    ///
    /// # Errors
    /// The daemon refuses (no such subsystem or volume, identifier taken), or no daemon serves the pool.
    pub async fn attach_namespace(
        &self,
        nqn: &Nqn,
        request: &AttachNamespace,
    ) -> Result<NamespaceView, Failure> {
        let path = format!("{}/namespaces", subsystem_path(nqn));
        self.send(Method::POST, &path, Some(request)).await
    }

    /// Changes a namespace.
    ///
    /// # Errors
    /// The daemon refuses, or no daemon serves the pool.
    pub async fn set_namespace(
        &self,
        nqn: &Nqn,
        nsid: u32,
        request: &SetNamespace,
    ) -> Result<NamespaceView, Failure> {
        let path = format!("{}/namespaces/{nsid}", subsystem_path(nqn));
        self.send(Method::PATCH, &path, Some(request)).await
    }

    /// Takes a namespace out of a subsystem; the volume stays. Answers with what it was.
    ///
    /// # Errors
    /// There is no such subsystem or namespace, or no daemon serves the pool.
    pub async fn detach_namespace(&self, nqn: &Nqn, nsid: u32) -> Result<NamespaceView, Failure> {
        let path = format!("{}/namespaces/{nsid}", subsystem_path(nqn));
        self.send(Method::DELETE, &path, None::<&()>).await
    }

    /// Where the daemon listens.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn listeners(&self) -> Result<Vec<ListenerView>, Failure> {
        self.get("/v1/listeners").await
    }

    /// Listens at one more address.
    ///
    /// # Errors
    /// It is taken, or is none of the daemon's machine; or no daemon serves the pool.
    pub async fn add_listener(&self, request: &AddListener) -> Result<ListenerView, Failure> {
        self.send(Method::POST, "/v1/listeners", Some(request))
            .await
    }

    /// Changes a listener.
    ///
    /// # Errors
    /// There is no such listener, it cannot be so, or no daemon serves the pool.
    pub async fn set_listener(
        &self,
        id: u16,
        request: &SetListener,
    ) -> Result<ListenerView, Failure> {
        let path = format!("/v1/listeners/{id}");
        self.send(Method::PATCH, &path, Some(request)).await
    }

    /// Listens there no longer.
    ///
    /// # Errors
    /// There is no such listener, or no daemon serves the pool.
    pub async fn remove_listener(&self, id: u16) -> Result<ListenerView, Failure> {
        let path = format!("/v1/listeners/{id}");
        self.send(Method::DELETE, &path, None::<&()>).await
    }

    /// Other discovery services that hosts are told of.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn referrals(&self) -> Result<Vec<ReferralView>, Failure> {
        self.get("/v1/referrals").await
    }

    /// Tells hosts of another discovery service.
    ///
    /// # Errors
    /// The daemon refuses (told already, bounds), or no daemon serves the pool.
    pub async fn add_referral(&self, request: &AddReferral) -> Result<ReferralView, Failure> {
        self.send(Method::POST, "/v1/referrals", Some(request))
            .await
    }

    /// Tells hosts of it no longer.
    ///
    /// # Errors
    /// There is no such referral, or no daemon serves the pool.
    pub async fn remove_referral(&self, id: u16) -> Result<ReferralView, Failure> {
        let path = format!("/v1/referrals/{id}");
        self.send(Method::DELETE, &path, None::<&()>).await
    }

    /// Hosts of which something is kept.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn hosts(&self) -> Result<Vec<HostView>, Failure> {
        self.get("/v1/hosts").await
    }

    /// What is kept of a host.
    ///
    /// # Errors
    /// Nothing is, or no daemon serves the pool.
    pub async fn host(&self, nqn: &Nqn) -> Result<HostView, Failure> {
        self.get(&host_path(nqn)).await
    }

    /// Keeps a host's keys.
    ///
    /// # Errors
    /// The daemon refuses (known already, no secret), or no daemon serves the pool.
    pub async fn create_host(&self, request: &CreateHost) -> Result<HostView, Failure> {
        self.send(Method::POST, "/v1/hosts", Some(request)).await
    }

    /// Changes a host's keys.
    ///
    /// # Errors
    /// The daemon refuses, or no daemon serves the pool.
    pub async fn set_host(&self, nqn: &Nqn, request: &SetHost) -> Result<HostView, Failure> {
        self.send(Method::PATCH, &host_path(nqn), Some(request))
            .await
    }

    /// Keeps one more TLS key of a host.
    ///
    /// # Errors
    /// It is none, or known already; or no daemon serves the pool.
    pub async fn add_tls_key(&self, nqn: &Nqn, request: &AddTlsKey) -> Result<TlsKeyView, Failure> {
        let path = host_path(nqn) + "/tls-keys";
        self.send(Method::POST, &path, Some(request)).await
    }

    /// Forgets a TLS key of a host. Answers with what was kept.
    ///
    /// # Errors
    /// There is no such key, or no daemon serves the pool.
    pub async fn remove_tls_key(&self, nqn: &Nqn, id: u32) -> Result<TlsKeyView, Failure> {
        let path = format!("{}/tls-keys/{id}", host_path(nqn));
        self.send(Method::DELETE, &path, None::<&()>).await
    }

    /// Forgets a host's keys. Answers with what was kept.
    ///
    /// # Errors
    /// Nothing is, or no daemon serves the pool.
    pub async fn delete_host(&self, nqn: &Nqn) -> Result<HostView, Failure> {
        self.send(Method::DELETE, &host_path(nqn), None::<&()>)
            .await
    }

    /// All drives, and their space.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn drives(&self) -> Result<Vec<DriveStatus>, Failure> {
        self.get("/v1/drives").await
    }

    /// Adds a drive; answers with all drives.
    ///
    /// # Errors
    /// The daemon refuses (the drive holds something, is too small, or is not there), or no daemon
    /// serves the pool.
    pub async fn add_drive(&self, request: &AddDrive) -> Result<Vec<DriveStatus>, Failure> {
        self.send(Method::POST, "/v1/drives", Some(request)).await
    }

    /// The listeners, and the ANA groups that they do not reach best.
    ///
    /// # Errors
    /// No daemon serves the pool.
    pub async fn ana(&self) -> Result<Vec<AnaView>, Failure> {
        self.get("/v1/ana").await
    }

    /// Sets how a listener reaches a group.
    ///
    /// # Errors
    /// There is no such listener or group, or no daemon serves the pool.
    pub async fn set_ana(&self, request: &SetAna) -> Result<AnaView, Failure> {
        self.send(Method::PUT, "/v1/ana", Some(request)).await
    }

    /// The reservations of a volume.
    ///
    /// # Errors
    /// There is no such volume, or no daemon serves the pool.
    pub async fn reservation(&self, volume: &str) -> Result<ReservationView, Failure> {
        let path = volume_path(volume)? + "/reservation";
        self.get(&path).await
    }

    /// Removes reservation and registrations of a volume.
    ///
    /// # Errors
    /// There is no such volume, or no daemon serves the pool.
    pub async fn clear_reservation(&self, volume: &str) -> Result<ReservationView, Failure> {
        let path = volume_path(volume)? + "/reservation";
        self.send(Method::DELETE, &path, None::<&()>).await
    }

    /// Counts what volumes have alone and share; answers when it is through.
    ///
    /// # Errors
    /// No daemon serves the pool, or it is being stopped.
    pub async fn survey(&self) -> Result<Survey, Failure> {
        self.send(Method::POST, "/v1/survey", None::<&()>).await
    }

    /// How far the scrub is, and what is damaged.
    ///
    /// # Errors
    /// No daemon serves the pool, or it refuses.
    pub async fn scrub(&self) -> Result<ScrubView, Failure> {
        self.get("/v1/scrub").await
    }

    /// Starts a scrub.
    ///
    /// # Errors
    /// One runs already, or no daemon serves the pool.
    pub async fn start_scrub(&self, request: &StartScrub) -> Result<ScrubView, Failure> {
        self.send(Method::POST, "/v1/scrub", Some(request)).await
    }

    /// Stops the scrub.
    ///
    /// # Errors
    /// None runs, or no daemon serves the pool.
    pub async fn stop_scrub(&self) -> Result<ScrubView, Failure> {
        self.send(Method::DELETE, "/v1/scrub", None::<&()>).await
    }

    /// Proves counts and maps of the running daemon; answers when it is through.
    ///
    /// # Errors
    /// A check runs already, or no daemon serves the pool.
    pub async fn check(&self) -> Result<OnlineCheckReport, Failure> {
        self.send(Method::POST, "/v1/check", None::<&()>).await
    }

    /// Makes a backup of the metadata in a folder of the daemon's machine.
    ///
    /// # Errors
    /// Something is there, it cannot be written, or no daemon serves the pool.
    pub async fn backup(&self, request: &MakeBackup) -> Result<BackupView, Failure> {
        self.send(Method::POST, "/v1/backup", Some(request)).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.send(Method::GET, path, None::<&()>).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        let broken = |what: &str, error: &dyn std::fmt::Display| {
            Failure::unavailable(format!(
                "the daemon of the pool '{}' {what}: {error}",
                self.pool.display()
            ))
        };
        let stream = self.connect().await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| broken("does not speak HTTP", &e))?;
        let connection = tokio::spawn(connection);
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(|e| Failure::invalid(e.to_string()))?,
            None => Vec::new(),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "onefold")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|e| Failure::invalid(format!("the request '{path}' is malformed: {e}")))?;
        let answer = sender
            .send_request(request)
            .await
            .map_err(|e| broken("closed the connection before it answered", &e))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(|e| broken("sent an incomplete answer", &e))?
            .to_bytes();
        drop(sender);
        connection.abort();
        if status == StatusCode::OK {
            return serde_json::from_slice(&body)
                .map_err(|e| broken("sent an answer of another version", &e));
        }
        match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(error) => Err(error.into()),
            Err(_) => Err(broken("refused", &status)),
        }
    }

    async fn connect(&self) -> Result<UnixStream, Failure> {
        let not_served = |error: std::io::Error| {
            let pool = self.pool.display();
            let why = match error.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                    format!(
                        "no daemon serves the pool '{pool}': start it with `onefold serve --pool {pool}`"
                    )
                }
                std::io::ErrorKind::PermissionDenied => format!(
                    "the daemon of the pool '{pool}' belongs to another user: run the command as that user"
                ),
                _ => format!("the daemon of the pool '{pool}' cannot be reached: {error}"),
            };
            Failure::unavailable(why)
        };
        let path = SocketPath::of_pool(&self.pool).map_err(not_served)?;
        UnixStream::connect(path.as_path())
            .await
            .map_err(not_served)
    }
}

/// The path of a host.
fn host_path(nqn: &Nqn) -> String {
    format!("/v1/hosts/{}", segment(nqn.as_str()))
}

/// The path of a subsystem.
fn subsystem_path(nqn: &Nqn) -> String {
    format!("/v1/subsystems/{}", segment(nqn.as_str()))
}

/// A text as one segment of a path: what could mean something else there is written as %XX (RFC 3986).
fn segment(text: &str) -> String {
    let mut segment = String::new();
    for byte in text.bytes() {
        match byte {
            b'.' | b'_' | b'-' | b':' | b'~' => segment.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => segment.push(char::from(byte)),
            _ => segment += &format!("%{byte:02X}"),
        }
    }
    segment
}

/// The path of a volume. Names that a volume cannot have never reach the daemon.
fn volume_path(name: &str) -> Result<String, Failure> {
    let plain = !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if !plain {
        return Err(Failure::invalid(format!(
            "'{name}' cannot be the name of a volume: names are made of a-z A-Z 0-9 . _ -"
        )));
    }
    Ok(format!("/v1/volumes/{name}"))
}
