# A disk that is an export by vhost-user-blk: what the guest sees of it, and that nothing is lost when the daemon is killed
# and started again while the guest writes, or when the disk grows.
# arguments: BYTES BYTES-AFTER-RESIZE
. /lib/lab.sh
disk=/dev/vda
for try in $(seq 100); do [ -b $disk ] && break; sleep 0.1; done
[ -b $disk ] || die "no $disk"
queue=/sys/block/vda/queue
[ "$(blockdev --getsize64 $disk)" = "$1" ] || die "size $(blockdev --getsize64 $disk)"
[ "$(cat $queue/write_cache)" = "write back" ] || die "write cache: $(cat $queue/write_cache)"
[ "$(cat $queue/logical_block_size)" = 4096 ] || die "blocks: $(cat $queue/logical_block_size)"
[ "$(ls /sys/block/vda/mq | wc -l)" = 2 ] || die "queues: $(ls /sys/block/vda/mq)"
log "serial $(cat /sys/block/vda/serial)"
head -c 1048576 /dev/urandom >/tmp/a
dd if=/tmp/a of=$disk bs=1M oflag=direct conv=fsync 2>/dev/null || die write
dd if=$disk of=/tmp/b bs=1M count=1 iflag=direct 2>/dev/null; cmp /tmp/a /tmp/b || die "1 MiB differs"
blkdiscard -o 0 -l 1048576 $disk || die blkdiscard
dd if=$disk bs=1M count=1 iflag=direct 2>/dev/null | cmp -n 1048576 - /dev/zero || die "discarded blocks are not zero"
mkfs.ext4 -q -F $disk 64M || die mkfs
# The daemon is killed twice while this writes.
fio_line verify --filename=$disk --offset=128m --size=64m --rw=randwrite --bsrange=4k-128k --bs_unaligned=0 --blockalign=4k \
  --iodepth=16 --ioengine=libaio --direct=1 --loops=1000 --runtime=25 --time_based=1 --verify=crc32c --verify_fatal=1 \
  --do_verify=1 --verify_backlog=256 &
load=$!
writes() { read -r _ _ _ _ writes _ </sys/block/vda/stat; echo "$writes"; }
for time in first second; do
  before=$(writes)
  until [ "$(writes)" -gt $((before + 100)) ]; do sleep 0.1; done
  signal $time-writes; await $time-restart
done
wait $load || die "fio verify"
signal growing; await grown
for try in $(seq 100); do [ "$(blockdev --getsize64 $disk)" = "$2" ] && break; sleep 0.1; done
[ "$(blockdev --getsize64 $disk)" = "$2" ] || die "it did not grow: $(blockdev --getsize64 $disk)"
dd if=/tmp/a of=$disk bs=1M seek=$(($1 >> 20)) oflag=direct conv=fsync 2>/dev/null || die "write behind the old end"
complaints && die "the kernel complained"
exit 0
