//! What the processor computes by itself.

use meta::FingerprintFunction;

use super::{Finding, Machine, PoolFound};

/// Instructions that the engine uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Features {
    /// Carry-less multiplication: PCLMULQDQ, or PMULL of ARM.
    pub(super) carry_less: bool,
    /// It works on more than one pair at a time (VPCLMULQDQ).
    pub(super) carry_less_wide: bool,
    /// CRC-32C: SSE 4.2, or the CRC32 of ARM.
    pub(super) crc32c: bool,
}

impl Features {
    /// As `/proc/cpuinfo` names them.
    pub(super) fn of(machine: &Machine) -> Self {
        let text = machine.read("/proc/cpuinfo").unwrap_or_default();
        let line = text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            ["flags", "Features"].contains(&key.trim()).then_some(value)
        });
        let has =
            |name: &str| line.is_some_and(|line| line.split_whitespace().any(|it| it == name));
        Self {
            carry_less: has("pclmulqdq") || has("pmull"),
            carry_less_wide: has("vpclmulqdq"),
            crc32c: has("sse4_2") || has("crc32"),
        }
    }

    /// The fingerprints of a new pool here. The engine asks the processor itself; a test holds that both agree.
    pub(super) fn suited(self) -> FingerprintFunction {
        match self.carry_less {
            true => FingerprintFunction::Clnh,
            false => FingerprintFunction::Blake3,
        }
    }
}

pub(super) fn fingerprints(features: &Features, pool: &PoolFound) -> Finding {
    const CHECK: &str = "fingerprints";
    let multiplies = match (features.carry_less, features.carry_less_wide) {
        (true, true) => "the processor multiplies without carries, several at a time",
        (true, false) => "the processor multiplies without carries",
        (false, _) => "the processor cannot multiply without carries",
    };
    let of_pool = match &pool.identity {
        Some(Ok(identity)) => Some(identity.fingerprint),
        _ => None,
    };
    let used = of_pool.unwrap_or_else(|| features.suited());
    let whose = match of_pool {
        Some(_) => "the pool uses",
        None => "a new pool uses",
    };
    let found = format!("{whose} {used}; {multiplies}");
    if used == FingerprintFunction::Clnh && !features.carry_less {
        return Finding::fail(
            CHECK,
            format!("{found}: fingerprints take some hundred times longer here"),
            "serve the pool on another machine, or copy its volumes to a pool made with `--fingerprint blake3`",
        );
    }
    if used == FingerprintFunction::Blake3 && of_pool.is_none() {
        return Finding::warn(
            CHECK,
            found,
            "a processor with PCLMULQDQ or PMULL makes fingerprints several times as fast; a virtual machine \
             needs the host's processor model",
        );
    }
    Finding::ok(CHECK, found)
}

pub(super) fn checksums(features: &Features) -> Finding {
    const CHECK: &str = "checksums";
    match features.crc32c {
        true => Finding::ok(CHECK, "the processor computes CRC-32C"),
        false => Finding::warn(
            CHECK,
            "the processor has no CRC-32C: checksums of blocks and digests cost more time",
            "use a processor with SSE 4.2 or ARM's CRC32; a virtual machine needs the host's processor model",
        ),
    }
}
