# What nvme-cli shows of a controller, whole, to be looked at; and that a host hears when the pool fills up.
# arguments: TARGET-ADDRESS BYTES-TO-WRITE VERSION (of nvme-cli)
. /lib/lab.sh
[ "$3" = 2.3 ] || tools_of trixie
nvme version | grep -q "version $3" || die "nvme-cli is $(nvme version)"
tcp_up; reach "$1"
disk=$(attach "$1" -i 2) || die connect
ctrl=/dev/$(ls /sys/class/nvme | head -n 1)
show() { log "== nvme $*"; nvme "$@" || die "nvme $*"; }
# A feature's value as nvme-cli prints it, in hexadecimal.
feature() { nvme get-feature "$ctrl" -f "$1" -s "$2" | sed -n 's/.*value: *0x0*\([0-9a-f]*\)$/\1/p'; }

show list
show list-subsys
show id-ctrl "$ctrl" -H
show id-ns "$disk" -H
show ns-descs "$disk"
show list-ns "$ctrl" --all
show list-ctrl "$ctrl"
show cmdset-ind-id-ns "$disk" -n 1
show nvm-id-ctrl "$ctrl"
show ana-log "$ctrl"
show show-regs "$ctrl" -H
nvme show-regs "$ctrl" -H | grep -q 10400 || die "show-regs does not show the version"
for property in 0 8 0x14 0x1c; do show get-property "$ctrl" --offset="$property" -H; done
show smart-log "$ctrl"
nvme admin-passthru "$ctrl" --opcode=0xc5 >/dev/null 2>&1 && die "an opcode that nobody knows"
nvme get-log "$ctrl" -i 0xc5 -l 512 >/dev/null 2>&1 && die "a log page that nobody knows"
show error-log "$ctrl" -e 4
nvme error-log "$ctrl" -e 4 | grep -q 'Invalid Command Opcode' || die "the error log does not tell of the opcode"
show fw-log "$ctrl"
show changed-ns-list-log "$ctrl"
show effects-log "$ctrl" -c 0 -H
show supported-log-pages "$ctrl"
show fid-support-effects-log "$ctrl"
show telemetry-log "$ctrl" --output-file=/tmp/telemetry
tr -d '\000' </tmp/telemetry | tail -c +24 | head -c 6000 | grep -v '^$'
grep -q '"cntlid"' /tmp/telemetry || die "telemetry does not tell of the controller"
show persistent-event-log "$ctrl" -a 1 -l 4096
show persistent-event-log "$ctrl" -a 2
nvme persistent-event-log "$ctrl" -a 0 -l 4096 >/dev/null 2>&1 && die "events were read without a context"
for fid in 1 2 4 5 6 7 0xa 0xb 0xe 0xf 0x16 0x80; do
  show get-feature "$ctrl" -f "$fid" -H
  for select in 1 2 3; do nvme get-feature "$ctrl" -f "$fid" -s "$select" || die "feature $fid, select $select"; done
done
# Host identifiers have 16 bytes, which is to be asked for.
show get-feature "$ctrl" -f 0x81 --cdw11=1 -l 16
# All that nvme-cli 2.13 asks for by itself, of a namespace. (Its exit code is that of the last number, which no feature has.)
[ "$3" = 2.3 ] || for select in 0 1 2 3; do
  nvme get-feature "$disk" -s "$select" >/tmp/features 2>&1; cat /tmp/features
  grep -q 'NVMe status' /tmp/features && die "a feature is announced that cannot be read"
  [ "$(grep -c '^get-feature:' /tmp/features)" -ge 15 ] || die "features are missing"
done
for fid in 3 8 9 0xc 0xd 0x10; do nvme get-feature "$ctrl" -f "$fid" >/dev/null 2>&1 && die "feature $fid, which nobody has"; done

# What is saved comes back with the next controller.
show set-feature "$ctrl" -f 6 --value=0 --save
[ "$(feature 6 2)" = 0 ] || [ -z "$(feature 6 2)" ] || die "the saved write cache is $(feature 6 2)"
nvme disconnect -n "$NQN" >/dev/null || die disconnect
disk=$(attach "$1" -i 2) || die "connect again"
ctrl=/dev/$(ls /sys/class/nvme | head -n 1)
[ "$(cat "/sys/block/${disk##*/}/queue/write_cache")" = "write back" ] || log "write cache: $(cat "/sys/block/${disk##*/}/queue/write_cache")"
nvme get-feature "$ctrl" -f 6 | grep -q '0x0*$\|:0*$\|0x00000000' || die "the write cache is on again: $(nvme get-feature "$ctrl" -f 6)"
show set-feature "$ctrl" -f 6 --value=1 --save

# A warning in time: Linux asks for no SMART events by itself, an administrator can.
wanted=$(printf '%d' "0x$(feature 0xb 0)")
show set-feature "$ctrl" -f 0xb --value=$((wanted | 0xff))
hear_events /tmp/uevents
dd if=/dev/urandom of="$disk" bs=1M count=$(($2 / 1048576)) oflag=direct conv=fsync 2>/dev/null || die "dd"
n=0; until grep -q 'NVME_AEN=0x020201' /tmp/uevents; do sleep 0.2; n=$((n+1)); [ $n -lt 600 ] || { cat /tmp/uevents; nvme smart-log "$ctrl"; die "no event"; }; done
kill $listener
grep 'NVME_AEN' /tmp/uevents
show smart-log "$ctrl"
nvme smart-log "$ctrl" | grep -q 'critical_warning.*: *0x1$\|critical_warning.*: *0x01$\|critical_warning.*: 1$' || die "no critical warning"
show persistent-event-log "$ctrl" -a 1 -l 4096
nvme disconnect -n "$NQN" || die "disconnect at the end"
complaints && die "the kernel complained"
exit 0
