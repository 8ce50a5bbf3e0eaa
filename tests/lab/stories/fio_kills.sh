# fio writes, trims and verifies blocks of mixed sizes from 512 bytes on, round after round, while the target is killed
# and started again and again; nothing but the right data is ever read. arguments: TARGET-ADDRESS SECONDS
. /lib/lab.sh
tcp_up; reach "$1"
disk=$(attach "$1" -i 2 --reconnect-delay=1 --ctrl-loss-tmo=600 --keep-alive-tmo=5) || die connect
[ "$(blockdev --getss "$disk")" = 512 ] || die "LBAs of $(blockdev --getss "$disk") bytes"
blkdiscard "$disk" || die "the trim of all"
signal running
end=$(($(cut -d. -f1 /proc/uptime) + $2)); round=0
while [ "$(cut -d. -f1 /proc/uptime)" -lt $end ]; do
  round=$((round+1))
  # Each round begins elsewhere, so that it overwrites parts of earlier ones.
  fio_line "round$round" --filename="$disk" --offset=$((round % 8 * 8))m --size=16m --rw=randwrite --ioengine=libaio --direct=1 \
    --bssplit=512/15:1536/10:4k/35:12k/10:64k/20:256k/10 --iodepth=16 --randseed=$round \
    --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_backlog=512 \
    --trim_percentage=15 --trim_backlog=64 --trim_verify_zero=1 || die "fio of round $round"
  # Now and then all is trimmed at once: what the target does in the background while it is killed.
  [ $((round % 4)) = 0 ] && { blkdiscard "$disk" || die "a trim of all"; cmp -n 8m "$disk" /dev/zero || die "what was trimmed is not zero"; }
done
log "$round rounds of fio were right"
complaints && die "the kernel complained"
nvme disconnect -n "$NQN" || die disconnect
exit 0
