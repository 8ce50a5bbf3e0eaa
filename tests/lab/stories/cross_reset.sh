# A host with two controllers has one of them reset by the other one (Cross-Controller Reset). This kernel does not do so by itself: the
# command is put together here, of what the controller says of itself.
# arguments: ADDRESS ADDRESS (of one target)
. /lib/lab.sh
. /lab/fields.sh
tcp_up; reach "$1"; reach "$2"
disk=$(attach "$1" -i 1 --ctrl-loss-tmo=0) || die connect
nvme connect -t tcp -a "$2" -s 4420 -n "$NQN" -i 1 --ctrl-loss-tmo=600 >/dev/null || die "the second path"
set -- $(ls /sys/class/nvme)
[ $# = 2 ] || die "controllers: $*"
lost=$1 source=$2
# As nvme-cli shows what it knows: the drives' bounds are a second, and ten for a flush.
nvme id-ctrl "/dev/$lost" --raw-binary >/tmp/page || die id-ctrl
number() { od -A n -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '; }
[ "$(number /tmp/page 386 2)" = 11000 ] || die "CQT is $(number /tmp/page 386 2)"
[ "$(number /tmp/page 1807 1)" = 4 ] || die "CCRL is $(number /tmp/page 1807 1)"
icid=$(number /tmp/page 78 2) ciu=$(number /tmp/page 135 1)
reset() { # CONTROLLER: asks it for the reset
  nvme admin-passthru "/dev/$1" --opcode=0x38 --cdw10=$((icid | ciu << 16)) --cdw12="$(number /tmp/page 136 4)" --cdw13="$(number /tmp/page 140 4)" 2>&1
}
said=$(reset "$lost") && die "a controller resets itself: $said"
said=$(reset "$source") || die "the reset: $said"
log "$said"
case $said in *result:*1*) ;; *) die "it was not done at once" ;; esac
n=0
while [ -e "/sys/class/nvme/$lost" ] && [ "$(cat "/sys/class/nvme/$lost/state" 2>/dev/null)" = live ]; do
  n=$((n+1)); [ $n -lt 300 ] || die "the controller lives"
  sleep 0.1
done
[ "$(cat "/sys/class/nvme/$source/state")" = live ] || die "the controller that was asked has ended"
dd if=/dev/zero of="$disk" bs=4096 count=1 oflag=direct 2>/dev/null || die "the other path leads nowhere"
nvme disconnect -n "$NQN" || die disconnect
exit 0
