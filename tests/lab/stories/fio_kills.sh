# fio writes and verifies blocks of mixed sizes from 512 bytes on, round after round, beside trims of every size, while the
# target is killed and started again and again; nothing but the right data is ever read. arguments: TARGET-ADDRESS SECONDS
. /lib/lab.sh
tcp_up; reach "$1"
disk=$(attach "$1" -i 2 --reconnect-delay=1 --ctrl-loss-tmo=600 --keep-alive-tmo=5) || die connect
[ "$(blockdev --getss "$disk")" = 512 ] || die "LBAs of $(blockdev --getss "$disk") bytes"
head -c 4194304 /dev/urandom >/tmp/data
signal running
end=$(($(cut -d. -f1 /proc/uptime) + $2)); round=0
over() { [ "$(cut -d. -f1 /proc/uptime)" -ge $end ]; }
# trims: in the upper half of the disk. What is trimmed reads as zeros, and its neighbours as they were. fio's own trims
# beside verified writes end in an assertion (fio 3.33).
trims() {
  local n=0 at kib
  until over; do
    n=$((n+1)); at=$((256 + n % 60 * 4)); kib=$((4 * (1 + n * 37 % 500)))
    dd if=/tmp/data of="$disk" bs=1M seek=$at oflag=direct status=none || die "a write beside trims"
    blkdiscard -o $((at * 1048576 + 4096)) -l $((kib * 1024)) "$disk" || die "a trim"
    dd if="$disk" of=/tmp/back bs=1M skip=$at count=4 iflag=direct status=none || die "a read beside trims"
    { head -c 4096 /tmp/data; head -c $((kib * 1024)) /dev/zero; tail -c +$((4097 + kib * 1024)) /tmp/data; } >/tmp/right
    cmp /tmp/back /tmp/right || die "trim $n: $kib KiB at MiB $at"
    # Now and then all of it at once: what the target does in the background while it is killed.
    [ $((n % 20)) = 0 ] && { blkdiscard -o 268435456 -l 268435456 "$disk" || die "a large trim"
      dd if="$disk" bs=1M skip=256 count=64 iflag=direct status=none | cmp -n 67108864 - /dev/zero || die "what was trimmed is not zero"; }
  done
  log "$n trims were right"
}
trims & trims=$!
until over; do
  round=$((round+1))
  # Each round begins elsewhere, so that it overwrites parts of earlier ones.
  fio_line "round$round" --filename="$disk" --offset=$((round % 8 * 8))m --size=16m --rw=randwrite --ioengine=libaio --direct=1 \
    --bssplit=512/15:1536/10:4k/35:12k/10:64k/20:256k/10 --iodepth=16 --randseed=$round \
    --verify=crc32c --verify_fatal=1 --do_verify=1 || die "fio of round $round"
done
wait $trims || die "trims"
log "$round rounds of fio were right"
complaints && die "the kernel complained"
nvme disconnect -n "$NQN" || die disconnect
exit 0
