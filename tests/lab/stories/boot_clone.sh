# Boots the Debian of a volume: attaches it, mounts it and leaves the machine to its systemd, which runs clone_system.sh.
# arguments: vhost | tcp ADDRESS NSID | rdma ADDRESS NSID
. /lib/lab.sh
modprobe ext4 || die "no ext4"
case $1 in
  vhost) disk=/dev/vda ;;
  *)
    case $1 in tcp) tcp_up ;; rdma) rxe_up ;; esac
    reach "$2"
    attach "$2" >/dev/null || die connect
    disk=$(device "$3") || die "no namespace $3" ;;
esac
for try in $(seq 100); do [ -b $disk ] && break; sleep 0.1; done
mkdir /new && mount -t ext4 $disk /new || die "no root file system on $disk"
log "booting the system on $disk"
mount --move /lab /new/lab || die "no share"
echo /new >/tmp/new-root
exit 0
