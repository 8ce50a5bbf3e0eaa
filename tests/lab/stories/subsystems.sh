# Namespaces and discovery as nvme-cli and Linux see them: how changes of the owner arrive, and what a host may change.
# arguments: TARGET-ADDRESS
. /lib/lab.sh
. /lab/fields.sh
address=$1
VMS=nqn.2026-11.org.example:vms
tcp_up; reach "$address"
at="-t tcp -a $address -s 4420"
NQN=$VMS

# All that the discovery log offers, at once. The referral leads nowhere: that must not matter.
nvme connect-all $at || log "connect-all ended with $? (a referral leads nowhere)"
first=$(device 1) || die "namespace 1"
far=$(device 900) || die "namespace 900"
nvme list-subsys
nvme list
control=
for c in /sys/class/nvme/nvme*; do [ "$(cat $c/subsysnqn)" = "$VMS" ] && control=/dev/${c##*/} && cntlid=$(cat $c/cntlid); done
[ -n "$control" ] || die "no controller of $VMS"
are mn=Onefold oacs=0x208 cntlid="$cntlid" nn=1024 mnan=1024 nwpc=0x3 subnqn="$VMS" < <(nvme id-ctrl "$control")
nvme id-ctrl "$control" >/tmp/control
all=$(sed -n 's/^tnvmcap *: *//p' /tmp/control) unused=$(sed -n 's/^unvmcap *: *//p' /tmp/control)
log "of $all bytes $unused are unused"
[ "$all" -ge 2147483648 ] && [ "$unused" -gt 0 ] && [ "$unused" -le "$all" ] || die "that is no space"
nvme list-ns "$control" | tee /tmp/listed
grep -q ":0x1$" /tmp/listed && grep -q ":0x384$" /tmp/listed || die "1 and 900 are not what is listed"
are nmic=0x1 nsattr=0 flbas=0 nlbaf=1 < <(nvme id-ns "$far")
nvme ns-descs "$far" | tee /tmp/descriptors
# Of the same number by two ways.
eui64=$(nvme id-ns "$far" | sed -n 's/^eui64 *: *//p')
grep -q "^eui64 *: *$eui64" /tmp/descriptors || die "another EUI64 in the descriptors"
[ "$(sed -n 's/^uuid *: *//p' /tmp/descriptors)" = "$(cat "/sys/block/${far##*/}/uuid")" ] || die "another UUID than Linux knows"
[ "$(nvme id-ns "$far" | sed -n 's/^eui64 *: *//p')" != 0000000000000000 ] || die "no EUI64"
head -c 1048576 /dev/urandom >/tmp/a
dd if=/tmp/a of="$far" bs=1M oflag=direct conv=fsync 2>/dev/null || die write
dd if="$far" bs=1M count=1 iflag=direct 2>/dev/null | cmp - /tmp/a || die "1 MiB differs"

# gone DISK: waits until the kernel has dropped a disk.
gone() { local n=0; while [ -e "/sys/block/${1##*/}" ]; do sleep 0.2; n=$((n+1)); [ $n -lt 150 ] || return 1; done; }
# becomes FILE VALUE: waits until a file of sysfs says that.
becomes() { local n=0; until [ "$(cat "$1" 2>/dev/null)" = "$2" ]; do sleep 0.2; n=$((n+1)); [ $n -lt 150 ] || return 1; done; }

# The owner makes, grows and deletes a volume: events bring each change here.
signal create; await created
new=$(device 2) || die "a new namespace did not appear"
becomes "/sys/block/${new##*/}/size" 131072 || die "its size is $(cat /sys/block/${new##*/}/size)"
signal grow; await grown
becomes "/sys/block/${new##*/}/size" 262144 || die "it did not grow"
signal delete; await deleted
gone "$new" || die "a deleted namespace stayed"

# Masking, without a disconnect.
signal mask; await masked
gone "$far" || die "a masked namespace stayed"
nvme list-ns "$control" | grep -q 0x384 && die "a masked namespace is listed"
signal unmask; await unmasked
far=$(device 900) || die "an unmasked namespace did not come back"
dd if="$far" bs=1M count=1 iflag=direct 2>/dev/null | cmp - /tmp/a || die "its data differs"

# Write protection.
nvme set-feature "$control" -n 1 -f 0x84 -v 1 || die "set-feature 84h"
nvme get-feature "$control" -n 1 -f 0x84 | grep -i "0x0*1$" || die "get-feature 84h"
becomes "/sys/block/${first##*/}/ro" 1 || die "Linux does not know that the disk is protected"
nvme write "$first" -s 0 -c 0 -z 4096 -d /tmp/a 2>&1 | tee /tmp/protected
grep -qi "protect\|0x20\|(0x4020)\|read-only\|permitted" /tmp/protected || die "a protected namespace took a write"
nvme set-feature "$control" -n 1 -f 0x84 -v 0 || die "set-feature 84h, off"
becomes "/sys/block/${first##*/}/ro" 0 || die "it stays read only"
signal protect; await protected
becomes "/sys/block/${far##*/}/ro" 1 || die "Linux does not know that the owner protected the disk"
dd if=/tmp/a of="$first" bs=1M oflag=direct conv=fsync 2>/dev/null || die "write after the protection was lifted"

# Namespaces that this host makes.
nvme create-ns "$control" --nsze=16384 --ncap=16384 --flbas=0 --nmic=1 | tee /tmp/made || die create-ns
made=$(sed -n 's/.*nsid:\([0-9]*\).*/\1/p' /tmp/made)
[ -n "$made" ] || die "create-ns said no identifier"
nvme list-ns "$control" --all; nvme list-ns "$control"
nvme attach-ns "$control" -n "$made" -c "$cntlid" || die attach-ns
own=$(device "$made") || die "an attached namespace did not appear"
dd if=/tmp/a of="$own" bs=1M oflag=direct conv=fsync 2>/dev/null || die "write to it"
dd if="$own" bs=1M count=1 iflag=direct 2>/dev/null | cmp - /tmp/a || die "its data differs"
nvme detach-ns "$control" -n "$made" -c "$cntlid" || die detach-ns
gone "$own" || die "a detached namespace stayed"
nvme delete-ns "$control" -n "$made" || die delete-ns
nvme list-ns "$control" --all | grep -q ":0x$(printf %x "$made")\$" && die "a deleted namespace is listed"

# A discovery controller that stays, and sees what comes.
nvme discover $at --persistent --keep-alive-tmo=30 >/dev/null || die "discover --persistent"
stays=
for c in /sys/class/nvme/nvme*; do [ "$(cat $c/cntrltype 2>/dev/null)" = discovery ] && stays=${c##*/}; done
[ -n "$stays" ] || die "no discovery controller stays"
hear_events /tmp/uevents
signal offer; await offered
n=0; until grep -q 'NVME_AEN=0x70f002' /tmp/uevents; do sleep 0.2; n=$((n+1)); [ $n -lt 150 ] || { cat /tmp/uevents; die "no event of the discovery log"; }; done
kill $listener
nvme discover -d "$stays" | grep -q "subnqn: *nqn.2026-11.org.example:later" || die "a later subsystem is not told"
nvme disconnect -d "$stays" || die "disconnect of the discovery controller"

nvme disconnect-all
complaints && die "the kernel complained"
exit 0
