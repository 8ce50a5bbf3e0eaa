# Sourced by the scripts: what has to be there before cargo runs.
. "$(dirname "${BASH_SOURCE[0]}")/packages.sh"
. "$(dirname "${BASH_SOURCE[0]}")/rocksdb.sh"

# prepare_build: compilers, one build folder for everything, and RocksDB's C++ compiled in it.
prepare_build() {
  command -v cargo >/dev/null || {
    echo "onefold: cargo is not on the PATH; install Rust 1.89 or newer (see https://rustup.rs)" >&2
    return 1
  }
  # libclang: RocksDB's Rust bindings are generated at build time. OpenSSL: the system's own, for authentication and TLS.
  install_packages build-essential libclang-dev libssl-dev pkg-config
  # Absolute, because the default of cargo would be the source folder target/.
  export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/build}
  build_rocksdb
}

# build_program: the program as people run it, into $CARGO_TARGET_DIR/release/onefold.
build_program() (
  # From the repository: cargo's settings are found from the current folder.
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  cargo build --release -p onefold
)
