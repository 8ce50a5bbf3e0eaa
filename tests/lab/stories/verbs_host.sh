# A host with an RDMA device of the kernel (rxe). First the kernel's host attaches to Onefold, then Onefold's initiator to
# the kernel's target; then both again while packets are lost, reordered, repeated and damaged. arguments: ADDRESS NQN-OF-THE-KERNELS-SUBSYSTEM
. /lib/lab.sh
address=$1; kernel=rdma+verbs://$1:4421/$2
onefold_here; rxe_up; modprobe ext4; reach "$address"
discover "$address" >/tmp/discovery || { cat /tmp/discovery; die discover; }
grep -q "subnqn: *$NQN" /tmp/discovery || die "the discovery log does not name the subsystem"
disk=$(attach "$address" -i 2 -Q 64) || die connect
log "attached $disk on $(uname -r)"
mkfs.ext4 -q -F -E nodiscard "$disk" && mount "$disk" /mnt && cp -r /bin/bash /lib/lab.sh /mnt && umount /mnt && e2fsck -fn "$disk" || die "file system"
load="--filename=$disk --rw=randrw --iodepth=16 --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1"
fio_line verify $load --offset=64m --size=8m --bsrange=4k-128k --blockalign=4k || die "fio verify"
for cpu in 0 1; do fio_line queue$cpu --filename=$disk --rw=randread --direct=1 --size=8m --bs=4k --number_ios=100 --cpus_allowed=$cpu || die "reads of processor $cpu"; done
rxe_stat
perf() { # NAME ARGUMENTS: our initiator on the kernel's target
  local name=$1; shift
  onefold perf "$kernel" --verify --range 32M --seed 1 "$@" >/lab/perf-$name.txt 2>&1 || { cat /lab/perf-$name.txt; die "perf $name"; }
  log "perf $name"; cat /lab/perf-$name.txt
}
perf small --rw randrw --bs 4k --qd 16 --queues 2 --size 8M
perf large --rw randrw --bs 128k --qd 8 --size 16M
signal clean
offset=96
for stage in loss-0.1 loss-1 loss-5 mixed; do
  await "$stage-on" 300
  fio_line $stage $load --offset=${offset}m --size=1m --bs=16k || die "fio verify, $stage"
  perf $stage --rw randrw --bs 16k --qd 8 --size 1M
  rxe_stat; offset=$((offset+4)); signal "$stage-done"
done
nvme disconnect -n "$NQN" || die disconnect
complaints && die "the kernel complained"
exit 0
