# A target with two reactors on an RDMA device of the kernel (rxe), and so few receives for the messages of all hosts that
# they run out. Both reactors must serve, and none of what was sent too early may be lost. The hosts are Onefold's own soft
# RoCE: the kernel's rxe, as a sender, does registrations and bindings again when it repeats itself, and fails at that
# ("not free"). arguments: ADDRESS IPV6-ADDRESS
. /lib/lab.sh
rxe_up; pool=/run/pool; onefold_here
onefold serve --pool $pool --create 256M --volume vol0=1G --volume vol1=1G --buffers 64M --reactors 2 --rdma-shared-receives 4 \
  --listen "rdma+verbs://$1:4420" --listen "rdma+verbs://[$2]:4420" >/lab/ready.txt 2>/lab/daemon.log &
daemon=$!
n=0; until grep -qs ready /lab/ready.txt; do sleep 0.1; n=$((n+1)); kill -0 $daemon && [ $n -lt 600 ] || { cat /lab/daemon.log; die "onefold serve"; }; done
[ "$(grep "RDMA device opened" /lab/daemon.log | grep -c "shares=true")" = 2 ] || { cat /lab/daemon.log; die "not every reactor has a shared receive queue"; }
signal up; await loaded 900
both_served 100; rxe_stat
[ "$(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/send_rnr_err)" -gt 0 ] || die "the receives never ran out"
kill -TERM $daemon; wait $daemon || { cat /lab/daemon.log; die "onefold did not stop cleanly"; }
cat /lab/daemon.log
onefold pool check $pool || die "the pool is inconsistent"
complaints && die "the kernel complained"
exit 0
