# DH-HMAC-CHAP with the kernel's host: hashes and groups, one way and both ways, and wrong secrets. arguments: TARGET-ADDRESS COMBINATIONS (how many the target is set to, one after the other)
. /lib/lab.sh
address=$1
tcp_up; reach "$address"
nqn=$(cat /etc/nvme/hostnqn); echo "$nqn" >/lab/hostnqn
key() { nvme gen-dhchap-key --hmac="$1" --nqn="$nqn" 2>/dev/null | tail -n 1; }
one=$(key 1); two=$(key 3); controller=$(key 2)
echo "$one" >/lab/one.key; echo "$two" >/lab/two.key; echo "$controller" >/lab/controller.key
signal keys; await known
refused() { # WHAT [nvme connect arguments]
  local what=$1; shift
  attach "$address" -i 1 "$@" >/dev/null 2>&1 && die "$what gets in"
  log "$what: refused"
}
# works NAME: what is written is what is read, past the cache
works() {
  head -c 65536 /dev/urandom >/tmp/data
  dd if=/tmp/data of="$disk" bs=64k oflag=direct 2>/dev/null && dd if="$disk" bs=64k count=1 iflag=direct 2>/dev/null | cmp - /tmp/data || die "$1: reads something else"
}
refused "a host without a secret"
refused "a host with another secret" -S "$two"
refused "a host that asks for another controller" -S "$one" -C "$two"
log "discovery asks nobody"; discover "$address" >/tmp/discovery || die discover
for combination in $(seq 1 "$2"); do
  signal "combination-$combination"; await "set-$combination"
  disk=$(attach "$address" -i 1 -S "$one" -C "$controller") || { dmesg | tail -n 20; die "combination $combination"; }
  works "combination $combination"
  log "$(dmesg | grep -o 'qid 0: authenticated.*' | tail -n 1)"
  nvme disconnect -n "$NQN" >/dev/null || die disconnect
done
disk=$(attach "$address" -i 1 -S "$one") || die "one way"
works "one way"
nvme disconnect -n "$NQN" >/dev/null || die disconnect
complaints && die "the kernel complained"
exit 0
