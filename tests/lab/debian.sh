#!/usr/bin/env bash
# Builds $LAB_CACHE/debian.ext4: a clean Debian 12 with systemd, for guests that boot it (`vm -R`), and what a host needs
# to attach volumes. It is made again only when this script is newer.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${LAB_CACHE:-$HOME/.cache/onefold-lab}
out=$cache/debian.ext4
stamp=$(sha256sum <"${BASH_SOURCE[0]}")
[ -e "$out" ] && [ "$(cat "$out.stamp" 2>/dev/null)" = "$stamp" ] && exit 0

. "$here/../../scripts/packages.sh"
install_packages mmdebstrap e2fsprogs
root=$cache/debian.root
rm -rf "$root"
# What the package depends on comes along: guests have no way to a mirror. rdma-core is what it only recommends.
packages=systemd-sysv,adduser,procps,iproute2,kmod,nvme-cli,jq,libssl3,libstdc++6
mmdebstrap --quiet --variant=minbase --include="$packages" bookworm "$root" "$(debian_mirror)"
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
# The story is a service like any other. Its end ends the guest.
cat >"$root/etc/systemd/system/story.service" <<'END'
[Unit]
Description=The lab's story
After=systemd-user-sessions.service
[Service]
Type=oneshot
ExecStart=/bin/bash /root/story
WorkingDirectory=/lab
Environment=HOME=/root TERM=dumb
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
END
mkdir -p "$root"/{lab,etc/systemd/system/multi-user.target.wants}
ln -s ../story.service "$root/etc/systemd/system/multi-user.target.wants/"
# Nothing that a clean machine would start waits here for what an emulated guest has not.
for unit in getty@tty1.service serial-getty@ttyS0.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
  e2scrub_all.timer e2scrub_reap.service fstrim.timer nvmefc-boot-connections.service nvmf-autoconnect.service; do
  ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
rm -f "$out.tmp"
truncate -s 4G "$out.tmp"
mke2fs -q -t ext4 -d "$root" "$out.tmp"
mv "$out.tmp" "$out"
printf '%s' "$stamp" >"$out.stamp"
rm -rf "$root"
ls -l "$out"
