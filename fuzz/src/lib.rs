//! Every parser under any bytes: what the network and the drives may bring.
//!
//! A [`Target`] is a function of bytes that panics when a property does not hold: nothing panics, what
//! parses is written to bytes that parse to the same, and nothing grows beyond its bound. The same
//! functions are driven in two ways:
//!
//! - `cargo test -p fuzz` replays the checked-in inputs (`fuzz/corpus/TARGET/`) and mutates them from
//!   fixed seeds, for a bounded number of rounds;
//! - `fuzz/run.sh TARGET|all SECONDS` lets libFuzzer search with coverage for as long as one likes.
//!
//! An input that broke a property stays in the corpus as `regression-*`.

#![forbid(unsafe_code)]

mod answers;
mod commands;
mod disk;
mod endpoint;
mod input;
mod nbd;
mod packs;
mod pages;
mod sent;
mod tcp;
mod wire;

/// Something to fuzz.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: that of its folder in `fuzz/corpus`.
    pub name: &'static str,
    /// Bytes that are worth trying at most.
    pub len_max: usize,
    /// Panics when a property does not hold for these bytes.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "packet",
        len_max: 2048,
        run: wire::packet,
    },
    Target {
        name: "mad",
        len_max: 300,
        run: wire::mad,
    },
    Target {
        name: "endpoint",
        len_max: 4096,
        run: endpoint::run,
    },
    Target {
        name: "command",
        len_max: 512,
        run: commands::entry,
    },
    Target {
        name: "connect",
        len_max: 1100,
        run: commands::connect,
    },
    Target {
        name: "auth",
        len_max: 1300,
        run: commands::auth,
    },
    Target {
        name: "identify",
        len_max: 4200,
        run: pages::identify,
    },
    Target {
        name: "log",
        len_max: 4200,
        run: pages::log,
    },
    Target {
        name: "pdu",
        len_max: 4096,
        run: tcp::pdu,
    },
    Target {
        name: "record",
        len_max: 2048,
        run: disk::record,
    },
    Target {
        name: "journal",
        len_max: 4096,
        run: disk::journal,
    },
    Target {
        name: "row",
        len_max: 512,
        run: disk::row,
    },
    Target {
        name: "label",
        len_max: 4200,
        run: disk::label,
    },
    Target {
        name: "pool",
        len_max: 4096,
        run: disk::pool,
    },
    Target {
        name: "nbd",
        len_max: 4096,
        run: nbd::stream,
    },
    Target {
        name: "pack",
        len_max: 4200,
        run: packs::pack,
    },
    Target {
        name: "stream",
        len_max: 9000,
        run: sent::stream,
    },
    Target {
        name: "answers",
        len_max: 1024,
        run: answers::answers,
    },
];

/// The target of that name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
