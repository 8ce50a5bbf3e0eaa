//! A daemon that was started with `--join`, until it has the pool.
//!
//! Guarantees:
//! - Hosts can connect as soon as the pool's owner has said what they are to see; until this node has the pool, their commands wait
//!   for the owner's path, or for this one.
//! - Where another node takes the pool first, this one goes on waiting.
//! - Meanwhile whoever asks this node by its API is told which machine has the pool.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::socket::is_served;
use api::standby::{self, Excuse};
use dedup::ErrorKind;
use futures_util::future::select_all;
use meta::{Ahead, PoolDir};
use subsystem::errors::Failure;
use subsystem::limits::Limits;
use subsystem::target::Pool;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::front::Front;
use super::{Around, open_pool, open_target};
use crate::control_socket;
use crate::listen::Wanted;
use crate::nodes::{self, Node};
use crate::notify;
use crate::output::print;
use crate::pool::{OpenPool, PoolRequest};
use crate::preparing::Preparing;
use crate::signals::Signals;
use crate::standby::{From, LOOK_INTERVAL, Verdict, Watch, check_folder, prepare, take};

/// How long a node waits before it tries again to take a pool that it could not take.
const AGAIN: Duration = Duration::from_secs(1);

/// How long a request may keep a node from taking the pool. All are answered at once.
const END_MAX: Duration = Duration::from_millis(100);

/// What a standby is to serve.
pub(super) struct Standby<'a> {
    pub(super) request: &'a PoolRequest,
    pub(super) wanted: &'a Wanted,
    pub(super) limits: Limits,
    pub(super) around: &'a Around<'a>,
    pub(super) node: &'a Arc<Node>,
}

impl Standby<'_> {
    /// Waits until this node has the pool, which is open then; `None` if it is told to stop before. Hosts can connect to `front`
    /// meanwhile, which stays whatever comes of it.
    ///
    /// # Errors
    /// The pool cannot be opened, or a listener closed.
    pub(super) async fn wait(
        &self,
        front: &mut Option<Front>,
        signals: &mut Signals,
    ) -> Result<Option<OpenPool>, Failure> {
        let mut watch = Watch::new(self.node.clone(), self.request)?;
        let mut answers = Answers::new(self);
        let mut preparing = None;
        let mut ahead = None;
        let mut turn = None;
        let mut told = String::new();
        loop {
            let step = async {
                match watch.look().await {
                    Ok(Verdict::Make) if !self.request.makes_pool() => {
                        Err(not_made(&self.request.dir))
                    }
                    Ok(Verdict::Make) => {
                        answers.end().await;
                        self.make().await
                    }
                    Ok(Verdict::Take(_)) if !self.is_its_turn(&mut turn, front.is_some()).await => {
                        tokio::time::sleep(LOOK_INTERVAL).await;
                        Ok(None)
                    }
                    Ok(Verdict::Take(from)) => {
                        answers.end().await;
                        let ahead = made_by(preparing.take()).await?.or(ahead.take());
                        self.take(from, ahead, &mut told).await
                    }
                    Ok(Verdict::Wait(machine)) => {
                        turn = None;
                        told.clear();
                        let who = serves(machine.as_deref());
                        answers.give(&who)?;
                        if front.is_none() {
                            *front = self.open_front(&who).await?;
                        }
                        if front.is_some() && preparing.is_none() {
                            preparing = Some(prepare(self.request, ahead.take())?);
                        }
                        tokio::time::sleep(LOOK_INTERVAL).await;
                        Ok(None)
                    }
                    Err(_) if preparing.is_some() && self.node.is_on_sleds() => {
                        // A drive that answers may say that the others have nothing newer. Only one can have it open to read that.
                        ahead = made_by(preparing.take()).await?;
                        Ok(None)
                    }
                    Err(failure) => {
                        tracing::warn!(%failure, "whether the pool has an owner is not known");
                        tokio::time::sleep(AGAIN).await;
                        Ok(None)
                    }
                }
            };
            tokio::select! {
                pool = step => if let Some(pool) = pool? {
                    return Ok(Some(pool));
                },
                _ = signals.stop() => {
                    answers.end().await;
                    made_by(preparing).await?;
                    return Ok(None);
                }
            }
            if let Some(front) = front {
                front.check().await?;
            }
        }
    }

    /// Whether this node is to take the pool, which has no owner now. `turn`: when its turn comes, if that was asked. `offers`: it has
    /// offered the pool so far, and so is one of those that divide the last owner's pools.
    async fn is_its_turn(&self, turn: &mut Option<Instant>, offers: bool) -> bool {
        let at = match *turn {
            Some(at) => at,
            None => {
                let patience = nodes::patience(self.node, offers).await;
                if patience > Duration::ZERO {
                    tracing::info!(
                        ?patience,
                        "the pool has no owner: another node is to take it first"
                    );
                }
                *turn.insert(Instant::now() + patience)
            }
        };
        Instant::now() >= at
    }

    /// Makes the pool; `None` if another node does.
    async fn make(&self) -> Result<Option<OpenPool>, Failure> {
        if !self.is_first().await {
            return Ok(None);
        }
        let made = open_pool(self.request.clone(), &self.around.control).await;
        made.map(Some)
    }

    /// Takes the pool; `None` if somebody else has it after all. Why is logged when it is not what was `told` before.
    async fn take(
        &self,
        from: From,
        ahead: Option<Ahead>,
        told: &mut String,
    ) -> Result<Option<OpenPool>, Failure> {
        if !self.is_first().await {
            return Ok(None);
        }
        if told.is_empty() {
            tracing::info!("the pool has no owner: this node takes it over");
        }
        let node = self.node.clone();
        match take(self.request, (node, from), &self.around.control, ahead).await {
            Err(failure) if failure.kind == ErrorKind::Unavailable => {
                if *told != failure.message {
                    tracing::warn!(%failure, "the pool was not taken: this node tries again");
                    told.clone_from(&failure.message);
                }
                let node = self.node.clone();
                let given_up = tokio::task::spawn_blocking(move || node.gave_up());
                let _ = given_up.await;
                tokio::time::sleep(AGAIN).await;
                Ok(None)
            }
            taken => taken.map(Some),
        }
    }

    /// Whether no other node takes the pool at this moment.
    async fn is_first(&self) -> bool {
        let node = self.node.clone();
        match nodes::blocking(move || node.begin_to_take()).await {
            Ok(true) => return true,
            Ok(false) => tracing::info!("another node takes the pool"),
            Err(failure) => {
                tracing::warn!(%failure, "the other nodes cannot be told that this one takes the pool")
            }
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
        false
    }

    /// Lets hosts connect, if the owner has said what they are to see.
    async fn open_front(&self, who: &str) -> Result<Option<Front>, Failure> {
        let description = match nodes::description(self.node).await {
            Ok(Some(description)) => description,
            Ok(None) => return Ok(None),
            Err(failure) => {
                tracing::warn!(%failure, "hosts cannot connect before this node has the pool");
                return Ok(None);
            }
        };
        let pool = description.pool;
        check_folder(self.request, pool).await?;
        let pool = (Pool::Elsewhere(Box::new(description)), pool);
        let target = open_target(pool, false, self.wanted, self.limits)?;
        let front = Front::open(target, self.wanted.clone(), self.around);
        let front = front.await?;
        let bound: Vec<String> = front
            .listening
            .bound
            .iter()
            .map(ToString::to_string)
            .collect();
        print(&format!(
            "standby {}\nAt this moment {who}. Hosts that connect here too go on when this node has it.\n",
            bound.join(" ")
        ));
        notify::ready();
        Ok(Some(front))
    }
}

/// What was made of the pool's folder so far.
async fn made_by(preparing: Option<Preparing>) -> Result<Option<Ahead>, Failure> {
    let ended = tokio::task::spawn_blocking(|| preparing.and_then(Preparing::end)).await;
    ended.map_err(|error| Failure::new(ErrorKind::Internal, error.to_string()))
}

/// Why a pool that no node has made is not made here.
fn not_made(dir: &Path) -> Failure {
    let remedy = match PoolDir::exists(dir) {
        true => format!(
            "no drive that is named has the pool of the folder '{dir}': name its drives with --drive; if that pool was given up, \
             remove the folder, or name another one with --pool",
            dir = dir.display()
        ),
        false => "no node has made the pool: name the right drives with --drive, or let this node make it with --create SIZE".to_owned(),
    };
    Failure::new(ErrorKind::NotFound, remedy)
}

/// Who has the pool, for people.
fn serves(machine: Option<&str>) -> String {
    match machine {
        Some(machine) => format!("the machine '{machine}' serves the pool"),
        None => "no node serves the pool".to_owned(),
    }
}

/// What a standby answers to those who ask it: who has the pool.
struct Answers<'a> {
    dir: &'a Path,
    around: &'a Around<'a>,
    /// Who has the pool, as it was said last.
    who: String,
    socket: Option<Socket>,
}

/// The control socket of the pool's folder, for as long as this node does not use the folder.
struct Socket {
    excuse: Excuse,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<std::io::Result<()>>,
}

impl<'a> Answers<'a> {
    fn new(standby: &'a Standby<'_>) -> Self {
        Self {
            dir: &standby.request.dir,
            around: standby.around,
            who: String::new(),
            socket: None,
        }
    }

    /// From now on it answers this.
    ///
    /// # Errors
    /// Another daemon uses the folder, or it cannot be made.
    fn give(&mut self, who: &str) -> Result<(), Failure> {
        if self.socket.is_some() && self.who == who {
            return Ok(());
        }
        tracing::info!("{who}: this node is a standby");
        self.who = who.to_owned();
        let text = format!(
            "this node is a standby: {who}; `onefold pool nodes` lists the nodes of the pool"
        );
        self.around.http.waiting(&text);
        match &self.socket {
            Some(socket) => socket.excuse.set(text),
            None => self.socket = Some(self.bind(Excuse::new(text))?),
        }
        Ok(())
    }

    fn bind(&self, excuse: Excuse) -> Result<Socket, Failure> {
        let dir = self.dir.display();
        std::fs::create_dir_all(self.dir).map_err(|error| {
            Failure::unavailable(format!("the pool's folder '{dir}' cannot be made: {error}"))
        })?;
        if is_served(self.dir) {
            return Err(Failure::unavailable(format!(
                "another daemon uses the folder '{dir}': stop that one, or give this one a folder of its own (--pool)"
            )));
        }
        let socket = control_socket::bind(self.dir, self.around.api_group)?;
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            let _ = stopped.await;
        };
        Ok(Socket {
            serving: tokio::spawn(socket.serve(standby::router(excuse.clone()), stopped)),
            excuse,
            stop,
        })
    }

    /// The folder is this node's to use: the socket is gone from it.
    async fn end(&mut self) {
        self.around
            .http
            .waiting("the daemon starts: it opens the pool");
        if let Some(mut socket) = self.socket.take() {
            let _ = socket.stop.send(());
            let ended = tokio::time::timeout(END_MAX, &mut socket.serving).await;
            if ended.is_err() {
                // At its end it would remove the socket that follows.
                socket.serving.abort();
            }
        }
    }
}

impl Front {
    /// Whether all listeners work.
    async fn check(&mut self) -> Result<(), Failure> {
        let mut first_end = select_all(std::mem::take(&mut self.listening.work));
        let ended = futures_util::FutureExt::now_or_never(&mut first_end);
        match ended {
            None => {
                self.listening.work = first_end.into_inner();
                Ok(())
            }
            Some((ended, _, others)) => {
                self.listening.work = others;
                Err(super::listener_closed(ended))
            }
        }
    }
}
