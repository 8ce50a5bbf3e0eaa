//! Nodes that offer one pool: who owns it, what the owner says of it, and their numbers.

use drives::nodes::{NODES_MAX, Ownership, Process};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use drives::ErrorKind;
use uuid::Uuid;

use super::model::{Model, Shared};
use super::{STORY_MAX, names, open_as, options, story, wait_for};
use crate::{Claim, Limits, Node, RadosDrive};

const POOL: Uuid = Uuid::from_u128(7);

pub(super) fn join_as(model: &Arc<Model>, process: Process) -> Result<Node, drives::DriveError> {
    join_for(model, process, options().limits.lease)
}

fn join_for(
    model: &Arc<Model>,
    process: Process,
    lease: Duration,
) -> Result<Node, drives::DriveError> {
    let limits = Limits {
        lease,
        ..options().limits
    };
    Node::join_in(names(), &Shared(model.clone()), limits, process)
}

fn node(model: &Arc<Model>, machine: &str) -> Node {
    join_as(model, Process::elsewhere(machine)).expect("it joins")
}

async fn owner(model: &Arc<Model>, machine: &str) -> RadosDrive {
    let opened = open_as(model, options(), Process::elsewhere(machine)).await;
    let drive = opened.expect("it opens");
    drive.claim(POOL, Claim::Again).await.expect("claimed");
    drive
}

fn seen(node: &Node) -> Ownership {
    node.owner().expect("the cluster answers")
}

#[test]
fn nodes_see_an_owner_that_lives_one_that_is_silent_and_one_that_left() {
    let model = Model::new();
    story(async || {
        let b = node(&model, "b");
        assert_eq!(seen(&b), Ownership::Missing);
        let drive = owner(&model, "a").await;
        assert_eq!(seen(&b), Ownership::Owned("a".to_owned()));
        model.cut_off_all();
        let c = node(&model, "c");
        wait_for("the end of the lease", || {
            seen(&c) == Ownership::Silent("a".to_owned())
        })
        .await;
        model.connect_again();
        wait_for("the renewal", || {
            seen(&c) == Ownership::Owned("a".to_owned())
        })
        .await;
        drop(drive);
        wait_for("its leave", || seen(&c) == Ownership::Left).await;
        let a = node(&model, "a");
        assert_eq!(seen(&a), Ownership::GaveAway, "it was this very process");
    });
}

#[test]
fn an_owner_that_ended_on_this_machine_is_not_waited_for() {
    let model = Model::new();
    story(async || {
        let opened = open_as(&model, options(), Process::ended()).await;
        let drive = opened.expect("it opens");
        drive.claim(POOL, Claim::Again).await.expect("claimed");
        assert_eq!(seen(&node(&model, "b")), Ownership::Left);
    });
}

#[test]
fn a_description_is_the_owners_and_read_when_it_is_another_one() {
    let model = Model::new();
    story(async || {
        let (a, b) = (node(&model, "a"), node(&model, "b"));
        let drive = owner(&model, "a").await;
        assert_eq!(b.description(None).expect("read"), None);
        let refused = b.describe(b"mine").expect_err("it owns nothing");
        assert_eq!(refused.kind(), ErrorKind::InUse, "{refused}");
        a.describe(b"a first one, and a long one").expect("told");
        let first = b.description(None).expect("read").expect("told");
        assert_eq!(first.text, b"a first one, and a long one");
        assert_eq!(b.description(Some(&first.revision)).expect("read"), None);
        a.describe(b"another").expect("told");
        let second = b
            .description(Some(&first.revision))
            .expect("read")
            .expect("told");
        assert_eq!(second.text, b"another", "nothing is left of the longer one");
        assert_ne!(first.revision, second.revision);
        drop(drive);
        let _next = owner(&model, "b").await;
        let refused = a.describe(b"it is mine still").expect_err("it lost it");
        assert_eq!(refused.kind(), ErrorKind::InUse, "{refused}");
        b.describe(b"of b").expect("told");
        let third = a
            .description(Some(&second.revision))
            .expect("read")
            .expect("told");
        assert_eq!(third.text, b"of b");
        assert_ne!(third.revision, first.revision);
    });
}

#[test]
fn each_node_has_a_number_of_its_own_and_hears_what_the_others_say() {
    let model = Model::new();
    story(async || {
        // None of them ends by itself while the story lasts.
        let join = |name: String| {
            let joined = join_for(&model, Process::elsewhere(&name), STORY_MAX);
            joined.expect("it joins")
        };
        let nodes: Vec<Node> = (0..NODES_MAX).map(|at| join(format!("n{at}"))).collect();
        let numbers: Vec<u16> = nodes.iter().map(Node::number).collect();
        assert_eq!(numbers, (0..NODES_MAX).collect::<Vec<_>>());
        let full = join_as(&model, Process::elsewhere("more")).expect_err("there is none left");
        assert_eq!(full.kind(), ErrorKind::InUse, "{full}");
        nodes[2].say(b"hello").expect("said");
        nodes[2].say(&[0; 5000]).expect_err("too long");
        let others = nodes[0].others().expect("heard");
        assert_eq!(others.len(), nodes.len() - 1);
        let second = others
            .iter()
            .find(|other| other.number == 2)
            .expect("there");
        assert_eq!(
            (second.machine.as_str(), &second.says[..]),
            ("n2", &b"hello"[..])
        );
        let mut nodes = nodes;
        drop(nodes.remove(5));
        wait_for("a free number", || {
            join_as(&model, Process::elsewhere("late")).is_ok_and(|node| node.number() == 5)
        })
        .await;
    });
}

#[test]
fn the_number_of_a_process_that_ended_here_is_free_at_once() {
    let model = Model::new();
    story(async || {
        let _ended = join_as(&model, Process::ended()).expect("it joins");
        let next = join_as(&model, Process::own()).expect("it joins");
        assert_eq!(next.number(), 0);
        assert_eq!(next.others().expect("heard"), []);
    });
}

/// The name of this machine, which another one has too.
fn own_name() -> String {
    Process::own().node
}

#[track_caller]
fn assert_refused(joined: Result<Node, drives::DriveError>) {
    let error = joined.expect_err("another machine has its name");
    assert_eq!(error.kind(), ErrorKind::InUse, "{error}");
    for word in ["rados:p/d", &own_name(), "hostnamectl hostname NAME"] {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn a_machine_with_the_name_of_one_that_lives_is_refused_and_the_owner_keeps_its_drive() {
    let model = Model::new();
    story(async || {
        let name = own_name();
        let (other, b) = (node(&model, &name), node(&model, "b"));
        let drive = owner(&model, &name).await;
        assert_refused(join_as(&model, Process::own()));
        assert_eq!(seen(&b), Ownership::Owned(name.clone()));
        assert_eq!(b.others().expect("heard").len(), 1);
        other.describe(b"it goes on").expect("it is the owner");
        // Another daemon of that machine is one more node.
        assert_eq!(node(&model, &name).number(), 2);
        drop(drive);
    });
}

#[test]
fn of_two_machines_with_one_name_that_start_at_the_same_moment_one_sees_the_other_and_leaves() {
    let model = Model::new();
    story(async || {
        let (sender, joined) = mpsc::channel();
        let meanwhile = model.clone();
        model.before_lock(move || {
            let _ = sender.send(node(&meanwhile, &own_name()));
        });
        assert_refused(join_as(&model, Process::own()));
        let first = joined.recv().expect("it joined in between");
        wait_for("the end of the one that was refused", || {
            first.others().expect("heard").is_empty()
        })
        .await;
    });
}

#[test]
fn a_machine_that_started_again_after_a_crash_joins_when_the_lease_of_before_is_over() {
    let model = Model::new();
    story(async || {
        let crashed = node(&model, &own_name());
        model.cut_off_all();
        let node = join_as(&model, Process::own()).expect("nobody else has its name");
        assert_eq!(node.number(), crashed.number(), "that one's lease was over");
        assert_eq!(node.others().expect("heard"), []);
    });
}
