//! Hosts that are attached and do nothing, while Prometheus asks for the metrics.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fabric::{Connector, TransportAddress};
use initiator::{ConnectOptions, Controller, Host};

use crate::daemon::{CoreTime, Daemon};

/// How often the metrics are asked for, as Prometheus does.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(15);
/// How long an answer may take.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);

/// What an idle daemon costs.
pub(super) struct Idle {
    /// The share of a core that it takes.
    pub(super) core_share: f64,
    /// How often its metrics were asked for meanwhile.
    pub(super) scrapes: u32,
}

/// Asks a daemon for its metrics again and again.
struct Scraper {
    stop: Sender<()>,
    thread: JoinHandle<Result<u32, String>>,
}

impl Scraper {
    fn start(address: SocketAddr, interval: Duration) -> Self {
        let (stop, stopped) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut scrapes = 0;
            loop {
                scrape(address)?;
                scrapes += 1;
                match stopped.recv_timeout(interval) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(scrapes),
                }
            }
        });
        Self { stop, thread }
    }

    /// Ends it, and says how often it asked.
    fn end(self) -> Result<u32, String> {
        drop(self.stop);
        let joined = self.thread.join();
        joined.unwrap_or_else(|_| Err("the scraper panicked".to_owned()))
    }
}

/// Asks for the metrics once.
fn scrape(address: SocketAddr) -> Result<(), String> {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&address, SCRAPE_TIMEOUT)?;
        stream.set_read_timeout(Some(SCRAPE_TIMEOUT))?;
        stream.set_write_timeout(Some(SCRAPE_TIMEOUT))?;
        // As a whole: pieces could meet a server that has answered already.
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        Ok::<_, std::io::Error>(page)
    };
    let page = ask().map_err(|e| format!("no metrics at {address}: {e}"))?;
    match page.starts_with("HTTP/1.1 200 ") && page.contains("# EOF\n") {
        true => Ok(()),
        false => Err(format!(
            "no metrics at {address}: {}",
            page.lines().next().unwrap_or("an empty answer")
        )),
    }
}

/// What a daemon costs while so many hosts are attached over this time, with one I/O queue each and their keep alives,
/// and its metrics are asked for. Blocks its thread.
pub(super) fn watch(daemon: &Daemon, hosts: usize, time: Duration) -> Result<Idle, String> {
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
        let scraper = Scraper::start(daemon.http(), SCRAPE_INTERVAL);
        reactor::sleep(time).await;
        let used = CoreTime::of(daemon.pid()).since(&before);
        drop(controllers);
        connector.shutdown().await;
        Ok(Idle {
            core_share: used / time.as_secs_f64(),
            scrapes: scraper.end()?,
        })
    });
    attached.map_err(|e| told(&e))?
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers one request after the other with that, and ends with the listener's last connection.
    fn server(answer: &'static str, requests: usize) -> (SocketAddr, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let thread = thread::spawn(move || {
            let asked = listener.incoming().take(requests).map(|stream| {
                let mut stream = stream.expect("somebody comes");
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut piece = [0; 4096];
                    let read = stream.read(&mut piece).expect("a request");
                    assert!(read > 0, "the request ends early");
                    request.extend_from_slice(&piece[..read]);
                }
                stream.write_all(answer.as_bytes()).expect("it waits");
                String::from_utf8_lossy(&request).into_owned()
            });
            asked.collect()
        });
        (address, thread)
    }

    #[test]
    fn the_metrics_are_asked_for_again_and_again_and_counted() {
        let (address, asked) = server("HTTP/1.1 200 OK\r\n\r\n# EOF\n", 3);
        let scraper = Scraper::start(address, Duration::from_millis(1));
        let asked = asked.join().expect("three requests");
        assert!(
            asked
                .iter()
                .all(|it| it.starts_with("GET /metrics HTTP/1.1\r\n"))
        );
        // The fourth finds nobody.
        while !scraper.thread.is_finished() {
            thread::yield_now();
        }
        assert!(scraper.end().is_err());
    }

    #[test]
    fn a_daemon_without_metrics_is_noticed() {
        let (address, asked) = server("HTTP/1.1 404 Not Found\r\n\r\n", 1);
        let scraper = Scraper::start(address, SCRAPE_INTERVAL);
        let error = scraper.end().expect_err("there are no metrics");
        assert!(error.contains("404"), "{error}");
        drop(asked);
    }
}
