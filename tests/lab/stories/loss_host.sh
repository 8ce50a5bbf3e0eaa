# A host behind a bad network: first Onefold's own, by soft RoCE, then the kernel's, by rxe. arguments: ADDRESS
. /lib/lab.sh
address=$1; onefold_here; reach "$address"
perf() { # NAME ARGUMENTS: our host, which checks all that it reads
  local name=$1; shift
  onefold perf "rdma+soft://$address:4420/$NQN" --verify --seed 1 "$@" >/lab/perf-$name.txt 2>&1 || { cat /lab/perf-$name.txt; die "perf $name"; }
  log "perf $name"; cat /lab/perf-$name.txt
}
own() { # NAME
  perf "$1-4k" --rw randrw --bs 4k --qd 16 --range 32M --size 8M
  perf "$1-128k" --rw randrw --bs 128k --qd 8 --range 64M --size 32M
}
own clean; signal own-clean
for stage in loss-0.1 loss-1 loss-5 mixed; do
  await "own-$stage-on" 300; own $stage; signal "own-$stage-done"
done
await own-quiet
rxe_up
disk=$(attach "$address" -i 2 -Q 64) || die connect
log "attached $disk on $(uname -r)"
load="--filename=$disk --rw=randrw --iodepth=16 --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1"
fio_line clean $load --offset=64m --size=8m --bsrange=4k-128k --blockalign=4k || die "fio verify"
rxe_stat; signal kernel-clean
offset=96
for stage in loss-0.1 loss-1 loss-5 mixed; do
  await "kernel-$stage-on" 300
  fio_line $stage $load --offset=${offset}m --size=2m --bs=16k || die "fio verify, $stage"
  rxe_stat; offset=$((offset+4)); signal "kernel-$stage-done"
done
await kernel-quiet
nvme disconnect -n "$NQN" || die disconnect
complaints && die "the kernel complained"
exit 0
