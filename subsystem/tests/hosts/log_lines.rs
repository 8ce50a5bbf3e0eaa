//! What a host can make the target log: each kind of line is limited for each address, and a refusal names the remedy.

use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use fabric::peer_log::LINES_OF_ADDRESS;
use nvme::admin::{NamespaceManagement, SetFeatures};
use nvme::identify::IdentifyNamespace;
use nvme::{Sqe, Status};
use subsystem::DEFAULT_SUBSYSTEM_NQN;
use subsystem::limits::Limits;
use tracing::subscriber::DefaultGuard;

use crate::auth::{admitted, authenticate, connected, keep, kept, keys};
use crate::harness::{Attached, TestHost, story, story_with};
use crate::subsystems::name;

/// What this thread logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Takes the log of this thread as long as the guard lives.
    fn watch(&self) -> DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || log.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no panic")).into_owned()
    }

    fn lines_with(&self, words: &str) -> usize {
        self.text().matches(words).count()
    }
}

/// More of them than an address may cause lines of a kind.
const AGAIN_AND_AGAIN: u32 = LINES_OF_ADDRESS + 20;

/// Addresses that no other story has: what they caused is counted for the whole program.
fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(203, 0, 113, number)
}

async fn create(host: &Attached) -> crate::harness::Reply {
    let page = IdentifyNamespace {
        nsze: 8,
        ncap: 8,
        nmic: 1,
        ..Default::default()
    };
    let sqe = NamespaceManagement::Create { csi: 0 }.to_sqe();
    host.admin.call_out(sqe, page.encode().to_vec()).await
}

#[test]
fn a_host_that_makes_and_deletes_namespaces_without_end_gets_a_few_lines_of_the_log() {
    let log = Log::default();
    let _watch = log.watch();
    story(async |mut lab| {
        lab.peer = address(1);
        lab.change(|catalog| {
            let default = catalog.subsystem_mut(&name(DEFAULT_SUBSYSTEM_NQN))?;
            default.namespace_management = true;
            Ok(())
        })
        .await;
        let host = lab.attach(1).await;
        let delete = async |nsid| {
            let sqe: Sqe = NamespaceManagement::Delete { nsid }.to_sqe();
            host.admin.call(sqe).await
        };
        for _ in 0..AGAIN_AND_AGAIN {
            let nsid = create(&host).await.ok().result as u32;
            delete(nsid).await.ok();
        }
        let limit = LINES_OF_ADDRESS as usize;
        assert_eq!(log.lines_with("a host created a namespace"), limit);
        assert_eq!(log.lines_with("a host deletes a namespace"), limit);

        // And when the pool has as many volumes as it can have.
        lab.engine.maintain().await.expect("deleted volumes go");
        for number in 1..1024 {
            lab.create_volume(&format!("v{number}"), 4096, 4096).await;
        }
        for _ in 0..AGAIN_AND_AGAIN {
            let refused = create(&host).await;
            refused.refused(Status::NAMESPACE_ID_UNAVAILABLE);
        }
        assert_eq!(log.lines_with("a host cannot change namespaces"), limit);
    });
}

#[test]
fn a_host_whose_features_find_no_room_gets_a_few_lines_of_the_log() {
    let log = Log::default();
    let _watch = log.watch();
    story(async |mut lab| {
        lab.peer = address(2);
        let others = (0..1024).map(|number| {
            let values = br#"{"version":1,"values":{}}"#.to_vec();
            (format!("feature/nqn.x:a/nqn.x:{number}"), Some(values))
        });
        let saved = lab.engine.change_settings(others.collect()).await;
        saved.expect("others' features");
        let host = lab.attach(1).await;
        let set = SetFeatures {
            fid: 0x06,
            save: true,
            dwords: [0; 5],
            nsid: 0,
        };
        for _ in 0..AGAIN_AND_AGAIN {
            let reply = host.admin.call(set.to_sqe()).await;
            reply.refused(Status::FEATURE_NOT_SAVEABLE);
        }
        let lines = log.lines_with("hosts can have features saved");
        assert_eq!(lines, LINES_OF_ADDRESS as usize);
    });
}

#[test]
fn a_host_that_comes_to_a_full_subsystem_again_and_again_gets_a_few_lines_that_name_the_option() {
    let log = Log::default();
    let _watch = log.watch();
    let limits = Limits {
        controllers: 2,
        ..Limits::default()
    };
    story_with(limits, async |mut lab| {
        lab.peer = address(3);
        let _attached = lab.attach(1).await;
        for _ in 0..AGAIN_AND_AGAIN {
            // It leaves and takes the place again: the subsystem is not full all the time.
            let other = lab.attach(2).await;
            let (_, reply) = lab
                .try_connect(&TestHost::new(3), DEFAULT_SUBSYSTEM_NQN)
                .await;
            assert_eq!(reply.code(), Status::CONNECT_CONTROLLER_BUSY);
            other.admin.close_from_host();
            lab.attached_hosts_are(1).await;
        }
        let full = "2 hosts are attached, and no more may be; `onefold serve --hosts` allows more";
        assert_eq!(log.lines_with(full), LINES_OF_ADDRESS as usize);
        assert_eq!(log.lines_with("as many are attached as may be"), 0);
    });
}

#[test]
fn a_host_that_is_not_on_the_list_is_refused_with_what_lets_it_in() {
    let log = Log::default();
    let _watch = log.watch();
    story(async |mut lab| {
        lab.peer = address(4);
        lab.change(|catalog| {
            catalog
                .subsystem_mut(&name(DEFAULT_SUBSYSTEM_NQN))?
                .allow_any_host = false;
            Ok(())
        })
        .await;
        let (_, reply) = lab
            .try_connect(&TestHost::new(1), DEFAULT_SUBSYSTEM_NQN)
            .await;
        reply.refused(Status::CONNECT_INVALID_HOST);
        assert_eq!(log.lines_with("`onefold subsystem allow` puts it there"), 1);
    });
}

#[test]
fn a_host_is_connected_when_it_has_authenticated_and_one_that_is_held_off_is_named_with_the_reason()
{
    let log = Log::default();
    let _watch = log.watch();
    let limits = Limits {
        auth_failures_max: 2,
        ..Limits::default()
    };
    story_with(limits, async |mut lab| {
        lab.peer = address(5);
        let (host, other) = (TestHost::new(1), TestHost::new(2));
        keep(&lab, &host.nqn, kept(1)).await;
        keep(&lab, &other.nqn, kept(2)).await;
        for _ in 0..2 {
            let attached = connected(&lab, &host).await;
            let refused = authenticate(&attached.admin, &host, &keys(3)).await;
            refused.expect_err("a wrong secret");
            attached.admin.closed().await;
        }
        assert_eq!(log.lines_with("host connected"), 0, "{}", log.text());
        let (_, reply) = lab.try_connect(&host, DEFAULT_SUBSYSTEM_NQN).await;
        assert_eq!(reply.code(), Status::CONNECT_CONTROLLER_BUSY);
        let text = log.text();
        let line = text.lines().find(|line| line.contains("held off"));
        let line = line.unwrap_or_else(|| panic!("nobody is held off in:\n{text}"));
        for words in [host.nqn.as_str(), "203.0.113.5", " s after 2 failures"] {
            assert!(line.contains(words), "{words}: {line}");
        }

        let _admitted = admitted(&lab, &other, &keys(2)).await;
        let text = log.text();
        let connected: Vec<_> = text
            .lines()
            .filter(|line| line.contains("host connected"))
            .collect();
        assert_eq!(connected.len(), 1, "{text}");
        assert!(connected[0].contains(other.nqn.as_str()), "{connected:?}");
        // Lines are for people: no value is written as the program's own types look.
        assert!(!text.contains("Some(") && !text.contains(" { "), "{text}");
    });
}
