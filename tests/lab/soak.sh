#!/usr/bin/env bash
# Soaks the daemon for so many minutes: tests/lab/soak.sh [MINUTES, default 5]
# Hosts over every transport, cut connections, hosts that die, lost packets, a pool that fills up, and
# kill -9 of the daemon; every block is verified at the end. See tests/tests/soak.rs.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
. scripts/build.sh
prepare_build
cargo build -p onefold
ONEFOLD_SOAK_SECONDS=$((${1:-5} * 60)) exec cargo test -p tests --test soak -- --nocapture
