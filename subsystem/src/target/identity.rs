//! Admission of controllers, and the owners of host identifiers.
//!
//! Reservations know hosts by their identifiers (HOSTID), which hosts choose. Guarantees:
//! - A controller whose host has yet to authenticate is not admitted: it gets no private namespace, is in no list of
//!   hosts or controllers, and nothing waits for its end.
//! - An identifier belongs to the host that used it with a proven name (by authentication or a TLS key), as long as the
//!   host is attached, or registered with a volume. Hosts of other names cannot connect with it.
//! - Unproven names own nothing. Several may use one identifier; their associations end when a host with a proven name
//!   connects with it.

use std::net::SocketAddr;
use std::sync::Arc;

use nvme::{Nqn, Status};
use reservations::HostId;
use uuid::Uuid;

use crate::controller::Controller;
use crate::controller::Host;
use crate::lock::lock;
use crate::target::Target;

/// The host identifier of hosts without one; reservations do not accept it.
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
    /// The status for the host. While the owner is only attached, the host may try again: it may be the one that the
    /// identifier was taken from, and Linux gives a controller up at Do Not Retry.
    pub(crate) fn status(&self) -> Status {
        match self.is_registered {
            true => Status::CONNECT_INVALID_HOST.with_dnr(),
            false => Status::CONNECT_INVALID_HOST,
        }
    }

    /// Logs who was refused, and the remedy.
    pub(crate) fn log(&self, host: &Host, peer: SocketAddr) {
        let why = match self.is_registered {
            true => "registered with a volume (`onefold reservation clear` ends that)",
            false => "attached",
        };
        fabric::log_of_peer!(
            warn,
            "identifier of another",
            peer.ip(),
            event = "refused",
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

    /// Admits a controller whose host has authenticated, or need not. `proven` says that the host proved its name.
    ///
    /// # Errors
    /// The host that the identifier belongs to; then the controller is not admitted.
    pub(crate) fn admit(
        &self,
        controller: &Arc<Controller>,
        proven: bool,
    ) -> Result<(), IdentifierTaken> {
        let host = &controller.host;
        let (is_new, displaced) = {
            let _turn = lock(&self.admitting);
            // The discovery subsystem does not use identifiers.
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
            fabric::log_of_peer!(
                warn,
                "identifier of another",
                other.peer.ip(),
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
                event = "attach",
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
