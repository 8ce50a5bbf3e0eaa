# A machine with an RDMA device of the kernel (rxe) and two targets on it: Onefold with two reactors on port 4420, and the kernel's own
# nvmet-rdma on port 4421. arguments: ADDRESS NQN-OF-THE-KERNELS-SUBSYSTEM
. /lib/lab.sh
rxe_up; modprobe -a nvmet nvmet-rdma; modprobe null_blk nr_devices=0
disk=/sys/kernel/config/nullb/nullb0; mkdir $disk
for setting in size=256 blocksize=4096 memory_backed=1 discard=1 power=1; do echo "${setting#*=}" >"$disk/${setting%=*}"; done
nvmet=/sys/kernel/config/nvmet; subsystem=$nvmet/subsystems/$2; port=$nvmet/ports/1
mkdir "$subsystem" "$subsystem/namespaces/1" $port; echo 1 >"$subsystem/attr_allow_any_host"
printf /dev/nullb0 >"$subsystem/namespaces/1/device_path"; echo 1 >"$subsystem/namespaces/1/enable" || die enable
echo rdma >$port/addr_trtype; echo ipv4 >$port/addr_adrfam; echo "$1" >$port/addr_traddr; echo 4421 >$port/addr_trsvcid
ln -s "$subsystem" "$port/subsystems/$2" || die "the kernel's port"

pool=/run/pool; onefold_here
onefold serve --pool $pool --create 256M --volume vol0=1G --buffers 64M --reactors 2 --listen "rdma+verbs://$1:4420" >/lab/ready.txt 2>/lab/daemon.log &
daemon=$!
n=0; until grep -qs ready /lab/ready.txt; do sleep 0.1; n=$((n+1)); kill -0 $daemon && [ $n -lt 600 ] || { cat /lab/daemon.log; die "onefold serve"; }; done
log "both targets are up"; signal up
stages ""
await done 300
tc qdisc del dev eth0 root; both_served 100
kill -TERM $daemon; wait $daemon || { cat /lab/daemon.log; die "onefold did not stop cleanly"; }
cat /lab/daemon.log
grep -q "RDMA device opened" /lab/daemon.log || die "onefold did not use the RDMA device"
grep "RDMA device opened" /lab/daemon.log | grep -q "shares=true" || die "hosts do not share a receive queue"
onefold pool check $pool || die "the pool is inconsistent"
rxe_stat
complaints && die "the kernel complained"
exit 0
