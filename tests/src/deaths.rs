//! Nodes of one pool that die while they take it.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::daemon::{Daemon, assert_consistent, onefold};
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

impl ThreeNodes<'_> {
    /// The owner is killed, or told to move the pool, and the node that takes it is killed on the way, each time at another moment. A host
    /// that is attached to all of them goes on each time, and finds all that was acknowledged. The first one has the pool. `ONEFOLD_TAKEOVERS`
    /// says how many turns, without it there are two.
    pub fn die_on_the_way(&self) {
        // Many turns are for who has an evening.
        let turns = std::env::var("ONEFOLD_TAKEOVERS").ok();
        let turns: u32 = turns.map_or(2, |count| count.parse().expect("a number"));
        let mut nodes = [0, 1, 2].map(|at| Some((self.start)(at)));
        let mut owner = 0;
        for turn in 0..turns {
            let before = [0, 1, 2].map(|at| self.takes(at));
            let writer = Writer::start(self.listen);
            let dead = (turn % 2 == 0).then_some(owner);
            let moving = match dead {
                Some(dead) => {
                    nodes[dead].take().expect("it has the pool").kill_hard();
                    None
                }
                None => {
                    let pool = self.pools[owner].clone();
                    Some(thread::spawn(move || {
                        onefold(&["pool", "move", "--pool", text(&pool)])
                    }))
                }
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
            owner = (0..3)
                .find(|at| nodes[*at].is_some() && serves(&self.pools[*at]))
                .expect("one has the pool");
            for at in dead.into_iter().chain([taker]) {
                let standby = (self.start)(at);
                assert!(standby.ready_line().starts_with("standby"));
                nodes[at] = Some(standby);
            }
        }
        // The last one to go is the owner.
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
