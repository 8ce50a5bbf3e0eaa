# Subsystems as nvme-cli and Linux see them: who is told of what, and who gets in.
# arguments: TARGET-ADDRESS
. /lib/lab.sh
address=$1
VMS=nqn.2026-11.org.example:vms
HIDDEN=nqn.2026-11.org.example:hidden
FRIEND=nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111
friend="--hostnqn=$FRIEND --hostid=11111111-1111-4111-8111-111111111111"
tcp_up; reach "$address"
at="-t tcp -a $address -s 4420"

# Discovery: a host sees what it may use, where else to ask, and the discovery service itself.
discover "$address" >/tmp/stranger || { cat /tmp/stranger; die discover; }
cat /tmp/stranger
grep -q "subnqn: *$VMS" /tmp/stranger || die "the subsystem is not told"
grep -q "$HIDDEN" /tmp/stranger && die "a host is told of a subsystem that it may not use"
grep -q "traddr: *10.77.0.99" /tmp/stranger || die "the referral is not told"
grep -q "current discovery subsystem" /tmp/stranger || die "the discovery service does not tell of itself"
nvme discover $at $friend >/tmp/friend || die "discover as another host"
grep -q "subnqn: *$HIDDEN" /tmp/friend || { cat /tmp/friend; die "the host on the list is not told"; }
unique=$(sed -n 's/^subnqn: *\(.*:discovery:.*\)/\1/p' /tmp/stranger | head -n 1)
nvme discover $at -n "$unique" | grep -q "subnqn: *$VMS" || die "no answer under the discovery service's own name"

# Access.
nvme connect $at -n "$HIDDEN" 2>/tmp/refused && die "a host that is not on the list got in"
cat /tmp/refused; dmesg | grep -i "connect" | tail -n 3
nvme connect $at $friend -n "$HIDDEN" || die "the host on the list did not get in"
nvme disconnect -n "$HIDDEN" >/dev/null || die disconnect

complaints && die "the kernel complained"
exit 0
