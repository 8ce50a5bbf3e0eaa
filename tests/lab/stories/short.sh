# A short visit over another path (MTU, address family, kernel): connect, verified load, disconnect.
# arguments: TARGET-ADDRESS EXPECTED-PATH-MTU
. /lib/lab.sh
address=$1
rxe_up; reach "$address"
discover "$address" >/tmp/discovery || { cat /tmp/discovery; die discover; }
grep -q "subnqn: *$NQN" /tmp/discovery || die "the discovery log does not name the subsystem"
grep -A30 "GOT NO ANSWER" /tmp/discovery
disk=$(attach "$address" -i 2) || die connect
log "attached $disk on $(uname -r)"
head -c 1048576 /dev/urandom >/tmp/a
dd if=/tmp/a of="$disk" bs=1M oflag=direct conv=fsync 2>/dev/null || die write
dd if="$disk" of=/tmp/b bs=1M count=1 iflag=direct 2>/dev/null; cmp /tmp/a /tmp/b || die "1 MiB differs"
fio_line verify --filename="$disk" --offset=16m --size=16m --rw=randrw --bsrange=4k-128k --bs_unaligned=0 --blockalign=4k --iodepth=16 \
  --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1 || die "fio verify"
blkdiscard -o 0 -l 1048576 "$disk" || die blkdiscard
dd if="$disk" bs=1M count=1 iflag=direct 2>/dev/null | cmp -n 1048576 - /dev/zero || die "discarded blocks are not zero"
rxe_stat
nvme disconnect -n "$NQN" || die disconnect
complaints && die "the kernel complained"
# The same host by TCP, if the test brought that story along.
[ ! -e /lab/tcp.sh ] || exec bash /lab/tcp.sh "$address" 0
exit 0
