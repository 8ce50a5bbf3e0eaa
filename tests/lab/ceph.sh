#!/bin/bash
# A small Ceph cluster for tests: a monitor and OSDs whose data are in memory, on the loopback interface or at ADDRESS.
#
#   tests/lab/ceph.sh DIR [OSDS] [ADDRESS]
#
# Prints 'ready' when the pool 'pool' (three copies, or as many as there are OSDs) can be used, and ends the cluster when its
# standard input ends. The number of an OSD that ended, as a line of that input, puts a new and empty one in its place; 'ready' is
# printed again when that one has its copies of everything. DIR has ceph.conf, the keyring of client.admin and of client.onefold
# (who may do what the guide says and no more), and the numbers of the daemons' processes in NAME.pid.
set -euo pipefail

dir=$(realpath -m "$1")
osds=${2:-3} address=${3:-127.0.0.1}

missing=()
for program in ceph ceph-mon ceph-osd ceph-authtool monmaptool; do
    command -v "$program" > /dev/null || missing+=("$program")
done
if (( ${#missing[@]} > 0 )); then
    echo "ceph.sh: ${missing[*]} missing: apt-get install --no-install-recommends ceph-mon ceph-osd ceph-common" >&2
    exit 69
fi

mkdir -p "$dir"
cd "$dir"

# Those that still run: another process may have the number of one that ended.
end() {
    local running
    mapfile -t running < <(jobs -pr)
    if (( ${#running[@]} > 0 )); then
        kill -KILL "${running[@]}" 2> /dev/null || true
        wait "${running[@]}" 2> /dev/null || true
    fi
}
trap end EXIT

fsid=$(cat /proc/sys/kernel/random/uuid)
# Somebody else may have any port: the kernel is asked for one that is free.
port=$(python3 -c 'import socket, sys; s = socket.socket(); s.bind((sys.argv[1], 0)); print(s.getsockname()[1])' "$address")
copies=$(( osds < 3 ? osds : 3 ))
cat > ceph.conf << CONF
[global]
fsid = $fsid
mon host = v2:$address:$port
mon initial members = a
keyring = $dir/keyring
run dir = $dir
admin socket = $dir/\$name.asok
log file = $dir/\$name.log
crash dir = $dir/crash
mon cluster log file = $dir/cluster.log
public addr = $address
ms bind ipv6 = false
osd crush chooseleaf type = 0
osd pool default size = $copies
osd pool default min size = $(( copies > 1 ? copies - 1 : 1 ))
osd pool default pg autoscale mode = off
osd objectstore = memstore
memstore device bytes = 8589934592
osd heartbeat interval = 1
mon osd min down reporters = 1
mon data avail crit = 1
[mon.a]
mon data = $dir/mon.a
CONF
for (( i = 0; i < osds; i++ )); do
    printf '[osd.%d]\nosd data = %s/osd.%d\n' "$i" "$dir" "$i" >> ceph.conf
done

key() {
    ceph-authtool keyring --gen-key -n "$@" > /dev/null
}
ceph-authtool --create-keyring keyring > /dev/null
key mon. --cap mon 'allow *'
key client.admin --cap mon 'allow *' --cap osd 'allow *'
key client.onefold --cap mon 'profile rbd' --cap osd 'allow rwx pool=pool'
for (( i = 0; i < osds; i++ )); do
    key "osd.$i" --cap mon 'allow profile osd' --cap osd 'allow *'
done
monmaptool --create --addv a "[v2:$address:$port]" --fsid "$fsid" monmap > /dev/null

start() {
    local name=$1
    shift
    # Its messages are in its log.
    "$@" -f > "$name.out" 2>&1 < /dev/null &
    echo $! > "$name.pid"
}
ceph-mon -c ceph.conf --mkfs -i a --monmap monmap --keyring keyring
start mon.a ceph-mon -c ceph.conf -i a
ceph() {
    timeout 120 "$(type -P ceph)" -c "$dir/ceph.conf" "$@"
}
# new_osd NUMBER: an empty one.
new_osd() {
    local number=$1 uuid
    uuid=$(cat /proc/sys/kernel/random/uuid)
    mkdir -p "osd.$number"
    ceph osd new "$uuid" "$number" > /dev/null
    ceph-osd -c ceph.conf -i "$number" --mkfs --osd-uuid "$uuid" > "osd.$number.out" 2>&1
    start "osd.$number" ceph-osd -c ceph.conf -i "$number"
}
# until_whole: every placement group has all its copies. Its primary OSD says so: there is no manager. Debian's own Python has the module.
until_whole() {
    timeout 120 /usr/bin/python3 - "$dir/ceph.conf" << 'PYTHON'
import json, rados, sys, time

def state(cluster, group):
    asked = json.dumps({"prefix": "query", "pgid": group})
    failed, said, _ = cluster.pg_command(group, asked, b"")
    # An OSD that has just begun to have the group does not know of it yet.
    return "unknown" if failed else json.loads(said)["state"]

with rados.Rados(conffile=sys.argv[1], name="client.admin") as cluster:
    pool = cluster.pool_lookup("pool")
    for group in (f"{pool}.{number:x}" for number in range(16)):
        while state(cluster, group) != "active+clean":
            time.sleep(0.1)
PYTHON
}
# replace_osd NUMBER: as an administrator does. The new one has the key of the old one.
replace_osd() {
    local number=$1
    ceph osd down "$number" 2> /dev/null
    ceph auth export "osd.$number" > "osd.$number.key" 2> /dev/null
    # What the manager has `osd destroy` do in the end.
    ceph osd destroy-actual "$number" --yes-i-really-mean-it 2> /dev/null
    rm -rf "osd.$number"
    ceph auth import -i "osd.$number.key" 2> /dev/null
    new_osd "$number"
    until ceph osd dump | grep -q "^osd\.$number up"; do
        sleep 0.2
    done
    until_whole
}
for (( i = 0; i < osds; i++ )); do
    new_osd "$i"
done
ceph osd pool create pool 16 > /dev/null 2>&1
ceph osd pool application enable pool onefold > /dev/null 2>&1
# A write that was answered needs its copies.
timeout 120 "$(type -P rados)" -c ceph.conf -p pool put probe monmap
timeout 120 "$(type -P rados)" -c ceph.conf -p pool rm probe
echo ready
while read -r number; do
    replace_osd "$number"
    echo ready
done
