# Raw drives of a sled: found by discovery, attached by TCP, a file system and fio on one, trims and zeros on another, and a
# sled that is killed under load and comes back, with the reservation of one.
# arguments: TARGET-ADDRESS SLED-NQN
. /lib/lab.sh
address=$1
NQN=$2
tcp_up; reach "$address"
discover "$address" >/tmp/discovery || { cat /tmp/discovery; die discover; }
grep -q "subnqn: *$NQN" /tmp/discovery || { cat /tmp/discovery; die "the discovery log does not name the sled"; }
verify="--rw=randrw --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1"

nvme connect-all -t tcp -a "$address" -s 4420 || die "connect-all"
disk=$(device 1) && second=$(device 2) || die "not both drives are there"
log "attached $disk and $second on $(uname -r)"
[ "$(cat "/sys/block/${disk##*/}/queue/write_cache")" = "write back" ] || die "no write cache is known"
[ "$(cat "/sys/block/${disk##*/}/queue/logical_block_size")" = 4096 ] || die "blocks of another size"
first_uuid=$(cat "/sys/block/${disk##*/}/uuid") && second_uuid=$(cat "/sys/block/${second##*/}/uuid") || die "no UUIDs"
[ "$first_uuid" != "$second_uuid" ] || die "both drives have one UUID"
controller=/dev/$(basename "$(ls -d /sys/class/nvme-subsystem/*/nvme? | head -n 1)")
nvme id-ctrl "$controller" >/tmp/id && grep -q "mn *: Onefold sled" /tmp/id || { cat /tmp/id; die id-ctrl; }
nvme smart-log "$controller" >/tmp/smart || { cat /tmp/smart; die smart-log; }
nvme error-log "$controller" >/tmp/errors || { cat /tmp/errors; die error-log; }
nvme fw-log "$controller" >/tmp/firmware || { cat /tmp/firmware; die fw-log; }

modprobe ext4
mkfs.ext4 -q -F "$disk" || die mkfs
mount "$disk" /mnt || die mount
fio_line files --directory=/mnt --size=16m --bsrange=4k-128k --blockalign=4k --iodepth=16 $verify || die "fio on files"
umount /mnt; e2fsck -fn "$disk" >/tmp/fsck || { cat /tmp/fsck; die e2fsck; }
fio_line raw --filename="$second" --size=32m --bsrange=4k-1m --blockalign=4k --iodepth=16 $verify || die "fio on a drive"
blkdiscard -l 1048576 "$second" || die blkdiscard
fio_line again --filename="$second" --size=4m --bs=4k --iodepth=16 --fsync=8 $verify || die "fio with flushes"
for mib in 1 2 3 4; do
  nvme write-zeroes "$second" -s $((mib * 256)) -c 255 >/tmp/zeros 2>&1 || { cat /tmp/zeros; die write-zeroes; }
done
dd if="$second" bs=1M skip=1 count=4 iflag=direct 2>/dev/null | cmp -n 4194304 - /dev/zero || die "the blocks are not zero"
nvme disconnect -n "$NQN" || die disconnect

disk=$(attach "$address" -i 2 --hdr-digest --data-digest --reconnect-delay=1 --ctrl-loss-tmo=300 --keep-alive-tmo=5) || die "connect with digests"
second=$(device 2) || die "the second drive is not there"
[ "$(cat "/sys/block/${disk##*/}/uuid")" = "$first_uuid" ] || die "another UUID after a new attach"
# Its own from here on, also when the sled has been killed.
reserved() {
  nvme resv-report "$second" --eds >/tmp/report || { cat /tmp/report; die "resv-report $1"; }
  for line in 'regctl *: *1' 'rtype *: *1' 'ptpls *: *1' 'rcsts *: *1'; do
    grep -Eq "^ *$line" /tmp/report || { cat /tmp/report; die "no '$line' $1"; }
  done
}
nvme resv-register "$second" --nrkey=0xa1 --rrega=0 --cptpl=3 || die resv-register
nvme resv-acquire "$second" --crkey=0xa1 --rtype=1 --racqa=0 || die resv-acquire
reserved "before the sled was killed"
# Older kernels count for the paths of a namespace alone. The number in a name is the order in which the kernel found the
# namespaces, which is not always that of their NSIDs.
written() { cat /sys/block/nvme*"n${second##*n}"/stat | awk '{ written += $5 } END { print written }'; }
before=$(written)
fio_line killed --filename="$second" --size=16m --rwmixread=30 --bs=4k --iodepth=16 $verify &
load=$!
until [ $(($(written) - before)) -ge 500 ]; do kill -0 $load || die "fio ended before it wrote"; sleep 0.1; done
signal load
wait $load || die "fio while the sled was killed"
[ "$(cat "/sys/block/${second##*/}/uuid")" = "$second_uuid" ] || die "another UUID after the sled was killed"
reserved "after the sled was killed"
nvme resv-release "$second" --crkey=0xa1 --rtype=1 --rrela=1 || die resv-release
mount "$disk" /mnt || die "mount after the sled was killed"
umount /mnt
nvme disconnect -n "$NQN" || die "disconnect at the end"
log "verified over the death of the sled"
# A death is an error to the kernel, though not to those who use it.
dmesg | grep -E 'WARNING:|Oops:|BUG:|EXT4-fs error|Buffer I/O error' && die "the kernel complained"
exit 0
