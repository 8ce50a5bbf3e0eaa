//! Everything that can be asked for, and who may: the one list.
//!
//! Guarantee: what is not in this list is answered to nobody, however the routes are made.

use hyper::Method;

use crate::tokens::Role::{self, Admin, Operate, Read};

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// Everybody: it says nothing of the pool.
    Anybody,
    /// Everybody on this machine, others with this role.
    Local(Role),
    /// Callers with this role.
    Of(Role),
}

/// What can be asked for.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) method: Method,
    /// The path as it is routed.
    pub(crate) path: &'static str,
    pub(crate) right: Right,
}

const fn of(method: Method, path: &'static str, role: Role) -> Operation {
    Operation {
        method,
        path,
        right: Right::Of(role),
    }
}

/// A part of the page for browsers.
const fn page(path: &'static str) -> Operation {
    Operation {
        method: Method::GET,
        path,
        right: Right::Anybody,
    }
}

/// What a program of this machine may read without a token.
const fn local(path: &'static str) -> Operation {
    Operation {
        method: Method::GET,
        path,
        right: Right::Local(Read),
    }
}

/// All operations.
pub(crate) const OPERATIONS: &[Operation] = &[
    // The dashboard asks for a token, and shows what that may see.
    page("/"),
    page("/assets/{file}"),
    local("/healthz"),
    local("/metrics"),
    local("/v1/openapi.json"),
    of(Method::GET, "/v1/status", Read),
    of(Method::GET, "/v1/space", Read),
    of(Method::GET, "/v1/health", Read),
    of(Method::GET, "/v1/history", Read),
    of(Method::GET, "/v1/caller", Read),
    of(Method::GET, "/v1/volumes", Read),
    of(Method::POST, "/v1/volumes", Operate),
    of(Method::GET, "/v1/volumes/{name}", Read),
    of(Method::PATCH, "/v1/volumes/{name}", Admin),
    of(Method::DELETE, "/v1/volumes/{name}", Admin),
    of(Method::PATCH, "/v1/volumes/{name}/policy", Admin),
    of(Method::PATCH, "/v1/volumes/{name}/limits", Admin),
    of(Method::POST, "/v1/volumes/{name}/rename", Admin),
    of(Method::PATCH, "/v1/hosts/{nqn}/limits", Admin),
    of(Method::GET, "/v1/limits", Read),
    of(Method::GET, "/v1/volumes/{name}/reservation", Read),
    of(Method::DELETE, "/v1/volumes/{name}/reservation", Admin),
    of(Method::POST, "/v1/volumes/{name}/import", Operate),
    of(Method::PATCH, "/v1/volumes/{name}/import", Operate),
    of(Method::POST, "/v1/volumes/{name}/import/parts", Operate),
    // It tells what other volumes have.
    of(Method::POST, "/v1/volumes/{name}/import/known", Admin),
    of(Method::GET, "/v1/volumes/{name}/key-proof", Admin),
    of(Method::POST, "/v1/domain-keys", Admin),
    of(Method::POST, "/v1/volumes/{name}/import/finish", Operate),
    of(Method::PUT, "/v1/volumes/{name}/data", Operate),
    // It is all that hosts have written.
    of(Method::GET, "/v1/volumes/{name}/data", Admin),
    // It shows which blocks hosts have written.
    of(Method::GET, "/v1/volumes/{name}/extents", Operate),
    of(Method::GET, "/v1/volumes/{name}/diff", Operate),
    of(Method::POST, "/v1/volumes/{name}/clones", Operate),
    of(Method::GET, "/v1/snapshots", Read),
    of(Method::POST, "/v1/snapshots", Operate),
    of(Method::DELETE, "/v1/snapshots/{name}", Admin),
    of(Method::POST, "/v1/snapshots/{name}/rollback", Admin),
    of(Method::GET, "/v1/snapshot-schedules", Read),
    // A schedule deletes the oldest of its snapshots.
    of(Method::PUT, "/v1/volumes/{name}/snapshot-schedule", Admin),
    of(
        Method::DELETE,
        "/v1/volumes/{name}/snapshot-schedule",
        Admin,
    ),
    of(Method::GET, "/v1/scrub", Read),
    of(Method::POST, "/v1/scrub", Operate),
    of(Method::DELETE, "/v1/scrub", Operate),
    // It says for good how often all data are proved.
    of(Method::PUT, "/v1/scrub/schedule", Admin),
    of(Method::DELETE, "/v1/scrub/schedule", Admin),
    of(Method::POST, "/v1/check", Operate),
    // It writes where the caller says, as the daemon's user.
    of(Method::POST, "/v1/backup", Admin),
    of(Method::PATCH, "/v1/pool", Admin),
    // It tells what volumes have.
    of(Method::POST, "/v1/pool/known", Admin),
    of(Method::POST, "/v1/pool/move", Admin),
    of(Method::GET, "/v1/survey", Read),
    of(Method::POST, "/v1/survey", Operate),
    of(Method::GET, "/v1/tasks", Read),
    of(Method::POST, "/v1/tasks", Operate),
    of(Method::GET, "/v1/tasks/{id}", Read),
    of(Method::DELETE, "/v1/tasks/{id}", Operate),
    of(Method::POST, "/v1/tasks/{id}/finish", Operate),
    of(Method::GET, "/v1/events", Read),
    of(Method::GET, "/v1/events/stream", Read),
    // It shows which blocks a host reads and writes.
    of(Method::GET, "/v1/trace", Operate),
    of(Method::GET, "/v1/drives", Read),
    of(Method::POST, "/v1/drives", Admin),
    of(Method::POST, "/v1/drives/change", Admin),
    of(Method::GET, "/v1/subsystems", Read),
    of(Method::POST, "/v1/subsystems", Admin),
    of(Method::GET, "/v1/subsystems/{nqn}", Read),
    of(Method::PATCH, "/v1/subsystems/{nqn}", Admin),
    of(Method::DELETE, "/v1/subsystems/{nqn}", Admin),
    of(Method::POST, "/v1/subsystems/{nqn}/hosts", Admin),
    of(Method::DELETE, "/v1/subsystems/{nqn}/hosts/{host}", Admin),
    of(Method::POST, "/v1/subsystems/{nqn}/namespaces", Operate),
    of(
        Method::PATCH,
        "/v1/subsystems/{nqn}/namespaces/{nsid}",
        Admin,
    ),
    of(
        Method::DELETE,
        "/v1/subsystems/{nqn}/namespaces/{nsid}",
        Admin,
    ),
    of(Method::GET, "/v1/referrals", Read),
    of(Method::POST, "/v1/referrals", Admin),
    of(Method::DELETE, "/v1/referrals/{id}", Admin),
    of(Method::GET, "/v1/ana", Read),
    of(Method::PUT, "/v1/ana", Operate),
    of(Method::GET, "/v1/hosts", Read),
    of(Method::POST, "/v1/hosts", Admin),
    of(Method::GET, "/v1/hosts/{nqn}", Read),
    of(Method::PATCH, "/v1/hosts/{nqn}", Admin),
    of(Method::DELETE, "/v1/hosts/{nqn}", Admin),
    of(Method::POST, "/v1/hosts/{nqn}/tls-keys", Admin),
    of(Method::DELETE, "/v1/hosts/{nqn}/tls-keys/{id}", Admin),
    of(Method::GET, "/v1/listeners", Read),
    of(Method::POST, "/v1/listeners", Admin),
    of(Method::PATCH, "/v1/listeners/{id}", Admin),
    of(Method::DELETE, "/v1/listeners/{id}", Admin),
    of(Method::GET, "/v1/exports", Read),
    of(Method::POST, "/v1/exports", Admin),
    of(Method::DELETE, "/v1/exports/{id}", Admin),
    of(Method::POST, "/v1/config/reload", Admin),
    // It has the secrets of hosts, if they are asked for.
    of(Method::POST, "/v1/config/export", Admin),
    of(Method::POST, "/v1/config/import", Admin),
    of(Method::GET, "/v1/tokens", Admin),
    of(Method::POST, "/v1/tokens", Admin),
    of(Method::DELETE, "/v1/tokens/{name}", Admin),
];

/// What a request asks for. HEAD asks for what GET does.
pub(crate) fn find(method: &Method, path: &str) -> Option<&'static Operation> {
    let method = match *method {
        Method::HEAD => &Method::GET,
        ref method => method,
    };
    let mut here = OPERATIONS.iter().filter(|it| it.path == path);
    here.find(|it| it.method == *method)
}

/// The methods of a path, as the header Allow lists them.
pub(crate) fn methods(path: &str) -> String {
    let here = OPERATIONS.iter().filter(|it| it.path == path);
    here.map(|it| it.method.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_operation_is_there_once_and_the_rest_is_nobodys() {
        let all: BTreeSet<_> = OPERATIONS
            .iter()
            .map(|it| (it.path, it.method.as_str()))
            .collect();
        assert_eq!(all.len(), OPERATIONS.len());
        assert!(find(&Method::HEAD, "/metrics").is_some());
        assert!(find(&Method::DELETE, "/metrics").is_none());
        assert!(find(&Method::GET, "/v1/none").is_none());
        assert_eq!(methods("/v1/scrub"), "GET, POST, DELETE");
    }

    #[test]
    fn who_may_only_look_changes_nothing_and_sees_no_tokens() {
        for it in OPERATIONS {
            let may_read = it.right != Right::Of(Admin) && it.right != Right::Of(Operate);
            assert!(!may_read || it.method == Method::GET, "{it:?}");
            assert!(!may_read || !it.path.contains("tokens"), "{it:?}");
            // What takes something from somebody is an administrator's. A scrub or a task can be begun again.
            let is_work = ["/v1/scrub", "/v1/tasks/{id}"].contains(&it.path);
            let takes = it.method == Method::DELETE && !is_work;
            assert!(!takes || it.right == Right::Of(Admin), "{it:?}");
        }
    }
}
