# A host that is attached to two nodes of one pool, with Linux's default times, and verifies what it wrote while nodes fail.
# arguments: ADDRESS ADDRESS (one listener each), and what writes: fio | postgres
. /lib/lab.sh
tcp_up
first=$1 second=$2 load=$3
# Hosts need to know one node: its discovery log has the listeners of both.
reach "$first"; reach "$second"
# That node hears of the other one within seconds.
n=0
until discover "$first" >/tmp/discovery && grep -q "traddr: *$second\$" /tmp/discovery; do
  n=$((n+1)); [ $n -lt 30 ] || { cat /tmp/discovery; die "the discovery log lacks $second"; }
  sleep 1
done
nvme connect-all -t tcp -a "$first" -s 4420 -i 2 || die connect-all
disk=$(device) || die "no namespace"
state() { # ADDRESS: the state of its path; none while there is no such path
  local path
  for path in /sys/class/nvme/nvme*; do
    grep -q "traddr=$1,\|traddr=$1\$" "$path/address" || continue
    [ "$(cat "$path/state")" = live ] && cat "$path"/nvme*c*n*/ana_state 2>/dev/null && return
  done
  echo none
}
await_states() { # WANTED
  local n=0
  until [ "$(state "$first") $(state "$second")" = "$1" ]; do
    n=$((n+1)); [ $n -lt 900 ] || die "paths are '$(state "$first") $(state "$second")' instead of '$1'"
    sleep 0.1
  done
  log "paths: $1"
}
await_states "optimized inaccessible"
nvme list-subsys

# --- fio: each round writes, and verifies what it wrote. No command may fail.
fio_begin() { :; }
fio_round() { # NUMBER: prints how long the longest command took, in milliseconds
  fio_line round --filename="$disk" --offset=$(($1 % 16 * 4))m --size=4m --rw=randrw --rwmixread=30 --bs=4k --iodepth=8 \
    --ioengine=libaio --direct=1 --randseed="$1" --verify=crc32c --verify_fatal=1 --do_verify=1 >/tmp/said || return 1
  jq '.jobs | map(.write.clat_ns.max, .read.clat_ns.max) | max / 1e6 | round' /lab/round.json
}
fio_end() { log "$(now) rounds of fio were right"; }

# --- PostgreSQL with its own checksums on ext4: rounds of pgbench's transactions. No one may fail, and none may be lost.
programs=/usr/lib/postgresql/15/bin
as_postgres() { setpriv --reuid=70 --regid=70 --clear-groups env LD_LIBRARY_PATH=/tools/postgres/lib HOME=/tmp "$@"; }
postgres_up() {
  as_postgres $programs/pg_ctl -D /mnt/data -l /run/postgres/log -w -t 300 start >/tmp/said \
    -o "-k /run/postgres -c listen_addresses= -c shared_buffers=16MB -c max_wal_size=64MB -c checkpoint_timeout=30s" \
    || { cat /tmp/said /run/postgres/log; return 1; }
}
postgres_begin() {
  modprobe ext4 || return 1
  mkfs.ext4 -q "$disk" || return 1
  mount "$disk" /mnt || return 1
  mkdir -p /usr/share /run/postgres /mnt/data
  ln -s /tools/postgres/program /usr/lib/postgresql
  ln -s /tools/postgres/share/* /usr/share/
  echo 'postgres:x:70:70::/tmp:/bin/sh' >>/etc/passwd
  chown 70:70 /run/postgres /mnt/data
  as_postgres $programs/initdb -D /mnt/data -U postgres --data-checksums --no-locale -E UTF8 >/tmp/said || { cat /tmp/said; return 1; }
  postgres_up || return 1
  as_postgres $programs/pgbench -h /run/postgres -U postgres -i -s 1 -q postgres >/tmp/said 2>&1 || { cat /tmp/said; return 1; }
  log "PostgreSQL runs"
}
postgres_round() {
  local done longest
  (cd /tmp && as_postgres $programs/pgbench -h /run/postgres -U postgres -n -c 4 -t 25 --log --log-prefix=/run/postgres/transactions postgres) \
    >/tmp/said 2>&1 || return 1
  done=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' /tmp/said)
  echo $(($(cat /tmp/acknowledged 2>/dev/null || echo 0) + done)) >/tmp/acknowledged
  longest=$(cat /run/postgres/transactions.* | awk '$3 > longest { longest = $3 } END { print int(longest / 1000) }')
  rm -f /run/postgres/transactions.*
  echo "$longest"
}
# What pgbench keeps beside each other: the changes that were made, and the sums of them in three tables.
ledger() {
  as_postgres $programs/psql -h /run/postgres -U postgres -At postgres -c "select count(*), sum(delta) = (select sum(abalance) from
    pgbench_accounts), sum(delta) = (select sum(tbalance) from pgbench_tellers), sum(delta) = (select sum(bbalance) from
    pgbench_branches) from pgbench_history"
}
postgres_end() {
  local acknowledged found
  acknowledged=$(cat /tmp/acknowledged)
  found=$(ledger); [ "$found" = "$acknowledged|t|t|t" ] || die "the tables are '$found' after $acknowledged transactions"
  # As after a crash: what is on the drive is all that is left.
  as_postgres $programs/pg_ctl -D /mnt/data -w -t 300 -m immediate stop >/dev/null || die "pg_ctl stop"
  umount /mnt || die umount; mount "$disk" /mnt || die mount
  postgres_up || die "PostgreSQL does not come back"
  found=$(ledger); [ "$found" = "$acknowledged|t|t|t" ] || die "after a crash the tables are '$found' of $acknowledged transactions"
  as_postgres $programs/pg_ctl -D /mnt/data -w -t 300 -m fast stop >/dev/null || die "pg_ctl stop"
  as_postgres $programs/pg_checksums -D /mnt/data --check || die "PostgreSQL's checksums"
  umount /mnt || die umount
  e2fsck -f -n "$disk" || die "the file system"
  log "$acknowledged transactions of PostgreSQL are there"
}

"${load}_begin" || die "$load does not start"
(
  round=0
  while [ ! -e /lab/sync.stop ]; do
    round=$((round+1))
    "${load}_round" $round >/tmp/longest.new || { cat /tmp/said; exit 1; }
    mv /tmp/longest.new "/tmp/longest.$round"
    echo "$round" >/tmp/round
  done
) &
rounds=$!
now() { cat /tmp/round 2>/dev/null || echo 0; }
await_rounds() { # NUMBER: waits for so many more that began after now
  local until=$(($(now) + $1 + 1)) n=0
  while [ "$(now)" -lt $until ]; do
    kill -0 $rounds 2>/dev/null || { cat /tmp/said; die "$load ended"; }
    n=$((n+1)); [ $n -lt 1800 ] || die "$load makes no progress"
    sleep 0.1
  done
}
await_rounds 1
turn=0
while [ ! -e /lab/sync.last ]; do
  turn=$((turn+1))
  before=$(now)
  signal "ready$turn"
  # One node fails, and comes back when the machine says so: then it is the other one's standby.
  await "failed$turn" 300
  await_rounds 2
  pause=0
  for round in $(seq $((before+1)) "$(now)"); do
    took=$(cat "/tmp/longest.$round" 2>/dev/null || echo 0)
    [ "$took" -le "$pause" ] || pause=$took
  done
  echo "PAUSE $pause"
  signal "on$turn"
  case $((turn % 2)) in
    1) await_states "inaccessible optimized" ;;
    0) await_states "optimized inaccessible" ;;
  esac
  signal "settled$turn"
  await "next$turn" 300
done
signal stop
wait $rounds || die "$load failed"
"${load}_end"
complaints && die "the kernel complained"
nvme disconnect -n "$NQN" || die disconnect
exit 0
