# Two NVMe drives of this machine's: one is a drive of the pool by a link of its name, and the other has the file system of a drive
# that is a file. Both tell of their health. While hosts use the pool the machine makes the first one warn, and well again.
# Without the right to ask, nothing is known, and the log says why.
. /lib/lab.sh
onefold_here
modprobe nvme || die "no nvme"
export ONEFOLD_POOL=/run/pool
stop() { cat /lab/daemon.log; onefold drive list; onefold status; die "$@"; }
eventually() { # SECONDS COMMAND...
  local n=0 limit=$1; shift
  until "$@"; do sleep 0.2; n=$((n+1)); [ $n -lt $((5*limit)) ] || stop "in vain: $*"; done
}
# The kernel finds them in any order.
found() { local at; at=$(grep -ls "^onefold-$1 *$" /sys/class/nvme/nvme*/serial) || return 1; at=${at%/serial}; device=${at##*/}n1; [ -b /dev/$device ]; }
eventually 30 found one; one=$device
eventually 30 found two; two=$device
mkdir -p /dev/disk/by-id /mnt/file
ln -s ../../$one /dev/disk/by-id/nvme-one
mke2fs -q -t ext4 /dev/$two && modprobe ext4 && mount /dev/$two /mnt/file || die "a file system"
serve() { # COMMAND-BEFORE.. -- ARGUMENTS..
  local before=(); while [ "$1" != -- ]; do before+=("$1"); shift; done; shift
  rm -f /lab/ready.txt
  "${before[@]}" /bin/onefold serve --buffers 64M --reactors 1 --listen tcp://127.0.0.1:4420 "$@" >/lab/ready.txt 2>>/lab/daemon.log &
  daemon=$!
  eventually 90 grep -qs ready /lab/ready.txt
}
end() { kill -TERM $daemon; wait $daemon || stop "the daemon's end"; }
healths() { onefold drive list --json | jq -c 'map(.health)'; }
drives() { onefold drive list --json | jq -e "$@" >/dev/null; }

log "without the right to ask"
serve setpriv --bounding-set -sys_admin --inh-caps -sys_admin -- --create 0 --redundancy mirror=2 \
  --drive /dev/disk/by-id/nvme-one --drive /mnt/file/drive=96M --volume vol0=48M
eventually 30 grep -q "its health is not known.*CAP_SYS_ADMIN" /lab/daemon.log
[ "$(healths)" = '[null,null]' ] || stop "nobody may know: $(healths)"
onefold status | grep -q '^Health: ok' || stop "what is not known is no warning"
end

log "with it"
serve --
known() { drives 'map(.health.composite_temperature_celsius) | all(. != null and . > 0)'; }
eventually 60 known
drives 'all(.health.warnings == [] and .health.percentage_used == 0)' || stop "a new drive is well: $(healths)"
onefold drive list | grep -q 'nvme-one .* ok ' || stop "the table has it"
log "$(healths)"
signal well; await warn
warns() { drives '.[0].health.critical_warning == 4 and (.[1].health.warnings == [])'; }
eventually 150 warns
onefold status >/tmp/status
cat /tmp/status
grep -q '^Health: DEGRADED' /tmp/status || stop "the status"
grep -q 'drive /dev/disk/by-id/nvme-one warns: .*reliability.*; .*onefold drive replace /dev/disk/by-id/nvme-one NEW' /tmp/status || stop "what and the remedy"
onefold drive list | grep -q 'nvme-one .* warning ' || stop "the table has it"
drives 'map(.state) == ["online", "online"]' || stop "a drive that warns is used"
signal warned; await better
eventually 150 drives '.[0].health.warnings == []'
onefold status | grep -q '^Health: ok' || stop "it is over"
onefold events --limit 100 --json >/tmp/events
grep -q 'drive /dev/disk/by-id/nvme-one warns' /tmp/events || stop "no event of the warning"
grep -q 'over: drive /dev/disk/by-id/nvme-one warns' /tmp/events || stop "no event of its end"
end
complaints && stop "the kernel complained"
exit 0
