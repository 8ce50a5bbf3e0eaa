//! Nodes of one pool that die while they take it, or give it away.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread;
use std::time::Duration;

use crate::daemon::{Daemon, assert_consistent, onefold, text_of};
use crate::paths::Writer;
use crate::wait_for;

/// What a node logs when it takes a pool.
const TAKES: &str = "this node takes it over";

/// How long anything may take before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// A node dies after so many steps of this time, from none to one less than this many; at the last ones it has the pool.
const STEP: Duration = Duration::from_millis(130);
const STEPS: u32 = 20;

/// Steps from one pair of turns to the next: many turns meet every moment, and a few meet early and late ones.
const STRIDE: u32 = 7;

/// As [`STEP`], of the node that gives the pool away; at the last ones another node has it.
const GIVING_STEP: Duration = Duration::from_millis(50);

/// Three nodes that offer one pool.
pub struct ThreeNodes<'a> {
    /// Their folders of the pool.
    pub pools: &'a [PathBuf; 3],
    /// Where hosts reach them.
    pub listen: &'a [String; 3],
    /// Starts one of them.
    pub start: &'a dyn Fn(usize) -> Daemon,
    /// What else a node logs when it takes the pool.
    pub signs: &'a [&'a str],
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test folders are UTF-8")
}

fn serves(pool: &Path) -> bool {
    onefold(&["status", "--pool", text(pool)]).status.success()
}

/// The nodes that run.
type Running = [Option<Daemon>; 3];

/// How many times a node dies. Many are for who has an evening.
fn turns() -> u32 {
    let turns = std::env::var("ONEFOLD_TAKEOVERS").ok();
    turns.map_or(2, |count| count.parse().expect("a number"))
}

impl ThreeNodes<'_> {
    /// The owner is killed, or told to move the pool, and the node that takes it is killed on the way, each time at another moment. A host
    /// that is attached to all of them goes on each time, and finds all that was acknowledged. The first one has the pool. `ONEFOLD_TAKEOVERS`
    /// says how many turns, without it there are two.
    pub fn die_on_the_way(&self) {
        let mut nodes: Running = [0, 1, 2].map(|at| Some((self.start)(at)));
        let mut owner = 0;
        for turn in 0..turns() {
            let before = [0, 1, 2].map(|at| self.takes(at));
            let writer = Writer::start(self.listen);
            let dead = (turn % 2 == 0).then_some(owner);
            let moving = match dead {
                Some(dead) => {
                    nodes[dead].take().expect("it has the pool").kill_hard();
                    None
                }
                None => Some(self.begin_move(owner)),
            };
            let taker = || (0..3).find(|at| *at != owner && self.takes(*at) > before[*at]);
            let taker = wait_for("another node to take the pool", PATIENCE, taker);
            // There is nothing to wait for: the moment of its death, whatever it does then, is what the story is about.
            thread::sleep(STEP * ((turn / 2 + turn % 2) * STRIDE % STEPS));
            nodes[taker].take().expect("it takes the pool").kill_hard();
            writer.goes_on();
            writer.end();
            if let Some(moving) = moving {
                // What it says depends on when the other node died.
                moving.join().expect("the command ends");
            }
            owner = self.owner_of(&nodes);
            self.start_again(&mut nodes);
        }
        self.end(nodes, owner);
    }

    /// The owner is told to move the pool, and is killed on the way, each time at another moment. The rest is as of
    /// [`die_on_the_way`](Self::die_on_the_way).
    pub fn die_while_they_give(&self) {
        let mut nodes: Running = [0, 1, 2].map(|at| Some((self.start)(at)));
        let mut owner = 0;
        for turn in 0..turns() {
            let writer = Writer::start(self.listen);
            let moving = self.begin_move(owner);
            // As of the node that takes the pool: this moment is the story.
            thread::sleep(GIVING_STEP * ((turn + 1) * STRIDE % STEPS));
            nodes[owner].take().expect("it ran").kill_hard();
            writer.goes_on();
            writer.end();
            // What it says depends on when the node died; that nobody else wants the pool it says at no moment.
            let moved = text_of(&moving.join().expect("the command ends"));
            assert!(!moved.contains("no other node offers the pool"), "{moved}");
            owner = self.owner_of(&nodes);
            self.start_again(&mut nodes);
        }
        self.end(nodes, owner);
    }

    /// Tells a node to move the pool to another one.
    fn begin_move(&self, owner: usize) -> thread::JoinHandle<Output> {
        let pool = self.pools[owner].clone();
        thread::spawn(move || onefold(&["pool", "move", "--pool", text(&pool)]))
    }

    /// Which of those that run has the pool: one.
    fn owner_of(&self, nodes: &Running) -> usize {
        let serving = (0..3).filter(|at| nodes[*at].is_some() && serves(&self.pools[*at]));
        let serving: Vec<usize> = serving.collect();
        assert_eq!(serving.len(), 1, "one has the pool: {serving:?}");
        serving[0]
    }

    /// Those that died are standbys.
    fn start_again(&self, nodes: &mut Running) {
        for (at, node) in nodes.iter_mut().enumerate() {
            node.get_or_insert_with(|| {
                let standby = (self.start)(at);
                assert!(standby.ready_line().starts_with("standby"));
                standby
            });
        }
    }

    /// Stops all; the last one to go is the owner. Its pool is whole.
    fn end(&self, mut nodes: Running, owner: usize) {
        for at in (0..3).filter(|at| *at != owner) {
            let standby = nodes[at].take().expect("it waits");
            assert!(standby.stop().success());
        }
        let last = nodes[owner].take().expect("it has the pool");
        assert!(last.stop().success());
        assert_consistent(&self.pools[owner]);
    }

    /// How often a node has begun to take the pool.
    fn takes(&self, at: usize) -> usize {
        let log = std::fs::read_to_string(self.pools[at].with_extension("log"));
        let log = log.expect("it logs");
        let signs = self.signs.iter().chain([&TAKES]);
        signs.map(|sign| log.matches(sign).count()).sum()
    }
}
