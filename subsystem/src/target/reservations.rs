//! What changes of a volume's reservations mean to the hosts that see it.

use std::sync::Arc;

use dedup::EngineError;
use nvme::reservation::ReservationEvent;
use reservations::{HostId, Reservations};
use uuid::Uuid;

use super::Target;
use crate::controller::Controller;
use crate::controller::events::EventKind;

impl Target {
    /// The reservations of a volume now.
    #[must_use]
    pub fn reservations_of(&self, volume: Uuid) -> Arc<Reservations> {
        self.reservations.of(volume).now()
    }

    /// Removes reservation and registrations of a volume, for the owner of the target; hosts are told.
    ///
    /// # Errors
    /// The pool takes no changes.
    pub async fn clear_reservations(&self, volume: Uuid) -> Result<(), EngineError> {
        let shared = self.reservations.of(volume);
        let effects = shared
            .change(self.engine()?, |now| {
                Ok::<_, EngineError>(now.clear_by_owner())
            })
            .await?;
        self.tell_registrants(volume, &effects.notify);
        Ok(())
    }

    /// Tells hosts on all of their controllers that see the volume.
    pub(crate) fn tell_registrants(&self, volume: Uuid, notify: &[(HostId, ReservationEvent)]) {
        if notify.is_empty() {
            return;
        }
        for (controller, nsid) in self.viewers(volume) {
            let told = notify
                .iter()
                .filter(|(host, _)| host.as_bytes() == &controller.host.id)
                .filter(|(_, event)| controller.reservations.tell(nsid, *event))
                .count();
            if told > 0 {
                controller.events.raise(EventKind::ReservationNotification);
            }
        }
    }

    /// The controllers that see a volume, each with the namespace that it is there.
    pub(crate) fn viewers(&self, volume: Uuid) -> Vec<(Arc<Controller>, u32)> {
        let live = self.live();
        let seen = |controller: &Controller| {
            let nsid = live.subsystem(&controller.subsystem.nqn)?.nsid_of(volume)?;
            live.namespace(controller, nsid).map(|_| nsid)
        };
        let controllers = self.controllers().into_iter();
        controllers
            .filter(|controller| controller.is_admitted())
            .filter_map(|controller| seen(&controller).map(|nsid| (controller, nsid)))
            .collect()
    }
}
