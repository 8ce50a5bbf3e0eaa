# NVMe drives by their generic character devices: what every kind of drive must do, at a controller with small transfers; a drive that is
# mounted is refused, and one that is a drive cannot be mounted; a pool on such drives keeps what was written over a kill, and the
# offline check and the other name of the same drives find it.
# The drives by their serial numbers: 0 with small transfers and blocks of 512 bytes, 1 with blocks of 4096 bytes, 2 with metadata in its blocks.
. /lib/lab.sh
onefold_here
modprobe nvme || die "no nvme"
tcp_up
export ONEFOLD_POOL=/run/pool
stop() { cat /lab/daemon.log; die "$@"; }
eventually() { # SECONDS COMMAND...
  local n=0 limit=$1; shift
  until "$@"; do sleep 0.2; n=$((n+1)); [ $n -lt $((5*limit)) ] || stop "in vain: $*"; done
}
# The kernel finds them in any order.
found() { local at; at=$(grep -ls "^onefold-$1 *$" /sys/class/nvme/nvme*/serial) || return 1; at=${at%/serial}; nth=${at##*/nvme}; [ -c /dev/ng${nth}n1 ] && [ -b /dev/nvme${nth}n1 ]; }
eventually 30 found 0; small=$nth
eventually 30 found 1; large=$nth
eventually 30 found 2; mixed=$nth
for n in $small $large; do
  LD_LIBRARY_PATH=/run/onefold /lab/conforms /dev/ng${n}n1 || stop "/dev/ng${n}n1 is no such drive"
  log "/dev/ng${n}n1 does what every drive must"
done
serve() {
  rm -f /lab/ready.txt
  onefold serve --buffers 64M --reactors 2 --listen tcp://127.0.0.1:4420 "$@" >/lab/ready.txt 2>>/lab/daemon.log &
  daemon=$!
  eventually 90 grep -qs ready /lab/ready.txt
}
refused() { # WORDS ARGUMENTS...
  local words=$1; shift
  onefold serve --listen tcp://127.0.0.1:4420 "$@" >/tmp/out 2>&1 && stop "it is served: $*"
  grep -q "$words" /tmp/out || { cat /tmp/out; stop "no '$words' in the refusal"; }
}
refused 'metadata with each block' --create 0 --drive /dev/ng${mixed}n1
mke2fs -q -F -t ext4 /dev/nvme${small}n1 && modprobe ext4 && mkdir -p /mnt/x && mount /dev/nvme${small}n1 /mnt/x || stop "a file system"
refused 'is mounted at /mnt/x' --create 0 --drive /dev/ng${small}n1
umount /mnt/x
refused 'ext4' --create 0 --drive /dev/ng${small}n1
for n in $small $large; do dd if=/dev/zero of=/dev/nvme${n}n1 bs=1M count=160 oflag=direct conv=fsync status=none; done
log "what cannot be a drive, is mounted or holds a file system is refused"
serve --create 0 --redundancy mirror=2 --drive /dev/ng${small}n1 --drive /dev/ng${large}n1 --volume vol0=64M
mount /dev/nvme${small}n1 /mnt/x 2>/dev/null && stop "a drive of a pool can be mounted"
refused 'in use' --pool /run/other --create 0 --drive /dev/nvme${small}n1
disk=$(attach 127.0.0.1 -i 2) || stop connect
fio_line verify --filename=$disk --size=48m --rw=randwrite --ioengine=libaio --direct=1 --iodepth=16 --bssplit=4k/50:12k/20:64k/20:128k/10 \
  --fsync=64 --verify=crc32c --verify_fatal=1 --do_verify=1 || stop "fio"
blkdiscard -o 0 -l 8388608 $disk || stop "discard"
sum() { dd if="$disk" bs=1M iflag=direct status=none | sha256sum; }
right=$(sum)
health() { onefold drive list --json | jq -e 'all(.health.composite_temperature_celsius > 0)' >/dev/null; }
eventually 60 health
nvme disconnect -n "$NQN" >/dev/null || stop disconnect
kill -KILL $daemon; wait $daemon
onefold pool check --data >/tmp/check || { cat /tmp/check; stop "pool check"; }
serve
disk=$(attach 127.0.0.1 -i 2) || stop "connect again"
[ "$(sum)" = "$right" ] || stop "after the kill the data are others"
onefold scrub start --rate 1G >/dev/null || stop "a scrub"
through() { [ "$(onefold scrub status --json | jq -r '.scrub.phase // .phase')" = finished ]; }
eventually 120 through
onefold scrub status >/tmp/scrub || { cat /tmp/scrub; stop "a scrub found damage"; }
nvme disconnect -n "$NQN" >/dev/null || stop disconnect
kill -TERM $daemon; wait $daemon || stop "the daemon's end"
complaints && stop "the kernel complained"
exit 0
