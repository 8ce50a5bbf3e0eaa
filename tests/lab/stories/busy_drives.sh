# Drives that are in use are refused by name, also when their path is typed after --force. arguments: DISK
. /lib/lab.sh
modprobe -a dm-mod loop ext4 || die modprobe
disk=$1
# refused PATH WORDS: no pool is made on it, and the reason is said
refused() {
  onefold serve --pool /run/busy --create 0 --drive "$1" --force "$1" --listen tcp://127.0.0.1:4421 >/tmp/said 2>&1 && die "$1 was served"
  grep -q "$2" /tmp/said || { cat /tmp/said; die "$1 was refused for another reason than '$2'"; }
  log "refused: $(grep "$2" /tmp/said | head -n 1)"
  [ ! -e /run/busy/pool.toml ] || die "a pool was made"
}
mkfs.ext4 -q "$disk" && mount -t ext4 "$disk" /mnt || die mount
refused "$disk" "is mounted at /mnt"
umount /mnt || die umount

mkswap "$disk" >/dev/null && swapon "$disk" || die swapon
refused "$disk" "swap space"
swapoff "$disk" || die swapoff

dmsetup create upper --table "0 $(blockdev --getsz "$disk") linear $disk 0" || die "dmsetup create"
refused "$disk" "belongs to the device dm-0 (upper)"
dmsetup remove upper || die "dmsetup remove"

truncate -s 80M /run/file; loop=$(losetup -f) && losetup "$loop" /run/file || die losetup
refused /run/file "is the file behind $loop"
losetup -d "$loop" || die "losetup -d"

log "drives in use were refused"
exit 0
