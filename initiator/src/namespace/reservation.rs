//! Reservations of a namespace, as a host asks for them.

use fabric::HostData;
use nvme::reservation::{
    AcquireAction, KEY_BYTES, KeyPair, RegisterAction, ReleaseAction, ReservationCommand,
    ReservationReport, ReservationType,
};

use super::Namespace;
use crate::{Error, blank_buffer, buffer};

/// Bytes of a report that are asked for at first: enough for 63 registrants.
const REPORT_BYTES: usize = 4096;

impl Namespace {
    /// Registers this host, replaces its key, or unregisters it; `keys` are the current and the new one.
    ///
    /// # Errors
    /// See [`Error`]; a conflict is [`nvme::Status::RESERVATION_CONFLICT`].
    pub async fn register(
        &self,
        action: RegisterAction,
        ignore_key: bool,
        persist: Option<bool>,
        keys: KeyPair,
    ) -> Result<(), Error> {
        let command = ReservationCommand::Register {
            nsid: self.nsid,
            action,
            ignore_key,
            persist,
        };
        self.reserve("Reservation Register", command, &keys.encode())
            .await
    }

    /// Takes the reservation, or preempts; `keys` are this host's and the one to preempt.
    ///
    /// # Errors
    /// As of [`Self::register`].
    pub async fn acquire(
        &self,
        action: AcquireAction,
        kind: ReservationType,
        keys: KeyPair,
    ) -> Result<(), Error> {
        let nsid = self.nsid;
        let command = ReservationCommand::Acquire { nsid, action, kind };
        self.reserve("Reservation Acquire", command, &keys.encode())
            .await
    }

    /// Gives the reservation up, or clears it with all registrations.
    ///
    /// # Errors
    /// As of [`Self::register`].
    pub async fn release(
        &self,
        action: ReleaseAction,
        kind: ReservationType,
        key: u64,
    ) -> Result<(), Error> {
        let command = ReservationCommand::Release {
            nsid: self.nsid,
            action,
            kind: kind.as_u8(),
        };
        let data: [u8; KEY_BYTES] = key.to_le_bytes();
        self.reserve("Reservation Release", command, &data).await
    }

    async fn reserve(
        &self,
        name: &'static str,
        command: ReservationCommand,
        data: &[u8],
    ) -> Result<(), Error> {
        let mut memory = buffer(data.len()).await;
        memory[..data.len()].copy_from_slice(data);
        let data = HostData::ToTarget(memory, data.len());
        let queue = self.queue()?;
        queue.submit(name, command.to_sqe(), data).await.map(drop)
    }

    /// Who is registered, and who holds the reservation.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn reservation_report(&self) -> Result<ReservationReport, Error> {
        let wrong = |what| Error::Protocol {
            peer: self.peer(),
            command: "Reservation Report",
            what,
        };
        let mut len = REPORT_BYTES;
        loop {
            let command = ReservationCommand::Report {
                nsid: self.nsid,
                length: len as u64,
                extended: true,
            };
            let data = HostData::FromTarget(blank_buffer(len).await, len);
            let queue = self.queue()?;
            let name = "Reservation Report";
            let (_, memory) = queue.submit(name, command.to_sqe(), data).await?;
            let memory = memory.ok_or_else(|| wrong("no data"))?;
            let whole = ReservationReport::total_bytes(&memory[..len], true);
            match whole.ok_or_else(|| wrong("a report that cannot be read"))? {
                // It grew, or there are many: asked again for all of it.
                whole if whole > len && whole <= self.controller.max_transfer_bytes() => {
                    len = whole;
                }
                _ => {
                    let report = ReservationReport::decode(&memory[..len], true);
                    return report.ok_or_else(|| wrong("a report that cannot be read"));
                }
            }
        }
    }
}
