#!/usr/bin/env bash
# Builds Onefold and serves a volume: ./run.sh [arguments of `onefold serve`]
# Without arguments: a pool in ./onefold-data with one volume, vol0, for RDMA hosts on every address.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$root/scripts/build.sh"
prepare_build
# Run from the repository: cargo's settings are found from the current folder.
(cd "$root" && cargo build -p onefold)
exec "$CARGO_TARGET_DIR/debug/onefold" serve "$@"
