#!/usr/bin/env bash
# fio with verification from a real kernel while the daemon is killed every 20 seconds: tests/lab/fio.sh [MINUTES, default 10]
# Blocks of mixed sizes from 512 bytes on and trims, on a file drive. See tests/tests/fio_kills.rs. Needs what tests/lab/setup.sh
# prepares, and root.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
. scripts/build.sh
prepare_build
"$root/tests/lab/setup.sh" 6.12
cargo build -p onefold
ONEFOLD_FIO_SECONDS=$((${1:-10} * 60)) exec cargo test -p tests --test fio_kills -- --ignored --nocapture
