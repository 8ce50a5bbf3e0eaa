# A user's first hour: discover, connect, a file system, a source tree copied twice, load, trim, disconnect.
# arguments: TARGET-ADDRESS.  /lab/tree.tar is the tree.
. /lib/lab.sh
address=$1
rxe_up; reach "$address"; modprobe ext4
nvme discover -t rdma -a "$address" -s 4420 | tee /tmp/discovery || die discover
grep -q "subnqn: *$NQN" /tmp/discovery || die "the discovery log does not name the subsystem"
disk=$(attach "$address" -i 2) || die connect
log "attached $disk"; nvme list
nvme id-ctrl "$disk" >/dev/null || die id-ctrl
nvme smart-log "$disk" >/dev/null || die smart-log
nvme error-log "$disk" >/dev/null || die error-log
mkfs.ext4 -q -F "$disk" || die mkfs
mount "$disk" /mnt || die mount
signal made; await go-first

mkdir /mnt/first && tar -xf /lab/tree.tar -C /mnt/first && sync || die "first copy"
log "first copy written"; signal first; await go-second
mkdir /mnt/second && tar -xf /lab/tree.tar -C /mnt/second && sync || die "second copy"
log "second copy written"; signal second

echo 3 >/proc/sys/vm/drop_caches
sums() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 cat | sha256sum); }
first=$(sums /mnt/first); second=$(sums /mnt/second); archive=$(cat /lab/tree.sum)
[ "$first" = "$archive" ] || die "the first copy differs from the archive"
[ "$second" = "$archive" ] || die "the second copy differs from the archive"
log "both copies read back equal"

fio_line verify --directory=/mnt --size=32m --rw=randrw --bs=4k --iodepth=32 --ioengine=libaio --direct=1 \
  --verify=crc32c --verify_fatal=1 --do_verify=1 || die "fio verify"
rxe_stat
rm -rf /mnt/first /mnt/second /mnt/verify*; sync
fstrim -v /mnt || die fstrim
signal trimmed; await grown
# The machine made the volume larger: the host learns of it by an event, without a reconnect.
n=0; until [ "$(blockdev --getsize64 "$disk")" = $((3 << 30)) ]; do sleep 0.1; n=$((n+1)); [ $n -lt 100 ] || die "the new size was not seen"; done
log "the disk has grown"
umount /mnt; e2fsck -fn "$disk" || die e2fsck
nvme disconnect -n "$NQN" || die disconnect
complaints && die "the kernel complained"
exit 0
