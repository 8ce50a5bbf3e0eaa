//! Hosts that are attached and do nothing.

use std::time::Duration;

use fabric::{Connector, TransportAddress};
use initiator::{ConnectOptions, Controller, Host};

use super::daemon::{CoreTime, Daemon};

/// The share of a core that a daemon takes while so many hosts are attached over this time, with one I/O
/// queue each and their keep alives. Blocks its thread.
pub(super) fn core_share(daemon: &Daemon, hosts: usize, time: Duration) -> Result<f64, String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let (address, subsystem) = daemon.address().rsplit_once('/').ok_or("no subsystem")?;
    let address: TransportAddress = address.parse().map_err(|e| told(&e))?;
    let subsystem: nvme::Nqn = subsystem.parse().map_err(|e| told(&e))?;
    let attached = reactor::run(reactor::Config::default(), async move {
        let connector = Connector::to_reach(&address).map_err(|e| told(&e))?;
        let mut controllers = Vec::new();
        for _ in 0..hosts {
            let options =
                ConnectOptions::new(address.socket_addr(), subsystem.clone(), Host::generate());
            let controller = Controller::connect(&connector, options);
            controllers.push(controller.await.map_err(|e| told(&e))?);
        }
        let before = CoreTime::of(daemon.pid());
        reactor::sleep(time).await;
        let used = CoreTime::of(daemon.pid()).since(&before);
        drop(controllers);
        connector.shutdown().await;
        Ok(used / time.as_secs_f64())
    });
    attached.map_err(|e| told(&e))?
}
