# A host with two paths that verifies what it wrote, whatever happens to one of them.
# arguments: ADDRESS ADDRESS (one listener each)
. /lib/lab.sh
. /lab/fields.sh
tcp_up
connect() { # ADDRESS
  reach "$1"
  nvme connect -t tcp -a "$1" -s 4420 -n "$NQN" -i 2 --reconnect-delay=1 --ctrl-loss-tmo=600 --keep-alive-tmo=5 >/dev/null || die "connect $1"
}
connect "$1"; connect "$2"
disk=$(device) || die "no namespace"
name=${disk##*/}
states() { # the states of the paths, the one by ADDRESS first
  local address path
  for address in "$@"; do
    for path in /sys/class/nvme/nvme*; do
      grep -q "traddr=$address,\|traddr=$address\$" "$path/address" || continue
      cat "$path"/nvme*c*n*/ana_state 2>/dev/null || echo none
    done
  done | tr '\n' ' '
}
await_states() { # WANTED
  local n=0
  until [ "$(states "$first" "$second")" = "$1 " ]; do
    n=$((n+1)); [ $n -lt 600 ] || die "paths are '$(states "$first" "$second")' instead of '$1'"
    sleep 0.1
  done
  log "paths: $1"
}
first=$1 second=$2
await_states "optimized optimized"
nvme list-subsys
control=/dev/$(ls /sys/class/nvme | head -n 1)
are cmic=0xb anacap=0x1f anatt=10 anagrpmax=128 nanagrpid=128 < <(nvme id-ctrl "$control")
are anagrpid=1 < <(nvme id-ns "$disk")
nvme ana-log "$control" | tee /tmp/ana || die ana-log
grep -qi "optimized" /tmp/ana && ! grep -qi "inaccessible\|persistent\|non-optimized" /tmp/ana || die "the log says other states"

# Rounds of fio until the end: each writes, and verifies what it wrote.
(
  round=0
  while [ ! -e /lab/sync.stop ]; do
    round=$((round+1))
    fio_line "round$round" --filename="$disk" --size=4m --rw=randrw --rwmixread=30 --bs=4k --iodepth=8 --ioengine=libaio --direct=1 \
      --randseed=$round --verify=crc32c --verify_fatal=1 --do_verify=1 >>/tmp/rounds || { cat /tmp/rounds; exit 1; }
    echo "$round" >/tmp/round
  done
) &
load=$!
rounds() { # NUMBER: waits for so many more that began after now
  local until=$(($(cat /tmp/round 2>/dev/null || echo 0) + $1 + 1)) n=0
  while [ "$(cat /tmp/round 2>/dev/null || echo 0)" -lt $until ]; do
    kill -0 $load 2>/dev/null || { cat /tmp/rounds; die "fio ended"; }
    n=$((n+1)); [ $n -lt 1800 ] || die "fio makes no progress"
    sleep 0.1
  done
}
step() { signal "$1"; await "$1-done" 120; }
rounds 1
step inaccessible; await_states "inaccessible optimized"; rounds 1
step change; await_states "change optimized"
step non-optimized; await_states "non-optimized optimized"; rounds 1
step optimized; await_states "optimized optimized"
step cut; rounds 1
log "with the first path's network cut: verified"
step mend; await_states "optimized optimized"; rounds 1
step remove; rounds 1
log "with the first path's listener removed: verified"
step add; await_states "optimized optimized"; rounds 1
signal stop; wait $load || { cat /tmp/rounds; die "fio"; }
cat /tmp/rounds
nvme disconnect -n "$NQN" || die disconnect
exit 0
