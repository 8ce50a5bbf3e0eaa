#!/usr/bin/env bash
# Onefold and the Linux kernel's own RDMA target, one after the other, for the same guest in the same network.
#   bench/beside_the_kernel.sh [SECONDS per figure, 8] [MTU, 1500]
# Onefold runs natively and stores to a file; the kernel target runs in an emulated guest on a RAM disk. So
# only the host's side is equal: the figures say whether Onefold is in the way, not which code is faster.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
seconds=${1:-8} mtu=${2:-1500}
program=${ONEFOLD_PROGRAM:-${CARGO_TARGET_DIR:-$root/build}/release/onefold}
work=$(mktemp -d) network=onefold-bench-$$ kernel_nqn=nqn.2026-11.dev.onefold:kernel
clean() { ip netns pids "$network" | xargs -r kill 2>/dev/null || true; wait 2>/dev/null || true; "$root/tests/lab/net" down "$network"; rm -rf "$work"; }
"$root/tests/lab/net" up "$network" 2 "$mtu"
trap clean EXIT

guest() { # NAME NUMBER STORY ARGUMENTS...
  local name=$1 number=$2 story=$3; shift 3
  mkdir -p "$work/$name"; cp "$root/tests/lab/stories/$story.sh" "$work/$name/"
  "$root/tests/lab/vm" -n "$name" -d "$work/$name" -x "$network" -T "tap$number" -i "10.77.0.$((number + 2))/24" -M "$mtu" \
    -m 1536 -t 900 "$story.sh" "$@"
}

echo "== Onefold"
ip netns exec "$network" "$program" serve --pool "$work/pool" --create 4G --volume vol0=1G >"$work/serve.out" 2>"$work/serve.err" & target=$!
until grep -q ^ready "$work/serve.out"; do kill -0 $target; sleep 0.1; done
guest host 0 speed 10.77.0.1 "$seconds" || [ $? = 33 ]
grep -E 'FIO|RXE' "$work/host/console.log" | tr -d '\r'
kill -INT $target; wait $target || true

echo "== Linux nvmet-rdma"
guest target 1 kernel_target 10.77.0.3 "$kernel_nqn" &
until [ -e "$work/target/sync.up" ]; do sleep 0.2; done
rm -f "$work"/host/*
guest host 0 speed 10.77.0.3 "$seconds" "$kernel_nqn" || [ $? = 33 ]
grep -E 'FIO|RXE' "$work/host/console.log" | tr -d '\r'
: >"$work/target/sync.done"
wait || true # the guest powers off by itself
