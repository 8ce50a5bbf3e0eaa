#!/usr/bin/env bash
# Builds $LAB_CACHE/initramfs-SERIES.cpio: the modules of that kernel and Debian's installed tools.
# It is made again only when this folder or the kernel is newer.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${LAB_CACHE:-$HOME/.cache/onefold-lab}
series=$1
kernel=$cache/kernel-$series
version=$(cat "$kernel/version")
out=$cache/initramfs-$series.cpio
stamp=$(cat "$here/mkinitramfs.sh" "$here"/guest/* "$kernel/version" | sha256sum)
[ -e "$out" ] && [ "$(cat "$out.stamp" 2>/dev/null)" = "$stamp" ] && exit 0

root=$cache/root-$series
rm -rf "$root"
mkdir -p "$root"/{bin,proc,sys,dev,tmp,run,lab,mnt,tools,root,etc/nvme,etc/libibverbs.d,var/run,var/lib,usr/lib/x86_64-linux-gnu/libibverbs}
for link in lib64:usr/lib/x86_64-linux-gnu sbin:bin; do ln -s "${link#*:}" "$root/${link%:*}"; done
mkdir -p "$root/lib/modules/$version"
ln -s ../bin "$root/usr/bin"; ln -s ../bin "$root/usr/sbin"

# --- modules with their dependencies, uncompressed so that they load fast
modules="virtio_pci virtio_net virtio_blk virtio_rng 9p 9pnet_virtio configfs sch_netem
 rdma_rxe ib_uverbs rdma_ucm rdma_cm nvme nvme-auth nvme-keyring tls gcm ghash-generic aesni-intel nvme-fabrics nvme-rdma nvme-tcp nvmet nvmet-rdma nvmet-tcp null_blk
 ext4 xfs loop nbd dm-mod dm-flakey dm-log-writes crc32c-intel crc32-pclmul crc32c_generic crc32_generic"
depmod -b "$kernel" "$version"
for module in $modules; do
  modprobe -d "$kernel" -S "$version" --show-depends "$module" 2>/dev/null | awk '$1=="insmod"{print $2}' || true
done | sort -u | while read -r file; do
  relative=${file#"$kernel"/}
  mkdir -p "$root/$(dirname "$relative")"
  case $file in
    *.xz) xz -dc "$file" >"$root/${relative%.xz}" ;;
    *) cp "$file" "$root/$relative" ;;
  esac
done
cp "$kernel/lib/modules/$version"/modules.{builtin,builtin.modinfo,order} "$root/lib/modules/$version/"
depmod -b "$root" "$version" 2>/dev/null

# --- programs and their shared libraries
libraries() { ldd "$1" 2>/dev/null | awk '/=> \//{print $3} $1~/^\//{print $1}'; }
add_library() { local to=$root/usr/lib/x86_64-linux-gnu/${1##*/}; [ -e "$to" ] || cp -L "$1" "$to"; }
programs="bash setpriv kmod nvme nbd-client rdma ip tc ibv_devinfo mke2fs e2fsck mkfs.xfs xfs_repair fstrim blockdev dmsetup lsblk strace jq timeout dd stat cmp sha256sum tar find xargs"
for program in $programs; do
  path=$(PATH=/usr/sbin:/usr/bin:/sbin:/bin command -v "$program") || { echo "lab: no program $program" >&2; exit 1; }
  cp -L "$path" "$root/bin/$program"
  for library in $(libraries "$path"); do add_library "$library"; done
done
for driver in /usr/lib/x86_64-linux-gnu/libibverbs/librxe-*.so; do
  cp -L "$driver" "$root/usr/lib/x86_64-linux-gnu/libibverbs/"
  for library in $(libraries "$driver"); do add_library "$library"; done
done
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
add_library /lib64/ld-linux-x86-64.so.2
add_library /lib/x86_64-linux-gnu/libgcc_s.so.1 # pthread_exit loads it by name
echo /usr/lib/x86_64-linux-gnu >"$root/etc/ld.so.conf"
ldconfig -r "$root" 2>/dev/null || true

# fio brings 80 MB of libraries: the programs that make load are read from a second 9p share instead of the initramfs.
tools=$cache/tools
mkdir -p "$tools/lib"
for program in fio stress-ng; do
  cp -L "/usr/bin/$program" "$tools/$program"
  for library in $(libraries "/usr/bin/$program"); do
    [ -e "$root/usr/lib/x86_64-linux-gnu/${library##*/}" ] || cp -L "$library" "$tools/lib/"
  done
  printf '#!/bin/sh\nexport LD_LIBRARY_PATH=/tools/lib\nexec /tools/%s "$@"\n' "$program" >"$root/bin/$program"
  chmod 755 "$root/bin/$program"
done

cp -L /usr/bin/busybox "$root/bin/busybox"
for applet in $("$root/bin/busybox" --list); do [ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"; done
for alias in modprobe insmod rmmod lsmod modinfo; do ln -sf kmod "$root/bin/$alias"; done
ln -sf bash "$root/bin/sh"
ln -sf mke2fs "$root/bin/mkfs.ext4"
cp /etc/mke2fs.conf "$root/etc/" 2>/dev/null || true
printf 'root:x:0:0:root:/root:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\n' >"$root/etc/group"
printf '127.0.0.1 localhost\n' >"$root/etc/hosts"
cp "$here/guest/lab.sh" "$root/lib/lab.sh"
cp "$here/guest/init" "$root/init"
chmod 755 "$root/init"
(cd "$root" && find . | cpio -o -H newc -R 0:0 --quiet) >"$out.tmp"
mv "$out.tmp" "$out"
printf '%s' "$stamp" >"$out.stamp"
rm -rf "$root"
ls -l "$out"
