# Boots the Debian of a volume: attaches it, mounts it and leaves the machine to its systemd, which runs clone_system.sh.
# arguments: vhost | tcp ADDRESS NSID | rdma ADDRESS NSID | nbft UUID, where firmware says all but that
. /lib/lab.sh
modprobe ext4 || die "no ext4"
# What initramfs tools do with the table of the firmware: addresses for the interfaces, then a connection by each of them.
by_nbft() { # UUID: sets $disk
  tools_of trixie; tcp_up
  local table=/tmp/nbft.json mac address prefix gateway interface device
  [ -r /sys/firmware/acpi/tables/NBFT ] || die "the firmware has no NBFT"
  nvme nbft show --output-format=json >$table || die "nvme nbft show"
  jq -cM '.[0] | .host, .hfi[], .subsystem[]' $table
  # The lab's address is not that of the table.
  ip addr flush dev eth0
  jq -r '.[0].hfi[] | [.mac_addr, .ipaddr, .subnet_mask_prefix, .gateway_ipaddr] | map(tostring) | join(" ")' $table >/tmp/interfaces
  while read -r mac address prefix gateway; do
    for interface in /sys/class/net/*; do
      [ "$(cat "$interface/address")" = "$mac" ] || continue
      ip addr add "$address/$prefix" dev "${interface##*/}" || die "address $address"
      case $gateway in 0.0.0.0|::) ;; *) ip route add default via "$gateway" || die "gateway $gateway" ;; esac
    done
  done </tmp/interfaces
  reach "$(jq -r '.[0].subsystem[0].traddr' $table)"
  nvme connect-all --nbft || die "nvme connect-all --nbft"
  for try in $(seq 100); do
    for device in /sys/class/nvme-subsystem/nvme-subsys*/nvme*n*; do
      [ "$(cat "$device/uuid" 2>/dev/null)" = "$1" ] && [ -b "/dev/${device##*/}" ] && { disk=/dev/${device##*/}; return; }
    done
    sleep 0.1
  done
  die "no namespace $1"
}
case $1 in
  vhost) disk=/dev/vda ;;
  nbft) by_nbft "$2" ;;
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
