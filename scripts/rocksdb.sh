# Sourced by the scripts: compiles RocksDB's C++ once, for every profile of cargo.
#
# The crate librocksdb-sys compiles 342 small files, again for each profile: over ten minutes on two cores, of which
# most goes into reading the same headers. Here the same files are compiled as a few large units.

# package_folder NAME: prints where cargo keeps the sources of the package NAME that Cargo.lock names.
package_folder() {
  # From the repository: cargo's settings are found from the current folder.
  (cd "$(dirname "${BASH_SOURCE[0]}")/.." && cargo metadata --format-version 1 --locked) \
    | grep -oE '"manifest_path":"[^"]*/'"$1"'-[0-9][^"/]*/Cargo\.toml"' \
    | sed -nE '1s|^"manifest_path":"(.*)/Cargo\.toml"$|\1|p'
}

# compile_unit COMPILER UNIT.cc FLAGS...: makes UNIT.o. What the compiler says is shown only if it fails.
compile_unit() {
  local compiler=$1 unit=$2
  shift 2
  if "$compiler" "$@" -c "$unit" -o "${unit%.cc}.o.part" >"${unit%.cc}.log" 2>&1; then
    mv "${unit%.cc}.o.part" "${unit%.cc}.o"
  else
    cat "${unit%.cc}.log" >&2
    return 1
  fi
}

# build_rocksdb: makes librocksdb.a in a folder of $CARGO_TARGET_DIR, and exports where cargo finds it. The folder's name
# has the versions of the sources, the compiler and this script, so that a change of one of them compiles anew.
build_rocksdb() {
  [ -z "${ROCKSDB_LIB_DIR:-}" ] || return 0
  local sources lz4 compiler=${CXX:-c++} version folder
  sources=$(package_folder librocksdb-sys)
  lz4=$(package_folder lz4-sys)
  [ -f "$sources/rocksdb_lib_sources.txt" ] && [ -f "$lz4/liblz4/lib/lz4.h" ] || {
    echo "onefold: the sources of librocksdb-sys and lz4-sys are not in cargo's registry; 'cargo fetch' brings them" >&2
    return 1
  }
  version=$({ "$compiler" --version; echo "$sources"; cat "$sources/rocksdb_lib_sources.txt" "${BASH_SOURCE[0]}"; } | sha256sum | cut -c 1-16)
  folder=$CARGO_TARGET_DIR/rocksdb/$version
  mkdir -p "$folder"
  # Two builds at once take turns.
  (
    flock 9
    [ -f "$folder/librocksdb.a" ] || compile_rocksdb "$sources" "$lz4/liblz4/lib" "$compiler" "$folder"
  ) 9>"$folder/lock" || return 1
  export ROCKSDB_LIB_DIR=$folder ROCKSDB_STATIC=1
}

# compile_rocksdb SOURCES LZ4_HEADERS COMPILER FOLDER
compile_rocksdb() {
  local sources=$1 lz4=$2 compiler=$3 folder=$4
  local -a flags units
  # As in librocksdb-sys and meta/power-cut/build.rs: what changes the layout of classes must be the same.
  flags=(-std=c++20 -O3 -fPIC -ffunction-sections -fdata-sections -w -include cstdint
    -I"$sources/rocksdb/include" -I"$sources/rocksdb" -I"$sources" -I"$lz4"
    -DNDEBUG=1 -DLZ4=1 -DHAVE_ALIGNED_NEW -DHAVE_UINT128_EXTENSION
    -DOS_LINUX -DROCKSDB_PLATFORM_POSIX -DROCKSDB_LIB_IO_POSIX -DROCKSDB_SCHED_GETCPU_PRESENT
    -DROCKSDB_AUXV_GETAUXVAL_PRESENT -DROCKSDB_FALLOCATE_PRESENT -DROCKSDB_RANGESYNC_PRESENT)

  # Units of about the same size, in the order in which upstream includes them in its own single unit (`make unity`).
  # The checksum is a unit of its own, because it alone may use instructions beyond the base set.
  rm -f "$folder"/*.cc "$folder"/*.o "$folder"/*.part "$folder"/*.log
  local file size unit=0 filled=0 limit=700000
  while read -r file; do
    case $file in
      '' | util/build_version.cc | util/crc32c.cc) continue ;;
      # What neither the C interface nor the rest of RocksDB needs.
      utilities/blob_db/* | utilities/cassandra/* | utilities/persistent_cache/* | utilities/simulator_cache/*) continue ;;
      utilities/sorted_run_builder/* | utilities/cache_dump_load* | utilities/leveldb_options/*) continue ;;
      utilities/option_change_migration/* | utilities/env_mirror.cc | utilities/fault_injection_env.cc) continue ;;
      utilities/fault_injection_secondary_cache.cc | test_util/transaction_test_util.cc | tools/*) continue ;;
    esac
    size=$(wc -c <"$sources/rocksdb/$file")
    if [ $filled -gt 0 ] && [ $((filled + size)) -gt $limit ]; then unit=$((unit + 1)) filled=0; fi
    filled=$((filled + size))
    echo "#include \"$sources/rocksdb/$file\"" >>"$folder/unit$unit.cc"
  done <"$sources/rocksdb_lib_sources.txt"
  echo "#include \"$sources/build_version.cc\"" >>"$folder/unit$unit.cc"
  echo "#include \"$sources/rocksdb/util/crc32c.cc\"" >"$folder/crc32c.cc"
  units=("$folder"/unit*.cc "$folder/crc32c.cc")

  # A unit takes up to 2 GB of memory.
  local jobs memory running=0 finished=0 began=$SECONDS
  jobs=$(nproc)
  memory=$(awk '$1 == "MemAvailable:" { print int($2 / 2097152) }' /proc/meminfo)
  [ "$jobs" -le "$memory" ] || jobs=$((memory > 0 ? memory : 1))
  local -a extra
  # await_one: waits for one unit, and says how far the work is.
  await_one() {
    wait -n || { echo "onefold: RocksDB does not compile; what the compiler said is above" >&2; return 1; }
    running=$((running - 1)) finished=$((finished + 1))
    echo "onefold: compiled $finished of ${#units[@]} parts of RocksDB ($((SECONDS - began)) s)" >&2
  }
  echo "onefold: compiling RocksDB in ${#units[@]} parts, $jobs at a time (about five minutes on two cores, once)" >&2
  for unit in "${units[@]}"; do
    extra=()
    # RocksDB chooses the instructions of CRC-32C when it is compiled. Every x86-64 processor since 2010 has these.
    case $unit:$(uname -m) in
      */crc32c.cc:x86_64) extra=(-msse4.2 -mpclmul) ;;
      */crc32c.cc:aarch64) extra=(-march=armv8-a+crc+crypto) ;;
    esac
    [ $running -lt "$jobs" ] || await_one || return 1
    compile_unit "$compiler" "$unit" "${flags[@]}" "${extra[@]}" &
    running=$((running + 1))
  done
  while [ $running -gt 0 ]; do await_one || return 1; done
  ar crs "$folder/librocksdb.a.part" "$folder"/*.o || return 1
  mv "$folder/librocksdb.a.part" "$folder/librocksdb.a" || return 1
  rm -f "$folder"/*.o "$folder"/*.log
}
