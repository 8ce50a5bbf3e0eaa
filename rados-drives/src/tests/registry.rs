//! What the nodes of several pools know together.

use drives::nodes::Process;
use std::sync::Arc;

use super::model::{Model, Shared};
use super::options;
use crate::client::{Change, Cluster};
use crate::{REGISTRY_BYTES_MAX, Registry};

fn registry(model: &Arc<Model>, machine: &str) -> Registry {
    let limits = options().limits;
    let client = Shared(model.clone()).connect(crate::shared::times(&limits));
    let client = client.expect("a model is always there");
    Registry::of(
        client,
        "p",
        String::new(),
        limits,
        Process::elsewhere(machine),
    )
}

#[test]
fn before_anybody_wrote_one_the_text_is_empty() {
    let model = Model::new();
    let registry = registry(&model, "a");
    let first = registry.read(None).expect("read").expect("a text");
    assert!(first.text.is_empty() && first.revision.is_empty());
    assert_eq!(registry.read(Some(&first.revision)).expect("read"), None);
}

#[test]
fn of_two_that_replace_the_same_text_one_does_and_the_other_reads_it_again() {
    let model = Model::new();
    let (a, b) = (registry(&model, "a"), registry(&model, "b"));
    let seen = a.read(None).expect("read").expect("a text");
    assert!(
        b.replace(&seen.revision, b"of b, and longer")
            .expect("answered")
    );
    assert!(!a.replace(&seen.revision, b"of a").expect("answered"));
    let seen = a
        .read(Some(&seen.revision))
        .expect("read")
        .expect("another");
    assert_eq!(seen.text, b"of b, and longer");
    assert!(a.replace(&seen.revision, b"of both").expect("answered"));
    let read = b.read(None).expect("read").expect("a text");
    assert_eq!(read.text, b"of both", "nothing is left of the longer one");
    // The same text twice is a change too: who knew the first one has to look.
    assert!(a.replace(&read.revision, b"of both").expect("answered"));
    assert!(!b.replace(&read.revision, b"late").expect("answered"));
}

#[test]
fn a_text_that_is_too_long_is_refused_and_the_one_before_stays() {
    let model = Model::new();
    let registry = registry(&model, "a");
    assert!(registry.replace(b"", b"short").expect("answered"));
    let seen = registry.read(None).expect("read").expect("a text");
    let refused = registry
        .replace(&seen.revision, &vec![0; REGISTRY_BYTES_MAX + 1])
        .expect_err("it is too long");
    assert!(refused.to_string().contains("forget"), "{refused}");
    assert_eq!(registry.read(Some(&seen.revision)).expect("read"), None);
    let most = vec![b'x'; REGISTRY_BYTES_MAX];
    assert!(registry.replace(&seen.revision, &most).expect("answered"));
    let read = registry.read(None).expect("read").expect("a text");
    assert_eq!(read.text, most);
}

#[test]
fn a_text_that_was_lost_is_written_anew_by_who_knew_it() {
    let model = Model::new();
    let a = registry(&model, "a");
    assert!(a.replace(b"", b"a text").expect("answered"));
    let seen = a.read(None).expect("read").expect("a text");
    let limits = options().limits;
    let client = Shared(model.clone()).connect(crate::shared::times(&limits));
    let client = client.expect("a model is always there");
    let removed = client.change_now("onefold.registry", &[Change::Remove]);
    removed.expect("it was there");
    let lost = a
        .read(Some(&seen.revision))
        .expect("read")
        .expect("another");
    assert!(lost.text.is_empty() && lost.revision.is_empty());
    assert!(a.replace(&lost.revision, b"anew").expect("answered"));
    assert_eq!(a.read(None).expect("read").expect("a text").text, b"anew");
}
