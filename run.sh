#!/usr/bin/env bash
# Builds Onefold and serves a volume: ./run.sh [arguments of `onefold serve`]
# Without arguments: a pool in ./onefold-data with one volume, vol0, for RDMA hosts on every address.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$root/scripts/build.sh"
prepare_build
build_program
exec "$CARGO_TARGET_DIR/release/onefold" serve "$@"
