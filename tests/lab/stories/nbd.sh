# What the guide's chapter "NBD" says to type on a Linux host, typed there; and what the kernel's NBD driver does with it.
# arguments: TARGET-ADDRESS
# In the folder: guide.2.sh and guide.3.sh, blocks of the chapter.
. /lib/lab.sh
address=$1
reach "$address"
modprobe ext4 || die "no ext4"
[ "$(ls /lab/guide.*.sh | wc -l)" = 2 ] || die "the chapter has other blocks than this story types"
typed() { # NUMBER
  sed "s/192\\.0\\.2\\.1/$address/g" "/lab/guide.$1.sh" >"/tmp/guide.$1.sh"
  bash -e -x "/tmp/guide.$1.sh" >"/tmp/guide.$1.log" 2>&1 || { cat "/tmp/guide.$1.log"; die "block $1 of the guide"; }
}
typed 2
[ "$(blockdev --getsize64 /dev/nbd0)" = 1073741824 ] || die "size $(blockdev --getsize64 /dev/nbd0)"
[ "$(cat /sys/block/nbd0/queue/write_cache)" = "write back" ] || die "write cache: $(cat /sys/block/nbd0/queue/write_cache)"
dd if=/dev/urandom of=/mnt/file bs=1M count=16 conv=fsync 2>/dev/null || die "no file"
sum=$(sha256sum </mnt/file)
signal written
fstrim -v /mnt || die "fstrim"
typed 3
for try in $(seq 100); do [ "$(blockdev --getsize64 /dev/nbd0)" = 0 ] && break; sleep 0.1; done
# Attached again, without making a file system again: the data are those that were written.
sed -i 's/^mkfs[^&]*&& //' /lab/guide.2.sh
grep -q mkfs /lab/guide.2.sh && die "the block makes its file system in another way"
typed 2
[ "$(sha256sum </mnt/file)" = "$sum" ] || die "the data differ"
typed 3
complaints && die "the kernel complained"
log "made, used, taken away and used again by NBD"
exit 0
