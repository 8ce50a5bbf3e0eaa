# Onefold on soft RoCE, behind a network that is bad in stages. arguments: ADDRESS
. /lib/lab.sh
pool=/run/pool; onefold_here
onefold serve --pool $pool --create 256M --volume vol0=1G --buffers 64M --listen "rdma+soft://$1:4420" >/lab/ready.txt 2>/lab/daemon.log &
daemon=$!
n=0; until grep -qs ready /lab/ready.txt; do sleep 0.1; n=$((n+1)); kill -0 $daemon && [ $n -lt 600 ] || { cat /lab/daemon.log; die "onefold serve"; }; done
log "the target is up"; signal up
for end in own kernel; do
  stages "$end-"
  await "$end-over" 300; tc qdisc del dev eth0 root; signal "$end-quiet"
done
await done 300
onefold status --pool $pool || die status
kill -TERM $daemon; wait $daemon || { cat /lab/daemon.log; die "onefold did not stop cleanly"; }
cat /lab/daemon.log
onefold pool check $pool || die "the pool is inconsistent"
complaints && die "the kernel complained"
exit 0
