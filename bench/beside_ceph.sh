#!/usr/bin/env bash
# A pool in a Ceph cluster beside Ceph's own tools, in one run: bench/beside_ceph.sh [SECONDS]
#
# The cluster is that of tests/lab/ceph.sh: three OSDs with their data in memory, on this machine. Onefold is ONEFOLD_PROGRAM, or what
# `cargo build --release` makes. All share the machine's cores, so the ratios say more than the rates.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
seconds=${1:-5}
program=${ONEFOLD_PROGRAM:-${CARGO_TARGET_DIR:-$root/build}/release/onefold}
work=$(mktemp -d)
mkfifo "$work/input"
"$root/tests/lab/ceph.sh" "$work/ceph" < "$work/input" > "$work/ceph.out" 2>&1 &
cluster=$!
exec 3> "$work/input"
daemon=
end() {
  [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
  exec 3>&-
  wait "$cluster" || true
  rm -rf "$work"
}
trap end EXIT
until grep -q ready "$work/ceph.out"; do
  kill -0 "$cluster" 2>/dev/null || { cat "$work/ceph.out" >&2; exit 69; }
  sleep 0.2
done
conf=$work/ceph/ceph.conf

rados_bench() { rados -c "$conf" -p pool bench "$seconds" "$@" 2>/dev/null | awk '/Average IOPS/ { print $3 }'; }
row() { printf '%-44s %10s/s\n' "$1" "$2"; }

row "rados bench, 4 KiB writes, 16 at a time" "$(rados_bench write -b 4096 -t 16)"
row "rados bench, 128 KiB writes, 16 at a time" "$(rados_bench write -b 131072 -t 16 --no-cleanup)"
row "rados bench, 128 KiB reads, 16 at a time" "$(rados_bench rand -t 16)"
rados -c "$conf" -p pool cleanup > /dev/null 2>&1

if command -v rbd > /dev/null && fio --enghelp 2> /dev/null | grep -qw rbd; then
  rbd -c "$conf" create pool/disk --size 1G
  iops=$(CEPH_CONF=$conf fio --name=disk --ioengine=rbd --clientname=admin --pool=pool --rbdname=disk --rw=randwrite --bs=4k \
    --iodepth=32 --size=512m --runtime="$seconds" --time_based --output-format=json 2>/dev/null |
    python3 -c 'import json, sys; print(round(json.load(sys.stdin)["jobs"][0]["write"]["iops"]))' || echo none)
  row "fio's rbd engine, 4 KiB random writes, depth 32" "$iops"
  rbd -c "$conf" rm --no-progress pool/disk
fi

"$program" serve --pool "$work/pool" --create 1G --drive "rados:pool?conf=$conf&user=onefold=8G" --reactors 1 \
  --listen tcp://127.0.0.1:4429 > "$work/serve.out" 2>&1 &
daemon=$!
until grep -q ^ready "$work/serve.out"; do
  kill -0 "$daemon" 2>/dev/null || { cat "$work/serve.out" >&2; exit 69; }
  sleep 0.2
done
perf() {
  local name=$1
  shift
  row "onefold, $name" "$("$program" perf tcp://127.0.0.1:4429/nqn.2026-11.dev.onefold:default --range 512M --time "$seconds" \
    --json "$@" 2>/dev/null | python3 -c '
import json, sys
report = json.load(sys.stdin)
print(round(sum(report[way]["iops"] for way in ("read", "write") if report.get(way))))')"
}
perf "128 KiB unique writes, depth 16" --rw write --bs 128k --qd 16
perf "128 KiB reads of them, depth 16" --rw read --bs 128k --qd 16
perf "128 KiB writes, nine of ten duplicates" --rw write --bs 128k --qd 16 --dup 90
perf "4 KiB random writes, depth 32" --rw randwrite --bs 4k --qd 32
perf "4 KiB random writes, depth 1" --rw randwrite --bs 4k --qd 1
perf "4 KiB random reads, depth 32" --rw randread --bs 4k --qd 32
