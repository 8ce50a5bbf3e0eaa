# The target is killed under verified load and comes back: the host reconnects by itself, and what it wrote is there.
# arguments: TARGET-ADDRESS ROUNDS
. /lib/lab.sh
address=$1
rxe_up; reach "$address"
disk=$(attach "$address" -i 2 --reconnect-delay=1 --ctrl-loss-tmo=300 --keep-alive-tmo=5) || die connect
# Writes that the disk has completed since it came.
written() { awk '{print $5}' "/sys/class/block/${disk##*/}/stat"; }
for round in $(seq 1 "$2"); do
  before=$(written)
  log "round $round"
  fio_line "round$round" --filename="$disk" --size=24m --rw=randrw --rwmixread=30 --bs=4k --iodepth=16 --ioengine=libaio --direct=1 \
    --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed="$round" &
  load=$!
  # The machine kills the target once writes flow.
  until [ $(($(written) - before)) -ge 500 ]; do kill -0 $load || die "fio ended before it wrote"; sleep 0.1; done
  signal "load-$round"
  wait $load || die "fio of round $round"
  log "round $round verified"
  signal "verified-$round"; await "next-$round"
done
log "state $(cat /sys/class/nvme/nvme*/state)"
nvme disconnect -n "$NQN" || die disconnect
exit 0
