//! Which of several standbys takes a pool first.
//!
//! Guarantees: whoever asks is told within [`ANSWER_MAX`]; a node that nobody else goes before waits for nothing. Waiting only changes who
//! is first: if those before do not take the pool, the next one does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dedup::ErrorKind;
use drives::nodes::OtherNode;
use rados_drives::Registry;
use subsystem::errors::Failure;

use super::cluster::Cluster;
use super::neighbours::{Neighbours, cluster_of};
use super::node::Node;
use crate::errors::of_drive;

/// How long the cluster, or the sleds, may take to say whose turn it is.
const ANSWER_MAX: Duration = Duration::from_millis(300);

/// How long a standby waits for each one that is to take the pool before it. A takeover begins within the time between two looks at the
/// lease.
const STEP: Duration = Duration::from_millis(500);

/// How long a standby on a drained machine waits for any other one.
const DRAINED: Duration = Duration::from_secs(10);

/// How long this node leaves the pool to others, now that it has no owner. `offers`: it has offered the pool to hosts so far. One that was
/// started a moment ago finds a pool without an owner only where nobody waits for it.
pub(crate) async fn patience(node: &Arc<Node>, offers: bool) -> Duration {
    let asked = node.clone();
    let asking = tokio::task::spawn_blocking(move || Line::ask(&asked));
    let line: Result<Line, Failure> = match tokio::time::timeout(ANSWER_MAX, asking).await {
        Ok(Ok(line)) => line,
        Ok(Err(error)) => Err(Failure::new(ErrorKind::Internal, error.to_string())),
        // Hosts wait.
        Err(_) => return Duration::ZERO,
    };
    match line {
        Ok(line) => line.wait(&node.machine(), node.number(), offers),
        Err(failure) => {
            tracing::warn!(%failure, "whose turn it is to take the pool is not known");
            Duration::ZERO
        }
    }
}

/// Who waits for the pool.
struct Line {
    /// What this pool is called, and what is known of all.
    known: Option<(String, Cluster)>,
    /// The nodes that are told apart by their numbers where their machines are not: on sleds.
    others: Vec<OtherNode>,
}

impl Line {
    /// Blocks.
    fn ask(node: &Node) -> Result<Self, Failure> {
        match node.neighbours() {
            Neighbours::Registry(registry) => Self::of_registry(&registry, node.drive()),
            Neighbours::Sleds(node) => Self::of_sleds(&node),
        }
    }

    fn of_registry(registry: &Registry, drive: &str) -> Result<Self, Failure> {
        Ok(Self {
            known: Some((drive.to_owned(), Cluster::now(registry)?)),
            others: Vec::new(),
        })
    }

    /// Who waits for this pool counts also where the other pools are not known.
    fn of_sleds(node: &fabric_drives::Node) -> Result<Self, Failure> {
        let began = Instant::now();
        let others = node.others().map_err(of_drive)?;
        // Some of the time is for the way here and back.
        let left = (ANSWER_MAX * 4 / 5).saturating_sub(began.elapsed());
        let survey = node.survey(left);
        let known = survey.ok().and_then(|survey| {
            let own = survey.pools.iter().find(|pool| pool.is_own)?;
            Some((own.name.clone(), cluster_of(&survey)))
        });
        Ok(Self { known, others })
    }

    /// How long this node waits.
    fn wait(&self, machine: &str, number: u16, offers: bool) -> Duration {
        let (drive, cluster) = match &self.known {
            Some((_, cluster)) if cluster.is_drained(machine) => return DRAINED,
            Some((drive, cluster)) if offers => (drive, cluster),
            _ => return self.wait_by_number(number),
        };
        let heirs = cluster.heirs(drive);
        // One that came since the owner noted its standbys comes last.
        let rank = |machine: &str| {
            let at = heirs.iter().position(|heir| *heir == machine);
            at.unwrap_or(heirs.len())
        };
        let own = rank(machine);
        let beside = self.others.iter();
        let beside = beside.filter(|other| rank(&other.machine) == own && other.number < number);
        behind(own + beside.count())
    }

    /// Where nothing is known of other pools, the node with the smallest number takes it first.
    fn wait_by_number(&self, number: u16) -> Duration {
        let before = self.others.iter().filter(|other| other.number < number);
        behind(before.count())
    }
}

/// How long a standby waits that so many others go before.
fn behind(before: usize) -> Duration {
    STEP * u32::try_from(before).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::cluster::KnownPool;
    use super::*;

    fn other(number: u16, machine: &str) -> OtherNode {
        OtherNode {
            number,
            machine: machine.to_owned(),
            says: Vec::new(),
        }
    }

    /// A pool 'p' that 'a' had.
    fn cluster(standbys: &[&str]) -> Cluster {
        let pool = KnownPool {
            drive: "p".to_owned(),
            machine: "a".to_owned(),
            standbys: standbys.iter().map(|&name| name.to_owned()).collect(),
        };
        let mut cluster = Cluster::default();
        cluster.note(Uuid::from_u128(1), &pool).expect("room");
        cluster
    }

    fn line(cluster: &Cluster, others: &[OtherNode]) -> Line {
        Line {
            known: Some(("p".to_owned(), cluster.clone())),
            others: others.to_vec(),
        }
    }

    #[test]
    fn of_several_nodes_on_sleds_the_one_with_the_smallest_number_waits_for_nothing() {
        let others = [other(1, "a"), other(4, "a")];
        let unknown = Line {
            known: None,
            others: others.to_vec(),
        };
        // All on one machine, and no owner that is known.
        for line in [
            unknown,
            line(&cluster(&["a"]), &others),
            line(&Cluster::default(), &others),
        ] {
            assert_eq!(line.wait("a", 0, true), Duration::ZERO);
            assert_eq!(line.wait("a", 2, true), STEP);
            assert_eq!(line.wait("a", 5, true), STEP * 2);
            assert_eq!(line.wait("a", 5, false), STEP * 2);
        }
    }

    #[test]
    fn of_several_machines_on_sleds_the_heirs_go_first_and_then_the_smaller_number() {
        let cluster = cluster(&["b", "c"]);
        let line = line(
            &cluster,
            &[other(1, "c"), other(2, "b"), other(3, "b"), other(4, "a")],
        );
        assert_eq!(line.wait("b", 2, true), Duration::ZERO);
        assert_eq!(line.wait("b", 3, true), STEP, "another daemon of the heir");
        assert_eq!(line.wait("c", 1, true), STEP);
        assert_eq!(line.wait("a", 4, true), STEP * 2, "it is not to have it");
    }

    #[test]
    fn the_first_heir_waits_for_nothing_and_a_drained_machine_for_all_others() {
        let wait = |cluster: &Cluster, machine| line(cluster, &[]).wait(machine, 0, true);
        let nothing = Cluster::default();
        assert_eq!(wait(&nothing, "b"), Duration::ZERO, "nothing is noted");
        let mut cluster = cluster(&["b", "c"]);
        assert_eq!(wait(&cluster, "b"), Duration::ZERO);
        assert_eq!(wait(&cluster, "c"), STEP);
        assert_eq!(wait(&cluster, "new"), STEP * 2);
        assert_eq!(wait(&cluster, "a"), STEP * 2, "it had it, and is back");
        assert_eq!(
            line(&cluster, &[]).wait("a", 0, false),
            Duration::ZERO,
            "nobody else waits"
        );
        cluster.set_drained("b", true).expect("room");
        assert_eq!(line(&cluster, &[]).wait("b", 0, false), DRAINED);
        assert_eq!(wait(&cluster, "c"), Duration::ZERO);
        assert_eq!(wait(&cluster, "b"), DRAINED);
    }
}
