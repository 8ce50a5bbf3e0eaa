# The package on a clean Debian with systemd: installed, served, attached, reloaded, killed, upgraded while a host
# writes, removed, installed again, purged. The commands are the guide's (docs/src), for node and host in one machine.
. /lib/lab.sh
export DEBIAN_FRONTEND=noninteractive
pool=/var/lib/onefold
# chapter NAME: what that chapter of the guide tells its reader to type
chapter() { log "the guide: $1"; (cd /root && bash -e -o pipefail -x "/lab/guide.$1.sh") 2>&1 || die "the guide's chapter '$1'"; }
is_served() { systemctl is-active --quiet onefold && onefold status --json >/lab/status.json; }
main_pid() { systemctl show -P MainPID onefold; }
# eventually SECONDS COMMAND...
eventually() {
  local n=0 limit=$1; shift
  until "$@"; do sleep 0.2; n=$((n+1)); [ $n -lt $((5*limit)) ] || die "in vain: $*"; done
}
# The address of the guide's node, and its packages where its reader has them.
ip addr add 192.0.2.1/32 dev lo
mkdir -p /root/new; cp /lab/onefold_*.deb /root/; mv /root/onefold_*+next_*.deb /root/new/

chapter install
is_served || { journalctl -u onefold --no-pager | tail -n 30; die "not served after the installation"; }
systemctl is-enabled --quiet onefold || die "not enabled"
[ "$(jq -r '.volumes | map(.name) | join(" ")' /lab/status.json)" = vol0 ] || die "not one volume"
room=$(df --output=avail -B1 $pool | tail -n 1); size=$(jq '.volumes[0].size_bytes' /lab/status.json)
[ "$size" -gt $((room / 2)) ] && [ "$size" -lt "$room" ] || die "a volume of $size bytes where $room are free"
[ ! -e $pool/first-start ] || die "the first start is not over"
[ "$(stat -c %U:%a $pool/pool.toml)" = onefold:600 ] || die "the pool's key: $(ls -l $pool)"
[ "$(ps -o user= -p "$(main_pid)")" = onefold ] || die "not the user onefold"
answers() {
  exec 3<>/dev/tcp/127.0.0.1/8420 || return 1
  printf 'GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
  head -n 1 <&3 | grep -q ' 200 '
}
answers || die "no answer by HTTP"
grep -q '^CapEff:.0*$' "/proc/$(main_pid)/status" || die "capabilities: $(grep Cap "/proc/$(main_pid)/status")"

chapter first-attach
disk=$(device) || die "no device"
mount "$disk" /mnt || die mount
sha256sum /usr/bin/onefold >/tmp/sum; cp /usr/bin/onefold /mnt/file; sync -f /mnt
holds() { echo 3 >/proc/sys/vm/drop_caches; [ "$(sha256sum </mnt/file)" = "$(sed 's| .*|  -|' /tmp/sum)" ] || die "not what was written"; }
holds

# A file with a mistake is refused by its line, and the daemon goes on as it was.
cp -p /etc/onefold/onefold.toml /root/right.toml
echo 'nonsense = 1' >>/etc/onefold/onefold.toml
pid=$(main_pid)
systemctl reload onefold && die "a mistake was taken"
sed 's/^filter = .*/filter = "debug"/' /root/right.toml >/etc/onefold/onefold.toml
systemctl reload onefold || die "the reload: $(journalctl -u onefold --no-pager | tail)"
cp -p /root/right.toml /etc/onefold/onefold.toml
[ "$(main_pid)" = "$pid" ] || die "a reload is no restart"

# It is killed, and comes again by itself; the host's file system notices nothing but time.
kill -9 "$pid"
restarted() { is_served && [ "$(main_pid)" != "$pid" ]; }
eventually 60 restarted
holds

# A host writes on while the package is upgraded.
writer() {
  local last=$EPOCHREALTIME now longest=0 gap
  while [ ! -e /tmp/enough ]; do
    echo "$last" >>/mnt/log && sync /mnt/log || { echo failed >/tmp/written; return; }
    now=$EPOCHREALTIME; gap=$(( (${now/./} - ${last/./}) / 1000 )); last=$now
    [ $gap -le $longest ] || longest=$gap
  done
  echo "$longest" >/tmp/written
}
writer & pid=$(main_pid)
chapter upgrade
restarted || die "the upgrade did not restart the service"
[ "$(dpkg-query -W -f '${Version}' onefold)" != "$(dpkg-deb -f /root/onefold_*.deb Version)" ] || die "no new version"
lines=$(wc -l </mnt/log)
more() { [ "$(wc -l </mnt/log)" -gt "$lines" ]; }
eventually 60 more
touch /tmp/enough; wait
[ "$(cat /tmp/written)" != failed ] || die "a write failed during the upgrade"
log "THE UPGRADE was a pause of $(cat /tmp/written) ms for a host that writes"
holds
umount /mnt; nvme disconnect -n "$NQN" >/dev/null

# Removed: the pool stays, and is served again by the next installation.
uuid=$(jq -r .pool.uuid /lab/status.json)
apt-get remove -y -q onefold >/dev/null || die remove
[ ! -e /usr/bin/onefold ] && [ -e $pool/pool.toml ] && [ -e /etc/onefold/onefold.toml ] || die "removed too much or too little"
! systemctl is-active --quiet onefold || die "still active"
apt-get install -y -q /root/new/onefold_*.deb >/dev/null || die "the second installation"
eventually 60 is_served
[ "$(jq -r .pool.uuid /lab/status.json)" = "$uuid" ] || die "another pool"
# Purged: the pool stays unless its owner said otherwise.
apt-get purge -y -q onefold >/dev/null 2>/tmp/purge || die purge
[ -e $pool/pool.toml ] && [ ! -e /etc/onefold/onefold.toml ] || die "purged too much or too little"
grep -q "$pool stays" /tmp/purge || die "the purge does not say what stays: $(cat /tmp/purge)"
apt-get install -y -q /root/new/onefold_*.deb >/dev/null || die "the third installation"
eventually 60 is_served
chapter remove
[ ! -e $pool ] || die "left: $(ls -R $pool)"
log "the package came, served and went"
