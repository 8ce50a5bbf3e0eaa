//! Which hosts have to authenticate, and by which keys.

use std::sync::Arc;

use nvme::Nqn;

use super::Target;
use crate::auth::{AuthFigures, is_generated};
use crate::catalog::HostConfig;
use crate::controller::Controller;

impl Target {
    /// Results of authentications so far.
    pub fn auth_figures(&self) -> AuthFigures {
        self.auth.figures()
    }

    /// The keys by which a host of that name has to authenticate.
    pub(crate) fn keys_of(&self, nqn: &Nqn) -> Option<Arc<HostConfig>> {
        let catalog = self.catalog();
        let host = catalog.hosts.get(nqn)?;
        host.auth.dhchap_secret.is_some().then(|| host.clone())
    }

    /// Whether the host has to authenticate on each queue of this controller. A TLS key that an authentication made
    /// proves that it has.
    pub(crate) fn has_to_authenticate(&self, controller: &Controller) -> bool {
        !controller.tls.as_ref().is_some_and(is_generated) && self.host_keys(controller).is_some()
    }

    /// The keys by which this controller's host has to authenticate; none if it need not.
    pub(crate) fn host_keys(&self, controller: &Controller) -> Option<Arc<HostConfig>> {
        if controller.is_discovery() {
            return None;
        }
        self.keys_of(&controller.host.nqn)
    }
}
