# The RDMA device of a listener is removed under load and comes back: connections end, the daemon lives, and hosts can
# connect again, on both reactors. A second device stays: while there is none at all, librdmacm keeps the removed one open, and the
# kernel's rxe cannot go before that. arguments: ADDRESS
. /lib/lab.sh
onefold_here; rxe_up; rdma link add rxe1 type rxe netdev lo || die "second device"
pool=/run/pool; address=rdma+verbs://$1:4420
onefold serve --pool $pool --create 256M --volume vol0=1G --buffers 64M --reactors 2 --listen $address >/lab/ready.txt 2>/lab/daemon.log &
daemon=$!
n=0; until grep -qs ready /lab/ready.txt; do sleep 0.1; n=$((n+1)); kill -0 $daemon && [ $n -lt 600 ] || { cat /lab/daemon.log; die "onefold serve"; }; done
signal up
load() { onefold perf $address/$NQN --verify --range 8M --seed 1 --rw randrw --bs 16k --qd 8 --queues 3 "$@"; }
load --time 300 >/lab/perf.txt 2>&1 &
perf=$!
n=0; until grep -q "host connected" /lab/daemon.log; do sleep 0.1; n=$((n+1)); [ $n -lt 600 ] || die "the host did not connect"; done
# Its data come when it has all of its queues: what fails before that is a connection that nobody answers.
n=0; until onefold status --pool $pool | grep -q "^logical .* [1-9][0-9]* bytes"; do sleep 0.1; n=$((n+1)); [ $n -lt 600 ] || die "the load did not begin"; done
rdma link delete rxe0 || die "the device was not removed"
log "the device is gone"
wait $perf && die "the load went on without a device"
grep -q "it was removed\|RDMA device failed.*No such device" /lab/perf.txt || { cat /lab/perf.txt; die "the host was not told why"; }
kill -0 $daemon || { cat /lab/daemon.log; die "the daemon went with its device"; }
rdma link add rxe0 type rxe netdev eth0 || die "the device again"
n=0; until grep -q "an RDMA device is back" /lab/daemon.log; do sleep 0.1; n=$((n+1)); [ $n -lt 600 ] || die "nobody listens"; done
load --size 1M || die "the load after the device came back"
[ "$(grep -c "RDMA device opened" /lab/daemon.log)" = 4 ] || { cat /lab/daemon.log; die "not every reactor has the device again"; }
kill -TERM $daemon; wait $daemon || { cat /lab/daemon.log; die "onefold did not stop cleanly"; }
cat /lab/daemon.log
onefold pool check $pool || die "the pool is inconsistent"
complaints && die "the kernel complained"
exit 0
