//! When a controller counts for others than itself, and whose host identifiers are.
//!
//! Reservations know hosts by their identifiers (HOSTID), which hosts choose. Guarantees:
//! - A controller whose host has yet to authenticate counts for nobody: it gets no private namespace, is in no list of
//!   hosts and of controllers, and nobody waits for its end.
//! - An identifier that came with a proven name (by authentication, or by a TLS key) is that host's as long as it is
//!   attached, or registered with a volume. Hosts of other names cannot connect with it.
//! - Names that nobody proved bind nothing. Several of them may have one identifier; they lose their associations
//!   when a host that proved its name comes with it.

use std::net::SocketAddr;
use std::sync::Arc;

use nvme::{Nqn, Status};
use uuid::Uuid;

use crate::controller::Controller;
use crate::queue::lock;
use crate::reservation::HostId;
use crate::subsystem::{Host, Target};

/// A host identifier that no host has: reservations do not take it.
const NO_IDENTIFIER: [u8; 16] = [0; 16];

/// The host identifier belongs to another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdentifierTaken {
    id: HostId,
    owner: Nqn,
    /// The owner is registered with a volume, and not only attached.
    is_registered: bool,
}

impl IdentifierTaken {
    /// What the host is told. While the owner is attached the host may come again: it can be the one that the
    /// identifier was taken from, and Linux gives a controller up at Do Not Retry.
    pub(crate) fn status(&self) -> Status {
        match self.is_registered {
            true => Status::CONNECT_INVALID_HOST.with_dnr(),
            false => Status::CONNECT_INVALID_HOST,
        }
    }

    /// Tells the owner of the target who was refused, and what can be done.
    pub(crate) fn log(&self, host: &Host, peer: SocketAddr) {
        let why = match self.is_registered {
            true => "registered with a volume (`onefold reservation clear` ends that)",
            false => "attached",
        };
        fabric::log_of_peer!(
            warn,
            "identifier of another",
            peer.ip(),
            host = %host.nqn,
            %peer,
            host_id = %self.id,
            owner = %self.owner,
            "a host was refused: its host identifier is that of another host, which proved its name and is {why}. \
             Give each host an identifier of its own (/etc/nvme/hostid)"
        );
    }
}

impl Target {
    /// Whether a host of that name may have that identifier.
    ///
    /// # Errors
    /// The host that it belongs to.
    pub(crate) fn check_identifier(&self, host: &Host) -> Result<(), IdentifierTaken> {
        if host.id == NO_IDENTIFIER {
            return Ok(());
        }
        let id = Uuid::from_bytes(host.id);
        let taken = |owner: Nqn, is_registered| {
            Err(IdentifierTaken {
                id,
                owner,
                is_registered,
            })
        };
        let is_owner = |other: &Arc<Controller>| {
            let named = other.host.id == host.id && other.host.nqn != host.nqn;
            named && other.is_proven() && !other.is_ending()
        };
        match self.reservations.owner_of(&id) {
            Some(owner) if owner != host.nqn => return taken(owner, true),
            _ => {}
        }
        match self.controllers().into_iter().find(is_owner) {
            Some(owner) => taken(owner.host.nqn.clone(), false),
            None => Ok(()),
        }
    }

    /// The host of a controller has authenticated, or need not: from here on the controller counts for others.
    /// `proven` says that the host proved its name.
    ///
    /// # Errors
    /// The host that the identifier belongs to. The controller counts for nobody then.
    pub(crate) fn admit(
        &self,
        controller: &Arc<Controller>,
        proven: bool,
    ) -> Result<(), IdentifierTaken> {
        let host = &controller.host;
        let (is_new, displaced) = {
            let _turn = lock(&self.admitting);
            // What the discovery subsystem shows depends on no identifier.
            let matters = !controller.is_discovery() && host.id != NO_IDENTIFIER;
            if matters {
                self.check_identifier(host)?;
            }
            let is_new = controller.admit(proven);
            let displaced: Vec<_> = match proven && matters {
                true => self.controllers(),
                false => Vec::new(),
            };
            (is_new, displaced)
        };
        let displaced = displaced.iter().filter(|other| {
            let named = other.host.id == host.id && other.host.nqn != host.nqn;
            named && other.is_admitted() && !other.is_proven()
        });
        for other in displaced {
            tracing::warn!(
                controller = %other,
                owner = %host.nqn,
                "the host identifier belongs to a host that proved its name: ending this association"
            );
            other.end();
        }
        if is_new {
            self.controllers_changed(&controller.subsystem);
            fabric::log_of_peer!(
                info,
                "host connected",
                controller.peer.ip(),
                host = %host.nqn,
                peer = %controller.peer,
                cntlid = controller.id,
                subsystem = %controller.subsystem.nqn,
                "host connected"
            );
        }
        Ok(())
    }
}
