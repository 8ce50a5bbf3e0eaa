# A raw drive of a sled that asks its hosts for secrets, both ways, and for TLS: with the kernel's host and tlshd.
# arguments: TARGET-ADDRESS SLED-NQN
. /lib/lab.sh
tools_of forky
address=$1
NQN=$2
tcp_up; tlshd_up; reach "$address"
nqn=$(cat /etc/nvme/hostnqn); echo "$nqn" >/lab/hostnqn
secret() { nvme gen-dhchap-key --hmac=1 --nqn="$nqn" 2>/dev/null | tail -n 1; }
own=$(secret); sled=$(secret)
echo "$own" >/lab/host.key; echo "$sled" >/lab/sled.key
key=$(nvme gen-tls-key --hmac=1 | tail -n 1); echo "$key" >/lab/host.tls
signal keys; await served
keep() { keyctl clear %:.nvme && nvme check-tls-key --insert --identity=1 --hostnqn="$nqn" --subsysnqn="$NQN" --keydata="$1" >/tmp/inserted || { cat /tmp/inserted; die "check-tls-key"; }; }
refused() { # WHAT [nvme connect arguments]
  local what=$1; shift
  attach "$address" -i 1 "$@" >/dev/null 2>&1 && die "$what gets in"
  log "$what: refused"
}
keep "$(nvme gen-tls-key --hmac=1 | tail -n 1)"
refused "a host with another key for TLS" --tls --dhchap-secret "$own"
keep "$key"
refused "a host in clear" --dhchap-secret "$own"
refused "a host without a secret" --tls
refused "a host with another secret" --tls --dhchap-secret "$sled"
refused "a host that asks for another sled" --tls --dhchap-secret "$own" --dhchap-ctrl-secret "$own"
disk=$(attach "$address" -i 1 --tls --dhchap-secret "$own" --dhchap-ctrl-secret "$sled") || { cat /lab/tlshd.log; dmesg | tail; die connect; }
verify="--filename=$disk --size=16m --rw=randrw --bsrange=4k-128k --blockalign=4k --iodepth=16 --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1"
fio_line secured $verify || die fio
# A controller that is reset proves itself again.
echo 1 >"$(echo /sys/class/nvme/nvme*)/reset_controller" || die reset
fio_line again $verify || die "fio after a reset"
nvme disconnect -n "$NQN" >/dev/null || die disconnect
complaints && die "the kernel complained"
exit 0
