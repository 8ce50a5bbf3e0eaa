//! Compiles the shim against the headers that RocksDB itself was compiled with: `librocksdb-sys` brings its
//! sources, also when the library was built before (ROCKSDB_LIB_DIR).

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=src/shim.cc");
    println!("cargo:rerun-if-env-changed=DEP_ROCKSDB_CARGO_MANIFEST_DIR");
    let sources = env::var_os("DEP_ROCKSDB_CARGO_MANIFEST_DIR").map(PathBuf::from);
    let sources = sources.map(|package| package.join("rocksdb"));
    let Some(sources) = sources.filter(|sources| sources.join("utilities").is_dir()) else {
        panic!("librocksdb-sys does not say where RocksDB's sources are");
    };
    // As in librocksdb-sys: what changes the layout of classes must be the same.
    let is_mac = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "macos");
    cc::Build::new()
        .cpp(true)
        .std("c++20")
        .include(sources.join("include"))
        .include(&sources)
        .define("NDEBUG", Some("1"))
        .define(if is_mac { "OS_MACOSX" } else { "OS_LINUX" }, None)
        .define("ROCKSDB_PLATFORM_POSIX", None)
        .define("ROCKSDB_LIB_IO_POSIX", None)
        .warnings(false)
        .file("src/shim.cc")
        .compile("onefold_power_cut");
}
