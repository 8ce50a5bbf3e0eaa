# A small session that is recorded on the wire: connect, a few commands of each kind, disconnect. arguments: TARGET-ADDRESS
. /lib/lab.sh
rxe_up; reach "$1"
disk=$(attach "$1" -i 1 -Q 32) || die connect
yes 0123456789abcde | head -c 4096 >/tmp/p4k; yes ABCDEFGHIJKLMNO | head -c 65536 >/tmp/p64k
nvme write "$disk" -s 16 -c 0 -z 4096 -d /tmp/p4k || die "4 KiB write"
nvme write "$disk" -s 32 -c 15 -z 65536 -d /tmp/p64k || die "64 KiB write"
nvme read "$disk" -s 16 -c 0 -z 4096 -d /tmp/r4k || die "4 KiB read"
nvme read "$disk" -s 32 -c 15 -z 65536 -d /tmp/r64k || die "64 KiB read"
cmp /tmp/p4k /tmp/r4k && cmp /tmp/p64k /tmp/r64k || die "read back differs"
nvme flush "$disk" -n 1 || die flush
nvme dsm "$disk" -n 1 -d -s 32 -b 16 || die dsm
nvme write-zeroes "$disk" -n 1 -s 16 -c 0 || die write-zeroes
nvme disconnect -n "$NQN" || die disconnect
sleep 1 # lets the last packets reach the recorder
exit 0
