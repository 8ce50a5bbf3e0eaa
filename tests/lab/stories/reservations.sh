# One of two hosts that share a namespace and fence each other by the kernel's own interface for reservations (IOC_PR_*).
# arguments: TARGET-ADDRESS ROLE(first|second)
. /lib/lab.sh
tcp_up; reach "$1"
disk=$(attach "$1" -i 2 --reconnect-delay=1 --ctrl-loss-tmo=300 --keep-alive-tmo=5) || die connect
log "$2 on $disk"

# pr register OLD NEW | reserve KEY TYPE | release KEY TYPE | preempt MINE THEIRS TYPE | preempt_abort MINE THEIRS TYPE |
# clear KEY: prints what the ioctl of include/uapi/linux/pr.h gives: 0, or 24 for a conflict (PR_STS_RESERVATION_CONFLICT)
pr() {
  LD_LIBRARY_PATH=/lab /lab/perl -e '
    my ($disk, $name, @n) = @ARGV;
    my %call = (
      register      => [0x401870c8, "QQLL"], reserve => [0x401070c9, "QLL"], release => [0x401070ca, "QLL"],
      preempt       => [0x401870cb, "QQLL"], preempt_abort => [0x401870cc, "QQLL"], clear => [0x401070cd, "QLL"],
    );
    my ($code, $form) = @{$call{$name}};
    push @n, 0 while @n < length $form;
    open(my $file, "+<", $disk) or die "open: $!";
    my $data = pack($form, @n);
    my $result = ioctl($file, $code, $data);
    defined $result or die "$name: $!";
    print $result + 0, "\n";
  ' "$disk" "$@" 2>&1
}
expect() { # RESULT pr-ARGUMENTS
  local wanted=$1 got; shift
  got=$(pr "$@"); [ "$got" = "$wanted" ] || die "pr $*: $got instead of $wanted"
  log "pr $*: $got"
}
write_block() { dd if=/dev/zero of="$disk" bs=4096 count=1 seek=7 oflag=direct 2>/tmp/dd; }
may_write() { write_block || { cat /tmp/dd; die "$1: a write was refused"; }; }
may_not_write() { # EBADE is the kernel's word for a reservation conflict
  write_block && die "$1: a write went through"
  grep -q "Invalid exchange" /tmp/dd || { cat /tmp/dd; die "$1: not the error of a conflict"; }
}
may_read() { dd if="$disk" of=/dev/null bs=4096 count=1 iflag=direct 2>/tmp/dd || { cat /tmp/dd; die "$1: a read was refused"; }; }
may_not_read() { dd if="$disk" of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null && die "$1: a read went through"; :; }
report() { nvme resv-report "$disk" --eds; }
turn() { signal "$1"; await "$2" 240; }

if [ "$2" = first ]; then
  expect 0 register 0 161
  expect 24 register 0 99
  expect 0 reserve 161 1
  may_write "the holder"
  turn first-reserved second-conflicted
  may_write "the holder after the target was killed"
  turn first-holds second-preempted
  may_not_write "the preempted host"
  may_read "the preempted host"
  expect 24 reserve 161 1
  # The log page tells why: type 1, registration preempted, in namespace 1.
  controller=$(ls -d /dev/nvme[0-9] | head -n 1)
  event=$(nvme get-log "$controller" --log-id=0x80 --log-len=64 --raw-binary | od -An -tu1 -j8 -N5 | tr -s ' ')
  [ "$event" = " 1 0 0 0 1" ] || die "reservation notification log:$event"
  nvme resv-register "$disk" --nrkey=0xa2 --rrega=0 --cptpl=3 || die "nvme resv-register"
  report
  turn first-registered second-exclusive
  may_not_read "beside exclusive access"
  turn first-locked-out second-shared
  may_write "a registrant of all registrants"
  expect 0 release 162 6
  expect 0 clear 162
  expect 24 clear 162
  turn first-cleared second-done
else
  await first-reserved 240
  may_read "beside a write exclusive reservation"
  may_not_write "beside a write exclusive reservation"
  expect 24 reserve 178 1
  expect 0 register 0 178
  expect 24 reserve 178 1
  expect 24 preempt 99 161 1
  turn second-killing killed
  # The daemon was killed and started again: what both wrote there is still in force.
  may_not_write "after the target was killed"
  report | tee /tmp/report
  grep -Eq '^ *regctl *: *2' /tmp/report || die "not two registrants"
  grep -Eq '^ *rtype *: *1' /tmp/report || die "not write exclusive"
  grep -Eq '^ *ptpls *: *1' /tmp/report || die "not persistent"
  turn second-conflicted first-holds
  expect 0 preempt_abort 178 161 1
  may_write "who preempted"
  turn second-preempted first-registered
  expect 0 preempt 178 178 2
  may_write "the holder of exclusive access"
  turn second-exclusive first-locked-out
  nvme resv-acquire "$disk" --crkey=178 --prkey=178 --rtype=6 --racqa=1 || die "nvme resv-acquire"
  turn second-shared first-cleared
  report | grep -Eq '^ *regctl *: *0' || die "registrants are left"
  may_write "without a reservation"
  signal second-done
fi
nvme disconnect -n "$NQN" || die disconnect
exit 0
