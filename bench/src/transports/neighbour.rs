//! A host that asks for one thing after the other by admin commands, while another host's reads are measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fabric::{Connector, TransportAddress};
use initiator::{ConnectOptions, Controller, Host};
use nvme::log::LogPage;

/// Commands that it sends one after the other before it rests.
const COMMANDS_A_TURN: u32 = 4;
/// How long it rests then: as a fleet of monitors would, and not as fast as it can.
const REST: Duration = Duration::from_millis(2);
/// Bytes of the SMART log.
const SMART_BYTES: usize = 512;

/// A host on a thread of its own, which begins on the cores of the thread that starts it.
pub(super) struct Asker {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Result<f64, String>>,
}

impl Asker {
    /// Attaches it, and lets it ask until [`Asker::end`].
    pub(super) fn start(address: &str) -> Result<Self, String> {
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let (address, subsystem) = address.rsplit_once('/').ok_or("no subsystem")?;
        let address: TransportAddress = address.parse().map_err(|e| told(&e))?;
        let subsystem: nvme::Nqn = subsystem.parse().map_err(|e| told(&e))?;
        let ends = Arc::new(AtomicBool::new(false));
        let end = ends.clone();
        let thread = std::thread::spawn(move || {
            let asked = reactor::run(reactor::Config::default(), async move {
                let connector = Connector::to_reach(&address).map_err(|e| e.to_string())?;
                let options =
                    ConnectOptions::new(address.socket_addr(), subsystem, Host::generate());
                let controller = Controller::connect(&connector, options);
                let controller = controller.await.map_err(|e| e.to_string())?;
                let rate = ask(&controller, &end).await.map_err(|e| e.to_string());
                controller.disconnect().await;
                connector.shutdown().await;
                rate
            });
            asked.map_err(|e| e.to_string())?
        });
        Ok(Self { ends, thread })
    }

    /// Ends it; how many commands it sent in a second.
    pub(super) fn end(self) -> Result<f64, String> {
        self.ends.store(true, Ordering::Release);
        let asked = self.thread.join();
        asked.map_err(|_| "the host that asks has died".to_owned())?
    }
}

async fn ask(controller: &Controller, end: &AtomicBool) -> Result<f64, initiator::Error> {
    let begun = Instant::now();
    let mut commands = 0_u32;
    while !end.load(Ordering::Acquire) {
        for turn in 0..COMMANDS_A_TURN {
            match turn % 2 {
                0 => drop(controller.namespace(1).await?),
                _ => drop(controller.log_page(LogPage::Smart, 0, SMART_BYTES).await?),
            }
            commands += 1;
        }
        reactor::sleep(REST).await;
    }
    Ok(f64::from(commands) / begun.elapsed().as_secs_f64())
}
