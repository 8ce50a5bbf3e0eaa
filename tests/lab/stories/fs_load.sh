# File systems under a hard load, on clones by vhost-user-blk and by NVMe/TCP: a snapshot of all while they are loaded is a
# whole file system with what was synced before, and so are the volumes when they are rolled back to it.
# arguments: TARGET-ADDRESS SECONDS NSID-OF-TCP-EXT4 NSID-OF-TCP-XFS; disks: vda for vhost-ext4, vdb for vhost-xfs
# In the folder, when the machine says 'taken': clones, with the name of each volume and the NSID of its snapshot's clone.
. /lib/lab.sh
modprobe -a ext4 xfs || die "no file systems"
names="vhost-ext4 vhost-xfs tcp-ext4 tcp-xfs"
declare -A disk=([vhost-ext4]=/dev/vda [vhost-xfs]=/dev/vdb) nsid=([tcp-ext4]=$3 [tcp-xfs]=$4) past=()
address=$1 seconds=$2
attach_all() {
  attach "$address" -i 2 >/dev/null || die connect
  for name in tcp-ext4 tcp-xfs; do disk[$name]=$(device "${nsid[$name]}") || die "no namespace of $name"; done
}
mounted() { # NAME DISK: on /mnt/NAME; clones of a file system have its identity
  local options=discard
  [ "${1#*-}" = xfs ] && options=discard,nouuid
  mkdir -p "/mnt/$1"; mount -t "${1#*-}" -o $options "$2" "/mnt/$1" || die "mount $1 from $2"
}
clean() { # NAME DISK WHEN: nothing is to be repaired
  case $1 in
    *-ext4) e2fsck -fn "$2" ;;
    *-xfs) xfs_repair -n "$2" ;;
  esac >/tmp/fsck 2>&1 || { tail -n 20 /tmp/fsck; die "the file system of $1 $3 is damaged"; }
}
holds_what_was_synced() { # NAME WHEN
  (cd "/mnt/$1/before" && sha256sum --quiet -c "/tmp/$1.sums") || die "what was synced in $1 differs $2"
}
writes() { local writes; read -r _ _ _ _ _ _ writes _ <"/sys/class/block/${disk[$1]##*/}/stat"; echo "$writes"; }
load() { # NAME: files of all kinds, verified, and trims
  local name=$1 folder=/mnt/$1/load attributes=()
  # XFS makes a large attribute in several steps, and xfs_repair complains of one that a crash (so a snapshot) found on the
  # way: its flag says INCOMPLETE (XFS_ATTR_INCOMPLETE in the kernel's fs/xfs/libxfs/xfs_da_format.h).
  [ "${1#*-}" = xfs ] || attributes=(--xattr 1)
  mkdir "$folder" || return 1
  stress-ng --temp-path "$folder" --timeout "$seconds" --verify --oomable --log-file "/tmp/$name.stress" --quiet \
    --hdd 1 --hdd-bytes 16m --hdd-opts wr-rnd,rd-rnd,fsync --copy-file 1 --copy-file-bytes 128m --fallocate 1 --fallocate-bytes 16m \
    --fpunch 1 --iomix 1 --iomix-bytes 16m --rename 1 --link 1 --dir 1 ${attributes[@]+"${attributes[@]}"} >/dev/null & local stress=$!
  fio_line "$name" --filename="$folder/fio" --size=24m --rw=randrw --bssplit=4k/40:12k/20:64k/30:256k/10 --iodepth=8 \
    --ioengine=libaio --direct=1 --time_based=1 --runtime="$seconds" --verify=crc32c --verify_fatal=1 --do_verify=1 \
    --verify_backlog=64 & local fio=$!
  while kill -0 $stress 2>/dev/null; do fstrim "/mnt/$name" || return 1; sleep 1; done
  wait $fio || return 1
  wait $stress || { tail -n 20 "/tmp/$name.stress"; return 1; }
}

tcp_up; reach "$address"; attach_all
for name in $names; do
  case $name in
    *-ext4) mkfs.ext4 -q -F "${disk[$name]}" ;;
    *-xfs) mkfs.xfs -q -f "${disk[$name]}" ;;
  esac || die "mkfs on $name"
  mounted $name "${disk[$name]}"
  mkdir /mnt/$name/before && cp /bin/busybox /bin/bash /bin/nvme /lib/lab.sh /mnt/$name/before/ || die "files on $name"
  head -c 16777216 /dev/urandom >/mnt/$name/before/random || die "data on $name"
  (cd /mnt/$name/before && sha256sum -- *) >/tmp/$name.sums
  sync -f /mnt/$name || die "sync $name"
done
log "four file systems are there"

declare -A before loads
for name in $names; do before[$name]=$(writes $name); load $name & loads[$name]=$!; done
for name in $names; do
  until [ "$(writes $name)" -gt $((before[$name] + 32768)) ]; do
    kill -0 ${loads[$name]} 2>/dev/null || die "the load on $name ended before it wrote 16 MiB"
    sleep 0.1
  done
done
signal loaded; await taken
for name in $names; do kill -0 ${loads[$name]} 2>/dev/null || die "the load on $name was over when the snapshot was there"; done
log "the snapshot was taken under load"
for name in $names; do echo later >/mnt/$name/later && sync -f /mnt/$name || die "a write to $name after the snapshot"; done
for name in $names; do wait ${loads[$name]} || die "the load on $name"; done
log "the loads verified all that they wrote"

while read -r name number; do past[$name]=$(device "$number") || die "no namespace $number"; done </lab/clones
for name in $names; do
  umount /mnt/$name || die "umount $name"
  clean $name "${disk[$name]}" "after the load"
  mounted $name "${past[$name]}"
  holds_what_was_synced $name "in the snapshot"
  [ -d /mnt/$name/load ] && [ ! -e /mnt/$name/later ] || die "the snapshot of $name is of another moment"
  umount /mnt/$name || die "umount the clone of $name"
  clean $name "${past[$name]}" "in the snapshot"
done
log "what was in the snapshot is whole"

nvme disconnect -n "$NQN" >/dev/null || die disconnect
signal detached; await rolled-back
attach_all
for name in $names; do
  mounted $name "${disk[$name]}"
  holds_what_was_synced $name "after the rollback"
  [ ! -e /mnt/$name/later ] || die "$name was not rolled back"
  umount /mnt/$name || die "umount $name at the end"
  clean $name "${disk[$name]}" "after the rollback"
done
complaints && die "the kernel complained"
nvme disconnect -n "$NQN" >/dev/null || die disconnect
exit 0
