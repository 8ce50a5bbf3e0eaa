# What the guide's chapter "First attach" says to type on a host, typed there.
# arguments: TARGET-ADDRESS
# In the folder: guide.1.sh and so on, the blocks of the chapter in their order.
. /lib/lab.sh
address=$1
reach "$address"
# The guest's small system loads no file system by itself; every Debian does, and has these files.
modprobe ext4 || die "no ext4"
mkdir -p /usr/share/common-licenses && cp /lib/lab.sh /bin/busybox /usr/share/common-licenses/ || die "no files to copy"
typed() { # NUMBER...: types blocks, as a person does: a command that fails is seen
  local number
  for number; do
    sed "s/192\\.0\\.2\\.1/$address/g" "/lab/guide.$number.sh" >"/tmp/guide.$number.sh"
    bash -e -x "/tmp/guide.$number.sh" >"/tmp/guide.$number.log" 2>&1 || { cat "/tmp/guide.$number.log"; die "block $number of the guide"; }
  done
}
[ "$(ls /lab/guide.*.sh | wc -l)" = 6 ] || die "the chapter has other blocks than this story types"

typed 1 2
grep -q "subnqn: *$NQN" /tmp/guide.1.log || die "the discovery log does not name the subsystem"
grep -q /dev/nvme0n1 /tmp/guide.2.log || die "nvme list has no /dev/nvme0n1"
typed 3
signal used; await seen
typed 4
[ ! -b /dev/nvme0n1 ] || die "the drive is there after the disconnect"
log "attached, used and disconnected by TCP"

same() { # the data are those that were written
  disk=$(device) && mount "$disk" /mnt || die "no mount after $1"
  cmp /bin/busybox /mnt/common-licenses/busybox && cmp /bin/busybox /mnt/again/busybox || die "the data differ after $1"
  umount /mnt; nvme disconnect -n "$NQN" || die "disconnect after $1"
}
typed 5; same "the second attach"
typed 6
[ "$(cat /sys/class/nvme/nvme*/transport)" = rdma ] || die "it is not attached by RDMA"
same "the attach by RDMA"
log "attached again by TCP and by RDMA: the same data"
complaints && die "the kernel complained"
exit 0
