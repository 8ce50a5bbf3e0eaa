# NVMe/TCP: discovery, a file system, digests, and a target that is killed under load and comes back.
# arguments: TARGET-ADDRESS ROUNDS (how often the target dies)
. /lib/lab.sh
address=$1
tcp_up; reach "$address"
discover "$address" >/tmp/discovery || { cat /tmp/discovery; die discover; }
grep -q "subnqn: *$NQN" /tmp/discovery || die "the discovery log does not name the subsystem"
for transport in tcp rdma; do
  grep -q "trtype: *$transport" /tmp/discovery || { cat /tmp/discovery; die "the discovery log does not list $transport"; }
done
verify="--rw=randrw --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1"

disk=$(attach "$address" -i 2) || die connect
log "attached $disk on $(uname -r)"
modprobe ext4
mkfs.ext4 -q -F "$disk" || die mkfs
mount "$disk" /mnt || die mount
head -c 8388608 /dev/urandom >/tmp/data; sum=$(sha256sum </tmp/data)
mkdir /mnt/first && cp /tmp/data /mnt/first/ && cp -r /bin/busybox /lib/lab.sh /etc/nvme /mnt/first/ && sync || die "copy"
fio_line files --directory=/mnt --size=16m --bsrange=4k-128k --blockalign=4k --iodepth=16 $verify || die "fio on files"
rm /mnt/files*; umount /mnt; e2fsck -fn "$disk" >/tmp/fsck || { cat /tmp/fsck; die e2fsck; }
nvme disconnect -n "$NQN" || die disconnect
log "without digests: done"

# The same content comes back through digests, and without the completions that flow control costs.
disk=$(attach "$address" -i 2 --hdr-digest --data-digest --disable-sqflow) || die "connect with digests"
mount "$disk" /mnt || die "mount with digests"
[ "$(sha256sum </mnt/first/data)" = "$sum" ] || die "the copy differs"
cmp /bin/busybox /mnt/first/busybox || die "the other copy differs"
umount /mnt
fio_line digests --filename="$disk" --offset=512m --size=16m --bsrange=4k-128k --blockalign=4k --iodepth=16 $verify || die "fio with digests"
blkdiscard -o 536870912 -l 1048576 "$disk" || die blkdiscard
dd if="$disk" bs=1M skip=512 count=1 iflag=direct 2>/dev/null | cmp -n 1048576 - /dev/zero || die "discarded blocks are not zero"
nvme disconnect -n "$NQN" || die "disconnect with digests"
log "with digests: done"

[ "$2" -gt 0 ] || { complaints && die "the kernel complained"; exit 0; }
disk=$(attach "$address" -i 2 --reconnect-delay=1 --ctrl-loss-tmo=300 --keep-alive-tmo=5) || die "connect again"
written() { awk '{print $5}' "/sys/class/block/${disk##*/}/stat"; }
for round in $(seq 1 "$2"); do
  before=$(written)
  fio_line "round$round" --filename="$disk" --size=16m --rwmixread=30 --bs=4k --iodepth=16 --randseed="$round" $verify &
  load=$!
  until [ $(($(written) - before)) -ge 500 ]; do kill -0 $load || die "fio ended before it wrote"; sleep 0.1; done
  signal "load-$round"
  wait $load || die "fio of round $round"
  log "round $round verified"
  signal "verified-$round"; await "next-$round"
done
nvme disconnect -n "$NQN" || die "disconnect after the target died"
exit 0
