# The package on a clean Debian with systemd: installed, served, reloaded, killed, upgraded, removed, installed again,
# purged. The commands are the guide's (docs/src). `onefold perf` is the host: its data are written once, and proven after
# each of these. Another host stays attached over the kill and the upgrade, and writes: no write of it fails.
export DEBIAN_FRONTEND=noninteractive
pool=/var/lib/onefold
log() { echo "[$(cut -d' ' -f1 /proc/uptime)] $*"; }
die() { log "FAILED: $*"; journalctl -u onefold --no-pager 2>/dev/null | tail -n 30; exit 1; }
# typed COMMAND...: runs it as a shell that stops at the first mistake; what it says is in the log, and in /tmp/typed
typed() { (cd /root && "$@") >/tmp/typed 2>&1; local code=$?; cat /tmp/typed; return $code; }
shell=(bash -e -o pipefail -x)
# block CHAPTER.NUMBER [COMMAND...]: what a block of the guide tells its reader to type
block() {
  local file=/lab/guide.$1.sh name=$1; shift
  log "the guide: $name"; mv "$file" "$file.typed" || die "the guide has no block '$name'"
  typed "$@" "${shell[@]}" "$file.typed" || die "the guide's block '$name'"
}
# chapter NAME: all that a chapter tells to type on the node
chapter() { local n=0; while [ -e "/lab/guide.$1.$((n+1)).sh" ]; do n=$((n+1)); block "$1.$n"; done; [ $n -gt 0 ] || die "no commands in '$1'"; }
# begun CHAPTER.NUMBER [COMMAND...]: begins to type what goes on until Ctrl-C
begun() {
  local file=/lab/guide.$1.sh name=$1; shift
  log "the guide: $name"; [ -e "$file" ] && mv "$file" "$file.typed"; [ -e "$file.typed" ] || die "the guide has no block '$name'"
  : >/tmp/typed
  (cd /root && exec setsid env --default-signal=INT "$@" "${shell[@]}" "$file.typed") <&0 >/tmp/typed 2>&1 &
  begun=$!
}
# ctrl_c WORDS: waits until they were printed, and ends what was begun
ctrl_c() { eventually 60 grep -q "$1" /tmp/typed; kill -INT -- -$begun; wait $begun; local code=$?; tail -n 20 /tmp/typed; [ $code = 0 ] || [ $code = 130 ] || die "exit code $code after Ctrl-C"; }
said() { grep -q -e "$1" /tmp/typed || die "it does not say '$1'"; }
is_served() { systemctl is-active --quiet onefold && onefold status --json >/tmp/status.json; }
main_pid() { systemctl show -P MainPID onefold; }
# eventually SECONDS COMMAND...
eventually() {
  local n=0 limit=$1; shift
  until "$@"; do sleep 0.2; n=$((n+1)); [ $n -lt $((5*limit)) ] || die "in vain: $*"; done
}
perf() { onefold perf tcp://127.0.0.1:4420/nqn.2026-11.dev.onefold:default --bs 4k --qd 32 --size 32M --range 32M --seed 7 --verify "$@"; }
holds() { log "$1: its data are proven"; perf --rw read || die "$1: not what was written"; }
# The packages, where the guide's reader has them.
mkdir -p /root/new; cp /lab/onefold_*.deb /root/; mv /root/onefold_*+next_*.deb /root/new/

chapter install
is_served || die "not served after the installation"
systemctl is-enabled --quiet onefold || die "not enabled"
[ "$(jq -r '.volumes | map(.name) | join(" ")' /tmp/status.json)" = vol0 ] || die "not one volume"
room=$(df --output=avail -B1 $pool | tail -n 1); size=$(jq '.volumes[0].size_bytes' /tmp/status.json)
[ "$size" -gt $((room / 2)) ] && [ "$size" -lt "$room" ] || die "a volume of $size bytes where $room are free"
[ ! -e $pool/first-start ] || die "the first start is not over"
[ "$(stat -c %U:%a $pool/pool.toml)" = onefold:600 ] || die "the pool's key: $(ls -l $pool)"
[ "$(ps -o user= -p "$(main_pid)")" = onefold ] || die "not the user onefold"
grep -q '^CapEff:.0*$' "/proc/$(main_pid)/status" || die "capabilities: $(grep Cap "/proc/$(main_pid)/status")"
answers() {
  exec 3<>/dev/tcp/127.0.0.1/8420 || return 1
  printf 'GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
  head -n 1 <&3 | grep -q ' 200 '
}
answers || die "no answer by HTTP"
# The API's own socket: for members of the group, and for nobody else.
ask_api() {
  "$@" perl -MIO::Socket::UNIX -e '
    my $api = IO::Socket::UNIX->new(Peer => "/run/onefold/api.sock") or die "cannot connect: $!\n";
    print $api "GET /v1/volumes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    local $/; print <$api>'
}
ask_api runuser -u nobody -g onefold -- | grep -q '"vol0"' || die "a member of the group cannot use the API's socket"
ask_api runuser -u nobody -g nogroup -- 2>&1 | grep -q 'Permission denied' || die "anybody can use the API's socket"
log "the host writes"
perf --rw write || die "the host's data"

# A file with a mistake is refused by its line, and the daemon goes on as it was.
cp -p /etc/onefold/onefold.toml /root/right.toml
echo 'nonsense = 1' >>/etc/onefold/onefold.toml
pid=$(main_pid)
systemctl reload onefold && die "a mistake was taken"
journalctl -u onefold --no-pager | grep -q nonsense || die "the refusal does not name the mistake"
sed 's/^filter = .*/filter = "debug"/' /root/right.toml >/etc/onefold/onefold.toml
systemctl reload onefold || die "the reload"
cp -p /root/right.toml /etc/onefold/onefold.toml
[ "$(main_pid)" = "$pid" ] || die "a reload is no restart"

/lab/attached-host tcp://127.0.0.1:4420 /tmp/enough >/tmp/host 2>&1 &
host=$!
eventually 30 grep -q attached /tmp/host

# What the guide tells of a node in use.
printf '#!/bin/sh\nsed -i "s/^filter = .*/filter = \\"info,api=debug\\"/" "$1"\n' >/usr/local/bin/editor
chmod 755 /usr/local/bin/editor
block configuration.1
said "changed log.filter"
cp -p /root/right.toml /etc/onefold/onefold.toml
systemctl reload onefold || die "the second reload"
block api.1
said '"vol0"'
mkdir -p /var/lib/libvirt/images
head -c 8388608 /dev/urandom >/var/lib/libvirt/images/first.img
cp /var/lib/libvirt/images/first.img /var/lib/libvirt/images/second.img
block sizing.1
said " 50.0 %"
begun watching.1
followed() { onefold token create seen --role read && onefold token remove seen && grep -q token /tmp/typed; }
eventually 60 followed >/tmp/tokens 2>&1
ctrl_c token
name=$(onefold status --json | jq -r '.hosts[0].hostnqn')
sed -i "s/nqn[^ ]*000001/$name/" /lab/guide.watching.2.sh
cp /lab/guide.watching.2.sh /tmp/lines
mapfile -t lines </tmp/lines
[ ${#lines[@]} = 3 ] || die "the guide's block watching.2 has other lines: ${lines[*]}"
echo "${lines[0]}" >/lab/guide.watching.2.sh; block watching.2
echo "${lines[1]}" >/lab/guide.watching.2.sh; begun watching.2; ctrl_c write
# No write takes so long: it only has to begin.
echo "${lines[2]/5000/1}" >/lab/guide.watching.2.sh; begun watching.2; ctrl_c write

# Another machine, which reaches the node by ssh: a network namespace, with a pool of its own.
ip netns add other && ip link add name node type veth peer name other netns other || die "no network"
ip address add 192.0.2.1/24 dev node && ip link set node up
ip -n other address add 192.0.2.2/24 dev other && ip -n other link set other up && ip -n other link set lo up
echo "192.0.2.1 node1" >>/etc/hosts
mkdir -p -m 700 /root/.ssh && ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519 || die "no key"
cp /root/.ssh/id_ed25519.pub /root/.ssh/authorized_keys
printf 'Host *\nStrictHostKeyChecking accept-new\n' >/root/.ssh/config
systemctl start ssh || die "no ssh"
remote=(ip netns exec other env ONEFOLD_POOL=/root/second)
"${remote[@]}" onefold serve --pool /root/second --create 1G >/tmp/second 2>&1 &
second=$!
eventually 60 grep -q '^ready' /tmp/second
head -c 4194304 /dev/urandom >/root/db.raw
onefold volume import db /root/db.raw || die "an import"
block backup.remote.1 "${remote[@]}"
"${remote[@]}" onefold volume export db@tuesday /root/db.copy || die "an export of what was received"
cmp /root/db.raw /root/db.copy || die "what was received differs"
kill -TERM $second; wait $second || die "the second pool: $(tail -n 5 /tmp/second)"
for name in db@tuesday db@monday; do onefold snapshot delete $name --yes || die "$name"; done
onefold volume delete db --yes || die db
mkfifo /tmp/keyboard
exec 9<>/tmp/keyboard
begun dashboard.remote.1 "${remote[@]}" <&9
page() { "${remote[@]}" curl -sf -o /tmp/page http://127.0.0.1:8420/; }
eventually 60 page
grep -qi '<title>.*onefold' /tmp/page || die "no page: $(head -c 300 /tmp/page)"
kill -INT -- -$begun
wait $begun
exec 9>&-
systemctl stop ssh

# It is killed, and comes again by itself.
kill -9 "$pid"
restarted() { is_served && [ "$(main_pid)" != "$pid" ]; }
eventually 60 restarted
holds "killed and started again"
ask_api | grep -q '"vol0"' || die "the API's socket is gone after a kill"
twice_attached() { [ "$(grep -c attached /tmp/host)" -ge "$1" ]; }
eventually 60 twice_attached 2

pid=$(main_pid)
chapter upgrade
restarted || die "the upgrade did not restart the service"
[ "$(dpkg-query -W -f '${Version}' onefold)" = "$(dpkg-deb -f /root/new/onefold_*.deb Version)" ] || die "no new version"
holds "upgraded"
eventually 60 twice_attached 3
touch /tmp/enough
wait $host || die "the attached host: $(cat /tmp/host)"
log "the host that stayed attached over the kill and the upgrade: $(tail -n 1 /tmp/host)"
longest=$(sed -n 's/.*the longest \([0-9]*\) ms/\1/p' /tmp/host)
[ "$longest" -lt 30000 ] || die "a write took $longest ms"

# Restored from a backup, repaired: the same pool, and nothing that was written before is lost.
chapter backup
eventually 60 is_served
holds "restored"
rm -r /var/lib/onefold.lost

# What a container of the package runs, on an empty volume: it makes a pool, serves, and ends cleanly when told to stop.
systemctl stop onefold
mv $pool $pool.node
install -d -o onefold -g onefold -m 750 $pool
words=$(sed -n 's/^ENTRYPOINT //p; s/^CMD //p' /lab/Containerfile | jq -rs 'add | join(" ")')
log "the container's command: $words"
runuser -u onefold -- $words >/tmp/container 2>&1 &
container=$!
eventually 60 grep -q '^ready' /tmp/container
perf --rw write || die "the container's volume"
pkill -TERM -u onefold -x onefold
wait $container || die "the container's end: $(tail -n 5 /tmp/container)"
rm -r $pool && mv $pool.node $pool
systemctl start onefold
eventually 60 is_served
holds "served again by the service"

# A pool on a drive of its own. It has the serial number that the guide's rule names.
mapfile -t drives </lab/drives
for drive in "${drives[@]}"; do
  mknod "$drive" b $(tr : ' ' </sys/class/block/${drive##*/}/dev) || die "no drive"
done
# A container gets to read it alone: the file system, and this place of it.
for how in remount,rw remount,bind,rw; do mount -o $how /sys/devices || die "/sys/devices"; done
mkdir -p /etc/udev/rules.d
for drive in "${drives[@]}"; do
  echo "KERNEL==\"${drive##*/}\", ENV{ID_SERIAL_SHORT}=\"S4EWNX0R000001\""
done >/etc/udev/rules.d/10-lab.rules
/lib/systemd/systemd-udevd --daemon || die "no udev"
block drives.1
are_given() { [ "$(stat -c %U "${drives[@]}" | sort -u)" = onefold ]; }
eventually 30 are_given
for n in 1 2 3 4; do ln -s "${drives[n-1]}" /dev/nvme${n}n1; done
begun drives.2
ctrl_c '^ready'
said 'stopped cleanly'
sed -i 's|^#* *dir = .*|dir = "/srv/onefold"|' /etc/onefold/onefold.toml
block drives.3
eventually 60 is_served
[ "$(jq -r '.drives[0].name' /tmp/status.json)" = /dev/nvme1n1 ] || die "another drive: $(jq -c .drives /tmp/status.json)"
perf --rw write || die "the pool on the drive"
systemctl restart onefold
eventually 60 is_served
holds "the pool on the drive, served again"
systemctl stop onefold

# A pool with copies: a drive goes offline, comes back, and another one takes its place.
dd if=/dev/zero of="${drives[0]}" bs=1M count=64 conv=notrunc status=none || die "the drive's old pool"
begun drives.4
eventually 60 grep -q '^ready' /tmp/typed
export ONEFOLD_POOL=/srv/mirrored
perf --rw write || die "the pool with copies"
state() { onefold drive list --json | jq -r "map(.state) | join(\" \")"; }
are() { [ "$(state)" = "$*" ]; }
onefold drive offline /dev/nvme2n1 || die "a drive goes offline"
are online offline || die "the drives are $(state)"
server=$begun
block drives.5
said offline
eventually 60 are online online
block drives.6
said spare
are online online spare || die "the spare takes the place of no drive that works: $(state)"
onefold drive offline /dev/nvme1n1 || die "the other drive goes offline"
holds "the drive that replaced another"
unset ONEFOLD_POOL
kill -INT -- -$server; wait $server
cp -p /root/right.toml /etc/onefold/onefold.toml
rm -r /etc/systemd/system/onefold.service.d && systemctl daemon-reload && systemctl start onefold || die "the first pool"
eventually 60 is_served
holds "the first pool again"
pkill -f systemd-udevd

# Removed: the pool stays, and is served again by the next installation.
uuid=$(jq -r .pool.uuid /tmp/status.json)
# A stopped service is not started by who asks.
systemctl stop onefold
ask_api 2>&1 | grep -q 'cannot connect' || die "the API's socket outlives a stopped service"
! systemctl is-active --quiet onefold || die "a request started a stopped service"
systemctl start onefold || die "the start"
log "removed"
apt-get remove -y -q onefold >/dev/null || die remove
[ ! -e /usr/bin/onefold ] && [ -e $pool/pool.toml ] && [ -e /etc/onefold/onefold.toml ] || die "removed too much or too little"
! systemctl is-active --quiet onefold || die "still active"
apt-get install -y -q /root/new/onefold_*.deb >/dev/null || die "the second installation"
eventually 60 is_served
[ "$(jq -r .pool.uuid /tmp/status.json)" = "$uuid" ] || die "another pool"
holds "installed again"
# Purged: the pool stays unless its owner said otherwise.
log "purged"
apt-get purge -y -q onefold >/tmp/purge 2>&1 || die purge
[ -e $pool/pool.toml ] && [ ! -e /etc/onefold/onefold.toml ] || die "purged too much or too little"
grep -q "$pool stays" /tmp/purge || die "the purge does not say what stays: $(cat /tmp/purge)"
apt-get install -y -q /root/new/onefold_*.deb >/dev/null || die "the third installation"
eventually 60 is_served
chapter remove
[ ! -e $pool ] || die "left: $(ls -R $pool)"
[ -z "$(ls /lab/guide.*.sh 2>/dev/null)" ] || die "not typed: $(ls /lab/guide.*.sh)"
log "the package came, served and went"
