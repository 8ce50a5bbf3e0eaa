# One of two hosts, each on its own volume. arguments: TARGET-ADDRESS NSID ROLE(victim|survivor)
. /lib/lab.sh
rxe_up; reach "$1"
attach "$1" -i 2 --keep-alive-tmo=5 >/dev/null; disk=$(device "$2") || die "no namespace $2"
log "$3 on $disk"
load="--filename=$disk --size=16m --rw=randrw --bs=4k --iodepth=16 --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1"
if [ "$3" = victim ]; then
  signal victim-running
  while true; do fio_line "$3" $load || die fio; done
fi
await victim-running
fio_line "$3-before" $load || die "fio beside the neighbour"
signal survivor-running; await victim-gone
fio_line "$3-after" $load || die "fio after the neighbour died"
nvme disconnect -n "$NQN" || die disconnect
complaints && die "the kernel complained"
exit 0
