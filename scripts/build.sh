# Sourced by the scripts: what has to be there before cargo runs.
. "$(dirname "${BASH_SOURCE[0]}")/packages.sh"

# prepare_build: a compiler for RocksDB's C++, and one build folder for everything.
prepare_build() {
  command -v cargo >/dev/null || {
    echo "onefold: cargo is not on the PATH; install Rust 1.88 or newer (see https://rustup.rs)" >&2
    return 1
  }
  # libclang: RocksDB's Rust bindings are generated at build time. OpenSSL: the system's own, for authentication and TLS.
  install_packages build-essential libclang-dev libssl-dev pkg-config
  # Absolute, because the default of cargo would be the source folder target/.
  export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build}
}

# build_program: the program as people run it, into $CARGO_TARGET_DIR/release/onefold. Its RocksDB is the one that the
# default profile builds, for the tests too: C++ takes over ten minutes, and once is enough.
build_program() (
  # From the repository: cargo's settings are found from the current folder.
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  if [ -z "${ROCKSDB_LIB_DIR:-}" ]; then
    cargo build -p meta
    local rocksdb
    rocksdb=$(ls -t "$CARGO_TARGET_DIR"/debug/build/librocksdb-sys-*/out/librocksdb.a | head -n 1)
    export ROCKSDB_LIB_DIR=${rocksdb%/*} ROCKSDB_STATIC=1
  fi
  cargo build --release -p onefold
)
