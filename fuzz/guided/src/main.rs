//! One program for all targets: `ONEFOLD_FUZZ_TARGET` names the one to run, the arguments are libFuzzer's.

#![no_main]

use std::sync::OnceLock;

use fuzz::Target;
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fn chosen() -> &'static Target {
    TARGET.get_or_init(|| {
        let name = std::env::var("ONEFOLD_FUZZ_TARGET").unwrap_or_default();
        let names: Vec<&str> = fuzz::TARGETS.iter().map(|target| target.name).collect();
        fuzz::target(&name)
            .unwrap_or_else(|| panic!("ONEFOLD_FUZZ_TARGET is '{name}', not one of {names:?}"))
    })
}

fuzz_target!(|bytes: &[u8]| {
    let target = chosen();
    if bytes.len() <= target.len_max {
        (target.run)(bytes);
    }
});
