# Runs in the Debian of a clone: the first time it writes data of its own, and goes on to write until the power is cut; after
# that it finds all that was synced. Its end goes the way that the lab's guests end.
leave() { sync; echo "LAB-EXIT $1" >/dev/ttyS0; printf "\\$(printf %o $((16 + $1)))" | dd of=/dev/port bs=1 seek=244 status=none; }
say() { echo "[$(cut -d' ' -f1 /proc/uptime)] $*" >/dev/ttyS0; }
fail() { say "FAIL: $*"; dmesg | tail -n 20 >/dev/ttyS0; leave 1; }
own=/var/lib/own
if [ ! -e $own ]; then
  say "first boot: $(systemctl is-system-running)"
  mkdir $own && head -c 8388608 /dev/urandom >$own/data && sha256sum $own/data >$own/sum && cp -r /usr/bin $own/bin && sync || fail write
  : >/lab/sync.written
  # What is under way when the power is cut.
  while :; do head -c 1048576 /dev/urandom >>$own/more || : >$own/more; sync; done
fi
sha256sum --quiet -c $own/sum || fail "what was synced before the power was cut differs"
for file in /usr/bin/*; do [ -L "$file" ] || cmp -s "$file" "$own/bin/${file##*/}" || fail "$file differs"; done
dmesg | grep -q 'EXT4-fs.*recovery complete' || fail "the file system was not in use when the power was cut"
dmesg | grep -E 'EXT4-fs error|I/O error' >/dev/ttyS0 && fail "the kernel complained"
say "second boot: what was synced is there"
leave 0
