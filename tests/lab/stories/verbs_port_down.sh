# The port of an RDMA device of the kernel (rxe) goes down under load and comes up again: the daemon says both, lives, and
# serves hosts as before. rxe itself needs to be made anew for that: a message of the connection manager that finds no way
# while the port is down ends its queue pair 1 for good. The daemon is then started again with a limit on locked memory that
# has room for the buffers of one reactor alone: that one serves. A second device stays, as in verbs_removal. arguments: ADDRESS
. /lib/lab.sh
rxe_up; rdma link add rxe1 type rxe netdev lo || die "second device"; pool=/run/pool; onefold_here
serve() { # NAME [PROGRAM ARGUMENTS]: starts the daemon by this program, with a log of that name
  local name=$1 n=0; shift; : >/lab/ready.txt
  "$@" onefold serve --pool $pool --create 256M --volume vol0=1G --buffers 64M --reactors 2 --listen "rdma+verbs://$address:4420" >/lab/ready.txt 2>/lab/$name.log &
  daemon=$!
  until grep -qs ready /lab/ready.txt; do sleep 0.1; n=$((n+1)); kill -0 $daemon && [ $n -lt 600 ] || { cat /lab/$name.log; die "onefold serve, $name"; }; done
}
said() { # NAME TEXT: waits until the daemon has said this
  local n=0
  until grep -q "$2" /lab/$1.log; do sleep 0.1; n=$((n+1)); [ $n -lt 300 ] || { cat /lab/$1.log; die "the daemon never said '$2'"; }; done
}
stop() { kill -TERM $daemon; wait $daemon || { cat /lab/$1.log; die "onefold did not stop cleanly"; }; cat /lab/$1.log; }
address=$1
onefold serve --pool /run/other --drive memory=128M --listen "rdma+soft://$address:4420" 2>/lab/owned.log && die "two programs have the RoCE port"
grep -q "most likely the kernel's rdma_rxe; remove it" /lab/owned.log || { cat /lab/owned.log; die "nobody is told who has the RoCE port"; }
serve port; signal up; await loading 900
n=0; until onefold status --pool $pool --json | jq -e '[.reactors[].commands] | add > 100' >/dev/null; do n=$((n+1)); [ $n -lt 300 ] || die "the host does nothing"; done
ip link set eth0 down || die "the link did not go down"
said port "a port of the RDMA device went down"
kill -0 $daemon || { cat /lab/port.log; die "the daemon went with its port"; }
signal down; await seen-down 300
ip link set eth0 up; said port "a port of the RDMA device came up"
dmesg | grep -i rxe0 | tail -n 3
rdma link delete rxe0 && rdma link add rxe0 type rxe netdev eth0 || die "the device was not made anew"
said port "an RDMA device is back"
signal again; await served 900
onefold status --pool $pool || die status
stop port

# What both reactors keep registered with their rings, and the receives and buffers of one of them with the device.
ulimit -l $((120<<10))
serve memory setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock
said memory "served by fewer data-plane threads"
grep -q "LimitMEMLOCK=infinity" /lab/memory.log || die "the remedy is not told"
signal little-memory; await little-served 900
onefold status --pool $pool --json | jq -eM '[.reactors[].commands] | (min == 0) and (max > 100)' || die "not one reactor alone served"
stop memory
onefold pool check $pool || die "the pool is inconsistent"
complaints && die "the kernel complained"
exit 0
