# A pool with two copies on three disks below device-mapper; a host of this kernel writes and verifies all the time. In each round one
# disk fails, one does not answer, one returns other bytes than were written, and one forgets what is written. The host
# meets no error and waits for no more than some seconds. Then one disk fails for good, and a spare takes its place. At the end
# each disk is taken away in turn, and all data are there; and so they are when the pool's folder is lost and made again of its
# drives.
# arguments: ROUNDS.  Disks: a, b, c and the spare d, of one size.
. /lib/lab.sh
onefold_here
modprobe -a dm-mod dm-flakey || die "no device-mapper"
export DM_DISABLE_UDEV=1 ONEFOLD_POOL=/run/pool
tcp_up
disks=(/dev/vda /dev/vdb /dev/vdc /dev/vdd)
drives=(/dev/mapper/d0 /dev/mapper/d1 /dev/mapper/d2 /dev/mapper/d3)
sectors=$(blockdev --getsz /dev/vda)
table() { # NUMBER WHAT: what a drive is to do
  local disk=${disks[$1]}
  case $2 in
    work) echo "0 $sectors linear $disk 0" ;;
    fail) echo "0 $sectors error" ;;
    lie) echo "0 $sectors flakey $disk 0 0 3600 5 corrupt_bio_byte 100 r 17 0" ;;
    forget) echo "0 $sectors flakey $disk 0 0 3600 1 drop_writes" ;;
  esac
}
hang() { dmsetup suspend --noflush "d$1" || die "dmsetup suspend"; }
becomes() { hang "$1"; dmsetup load "d$1" --table "$(table "$1" "$2")" && dmsetup resume "d$1" || die "drive $1 does not begin to $2"; }
for n in 0 1 2 3; do dmsetup create "d$n" --table "$(table $n work)" || die "dmsetup create"; done
serve() {
  onefold serve --buffers 64M --reactors 1 --listen tcp://127.0.0.1:4420 "$@" >/lab/ready.txt 2>>/lab/daemon.log &
  daemon=$!
}
serve --create 0 --redundancy mirror=2 --drive ${drives[0]} --drive ${drives[1]} --drive ${drives[2]} --volume vol0=96M
# What was said last tells why, without the many lines of what was healed.
stop() { [ -e /tmp/enough ] || grep -v 'were written again' /lab/daemon.log | tail -n 60; die "$@"; }
eventually() { # SECONDS COMMAND...
  local n=0 limit=$1; shift
  until "$@"; do sleep 0.1; n=$((n+1)); [ $n -lt $((10*limit)) ] || { onefold drive list; stop "in vain: $*"; }; done
}
eventually 60 grep -qs ready /lab/ready.txt
disk=$(attach 127.0.0.1 -i 2) || stop connect

# The host: rounds of writes that are read and compared, until it is enough.
verified() {
  local round=0
  until [ -e /tmp/enough ]; do
    round=$((round+1)); echo $round >/tmp/round
    fio_line "round$round" --filename="$disk" --offset=$((round % 4 * 16))m --size=16m --rw=randwrite --ioengine=libaio --direct=1 \
      --bssplit=4k/50:12k/20:64k/20:128k/10 --iodepth=8 --fsync=64 --randseed=$round --max_latency=4s \
      --verify=crc32c --verify_fatal=1 --do_verify=1 || { echo "fio of round $round" >/tmp/wrong; return 1; }
  done
}
verified & host=$!
states() { onefold drive list --json | jq -r 'map(.state) | join(" ")'; }
are() { [ -e /tmp/wrong ] && stop "the host: $(cat /tmp/wrong)"; [ "$(states)" = "$*" ]; }
without() { local n list=; for n in 0 1 2; do [ $n = "$1" ] && list="$list offline" || list="$list online"; done; echo $list; }
comes_back() { onefold drive online "${drives[$1]}" 2>/tmp/said; }
another_round() { # the host begins a round, and ends it
  local passed; passed=$(cat /tmp/round)
  later() { [ -e /tmp/wrong ] && stop "the host: $(cat /tmp/wrong)"; [ "$(cat /tmp/round)" -gt $((passed + 1)) ]; }
  eventually 120 later
}
scrubbed() { # all copies are read and compared, and what is wrong is written again
  local phase
  onefold scrub start --rate 1G >/dev/null || stop "a scrub"
  through() { phase=$(onefold scrub status --json | jq -r '.scrub.phase // .phase'); [ "$phase" = finished ]; }
  eventually 120 through
  onefold scrub status >/tmp/scrub || { cat /tmp/scrub; stop "a scrub found damage that no copy heals"; }
}
for round in $(seq 1 "$1"); do
  dead=$((round % 3)) silent=$(((round + 1) % 3)) wrong=$(((round + 2) % 3))
  log "round $round: drive $dead fails"
  becomes $dead fail
  eventually 30 are $(without $dead)
  becomes $dead work
  comes_back $dead || stop "drive $dead does not come back: $(cat /tmp/said)"
  eventually 120 are online online online

  log "round $round: drive $silent does not answer"
  hang $silent
  eventually 30 are $(without $silent)
  comes_back $silent && stop "drive $silent is used, though nobody knows what it does"
  grep -q "does not answer" /tmp/said || stop "the refusal does not say why: $(cat /tmp/said)"
  dmsetup resume d$silent || stop "dmsetup resume"
  eventually 30 comes_back $silent
  eventually 120 are online online online

  log "round $round: drive $wrong returns other bytes"
  becomes $wrong lie
  another_round
  scrubbed
  becomes $wrong work
  log "round $round: drive $dead forgets what is written"
  becomes $dead forget
  another_round
  becomes $dead work
  scrubbed
  are online online online || stop "a drive that is wrong is healed, and does not go offline: $(states)"
done
log "drive 1 fails for good: the spare takes its place"
onefold drive spare ${drives[3]} >/dev/null || stop "a spare"
are online online online spare || stop "the spare takes the place of no drive that works: $(states)"
becomes 1 fail
taken() { onefold drive list --json | jq -e --arg spare ${drives[3]} '.[1].path == $spare and length == 3' >/dev/null; }
eventually 30 taken
drives[1]=${drives[3]}
eventually 120 are online online online
another_round
: >/tmp/enough
wait $host || stop "the host: $(cat /tmp/wrong)"
log "$(cat /tmp/round) rounds of the host were right"
sum() { dd if="$disk" bs=1M iflag=direct status=none | sha256sum; }
right=$(sum)
for n in 0 1 2; do
  onefold drive offline ${drives[$n]} >/dev/null || stop "drive $n goes offline"
  [ "$(sum)" = "$right" ] || stop "without drive $n the data are others"
  comes_back $n || stop "drive $n: $(cat /tmp/said)"
  eventually 120 are online online online
done
healed=$(onefold scrub status --json | jq "[.. | .healed_blocks? // empty] | add")
log "$healed copies were written again from others"
[ "$healed" -gt 0 ] || stop "nothing was healed"
hold() { onefold drive list --json | jq -e 'map(.metadata) | all' >/dev/null; }
eventually 90 hold
nvme disconnect -n "$NQN" >/dev/null || stop disconnect
log "the pool's folder is lost"
kill -KILL $daemon; wait $daemon
rm -r /run/pool; rm /lab/ready.txt
onefold pool import ${drives[2]} ${drives[0]} ${drives[1]} >/tmp/imported 2>&1 || { cat /tmp/imported; stop "no import"; }
serve
eventually 60 grep -qs ready /lab/ready.txt
disk=$(attach 127.0.0.1 -i 2) || stop "connect to the pool that was imported"
[ "$(sum)" = "$right" ] || stop "after the import the data are others"
nvme disconnect -n "$NQN" >/dev/null || stop disconnect
kill -TERM $daemon; wait $daemon || stop "the daemon's end"
onefold pool check --data >/tmp/check || { cat /tmp/check; stop "pool check"; }
grep -E "offline:|is online again" /lab/daemon.log | tail -n 20
complaints | grep -v 'dev dm-' && stop "the kernel complained"
exit 0
