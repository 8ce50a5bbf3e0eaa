# The Linux kernel's own target on a RAM disk, for comparison and for our own host.
# arguments: ADDRESS NQN [TRANSPORT [HOSTNQN [SECRETS]]]; with HOSTNQN that host has to come by TLS, with the key in small.tls or
# large.tls; with SECRETS port 4421 takes it without TLS, and it has to authenticate by the secret in host.key, the target by that in
# target.key. Linux's target asks for no secret where a host has the key for TLS.
. /lib/lab.sh
transport=${3:-rdma}
[ "$transport" = tcp ] || rxe_up
modprobe -a nvmet "nvmet-$transport" || die "no nvmet-$transport"
modprobe null_blk nr_devices=0; disk=/sys/kernel/config/nullb/nullb0; mkdir $disk
for setting in size=512 blocksize=4096 memory_backed=1 discard=1 power=1; do echo "${setting#*=}" >"$disk/${setting%=*}"; done
nvmet=/sys/kernel/config/nvmet
mkdir "$nvmet/subsystems/$2"; echo 1 >"$nvmet/subsystems/$2/attr_allow_any_host"
mkdir "$nvmet/subsystems/$2/namespaces/1"; printf /dev/nullb0 >"$nvmet/subsystems/$2/namespaces/1/device_path"
# Newer kernels have reservations, by which a pool keeps others away.
reservations=$nvmet/subsystems/$2/namespaces/1/resv_enable
[ ! -e "$reservations" ] || echo 1 >"$reservations" || die resv_enable
echo 1 >"$nvmet/subsystems/$2/namespaces/1/enable" || die enable
make_port() { # NUMBER ADDRESS SERVICE
  port=$nvmet/ports/$1; mkdir "$port"
  echo $transport >"$port/addr_trtype"; echo ipv4 >"$port/addr_adrfam"; echo "$2" >"$port/addr_traddr"; echo "$3" >"$port/addr_trsvcid"
}
make_port 1 "$1" 4420
if [ -n "$4" ]; then
  tools_of forky; tlshd_up
  for size in 1:small 2:large; do
    nvme gen-tls-key --hmac="${size%:*}" | tail -n 1 >"/lab/${size#*:}.tls"
    nvme check-tls-key --insert --identity=1 --hostnqn="$4" --subsysnqn="$2" --keydata="$(cat "/lab/${size#*:}.tls")" || die "check-tls-key"
  done
  echo tls1.3 >$port/addr_tsas; echo required >$port/addr_treq
fi
ln -s "$nvmet/subsystems/$2" "$port/subsystems/$2" || die port
if [ -n "$5" ]; then
  host=$nvmet/hosts/$4; mkdir "$host"
  for name in host:dhchap_key target:dhchap_ctrl_key; do
    nvme gen-dhchap-key --hmac=1 --nqn="$4" 2>/dev/null | tail -n 1 >"/lab/${name%:*}.key"
    cat "/lab/${name%:*}.key" >"$host/${name#*:}" || die "${name#*:}"
  done
  echo 0 >"$nvmet/subsystems/$2/attr_allow_any_host"; ln -s "$host" "$nvmet/subsystems/$2/allowed_hosts/$4" || die allowed_hosts
  make_port 2 "$1" 4421
  ln -s "$nvmet/subsystems/$2" "$port/subsystems/$2" || die "port 4421"
fi
log "kernel target up, reservations: $(cat "$reservations" 2>/dev/null || echo none)"; signal up
await done 900
exit 0
