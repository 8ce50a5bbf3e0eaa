#!/usr/bin/env bash
# Runs all tests: ./test.sh [--quick]
#   --quick   leaves out the tests that boot the package's Debian or guests with Linux kernels (those need root and QEMU)
# With ONEFOLD_MINUTES=n no step from the browser's on begins later than that, and the last line names what was left out.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$root"
quick=
for argument; do
  case $argument in
    --quick) quick=yes ;;
    *) echo "usage: ./test.sh [--quick]" >&2; exit 1 ;;
  esac
done

. scripts/build.sh
prepare_build
install_packages bsdutils curl iproute2 nftables procps strace util-linux
# What makes images of drives that are in use.
install_packages btrfs-progs cryptsetup-bin dosfstools e2fsprogs fdisk xfsprogs
# What reads images of other formats and serves them by vhost-user, and what speaks NBD.
install_qemu_utils
install_packages libnbd-bin fio
# A cluster for pools that live in one.
install_packages ceph-common ceph-mon ceph-osd faketime python3

# step WORDS...: says what begins, and when.
start=$SECONDS
step() { echo; echo "== $* (at $((SECONDS - start)) s)"; }
# within MINUTES COMMAND...: a command that hangs fails here, by name, with all that it started. It is a job, so that an
# interrupt of this script ends it too; jobs ignore the interrupts of a keyboard, and the stories rely on them.
within() {
  local minutes=$1 job code=0
  shift
  timeout --kill-after=10 "${minutes}m" env --default-signal=INT,QUIT "$@" &
  job=$!
  trap 'kill $job' INT TERM
  wait $job || code=$?
  trap - INT TERM
  [ $code != 124 ] || echo "test.sh: '$*' did not end within $minutes minutes" >&2
  return $code
}
[[ ${ONEFOLD_MINUTES:-1} =~ ^[1-9][0-9]{0,4}$ ]] || { echo "test.sh: ONEFOLD_MINUTES is '$ONEFOLD_MINUTES': give a number of minutes, from 1 on" >&2; exit 1; }
left_out=$(mktemp)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -f "$left_out"' EXIT
# is_late STORIES: whether ONEFOLD_MINUTES have passed since this script began, RocksDB's compilation included. Then these stories are left out, and the last line names them.
is_late() {
  [ $SECONDS -ge $((${ONEFOLD_MINUTES:-100000} * 60)) ] || return 1
  echo "test.sh: $1 is left out: ${ONEFOLD_MINUTES} minutes have passed" >&2
  echo "$1" >>"$left_out"
}

step "format"
cargo fmt --all -- --check
step "lints"
cargo clippy --workspace --all-targets -- -D warnings
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
step "deliberate breaks apply to the source"
tests/breaks/run.sh --check
step "build"
cargo build --workspace --all-targets
step "tests of the crates, and meanwhile the program is built as people run it"
# One core has most of the time nothing else to do: tests wait, and the end of this build is one unit.
build_program & program=$!
within 40 cargo test --workspace --exclude tests
wait $program
step "the program as people run it, and the shape of the tree"
# What follows plays with this one.
export ONEFOLD_PROGRAM=$CARGO_TARGET_DIR/release/onefold
# By name, not by package: what is built for the workspace is not built again.
stories=()
for story in tests/tests/*.rs tests/tests/*/main.rs; do
  story=${story%/main.rs}
  stories+=(--test "$(basename "$story" .rs)")
done
within 25 cargo test --workspace "${stories[@]}"
# The tools of the stories have tests too, which the first of these commands left out.
within 5 cargo test --workspace --lib -- write_log:: lab::

if [ -z "$quick" ]; then
  [ "$(id -u)" = 0 ] || { echo "the guests need root (network namespaces, taps): run as root, or ./test.sh --quick" >&2; exit 1; }
  step "the dashboard in a browser"
  install_packages chromium-driver chromium-headless-shell fonts-dejavu-core
  is_late dashboard || within 10 cargo test --workspace --test dashboard -- --ignored --test-threads=2
  step "the API against its own document"
  is_late api_fuzz || within 5 tests/lab/api_fuzz.sh 60
  step "lab"
  is_late lab || tests/lab/setup.sh
  step "the package in a Debian with systemd"
  is_late package || within 10 cargo test --workspace --test package -- --ignored --nocapture
  step "guests"
  # Two lanes of one guest each: an emulated guest takes a core. The lines say which lane they are of.
  cargo test --workspace --test guests --test guests_clones --test guests_drives --test guests_file_systems --test guests_keys --test guests_nodes --test guests_nvme --test guests_verbs --test guests_vhost --no-run
  lane() {
    local name=$1 story
    shift
    for story; do
      is_late "$story" || within 40 cargo test --workspace --test "$story" -- --ignored --test-threads=1 --nocapture
    done 2>&1 | sed -u "s/^/[$name] /"
  }
  lane hosts guests guests_drives guests_keys guests_clones guests_vhost & hosts=$!
  lane devices guests_nvme guests_verbs guests_nodes guests_file_systems & devices=$!
  failed=
  wait $hosts || failed=yes
  wait $devices || failed=yes
  [ -z "$failed" ] || { echo "test.sh: a story of a guest failed: see the lines [hosts] and [devices] above" >&2; exit 1; }
  step "fio in a guest while the daemon is killed"
  is_late fio_kills || ONEFOLD_FIO_SECONDS=${ONEFOLD_FIO_SECONDS:-90} within 20 cargo test --workspace --test fio_kills -- --ignored --nocapture
fi
if [ -s "$left_out" ]; then
  step "all passed that was run; left out because this machine is slow: $(tr '\n' ' ' <"$left_out")"
else
  step "all passed"
fi
