#!/usr/bin/env bash
# Runs all tests: ./test.sh [--quick]
#   --quick   leaves out the tests that boot guests with Linux kernels (those need root and QEMU)
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
install_packages bsdutils iproute2 nftables procps strace util-linux
# What makes images of drives that are in use.
install_packages btrfs-progs cryptsetup-bin dosfstools e2fsprogs fdisk xfsprogs

# step WORDS...: says what begins, and when.
start=$SECONDS
step() { echo; echo "== $* (at $((SECONDS - start)) s)"; }

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
step "tests"
cargo test --workspace
step "the program as people run it"
build_program
# What follows plays with this one.
export ONEFOLD_PROGRAM=$CARGO_TARGET_DIR/release/onefold
cargo test --workspace --test program

if [ -z "$quick" ]; then
  [ "$(id -u)" = 0 ] || { echo "the guests need root (network namespaces, taps): run as root, or ./test.sh --quick" >&2; exit 1; }
  step "lab"
  tests/lab/setup.sh
  step "guests"
  # One at a time: an emulated guest takes a core.
  cargo test --workspace --test guests --test guests_drives --test guests_nvme --test guests_verbs -- --ignored --test-threads=1 --nocapture
  step "fio in a guest while the daemon is killed"
  ONEFOLD_FIO_SECONDS=${ONEFOLD_FIO_SECONDS:-90} cargo test --workspace --test fio_kills -- --ignored --nocapture
fi
step "all passed"
