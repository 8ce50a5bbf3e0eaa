# Sourced by the scripts: installs Debian packages, only those that are missing.

# as_root COMMAND...: as it is for root, through sudo for others.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else echo "onefold: '$*' needs root; run it as root or install sudo" >&2; return 1
  fi
}

# install_packages NAME...: nothing happens, and nobody is asked for a password, when all are there.
install_packages() {
  local missing=() name
  for name; do
    dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || { echo "onefold: please install: ${missing[*]} (this is no Debian: no apt-get)" >&2; return 1; }
  echo "onefold: installing ${missing[*]}" >&2
  as_root apt-get update -q >&2
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >&2
}

# debian_mirror: prints the address of the Debian mirror that this machine already uses.
debian_mirror() {
  local mirror
  mirror=$(cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null \
    | awk '($1 == "URIs:" || $1 == "deb") && !mirror { mirror = $2 } END { print mirror }' || true)
  [ -n "$mirror" ] || { echo "onefold: found no Debian mirror in /etc/apt" >&2; return 1; }
  echo "$mirror"
}

# enable_backports: the newer kernels for guests are in Debian's backports.
enable_backports() {
  local policy mirror
  policy=$(apt-cache policy)
  case $policy in *bookworm-backports*) return 0 ;; esac
  mirror=$(debian_mirror) || return 1
  echo "deb $mirror bookworm-backports main" | as_root tee /etc/apt/sources.list.d/onefold-backports.list >/dev/null
  as_root apt-get update -q >&2
}

# install_qemu_utils: qemu-img, qemu-nbd and qemu-storage-daemon. Debian 12 has the last in qemu-system-common, its
# backports and later Debians in qemu-utils. So a machine that has QEMU's emulator from the backports and qemu-utils
# from Debian 12 has both packages and no qemu-storage-daemon.
install_qemu_utils() {
  local version
  install_packages qemu-utils
  ! command -v qemu-storage-daemon >/dev/null || return 0
  install_packages qemu-system-common
  ! command -v qemu-storage-daemon >/dev/null || return 0
  version=$(dpkg-query -W -f '${Version}' qemu-system-common)
  echo "onefold: installing qemu-utils $version, as the emulator is" >&2
  as_root apt-get update -q >&2
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "qemu-utils=$version" >&2
}
