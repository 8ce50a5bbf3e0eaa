# The commands beyond reading and writing, by nvme-cli: compare, copy, write-zeroes, verify, write-uncor,
# get-lba-status, dsm, flush. (Compare and Write as one cannot be sent through this kernel.)
# arguments: TARGET-ADDRESS
. /lib/lab.sh
. /lab/fields.sh
address=$1
tcp_up; reach "$address"
disk=$(attach "$address" -i 2) || die connect
controller=${disk%n*}
log "attached $disk on $(uname -r)"
[ "$(blockdev --getss "$disk")" = 4096 ] || die "blocks of another size"
# What a command must end in: a word of nvme-cli's text of the status.
refused() { word=$1; shift; "$@" >/tmp/said 2>&1 && die "it succeeded: $*"; grep -qi "$word" /tmp/said || { cat /tmp/said; die "$* said something else than $word"; }; }
at() { dd if="$disk" bs=4096 skip="$1" count="$2" iflag=direct 2>/dev/null; }
# As nvme-cli decodes them, which knows nothing of this program.
are oacs=0x200 acl=3 aerl=3 frmw=0x3 lpa=0x3e elpe=63 npss=0 crdt1=5 crdt2=20 crdt3=50 oncs=0x1ff fuses=0x1 vwc=0x7 \
  awun=255 awupf=0 acwu=255 ocfs=0x5 sqes=0x66 cqes=0x44 mdts=8 cntrltype=1 rab=6 pels=1 < <(nvme id-ctrl "$controller")
are nsze=0x80000 ncap=0x80000 nsfeat=0x1b nlbaf=1 flbas=0 nawun=255 nawupf=0 nacwu=255 nabspf=0 mssrl=65535 mcl=1048576 \
  msrc=255 dlfeat=9 nmic=0x1 rescap=0xff nsattr=0 < <(nvme id-ns "$disk")

# Compare and copy: eight blocks, and parts of them in another order.
head -c 32768 /dev/urandom >/tmp/a; head -c 32768 /dev/urandom >/tmp/b
dd if=/tmp/a of="$disk" bs=32768 oflag=direct 2>/dev/null || die write
nvme compare "$disk" -s 0 -c 7 -z 32768 -d /tmp/a || die "compare of what is there"
refused "compare" nvme compare "$disk" -s 0 -c 7 -z 32768 -d /tmp/b
nvme copy "$disk" --sdlba=1000 --slbs=4,0 --blocks=3,3 || die copy
{ dd if=/tmp/a bs=4096 skip=4 count=4; dd if=/tmp/a bs=4096 count=4; } >/tmp/c 2>/dev/null
at 1000 8 | cmp - /tmp/c || die "the copy differs"
refused "187\|overlap" nvme copy "$disk" --sdlba=2 --slbs=0 --blocks=7
refused "range" nvme copy "$disk" --sdlba=100 --slbs=99999999999 --blocks=7
# 256 MiB of it, by one command: each range is the one before, twice as long.
size=8; while [ $size -lt 32768 ]; do nvme copy "$disk" --sdlba=$size --slbs=0 --blocks=$((size - 1)) >/dev/null || die "copy of $size"; size=$((size * 2)); done
nvme copy "$disk" --sdlba=65536 --slbs=0,0 --blocks=32767,32767 || die "copy of 256 MiB"
at 131064 8 | cmp - /tmp/a || die "the end of the copy differs"
log "compare, copy: done"

# Verify, and blocks that are made unreadable.
nvme verify "$disk" -s 0 -c 65535 || die verify
nvme write-uncor "$disk" -s 2 -c 1 || die write-uncor
refused "read error\|0x.*281" nvme verify "$disk" -s 0 -c 7
dd if="$disk" of=/dev/null bs=4096 skip=2 count=1 iflag=direct 2>/dev/null && die "what is uncorrectable was read"
# nvme-cli 2.3 prepares no memory for the answer of its own get-lba-status, so the command is put together here.
lba_status() { # ACTION: count of ranges, first block and length of the first one
  nvme admin-passthru "$disk" --opcode=0x86 --namespace-id=1 --cdw12=1023 --cdw13=$(($1 << 24)) --data-len=4096 --read --raw-binary >/tmp/status || die get-lba-status
  od -A n -t u4 -N 20 /tmp/status | awk '{ for (i = 1; i <= NF; i++) n[++c] = $i } END { print n[1], n[3], n[5] }'
}
told=$(lba_status 17); log "told: $told"
[ "$told" = "1 2 2" ] || die "the blocks are not told"
at 8 8 | cmp - /tmp/a || die "another copy of the same content was harmed"
dd if=/tmp/a of="$disk" bs=32768 oflag=direct 2>/dev/null || die "write over it"
nvme verify "$disk" -s 0 -c 65535 || die "verify afterwards"
[ "$(lba_status 16)" = "0 0 0" ] || die "they are told still"
log "verify, write-uncor, get-lba-status: done"

# Zeroes and trims.
nvme write-zeroes "$disk" -s 0 -c 7 -d || die write-zeroes
at 0 8 | cmp -n 32768 - /dev/zero || die "no zeroes"
slbs=$(seq -s, 8 8 2048); lengths=$(yes 8 | head -256 | tr '\n' ','); zeros=$(yes 0 | head -256 | tr '\n' ',')
nvme dsm "$disk" -d -s "$slbs" -b "${lengths%,}" -a "${zeros%,}" || die "dsm of 256 ranges"
at 8 2048 | cmp -n 8388608 - /dev/zero || die "trimmed blocks are not zero"
at 2056 8 | cmp - /tmp/a || die "more was trimmed"
# All namespaces at once (FFFFFFFFh) Linux lets nobody flush through a namespace: that has a test of its own.
nvme flush "$disk" -n 1 || die flush
log "write-zeroes, dsm, flush: done"
nvme disconnect -n "$NQN" || die disconnect
exit 0
