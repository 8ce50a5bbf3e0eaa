//! Who asks: the process at the other end of the control socket, as the kernel reports it, or the bearer of a token.

use std::fmt::{self, Display};
use std::net::SocketAddr;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use tokio::net::UnixListener;

/// Where a request over TCP comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// Who asks.
#[derive(Clone, Debug, Default)]
pub(crate) enum Caller {
    /// Nobody knows.
    #[default]
    Unknown,
    /// The process at the other end of the control socket.
    Process {
        uid: u32,
        pid: Option<i32>,
        /// The user who logged in, and became this one by sudo or su.
        login: Option<u32>,
    },
    /// The bearer of a token.
    Token { name: String, peer: SocketAddr },
}

impl Connected<IncomingStream<'_, UnixListener>> for Caller {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let Ok(credentials) = stream.io().peer_cred() else {
            return Self::Unknown;
        };
        let pid = credentials.pid();
        Self::Process {
            uid: credentials.uid(),
            pid,
            login: pid.and_then(login_of),
        }
    }
}

/// The user who logged in to the session of a process; `None` if there was no login, or the kernel does not tell.
fn login_of(pid: i32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/loginuid")).ok()?;
    let uid = text.trim().parse().ok()?;
    (uid != u32::MAX).then_some(uid)
}

/// The name of a user in the text of `/etc/passwd`.
fn name_in(passwd: &str, uid: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

impl Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (uid, pid, login) = match self {
            Self::Unknown => return f.write_str("unknown"),
            Self::Token { name, peer } => return write!(f, "token '{name}' ({})", peer.ip()),
            Self::Process { uid, pid, login } => (*uid, *pid, *login),
        };
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let name = |uid| name_in(&passwd, uid).unwrap_or("?").to_owned();
        write!(f, "{} (uid {uid}", name(uid))?;
        if let Some(pid) = pid {
            write!(f, ", process {pid}")?;
        }
        if let Some(login) = login.filter(|login| *login != uid) {
            write!(f, ", logged in as {}", name(login))?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_name_of_the_systems_list() {
        let passwd = "root:x:0:0::/root:/bin/sh\nbroken\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(name_in(passwd, 1000), Some("ann"));
        assert_eq!(name_in(passwd, 7), None);
    }
}
