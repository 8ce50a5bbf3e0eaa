//! What a host does about a controller that it does not reach any more: it asks another one to reset it.

use std::time::Duration;

use fabric::HostData;
use nvme::Sqe;
use nvme::admin::{CrossControllerReset, OPCODE_ASYNC_EVENT_REQUEST, SetFeatures};
use nvme::features::{AsyncEvent, AsyncEventConfig, FeatureId};
use nvme::identify::IdentifyController;

use crate::{Controller, Error};

impl Controller {
    /// Asks for a reset of another controller of this host in the same subsystem, which said that of itself (Cross-Controller
    /// Reset). True when no command of that controller can take effect any more. Otherwise an event tells when it is so, and
    /// the log page [`ControllerResets`](nvme::log::ControllerResets).
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn reset_other(&self, other: &IdentifyController) -> Result<bool, Error> {
        let reset = CrossControllerReset {
            cntlid: other.cntlid,
            uniquifier: other.ciu,
            random: other.cirn,
        };
        let submitted =
            self.admin_queue()
                .submit("Cross-Controller Reset", reset.to_sqe(), HostData::None);
        let (cqe, _) = submitted.await?;
        Ok(cqe.result as u32 & CrossControllerReset::IMMEDIATE != 0)
    }

    /// The next event of these kinds, or of those that hosts cannot switch off. Without one in that time the controller ends.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn next_event(
        &self,
        wanted: AsyncEventConfig,
        within: Duration,
    ) -> Result<AsyncEvent, Error> {
        const COMMAND: &str = "Asynchronous Event Request";
        let set = SetFeatures {
            fid: FeatureId::AsyncEventConfig.as_u8(),
            save: false,
            dwords: [wanted.0, 0, 0, 0, 0],
            nsid: 0,
        };
        let mut admin = self.admin_queue().clone();
        admin
            .submit("Set Features", set.to_sqe(), HostData::None)
            .await?;
        admin.timeout = within;
        let sqe = Sqe::new(OPCODE_ASYNC_EVENT_REQUEST);
        let (cqe, _) = admin.submit(COMMAND, sqe, HostData::None).await?;
        AsyncEvent::decode(cqe.result as u32)
            .ok_or_else(|| admin.wrong(COMMAND, "an event of a kind that is not known"))
    }
}
