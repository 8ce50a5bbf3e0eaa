#!/usr/bin/env bash
# Makes build/onefold_VERSION_ARCH.deb (and its SBOM beside it) of this source:
#   packaging/deb.sh [--program FILE] [--version VERSION]
#     --program   packages this program instead of building it
#     --version   the package's version instead of the program's
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
program='' version=''
while [ $# -gt 0 ]; do
  case $1 in
    --program) program=$(realpath "$2"); shift 2 ;;
    --version) version=$2; shift 2 ;;
    *) echo "usage: packaging/deb.sh [--program FILE] [--version VERSION]" >&2; exit 1 ;;
  esac
done

. scripts/build.sh
. packaging/sbom.sh
install_packages dpkg-dev jq
if [ -z "$program" ]; then
  prepare_build
  build_program
  program=$CARGO_TARGET_DIR/release/onefold
fi
out=${CARGO_TARGET_DIR:-$root/build}
mkdir -p "$out"
[ -n "$version" ] || version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
architecture=$(dpkg --print-architecture)
# The same source makes the same package: all times are the last commit's.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}
export SOURCE_DATE_EPOCH
maintainer="The Onefold authors <maintainers@users.noreply.onefold.dev>"

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
umask 022
package=$stage/onefold
documents=$package/usr/share/doc/onefold
mkdir -p "$package/DEBIAN" "$documents" "$package/usr/bin"

strip --strip-unneeded --remove-section=.comment -o "$package/usr/bin/onefold" "$program"
chmod 755 "$package/usr/bin/onefold"
install -Dm644 packaging/onefold.service "$package/lib/systemd/system/onefold.service"
install -Dm644 packaging/onefold.socket "$package/lib/systemd/system/onefold.socket"
install -Dm644 packaging/onefold.sysctl "$package/usr/lib/sysctl.d/60-onefold.conf"

# The pages of the manual and the shells' completions are the program's own.
manual=$package/usr/share/man/man1
(cd / && "$program" man "$manual" >&2)
gzip -9n "$manual"/*.1
mkdir -p "$package"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
"$program" completions bash >"$package/usr/share/bash-completion/completions/onefold"
"$program" completions zsh >"$package/usr/share/zsh/vendor-completions/_onefold"
"$program" completions fish >"$package/usr/share/fish/vendor_completions.d/onefold.fish"

# The example is the configuration, but for what a package decides.
mkdir -p "$package/etc/onefold"
"$program" config example \
  | sed -e 's|^#dir = .*|dir = "/var/lib/onefold"|' -e '/^\[http\]/,/^\[/s|^#listen = .*|listen = "127.0.0.1:8420"|' \
    >"$package/etc/onefold/onefold.toml"
for line in 'dir = "/var/lib/onefold"' 'listen = "127.0.0.1:8420"'; do
  grep -qxF "$line" "$package/etc/onefold/onefold.toml" || { echo "deb.sh: no line $line in the configuration" >&2; exit 1; }
done
"$program" config check "$package/etc/onefold/onefold.toml"
echo /etc/onefold/onefold.toml >"$package/DEBIAN/conffiles"

{
  cat packaging/copyright
  sed 's/^$/./; s/^/ /' LICENSE-MIT
} >"$documents/copyright"
install -m644 README.md "$documents/"
cp -r packaging/monitoring "$documents/"
scripts/guide.sh "$program" "$documents/guide"
rm "$documents/guide/book.toml"
notices >"$stage/licences"
gzip -9n <"$stage/licences" >"$documents/third-party-licences.gz"
sbom "$version" >"$documents/sbom.cdx.json"
check_parts "$documents/sbom.cdx.json" "$stage/licences"
cp "$documents/sbom.cdx.json" "$out/onefold_${version}_$architecture.cdx.json"
gzip -9n <CHANGELOG.md >"$documents/NEWS.gz"
printf 'onefold (%s) stable; urgency=medium\n\n  * See NEWS.gz.\n\n -- %s  %s\n' "$version" "$maintainer" \
  "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$documents/changelog.gz"

# The libraries that it is linked with, in versions that have what it uses.
mkdir -p "$stage/source/debian"
printf 'Source: onefold\n\nPackage: onefold\nArchitecture: any\n' >"$stage/source/debian/control"
depends=$(cd "$stage/source" && dpkg-shlibdeps -O "$package/usr/bin/onefold" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
cat >"$package/DEBIAN/control" <<END
Package: onefold
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -ks --exclude=DEBIAN "$package" | cut -f1)
Depends: $depends, adduser, systemd
Recommends: ibverbs-providers, librdmacm1
Suggests: nvme-cli, librados2
Section: admin
Priority: optional
Description: block storage over the network that stores every block once
 Onefold is an NVMe-oF target. Hosts attach its volumes by RDMA or TCP, with
 the drivers that Linux has, and see ordinary NVMe drives. What they write is
 split into blocks of 4 KiB, and only blocks that are new are stored.
 .
 This package starts a node at once: a pool in /var/lib/onefold with one
 volume, served on port 4420 of every address of the machine to every host
 that reaches it. /usr/share/doc/onefold/guide tells how to change that.
END
install -m755 packaging/debian/{postinst,prerm,postrm} "$package/DEBIAN/"
(cd "$package" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0 md5sum) >"$package/DEBIAN/md5sums"
find "$package" -newermt "@$SOURCE_DATE_EPOCH" -print0 | xargs -0r touch --no-dereference --date="@$SOURCE_DATE_EPOCH"
# xz is what every Debian's dpkg reads; higher levels take minutes and save a tenth.
dpkg-deb --root-owner-group -Zxz -z2 --build "$package" "$out/onefold_${version}_$architecture.deb"
