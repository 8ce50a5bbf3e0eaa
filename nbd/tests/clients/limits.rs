//! Limits of a volume: requests of clients are held back by them, and hold nothing up.

use std::sync::Arc;

use nbd::wire::Command;
use subsystem::throttle::{IoLimits, Limited};

use crate::client::Client;
use crate::harness::{Lab, wait_for};

/// A byte a second: a block has to wait for more than an hour.
const BYTE_BY_BYTE: IoLimits = IoLimits {
    iops: None,
    bandwidth_bytes: Some(1),
    burst_ms: 0,
    guarantee_iops: None,
    guarantee_bandwidth_bytes: None,
};

fn limit(lab: &Lab) {
    let of = Limited::Volume(lab.engine.volume("disk").expect("the volume").info().uuid);
    lab.change(move |catalog| {
        catalog.limits.insert(of, Arc::new(BYTE_BY_BYTE));
    });
}

#[test]
fn requests_wait_for_the_limits_of_the_volume_without_a_buffer() {
    let lab = Lab::new(4096);
    let mut client = Client::simple(&lab.path());
    client.write(0, &[7; 4096]).expect("a write");
    let free = lab.free_bytes();
    limit(&lab);
    for _ in 0..9 {
        client.ask((Command::Read, 0), (0, 4096), &[]);
    }
    client
        .run((Command::Flush, 0), (0, 0))
        .expect("what moves no data goes on");
    assert_eq!(lab.free_bytes(), free);
}

#[test]
fn an_export_that_ends_waits_for_no_limit() {
    let mut lab = Lab::new(4096);
    let mut client = Client::simple(&lab.path());
    limit(&lab);
    for _ in 0..3 {
        client.ask((Command::Read, 0), (0, 4096), &[]);
    }
    client.ask((Command::Write, 0), (0, 4096), &[1; 4096]);
    // Behind the write.
    client.ask((Command::Flush, 0), (0, 0), &[]);
    lab.stop();
    assert!(client.is_ended());
}

#[test]
fn a_client_that_goes_leaves_nothing_waiting() {
    let lab = Lab::new(4096);
    for command in [Command::Read, Command::Write] {
        let mut client = Client::simple(&lab.path());
        limit(&lab);
        let data: &[u8] = if command == Command::Write {
            &[1; 4096]
        } else {
            &[]
        };
        client.ask((command, 0), (0, 4096), data);
        client.ask((command, 0), (0, 4096), data);
        wait_for("the connection", || lab.connections() == 1);
        drop(client);
        wait_for("its end", || lab.connections() == 0);
    }
}
