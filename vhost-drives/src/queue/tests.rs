use futures_util::FutureExt;
use proptest::prelude::*;
use reactor::SharedPages;

use super::*;
use crate::memory::Slots;

fn queue(is_indirect: bool) -> Arc<Queue> {
    queue_with(is_indirect, true)
}

fn queue_with(is_indirect: bool, has_event_index: bool) -> Arc<Queue> {
    let slots = Slots::new(is_indirect);
    let memory = Arc::new(Memory::new(1, slots, SharedPages::Usual).expect("memory"));
    Arc::new(Queue::new(memory, Layout::new(0, slots), has_event_index).expect("a queue"))
}

fn claim(queue: &Arc<Queue>, bytes: usize) -> Claimed {
    if queue.state().users.is_empty() {
        queue.join();
    }
    let claimed = queue.claim(0, bytes).now_or_never();
    claimed.expect("a free slot").expect("not ended")
}

fn collect(queue: &Queue) -> Result<(), String> {
    queue.collect(&mut Vec::new())
}

/// What a server would do: puts answers into the used ring.
fn answer(queue: &Queue, index: u16, answers: &[(u32, u32)]) {
    for (at, (id, len)) in (0..).zip(answers) {
        let entry = [id.to_le_bytes(), len.to_le_bytes()].concat();
        let place = queue
            .layout
            .used_entry(index.wrapping_sub(answers.len() as u16).wrapping_add(at));
        queue.memory.write(place, &entry);
    }
    queue
        .memory
        .store(queue.layout.used_index(), index, Ordering::Release);
}

#[test]
fn an_answer_ends_the_command_that_it_is_for() {
    for is_indirect in [true, false] {
        let queue = queue(is_indirect);
        let step = if is_indirect { 1 } else { u32::from(CHAIN) };
        let commands = [claim(&queue, 4096), claim(&queue, 0)];
        for command in &commands {
            command
                .send(Kind::Out, 8, &[command.own(4096)], None)
                .expect("sent");
        }
        queue
            .memory
            .write(queue.layout.status(commands[1].slot), &[2]);
        answer(&queue, 1, &[(u32::from(commands[1].slot) * step, 1)]);
        collect(&queue).expect("an answer");
        assert_eq!(commands[1].answered().now_or_never(), Some(Ok(2)));
        assert_eq!(commands[0].answered().now_or_never(), None);
        queue.end();
        assert_eq!(commands[0].answered().now_or_never(), Some(Err(Ended)));
    }
}

#[test]
fn a_slot_of_a_command_that_was_dropped_is_used_again_after_its_answer_only() {
    let queue = queue(false);
    let all: Vec<_> = (0..queue.layout.slots.large)
        .map(|_| claim(&queue, 65536))
        .collect();
    all[0]
        .send(Kind::In, 0, &[all[0].own(65536)], None)
        .expect("sent");
    let id = u32::from(all[0].slot * CHAIN);
    drop(all);
    let again: Vec<_> = (1..queue.layout.slots.large)
        .map(|_| claim(&queue, 65536))
        .collect();
    let mut next = Box::pin(queue.claim(0, 65536));
    assert!(
        next.as_mut().now_or_never().is_none(),
        "the server may still write to it"
    );
    answer(&queue, 1, &[(id, 65537)]);
    collect(&queue).expect("an answer");
    assert!(next.now_or_never().is_some());
    drop(again);
}

#[test]
fn answers_that_make_no_sense_are_errors_and_end_nothing() {
    let queue = queue(true);
    let command = claim(&queue, 4096);
    command
        .send(Kind::In, 0, &[command.own(4096)], None)
        .expect("sent");
    let id = u32::from(command.slot);
    type Lie<'a> = (u16, &'a [(u32, u32)], &'a str);
    let lies: [Lie; 5] = [
        (2, &[(id, 1), (id, 1)], "answered 2 commands where it had 1"),
        (40_000, &[], "where it had 1"),
        (1, &[(id + 1, 1)], "which it did not have"),
        (1, &[(70_000, 1)], "which it did not have"),
        (1, &[(id, 4098)], "room for 4097"),
    ];
    for (index, answers, reason) in lies {
        answer(&queue, index, answers);
        let error = collect(&queue).expect_err(reason);
        assert!(error.contains(reason), "{error}");
        assert_eq!(command.answered().now_or_never(), None);
    }
    // The same answer twice.
    answer(&queue, 1, &[(id, 4097)]);
    collect(&queue).expect("an answer");
    let other = claim(&queue, 0);
    other.send(Kind::Flush, 0, &[], None).expect("sent");
    answer(&queue, 2, &[(id, 1)]);
    collect(&queue).expect_err("it was answered already");
}

#[test]
fn a_stopped_ring_is_settled_when_what_was_taken_is_answered() {
    let queue = queue(true);
    let commands: Vec<_> = (0..3).map(|_| claim(&queue, 0)).collect();
    for command in &commands {
        command.send(Kind::Flush, 0, &[], None).expect("sent");
    }
    assert!(!queue.is_answered(None));
    assert!(!queue.is_answered(Some(2)), "two were taken");
    answer(&queue, 2, &[(0, 1), (0, 1)]);
    assert!(queue.is_answered(Some(2)));
    assert!(!queue.is_answered(None));
    answer(&queue, 3, &[(0, 1)]);
    assert!(queue.is_answered(None));
}

/// Whether the queue wants to be called for the answer with this number, counted from 0.
fn is_called_for(queue: &Queue, answer: u16) -> bool {
    let load = |place| queue.memory.load::<u16>(place, Ordering::Relaxed);
    match queue.has_event_index {
        true => load(queue.layout.call_event()) == answer,
        false => load(queue.layout.available_flags()) & NO_INTERRUPT == 0,
    }
}

#[test]
fn the_server_is_to_call_as_long_as_a_reactor_sleeps_that_waits_for_an_answer() {
    for has_event_index in [true, false] {
        let queue = queue_with(true, has_event_index);
        let (one, other) = (queue.join(), queue.join());
        assert!(!is_called_for(&queue, 0));
        assert!(queue.fall_asleep(other), "it waits for nothing");
        assert!(!is_called_for(&queue, 0));
        let commands = [claim(&queue, 0), claim(&queue, 0)];
        for command in &commands {
            command.send(Kind::Flush, 0, &[], None).expect("sent");
        }
        let id = |at: usize| u32::from(commands[at].slot);
        assert!(!is_called_for(&queue, 0), "who waits is awake");
        assert!(queue.fall_asleep(one), "there is no answer");
        assert!(is_called_for(&queue, 0));
        answer(&queue, 1, &[(id(0), 1)]);
        queue.wake_up(other);
        assert!(queue.fall_asleep(other), "it waits for nothing still");
        queue.wake_up(other);
        collect(&queue).expect("an answer");
        assert!(is_called_for(&queue, 1), "another one looked");
        answer(&queue, 2, &[(id(1), 1)]);
        queue.wake_up(one);
        assert!(!queue.fall_asleep(one), "there is an answer");
        collect(&queue).expect("an answer");
        queue.wake_up(one);
        assert!(!is_called_for(&queue, 2), "nobody waits");
    }
}

#[test]
fn no_answer_is_called_for_while_reactors_are_awake_however_many_come() {
    let queue = queue(true);
    queue.join();
    for number in 0..70_000_u32 {
        let command = claim(&queue, 0);
        command.send(Kind::Flush, 0, &[], None).expect("sent");
        let number = number as u16;
        assert!(!is_called_for(&queue, number), "{number}");
        answer(
            &queue,
            number.wrapping_add(1),
            &[(u32::from(command.slot), 1)],
        );
        collect(&queue).expect("an answer");
    }
}

#[test]
fn the_server_is_kicked_for_what_it_wants_to_be_told_of() {
    let kicks = |queue: &Queue| {
        let mut count = [0; 8];
        queue.kick_if_wanted();
        match rustix::io::read(queue.kick(), &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_) => 0,
        }
    };
    for has_event_index in [true, false] {
        let queue = queue_with(true, has_event_index);
        let send = || {
            let command = claim(&queue, 0);
            command.send(Kind::Flush, 0, &[], None).expect("sent");
            command
        };
        let wish = |event: u16, flags: u16| {
            let place = queue.layout.kick_event();
            queue.memory.store(place, event, Ordering::Relaxed);
            let place = queue.layout.used_flags();
            queue.memory.store(place, flags, Ordering::Relaxed);
        };
        assert_eq!(kicks(&queue), 0, "there is nothing to tell");
        let mut commands = vec![send(), send()];
        assert_eq!(kicks(&queue), 1, "once for both");
        assert_eq!(kicks(&queue), 0);
        // It works on the first one still.
        wish(0, NO_NOTIFY);
        commands.push(send());
        assert_eq!(kicks(&queue), 0);
        wish(3, 0);
        commands.push(send());
        assert_eq!(kicks(&queue), 1);
    }
}

proptest! {
    #[test]
    fn whatever_is_in_the_used_ring_nothing_panics(
        is_indirect: bool, index: u16, entries in prop::collection::vec((0u32..140, 0u32..5000), 0..128),
    ) {
        let queue = queue(is_indirect);
        let commands: Vec<_> = (0..20).map(|at| claim(&queue, at * 300)).collect();
        for command in &commands {
            command.send(Kind::In, 0, &[command.own(300)], None).expect("sent");
        }
        answer(&queue, index, &entries);
        if collect(&queue).is_ok() {
            prop_assert!(index <= 20);
        }
        queue.end();
        prop_assert!(commands.iter().all(|c| c.answered().now_or_never().is_some()));
    }
}
