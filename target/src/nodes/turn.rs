//! Which of several standbys takes a pool first.
//!
//! Guarantees: whoever asks is told within [`ANSWER_MAX`]; a node that nobody else goes before waits for nothing. Waiting only changes who
//! is first: if those before do not take the pool, the next one does.

use std::sync::Arc;
use std::time::Duration;

use drives::nodes::OtherNode;
use subsystem::errors::Failure;

use super::blocking::blocking;
use super::cluster::Cluster;
use super::node::Node;

/// How long the cluster may take to say whose turn it is.
const ANSWER_MAX: Duration = Duration::from_millis(300);

/// How long a standby waits for each one that is to take the pool before it. A takeover begins within the time between two looks at the
/// lease.
const STEP: Duration = Duration::from_millis(500);

/// How long a standby on a drained machine waits for any other one.
const DRAINED: Duration = Duration::from_secs(10);

/// How long this node leaves the pool to others, now that it has no owner. `offers`: it has offered the pool to hosts so far. One that was
/// started a moment ago finds a pool without an owner only where nobody waits for it.
pub(crate) async fn patience(node: &Arc<Node>, offers: bool) -> Duration {
    let Some(registry) = node.registry() else {
        return patience_by_number(node).await;
    };
    let read = tokio::task::spawn_blocking(move || Cluster::now(&registry));
    let cluster: Result<Cluster, Failure> = match tokio::time::timeout(ANSWER_MAX, read).await {
        Ok(Ok(read)) => read,
        // Hosts wait.
        Ok(Err(_)) | Err(_) => return Duration::ZERO,
    };
    match cluster {
        Ok(cluster) => wait_of(&cluster, node.drive(), &node.machine(), offers),
        Err(failure) => {
            tracing::warn!(%failure, "whose turn it is to take the pool is not known");
            Duration::ZERO
        }
    }
}

/// Where nothing is known of other pools, the node with the smallest number takes it first.
async fn patience_by_number(node: &Arc<Node>) -> Duration {
    let asked = node.clone();
    let asking = blocking(move || asked.others());
    match tokio::time::timeout(ANSWER_MAX, asking).await {
        Ok(Ok(others)) => wait_behind(&others, node.number()),
        // Hosts wait.
        Ok(Err(_)) | Err(_) => Duration::ZERO,
    }
}

fn wait_behind(others: &[OtherNode], number: u16) -> Duration {
    behind(others.iter().filter(|other| other.number < number).count())
}

/// How long a standby waits that so many others go before.
fn behind(before: usize) -> Duration {
    STEP * u32::try_from(before).unwrap_or(u32::MAX)
}

fn wait_of(cluster: &Cluster, drive: &str, machine: &str, offers: bool) -> Duration {
    if cluster.is_drained(machine) {
        return DRAINED;
    }
    if !offers {
        return Duration::ZERO;
    }
    let heirs = cluster.heirs(drive);
    let before = heirs.iter().position(|heir| *heir == machine);
    // One that came since the owner noted its standbys comes last.
    behind(before.unwrap_or(heirs.len()))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::cluster::KnownPool;
    use super::*;

    #[test]
    fn of_several_nodes_on_sleds_the_one_with_the_smallest_number_waits_for_nothing() {
        let other = |number| OtherNode {
            number,
            machine: "a".to_owned(),
            says: Vec::new(),
        };
        let others = [other(1), other(4)];
        assert_eq!(wait_behind(&others, 0), Duration::ZERO);
        assert_eq!(wait_behind(&others, 2), STEP);
        assert_eq!(wait_behind(&others, 5), STEP * 2);
    }

    #[test]
    fn the_first_heir_waits_for_nothing_and_a_drained_machine_for_all_others() {
        let wait = |cluster: &Cluster, machine| wait_of(cluster, "p", machine, true);
        let mut cluster = Cluster::default();
        assert_eq!(wait(&cluster, "b"), Duration::ZERO, "nothing is noted");
        let pool = KnownPool {
            drive: "p".to_owned(),
            machine: "a".to_owned(),
            standbys: ["b", "c"].map(str::to_owned).into(),
        };
        cluster.note(Uuid::from_u128(1), &pool).expect("room");
        assert_eq!(wait(&cluster, "b"), Duration::ZERO);
        assert_eq!(wait(&cluster, "c"), STEP);
        assert_eq!(wait(&cluster, "new"), STEP * 2);
        assert_eq!(wait(&cluster, "a"), STEP * 2, "it had it, and is back");
        assert_eq!(
            wait_of(&cluster, "p", "a", false),
            Duration::ZERO,
            "nobody else waits"
        );
        cluster.set_drained("b", true).expect("room");
        assert_eq!(wait_of(&cluster, "p", "b", false), DRAINED);
        assert_eq!(wait(&cluster, "c"), Duration::ZERO);
        assert_eq!(wait(&cluster, "b"), DRAINED);
    }
}
