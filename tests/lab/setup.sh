#!/usr/bin/env bash
# Prepares the lab: Debian packages (only what is missing), the guest kernels, and an initramfs for each.
#   tests/lab/setup.sh [SERIES...]      SERIES: 6.12 6.1 (default: both)
# Everything it makes is under $LAB_CACHE (default ~/.cache/onefold-lab) and is made once.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${LAB_CACHE:-$HOME/.cache/onefold-lab}
mkdir -p "$cache"
[ $# -gt 0 ] || set -- 6.12 6.1

. "$here/../../scripts/packages.sh"
install_packages busybox-static cpio xz-utils zstd kmod iproute2 bash jq strace ethtool procps \
  nvme-cli fio rdma-core ibverbs-utils ibverbs-providers rdmacm-utils e2fsprogs xfsprogs \
  util-linux tcpdump tshark

# The emulator, from Debian's backports: bookworm's own QEMU 7.2 gives emulated kernels impossible EFLAGS now and
# then, and they die of double faults, mostly in rdma_rxe.
install_emulator() {
  local major
  major=$(qemu-system-x86_64 --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p' || true)
  [ "${major:-0}" -ge 10 ] && return 0
  echo "lab: installing QEMU 10 from the backports" >&2
  if enable_backports && as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends -t bookworm-backports qemu-system-x86 >&2; then return 0; fi
  echo "lab: the backports have no QEMU; the system's own may break guests" >&2
  install_packages qemu-system-x86
}
install_emulator

# The newest kernel of a series that apt knows, unpacked (never installed) into $cache/kernel-SERIES.
fetch_kernel() {
  local series=$1 pattern root=$cache/kernel-$1 package
  [ -e "$root/version" ] && return 0
  case $series in
    6.12) pattern='^linux-image-6\.12\.[0-9]+\+deb12-amd64$' ;;
    6.1) pattern='^linux-image-6\.1\.0-[0-9]+-amd64$' ;;
    *) echo "lab: no rule for kernel series $series (known: 6.12, 6.1)" >&2; return 1 ;;
  esac
  newest() { apt-cache search --names-only "$pattern" | awk '{print $1}' | sort -V | tail -n 1; }
  package=$(newest)
  [ -n "$package" ] || { as_root apt-get update -q >&2; package=$(newest); }
  [ -n "$package" ] || { enable_backports; package=$(newest); }
  [ -n "$package" ] || { echo "lab: apt knows no kernel $series; run 'apt-get update' and look at its sources" >&2; return 1; }
  echo "lab: kernel $series is $package"
  rm -rf "$root" "$root.tmp"; mkdir -p "$root.tmp"
  (cd "$root.tmp" && apt-get download -q "$package" && dpkg-deb -x "$package"_*.deb . && rm -f "$package"_*.deb)
  echo "${package#linux-image-}" >"$root.tmp/version"
  mv "$root.tmp" "$root"
}

# nvme-cli 2.13 and tlshd of Debian trixie, which bookworm does not have (its nvme-cli knows no TLS), with their own
# libraries under $cache/tools/trixie. apt takes them from a list of its own, checks Debian's signatures, and nothing of
# trixie comes to this machine's own packages.
fetch_trixie() {
  local tools=$cache/tools/trixie work mirror
  # Programs, and the libraries that `ld.so --list` says they load.
  local packages="nvme-cli ktls-utils keyutils libc6 libnvme1t64 libjson-c5 libssl3t64 libkeyutils1 zlib1g libzstd1
    libgnutls30t64 libnettle8t64 libhogweed6t64 libgmp10 libp11-kit0 libffi8 libidn2-0 libunistring5 libtasn1-6
    libnl-3-200 libnl-genl-3-200 libglib2.0-0t64 libpcre2-8-0 libatomic1"
  [ "$(cat "$tools/packages" 2>/dev/null)" = "$packages" ] && return 0
  echo "lab: nvme-cli and tlshd of Debian trixie"
  mirror=$(debian_mirror)
  work=$(mktemp -d "$cache/trixie.XXXXXX")
  mkdir -p "$work"/{lists/partial,archives/partial,root,tools/lib}
  : >"$work/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" >"$work/sources.list"
  # The machine's own settings (a proxy, say) hold beside these.
  cat >"$work/apt.conf" <<END
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "$work";
Dir::State::Lists "$work/lists";
Dir::State::Status "$work/status";
Dir::Cache "$work";
Dir::Cache::Archives "$work/archives";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
APT::Update::Error-Mode "any";
APT::Sandbox::User "";
END
  (
    export APT_CONFIG=$work/apt.conf
    cd "$work/archives"
    apt-get update -q >&2
    # shellcheck disable=SC2086 # a list of names
    apt-get download -q $packages >&2
    for package in *.deb; do dpkg-deb -x "$package" "$work/root"; done
  )
  local libraries=$work/root/usr/lib/x86_64-linux-gnu program path
  cp "$libraries/ld-linux-x86-64.so.2" "$work/tools/lib/"
  for path in "$work"/root/usr/{sbin/nvme,sbin/tlshd,bin/keyctl}; do
    program=${path##*/}
    cp "$path" "$work/tools/lib/$program"
    "$libraries/ld-linux-x86-64.so.2" --inhibit-cache --library-path "$libraries" --list "$path" \
      | awk -v from="$libraries/" '$2 == "=>" { print $3; if (index($3, from) != 1) exit 1 }' >"$work/needs" \
      || { echo "lab: $program of trixie needs a package that fetch_trixie does not name: $(tail -n 1 "$work/needs")" >&2; return 1; }
    xargs -I{} cp -L {} "$work/tools/lib/" <"$work/needs"
    printf '#!/bin/sh\nexec /tools/trixie/lib/ld-linux-x86-64.so.2 --inhibit-cache --library-path /tools/trixie/lib /tools/trixie/lib/%s "$@"\n' \
      "$program" >"$work/tools/$program"
    chmod 755 "$work/tools/$program"
  done
  echo "$packages" >"$work/tools/packages"
  mkdir -p "$cache/tools"; rm -rf "$tools"; mv "$work/tools" "$tools"
  rm -rf "$work"
}

# A real source tree of about 100 MB, as one tar file: the network drivers of Debian's kernel source.
fetch_tree() {
  [ -e "$cache/tree.tar" ] && [ -e "$cache/tree.sum" ] && return 0
  local work; work=$(mktemp -d "$cache/tree.XXXXXX")
  (cd "$work" && apt-get download -q linux-source-6.1 && dpkg-deb --fsys-tarfile linux-source-6.1_*.deb | tar -x ./usr/src)
  tar -C "$work" -xJf "$work/usr/src/linux-source-6.1.tar.xz" linux-source-6.1/drivers/net
  tar -C "$work" -cf "$cache/tree.tar.tmp" linux-source-6.1
  # The sum of all files' contents in the order of their names, as the story computes it in the guest.
  (cd "$work" && find ./linux-source-6.1 -type f -print0 | LC_ALL=C sort -z | xargs -0 cat | sha256sum) >"$cache/tree.sum"
  rm -rf "$work"; mv "$cache/tree.tar.tmp" "$cache/tree.tar"
}

for series; do
  fetch_kernel "$series"
  "$here/mkinitramfs.sh" "$series"
done
fetch_trixie
fetch_tree
