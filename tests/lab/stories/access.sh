# DH-HMAC-CHAP with the kernel's host: hashes and groups, one way and both ways, wrong secrets, and a secret that is changed
# under load. arguments: TARGET-ADDRESS COMBINATIONS (how many the target is set to, one after the other)
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
# One way, and a new secret while there is load: nobody is disconnected.
disk=$(attach "$address" -i 1 -S "$one") || die "one way"
works "one way"
controller=$(echo /sys/class/nvme/nvme*)
echo "the secret changes" >/dev/kmsg
(
  while [ ! -e /lab/sync.authenticated-again ]; do
    fio_line rotation --filename="$disk" --size=4m --rw=randrw --bs=4k --iodepth=8 --ioengine=libaio --direct=1 \
      --verify=crc32c --verify_fatal=1 --do_verify=1 >>/tmp/rounds || { cat /tmp/rounds; exit 1; }
  done
) & load=$!
signal rotate; await rotated
printf %s "$two" >"$controller/dhchap_secret" || die "the kernel takes no new secret"
signal asked-again; await authenticated-again
wait $load || die "fio while the secret changed"
cat /tmp/rounds; dmesg | sed "1,/the secret changes/d" | tee /tmp/since
[ "$(cat "$controller/state")" = live ] || die "not live any more"
works "after the change"
grep -E "reconnect|resetting|keep-alive|creating" /tmp/since && die "the connection was lost"
nvme disconnect -n "$NQN" >/dev/null || die disconnect
refused "the old secret" -S "$one"
disk=$(attach "$address" -i 1 -S "$two") || die "the new secret"
works "the new secret"
nvme disconnect -n "$NQN" >/dev/null || die disconnect
complaints && die "the kernel complained"
exit 0
