//! Machines that have one name, as after one was copied: nodes are told apart by the names of their machines.

use std::time::Duration;

use tests::daemon::Daemon;
use tests::paths::Writer;

use crate::offered::Offered;

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// A machine that has the name of the first node's, and runs since another boot than that one.
fn namesake(offered: &Offered<2>, at: usize) -> Option<Result<Daemon, String>> {
    let arguments = offered.arguments(at);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let boot = "11111111-2222-4333-8444-555555555555";
    Daemon::try_start_on("node0", boot, &offered.pools[at], &arguments)
}

#[test]
fn a_machine_with_the_name_of_the_owner_is_refused_and_one_that_crashed_and_started_again_is_not() {
    let offered = Offered::<2>::new(1, 160);
    let owner = offered.start(0);
    let writer = Writer::start(&offered.listen[..1]);
    let Some(refused) = namesake(&offered, 1) else {
        eprintln!("skipped: this user may not make namespaces");
        return;
    };
    let refused = refused.expect_err("the owner has that name");
    for word in [
        "exit status: 69",
        "'node0'",
        &offered.sleds[0].drive,
        "hostnamectl hostname NAME",
    ] {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    assert_eq!(offered.nodes(), [("node0".to_owned(), true)]);
    writer.goes_on();
    writer.end();

    // The owner's machine loses power, and is back while its lease lasts.
    owner.kill_hard();
    let back = namesake(&offered, 0).expect("as before");
    let back = back.expect("what is left of it keeps it out for a moment alone");
    if back.ready_line().starts_with("standby") {
        back.prints("ready", PATIENCE);
    }
    let log = back.log();
    assert!(log.contains("waits until it is known"), "{log}");
    assert_eq!(back.status()["volumes"][0]["name"], "vol0");
    assert!(back.stop().success());
}
