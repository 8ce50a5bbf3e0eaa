# Secure concatenation: a host with nothing but a DH-HMAC-CHAP secret authenticates in clear, and comes again by TLS with the
# key that this made; also when its controller is reset. arguments: TARGET-ADDRESS (TLS is allowed there, not required)
. /lib/lab.sh
tools_of forky
address=$1
tcp_up; tlshd_up; reach "$address"
nqn=$(cat /etc/nvme/hostnqn); echo "$nqn" >/lab/hostnqn
key() { nvme gen-dhchap-key --hmac=1 --nqn="$nqn" | tail -n 1; }
secret=$(key); echo "$secret" >/lab/host.key
signal keys; await known
attach "$address" -i 1 --dhchap-secret "$(key)" --concat >/dev/null 2>&1 && die "a host with another secret gets in"
disk=$(attach "$address" -i 1 --dhchap-secret "$secret" --concat) || { cat /lab/tlshd.log; dmesg | tail; die "connect --concat"; }
controller=$(echo /sys/class/nvme/nvme*)
[ "$(cat "$controller/tls_mode")" = concat ] || die "the kernel says $(cat "$controller/tls_mode")"
made() { grep -o 'NVMe1G.*' /proc/keys | awk '{ print $4 }'; }
first=$(made); [ -n "$first" ] || { cat /proc/keys; die "no key was made"; }
verify="--filename=$disk --size=16m --rw=randrw --bsrange=4k-128k --blockalign=4k --iodepth=16 --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1"
fio_line concatenated $verify || die fio
signal attached; await seen
echo 1 >"$controller/reset_controller" || die reset
fio_line again $verify || die "fio after a reset"
[ "$(cat "$controller/tls_mode")" = concat ] || die "no TLS after a reset"
[ -n "$(made)" ] && [ "$(made)" != "$first" ] || { cat /proc/keys; die "no key of its own after a reset"; }
nvme disconnect -n "$NQN" >/dev/null || die disconnect
complaints && die "the kernel complained"
exit 0
