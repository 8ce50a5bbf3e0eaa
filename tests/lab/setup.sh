#!/usr/bin/env bash
# Prepares the lab: Debian packages (only what is missing), the guest kernels, and an initramfs for each.
#   tests/lab/setup.sh [SERIES...]      SERIES: 7 6.12 6.1 (default: all)
# Everything it makes is under $LAB_CACHE (default ~/.cache/onefold-lab) and is made once.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${LAB_CACHE:-$HOME/.cache/onefold-lab}
mkdir -p "$cache"
[ $# -gt 0 ] || set -- 7 6.12 6.1

. "$here/../../scripts/packages.sh"
install_packages busybox-static cpio xz-utils zstd kmod iproute2 bash jq strace ethtool procps \
  nvme-cli fio stress-ng rdma-core ibverbs-utils ibverbs-providers rdmacm-utils dmsetup e2fsprogs xfsprogs \
  util-linux tcpdump tshark nbd-client

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
# After the emulator: that may have taken qemu-storage-daemon away.
install_qemu_utils

# debian RELEASE COMMAND...: a command of apt's that knows the packages of a later Debian alone. It checks Debian's
# signatures; this machine's own lists and packages stay as they are.
debian() {
  local folder=$cache/apt/$1 mirror
  if [ ! -e "$folder/updated" ]; then
    mirror=$(debian_mirror)
    rm -rf "$folder"; mkdir -p "$folder"/{lists/partial,archives/partial}
    : >"$folder/status"
    # A mirror may lag behind: the release's signature counts, not its date.
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg check-valid-until=no] $mirror $1 main" >"$folder/sources.list"
    # The machine's own settings (a proxy, say) hold beside these.
    cat >"$folder/apt.conf" <<END
Dir::Etc::SourceList "$folder/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "$folder";
Dir::State::Lists "$folder/lists";
Dir::State::Status "$folder/status";
Dir::Cache "$folder";
Dir::Cache::Archives "$folder/archives";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
APT::Update::Error-Mode "any";
APT::Sandbox::User "";
END
    APT_CONFIG=$folder/apt.conf apt-get update -q >&2
    touch "$folder/updated"
  fi
  shift
  APT_CONFIG=$folder/apt.conf "$@"
}
trap 'rm -rf "$cache/apt"' EXIT

# The newest kernel of a series that apt knows, unpacked (never installed) into $cache/kernel-SERIES.
fetch_kernel() {
  local series=$1 pattern apt=() root=$cache/kernel-$1 package version file
  [ -e "$root/version" ] && return 0
  case $series in
    7) pattern='^linux-image-7\.[0-9]+\.[0-9]+\+deb13-amd64$' apt=(debian trixie-backports) ;;
    6.12) pattern='^linux-image-6\.12\.[0-9]+\+deb12-amd64$' ;;
    6.1) pattern='^linux-image-6\.1\.0-[0-9]+-amd64$' ;;
    *) echo "lab: no rule for kernel series $series (known: 7, 6.12, 6.1)" >&2; return 1 ;;
  esac
  newest() { "${apt[@]}" apt-cache search --names-only "$pattern" | awk '{print $1}' | sort -V | tail -n 1; }
  package=$(newest)
  [ -n "$package" ] || { as_root apt-get update -q >&2; package=$(newest); }
  [ -n "$package" ] || { enable_backports; package=$(newest); }
  [ -n "$package" ] || { echo "lab: apt knows no kernel $series; run 'apt-get update' and look at its sources" >&2; return 1; }
  echo "lab: kernel $series is $package"
  version=${package#linux-image-}
  rm -rf "$root" "$root.tmp"; mkdir -p "$root.tmp"
  (
    cd "$root.tmp"
    # Later kernels come in several packages.
    # shellcheck disable=SC2046 # a list of names
    "${apt[@]}" apt-get download -q "$package" $("${apt[@]}" apt-cache depends "$package" | awk -v version="$version" '$1 == "Depends:" && $2 ~ /^linux-(base|binary|modules)-/ && substr($2, length($2) - length(version) + 1) == version { print $2 }')
    for file in *.deb; do dpkg-deb -x "$file" .; rm -f "$file"; done
    # and are elsewhere.
    [ -e lib ] || ln -s usr/lib lib
    [ -e "boot/vmlinuz-$version" ] || { mkdir -p boot; ln -s "../lib/modules/$version/vmlinuz" "boot/vmlinuz-$version"; }
  )
  echo "$version" >"$root.tmp/version"
  mv "$root.tmp" "$root"
}

# Packages of a Debian release, and the libraries that they depend on: unpacked to root/ of the folder $1, their versions in
# tools/versions. $4: what is needed besides.
unpack() {
  local work=$1 release=$2 packages=$3 more=${4:-} package
  mkdir -p "$work"/{root,tools/lib}
  (
    cd "$work"
    # Of all that they depend on the libraries alone: `needs` checks that nothing is missing.
    # shellcheck disable=SC2046,SC2086 # lists of names
    debian "$release" apt-get download -q $packages $more \
      $(debian "$release" apt-get install -s --no-install-recommends $packages | awk '$1 == "Inst" && $2 ~ /^z?lib/ { print $2 }') >&2
    for package in *.deb; do dpkg-deb -x "$package" root; done
    for package in $packages; do dpkg-deb -f "$package"_*.deb Package Version; done >tools/versions
  )
}

# Which libraries of root/ of the folder $1 the program $2 there needs: a list in needs.
needs() {
  local work=$1 path=$2 libraries=$1/root/usr/lib/x86_64-linux-gnu
  "$libraries/ld-linux-x86-64.so.2" --inhibit-cache --library-path "$libraries" --list "$path" \
    | awk -v from="$libraries/" '$2 == "=>" { print $3; if (index($3, from) != 1) exit 1 }' >"$work/needs" \
    || { echo "lab: ${path##*/} needs what its packages do not bring: $(tail -n 1 "$work/needs")" >&2; return 1; }
}

# nvme-cli and tlshd of a later Debian, which bookworm does not have (its nvme-cli knows no TLS), with their own libraries
# under $cache/tools/RELEASE.
fetch_userland() {
  local release=$1 tools=$cache/tools/$1 programs="nvme-cli ktls-utils keyutils" work libraries program path
  [ -e "$tools/versions" ] && return 0
  work=$(mktemp -d "$cache/$release.XXXXXX")
  unpack "$work" "$release" "$programs"
  libraries=$work/root/usr/lib/x86_64-linux-gnu
  cp "$libraries/ld-linux-x86-64.so.2" "$work/tools/lib/"
  for path in "$work"/root/usr/{sbin/nvme,sbin/tlshd,bin/keyctl}; do
    program=${path##*/}
    cp "$path" "$work/tools/lib/$program"
    needs "$work" "$path" || return 1
    xargs -I{} cp -L {} "$work/tools/lib/" <"$work/needs"
    printf '#!/bin/sh\nexec /tools/%s/lib/ld-linux-x86-64.so.2 --inhibit-cache --library-path /tools/%s/lib /tools/%s/lib/%s "$@"\n' \
      "$release" "$release" "$release" "$program" >"$work/tools/$program"
    chmod 755 "$work/tools/$program"
  done
  mkdir -p "$cache/tools"; rm -rf "$tools"; mv "$work/tools" "$tools"
  rm -rf "$work"
  echo "lab: of Debian $release:" $(cat "$tools/versions")
}

# PostgreSQL of Debian 12, never installed here: $cache/tools/postgres has its own folders and the libraries that it needs.
fetch_postgres() {
  local tools=$cache/tools/postgres work libraries path packages="postgresql-15 postgresql-client-15"
  [ -e "$tools/versions" ] && return 0
  work=$(mktemp -d "$cache/postgres.XXXXXX")
  unpack "$work" bookworm "$packages" tzdata
  libraries=$work/root/usr/lib/x86_64-linux-gnu
  # Debian 12 packages some below /lib, which is /usr/lib on a machine.
  cp -a "$work/root/lib/x86_64-linux-gnu/." "$libraries/"
  for path in "$work"/root/usr/lib/postgresql/15/bin/{postgres,initdb,pg_ctl,pg_checksums,pgbench,psql}; do
    needs "$work" "$path" || return 1
    # The guest has the C library, with the loader that belongs to it. Some programs need nothing else.
    awk '!/\/libc\.so/ && !/\/ld-linux/' "$work/needs" | xargs -I{} cp -L {} "$work/tools/lib/"
  done
  mkdir -p "$work/tools/share"
  cp -a "$work/root/usr/lib/postgresql" "$work/tools/program"
  rm -rf "$work/tools/program/15/lib/bitcode"
  cp -a "$work/root/usr/share/"{postgresql,zoneinfo} "$work/tools/share/"
  mkdir -p "$cache/tools"; rm -rf "$tools"; mv "$work/tools" "$tools"
  rm -rf "$work"
  echo "lab: PostgreSQL:" $(cat "$tools/versions")
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
"$here/debian.sh"
for release in trixie forky; do fetch_userland "$release"; done
fetch_postgres
fetch_tree
