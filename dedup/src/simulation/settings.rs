//! Settings in the stories: two that are always changed together, so that half a change would be seen.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use uuid::Uuid;

use super::world::Actor;

/// Both keys of the pair.
const PAIR: [&str; 2] = ["pair/one", "pair/two"];

/// What both settings of the pair may be; `None` = there are none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pair {
    now: Option<u32>,
    /// What they become, if a change is under way or was cut short.
    next: Option<Option<u32>>,
}

impl Actor {
    /// Changes the pair, unless that is under way.
    pub(super) async fn change_settings(&self, rng: &mut ChaCha8Rng) {
        let next = rng
            .random_range(0..4u32)
            .checked_sub(1)
            .map(|_| rng.random());
        {
            let pair = &mut self.world.borrow_mut().pair;
            if pair.next.is_some() {
                return;
            }
            pair.next = Some(next);
        }
        let value = next.map(|next: u32| next.to_le_bytes().to_vec());
        let changes = PAIR.map(|key| (key.to_owned(), value.clone()));
        let result = self.engine.change_settings(changes.to_vec()).await;
        let mut world = self.world.borrow_mut();
        world.judge(Uuid::nil(), "change settings", &result);
        // After a failure it is open what they are; the next opening tells.
        if result.is_ok() {
            world.pair = Pair {
                now: next,
                next: None,
            };
        }
    }

    /// What the settings are after a crash, which must be what they were before a change or after it.
    pub(super) fn settle_settings(&self) {
        let all = self.engine.settings("pair/");
        let values = PAIR.map(|key| self.engine.setting(key));
        assert_eq!(values[0], values[1], "half a change of settings");
        let count = values.iter().flatten().count();
        assert_eq!(all.len(), count, "settings that nobody made");
        let found = values[0]
            .as_deref()
            .map(|value| u32::from_le_bytes(value.try_into().expect("a value that nobody wrote")));
        let mut world = self.world.borrow_mut();
        let Pair { now, next } = world.pair;
        assert!(
            found == now || next == Some(found),
            "the settings are {found:?}; they were {now:?}, and were to become {next:?}"
        );
        world.pair = Pair {
            now: found,
            next: None,
        };
    }
}
