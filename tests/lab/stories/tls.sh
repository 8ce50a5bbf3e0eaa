# NVMe/TCP by TLS 1.3 with the kernel's host and tlshd: both cipher suites, where it is required and where it is allowed,
# keys that are wrong, missing or changed, and all that a discovery log offers.
# arguments: TARGET-ADDRESS RELEASE (of nvme-cli and tlshd); port 4420 allows TLS, and 4430 requires it
. /lib/lab.sh
tools_of "$2"
address=$1
DISCOVERY=nqn.2014-08.org.nvmexpress.discovery
tcp_up; tlshd_up; reach "$address"
nqn=$(cat /etc/nvme/hostnqn); echo "$nqn" >/lab/hostnqn
key() { nvme gen-tls-key --hmac="$1" | tail -n 1 | tee "/lab/$2.tls"; }
small=$(key 1 small); large=$(key 2 large); stranger=$(key 1 stranger)
signal keys; await known

# keep KEY [VERSION [SUBSYSTEM]]: the only keys that the kernel has from here on; no KEY: none
keep() {
  keyctl clear %:.nvme || die "keyctl"
  [ -z "$1" ] || also "$@"
}
also() { nvme check-tls-key --insert --identity="${2:-1}" --hostnqn="$nqn" --subsysnqn="${3:-$NQN}" --keydata="$1" >/tmp/inserted || { cat /tmp/inserted; die "check-tls-key"; }; }
by() { local port=$1; shift; nvme connect -t tcp -a "$address" -s "$port" -n "$NQN" -i 1 "$@" >/tmp/said 2>&1; }
leave() { nvme disconnect -n "$NQN" >/dev/null || die disconnect; }
refused() { # WHAT PORT [nvme connect arguments]
  local what=$1; shift
  by "$@" && die "$what gets in"
  log "$what: refused: $(tail -n 1 /tmp/said)"
}
# works NAME: what is written is what is read, past the cache
works() {
  disk=$(device) || die "$1: no disk"
  head -c 1048576 /dev/urandom >/tmp/data
  dd if=/tmp/data of="$disk" bs=1M oflag=direct 2>/dev/null && dd if="$disk" bs=1M count=1 iflag=direct 2>/dev/null | cmp - /tmp/data || die "$1: reads something else"
  log "$1: works"
}
verifies() { fio_line "$1" --filename="$disk" --size=16m --rw=randrw --bsrange=4k-128k --blockalign=4k --iodepth=16 --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1 || die "fio: $1"; }
# suite NAME: what the last handshake agreed on, on each of both queues
suite() { [ "$(grep -o "(TLS1.3).*" /lab/tlshd.log | tail -n 2 | grep -c "$1")" = 2 ] || { cat /lab/tlshd.log; die "not $1"; }; }

# Where TLS is required.
keep ""
refused "a host in clear" 4430
refused "a host without a key" 4430 --tls
keep "$stranger"
refused "a host with a key that nobody knows" 4430 --tls
keep "$stranger" 0
refused "a host with another key under a known identity" 4430 --tls
keep "$small"
by 4430 --tls || { cat /tmp/said /lab/tlshd.log; dmesg | tail; die "TLS_AES_128_GCM_SHA256"; }
suite AES-128-GCM
works "TLS_AES_128_GCM_SHA256"; verifies aes128
signal attached-1; await seen-1
# A controller that is reset comes back by TLS, with handshakes of its own.
handshakes=$(grep -c "(TLS1.3)" /lab/tlshd.log)
echo 1 >"$(echo /sys/class/nvme/nvme*)/reset_controller" || die reset
works "after a reset"
[ "$(grep -c "(TLS1.3)" /lab/tlshd.log)" -gt "$handshakes" ] || die "no handshake after a reset"
leave
# GnuTLS before 3.8.11 makes the binder of every key by SHA-256, and then no server but its own accepts keys for SHA-384.
if [ "$2" = trixie ]; then last=$small; else
  last=$large
  keep "$large"
  by 4430 --tls --hdr-digest --data-digest || { cat /tmp/said; tail -n 20 /lab/tlshd.log; die "TLS_AES_256_GCM_SHA384"; }
  suite AES-256-GCM
  works "TLS_AES_256_GCM_SHA384"; verifies aes256
  # The owner forgets the other key meanwhile; nobody is disconnected.
  signal attached-2; await seen-2
  verifies still
  leave
  keep "$small"
  refused "a host with a key that is forgotten" 4430 --tls
fi
keep "$last" 0
by 4430 --tls || { cat /tmp/said; die "an identity of version 0"; }
works "an identity of version 0"; leave
keep ""
by 4430 --tls --tls-key "$last" || { cat /tmp/said; die "a key of the command line"; }
works "a key of the command line"; leave

# Where it is allowed, one can come in clear too.
keep "$last"
by 4420 || { cat /tmp/said; die "in clear"; }
works "in clear"; leave
by 4420 --tls || { cat /tmp/said; die "by TLS where it is allowed"; }
works "by TLS where it is allowed"; leave

# Discovery, in clear and by TLS, and what it offers.
nvme discover -t tcp -a "$address" -s 4420 | tee /tmp/offers
nvme discover -t tcp -a "$address" -s 4430 >/dev/null 2>&1 && die "discovery in clear where TLS is required"
# The discovery service has two names, and nvme-cli asks for it under both.
for name in "$DISCOVERY" "$(sed -n 's/^subnqn: *\(.*:discovery:.*\)/\1/p' /tmp/offers | head -n 1)"; do also "$last" 1 "$name"; done
nvme discover -t tcp -a "$address" -s 4430 --tls >/tmp/offers || die "discovery by TLS"
grep -q "subnqn: *$NQN" /tmp/offers || { cat /tmp/offers; die "the subsystem is not told by TLS"; }
nvme connect-all -t tcp -a "$address" -s 4430 --tls || log "connect-all ended with $? (this host has no RDMA)"
works "connect-all by TLS"
nvme list-subsys | tee /tmp/paths
grep -q "trsvcid=4430" /tmp/paths || die "connect-all left out the port that requires TLS"
nvme disconnect-all
complaints && die "the kernel complained"
exit 0
