//! Stories of two endpoints.

mod chaos;
mod connecting;
mod failures;
mod forged;
mod loss;
mod pair;
mod parts;
mod protocol;
mod transfers;

/// The seeds of a random test. `ROCE_SEEDS="FROM COUNT"` in the environment replays or extends.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let wanted = std::env::var("ROCE_SEEDS").unwrap_or_default();
    let mut numbers = wanted
        .split_whitespace()
        .filter_map(|word| word.parse().ok());
    let from = numbers.next().unwrap_or(0);
    from..from + numbers.next().unwrap_or(count)
}
