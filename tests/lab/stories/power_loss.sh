# A disk for the daemon's drive and one for the file system of its pool's folder lose power: device-mapper's target
# log-writes keeps a log of what reaches each. A host of this kernel writes in rounds; each is flushed, or written with
# FUA, and marked in both logs when it has been acknowledged.
# arguments: PATH-OF-THE-DRIVE ROUNDS.  Disks: a the drive, b its log, c the folder, d its log; e for busy_drives.sh.
. /lib/lab.sh
onefold_here
bash /lab/busy_drives.sh /dev/vde || exit 1
modprobe -a dm-mod dm-log-writes ext4 || die "no device-mapper"
export DM_DISABLE_UDEV=1 # nobody else makes the nodes in /dev/mapper
tcp_up
# Pages of files reach the disk when somebody asks for it, never because they are old.
echo 0 >/proc/sys/vm/dirty_writeback_centisecs
mapped() { dmsetup create "$1" --table "0 $(blockdev --getsz "$2") log-writes $2 $3" || die "dmsetup create $1"; }
mapped drive /dev/vda /dev/vdb; mapped folder /dev/vdc /dev/vdd
mkfs.ext4 -q -E nodiscard /dev/mapper/folder || die mkfs
# A commit of the file system's own journal would write what nobody asked for.
mount -t ext4 -o commit=3600 /dev/mapper/folder /mnt || die mount
mkdir -p "$(dirname "$1")"; ln -s /dev/mapper/drive "$1"
onefold serve --pool /mnt/pool --create 0 --drive "$1" --volume vol0=16M --buffers 64M --reactors 1 --listen tcp://127.0.0.1:4420 >/lab/ready.txt 2>/lab/daemon.log &
daemon=$!
n=0; until grep -qs ready /lab/ready.txt; do sleep 0.1; n=$((n+1)); kill -0 $daemon && [ $n -lt 600 ] || { cat /lab/daemon.log; die "onefold serve"; }; done
disk=$(attach 127.0.0.1 -i 1) || die connect
log "attached $disk"
mark() { dmsetup message drive 0 mark "$1" && dmsetup message folder 0 mark "$1" || die "mark $1"; }
mark 0
for round in $(seq 1 "$2"); do
  data=/lab/round.$round; first=$(cat "$data.first"); bytes=$(stat -c %s "$data")
  if [ $((round % 3)) = 0 ]; then
    nvme write "$disk" -s "$first" -c $((bytes / 4096 - 1)) -z "$bytes" -d "$data" --force-unit-access >/dev/null || die "write with FUA"
  else
    dd if="$data" of="$disk" bs=64k seek=$((first * 4096)) oflag=direct,seek_bytes conv=fsync status=none || die "write and flush"
  fi
  mark "$round"
done
log "$2 rounds were written"
# As a loss of power: what was not asked for stays undone.
kill -KILL $daemon; wait $daemon
nvme disconnect -n "$NQN" >/dev/null
cat /lab/daemon.log
umount /mnt || die umount
dmsetup remove drive && dmsetup remove folder || die "dmsetup remove"
dmesg | grep "device-mapper: log-writes" && die "the log is not whole"
complaints && die "the kernel complained"
exit 0
