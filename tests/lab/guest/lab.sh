# Functions for the scripts that run in a guest:  . /lib/lab.sh
NQN=nqn.2026-11.dev.onefold:default
TRANSPORT=rdma
# Linux sends over TCP in the context of who submits, and raises SIGPIPE there when the target has just died: it ends fio.
trap '' PIPE
log() { echo "[$(cut -d' ' -f1 /proc/uptime)] $*"; }
die() { log "FAIL: $*"; ip -br addr; ip neigh; dmesg | tail -n 20; exit 1; }
# Barriers between a guest and the machine: files in the shared folder, one pair a step.
signal() { : >"/lab/sync.$1"; }
await() { # NAME [SECONDS]
  local n=0
  until [ -e "/lab/sync.$1" ]; do sleep 0.1; n=$((n+1)); [ $n -lt $((10*${2:-120})) ] || die "the machine never said '$1'"; done
}
rxe_up() { modprobe rdma_rxe; modprobe -a rdma_ucm ib_uverbs; rdma link add rxe0 type rxe netdev eth0 || die "rdma link add"; modprobe nvme-rdma; }
tcp_up() { TRANSPORT=tcp; modprobe nvme-tcp || die "no nvme-tcp"; }
# tools_of RELEASE: from here on `nvme` is not bookworm's (2.3) but that of a later Debian, and there are its `tlshd` and `keyctl`
tools_of() { PATH=/tools/$1:$PATH; hash -r; }
# tlshd_up: from here on the kernel can shake hands by TLS, with the keys of its keyring .nvme
tlshd_up() {
  modprobe -a tls nvme-keyring || die "no TLS in this kernel"
  printf '[debug]\nloglevel=1\n[authenticate]\nkeyrings=.nvme\n' >/tmp/tlshd.conf
  tlshd -s -c /tmp/tlshd.conf >/lab/tlshd.log 2>&1 &
}
# onefold_here: makes `onefold` run in the guest, from the program and its libraries in the shared folder
onefold_here() {
  mkdir -p /run/onefold; cp /lab/onefold /lab/*.so.* /run/onefold/ || die "no program in the shared folder"
  printf '#!/bin/sh\nLD_LIBRARY_PATH=/run/onefold exec /run/onefold/onefold "$@"\n' >/bin/onefold; chmod 755 /bin/onefold
}
# reach ADDRESS: waits until the network carries packets; a fresh bridge and fresh addresses take a moment
reach() { local n=0; until ping -c 1 -W 1 "$1" >/dev/null 2>&1; do n=$((n+1)); [ $n -lt 20 ] || die "no way to $1"; done; }
# discover ADDRESS: the discovery log. A first connect over IPv6 was once left without an answer until Linux gave
# up after 78 s, on neither side it is known why: the second try keeps that apart from a target that is never
# reached, and what is printed here is the evidence to look into.
discover() {
  nvme discover -t "$TRANSPORT" -a "$1" -s 4420 && return 0
  log "THE FIRST CONNECT GOT NO ANSWER"; [ "$TRANSPORT" = tcp ] || rxe_stat; ip -br addr; ip neigh; dmesg | tail -n 5
  nvme discover -t "$TRANSPORT" -a "$1" -s 4420
}
# stages PREFIX: what the network does to the packets that leave here, one stage after the other, each when it is awaited
stages() {
  stage "$1loss-0.1" loss 0.1%
  stage "$1loss-1" loss 1%
  stage "$1loss-5" loss 5%
  stage "$1mixed" delay 1ms reorder 1% duplicate 1% corrupt 0.1%
}
stage() { # NAME NETEM-ARGUMENTS
  local name=$1; shift
  await "$name" 300; tc qdisc replace dev eth0 root netem "$@" || die netem; signal "$name-on"
}
# hear_events FILE: from here on the kernel's events are written to FILE. It listens when this returns: what we cause
# ourselves has been heard.
hear_events() {
  local n=0
  uevent env >"$1" & listener=$!
  until grep -q '^DEVPATH=/devices/virtual/mem/null$' "$1"; do
    echo change >/sys/devices/virtual/mem/null/uevent; sleep 0.1; n=$((n+1)); [ $n -lt 300 ] || die "nobody hears the kernel's events"
  done
}
# attach ADDRESS [nvme connect arguments]: connects and prints the block device of the first namespace (or of NSID=n)
attach() {
  local address=$1; shift
  nvme connect -t "$TRANSPORT" -a "$address" -s 4420 -n "$NQN" "$@" >/dev/null || return 1
  device
}
# device [NSID]: the block device of a namespace of the subsystem, once it is there
device() {
  local nsid=${1:-1} n=0 subsystem disk
  while [ $n -lt 100 ]; do
    for subsystem in /sys/class/nvme-subsystem/*; do
      [ "$(cat "$subsystem/subsysnqn" 2>/dev/null)" = "$NQN" ] || continue
      for disk in "$subsystem"/nvme*n*; do
        case ${disk##*/} in *c*n*) continue ;; esac
        [ "$(cat "$disk/nsid" 2>/dev/null)" = "$nsid" ] && [ -b "/dev/${disk##*/}" ] && { echo "/dev/${disk##*/}"; return 0; }
      done
    done
    sleep 0.1; n=$((n+1))
  done
  return 1
}
# fio_line NAME ARGUMENTS: runs fio, prints one line of figures, keeps its JSON in /lab/NAME.json
fio_line() {
  local name=$1; shift
  fio --name="$name" --output-format=json --output="/lab/$name.json" "$@" >/tmp/fio.err 2>&1; local code=$?
  jq -r --arg n "$name" '.jobs | "FIO \($n): read iops=\(map(.read.iops)|add|round) MB/s=\((map(.read.bw_bytes)|add)/1e6*10|round/10) lat_us=\(map(.read.clat_ns.mean)|max/1000|round) max_ms=\(map(.read.clat_ns.max)|max/1e6|round) | write iops=\(map(.write.iops)|add|round) MB/s=\((map(.write.bw_bytes)|add)/1e6*10|round/10) lat_us=\(map(.write.clat_ns.mean)|max/1000|round) max_ms=\(map(.write.clat_ns.max)|max/1e6|round) | err=\(map(.error)|max)"' "/lab/$name.json" || cat /tmp/fio.err
  [ $code = 0 ] || { log "fio $name ended with $code"; tail -n 5 /tmp/fio.err; }
  return $code
}
# rxe's own counters that are not zero: retries, duplicates and errors tell whether packets were lost or late
rxe_stat() {
  local file value out=
  for file in /sys/class/infiniband/rxe0/ports/1/hw_counters/*; do
    value=$(cat "$file"); [ "${file##*/}" != lifespan ] && [ "$value" != 0 ] && out="$out ${file##*/}=$value"
  done
  echo "RXE$out"
}
# both_served N: dies unless the daemon of $pool has two reactors, each of which has served N commands at least
both_served() {
  onefold status --pool "$pool" --json >/lab/status.json || die status
  jq -cM '.reactors[], .transports[]' /lab/status.json
  jq -e --argjson n "$1" '.reactors | length == 2 and all(.commands >= $n)' /lab/status.json >/dev/null || die "a reactor served next to nothing"
}
# complaints: what the guest's kernel said that a user would worry about. Not the emulator's own single-step traps, which
# it sometimes leaves behind in an interrupt.
complaints() {
  dmesg | grep -E 'WARNING:|Oops:|BUG:|Call Trace|I/O error|EXT4-fs error' \
    | awk '/exc_debug_kernel/ { emulator = 1; next } /Call Trace/ && emulator { emulator = 0; next } { print; found = 1 } END { exit !found }'
}
