#!/usr/bin/env bash
# Makes $LAB_CACHE/debian.root: a clean Debian 12 with systemd, which `tests/package.rs` copies and boots. It is made anew
# when this script changes.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${LAB_CACHE:-$HOME/.cache/onefold-lab}
root=$cache/debian.root
stamp=$(sha256sum <"${BASH_SOURCE[0]}")
[ -d "$root" ] && [ "$(cat "$root.stamp" 2>/dev/null)" = "$stamp" ] && exit 0

. "$here/../../scripts/packages.sh"
install_packages mmdebstrap systemd-container util-linux
rm -rf "$root" "$root.tmp" "$root.stamp"
mkdir -p "$cache"
# What the package depends on comes along: the system that is booted has no way to a mirror. It has nothing that the
# package only recommends.
packages=systemd-sysv,adduser,procps,iproute2,jq,libssl3,libstdc++6
# What the guide's readers have: a way to type requests, ssh, and the kernel's news of drives.
packages+=,curl,openssh-client,openssh-server,udev
mmdebstrap --quiet --variant=minbase --include="$packages" bookworm "$root.tmp" "$(debian_mirror)"
rm -rf "$root.tmp"/var/cache/apt/archives/*.deb "$root.tmp"/var/lib/apt/lists/*
# The story is a service like any other. Its end ends the system, with its exit code.
cat >"$root.tmp/etc/systemd/system/story.service" <<'END'
[Unit]
Description=The lab's story
After=systemd-user-sessions.service
[Service]
Type=oneshot
ExecStart=/bin/bash -c 'bash /lab/package.sh; systemctl --force --force exit $?'
WorkingDirectory=/root
Environment=HOME=/root TERM=dumb
StandardOutput=append:/lab/story.log
StandardError=append:/lab/story.log
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
END
ln -s ../story.service "$root.tmp/etc/systemd/system/multi-user.target.wants/"
mkdir "$root.tmp/lab"
# Nothing that a clean machine does now and then disturbs a story of two minutes.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer \
  console-getty.service; do
  ln -sf /dev/null "$root.tmp/etc/systemd/system/$unit"
done
mv "$root.tmp" "$root"
printf '%s' "$stamp" >"$root.stamp"
du -sh "$root"
