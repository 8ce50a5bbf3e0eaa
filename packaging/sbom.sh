# Sourced by deb.sh: what the program is made of.

# crates: the crates that are linked into the program, one line each: NAME VERSION
crates() { cargo tree --locked --package onefold --edges normal --prefix none --format '{p}' | awk '{ print $1, substr($2, 2) }' | sort -u; }

# uplot_version: that of the charts of the dashboard, as the file says.
uplot_version() { sed -n '1s/.*uPlot (v\([0-9.]*\)).*/\1/p' api/dashboard/vendor/uplot.js; }

# defined FILE NAME...: the numbers that a header defines by these names, with dots between them.
defined() {
  local file=$1 name number numbers=()
  shift
  for name in "$@"; do
    number=$(sed -n "s/^#define $name  *\([0-9][0-9]*\).*/\1/p" "$file")
    [ -n "$number" ] || { echo "sbom.sh: $file does not define $name" >&2; return 1; }
    numbers+=("$number")
  done
  (IFS=.; echo "${numbers[*]}")
}

# crate_dir NAME: where the source of a crate that is linked lies.
crate_dir() {
  local manifest
  manifest=$(cargo metadata --format-version 1 --locked | jq -r --arg name "$1" '.packages[] | select(.name == $name) | .manifest_path')
  [ -f "$manifest" ] || { echo "sbom.sh: no crate $1" >&2; return 1; }
  echo "${manifest%/*}"
}

# native: the C and C++ libraries that crates bring with them and link statically, one line each:
# NAME VERSION LICENCE PACKAGE-URL CRATE FOLDER, the version as its own header says.
native() {
  local rocksdb lz4 zstd version
  rocksdb=$(crate_dir librocksdb-sys)/rocksdb lz4=$(crate_dir lz4-sys)/liblz4/lib zstd=$(crate_dir zstd-sys)/zstd
  version=$(defined "$rocksdb/include/rocksdb/version.h" ROCKSDB_MAJOR ROCKSDB_MINOR ROCKSDB_PATCH)
  echo "rocksdb $version Apache-2.0 pkg:github/facebook/rocksdb@v$version librocksdb-sys $rocksdb"
  version=$(defined "$lz4/lz4.h" LZ4_VERSION_MAJOR LZ4_VERSION_MINOR LZ4_VERSION_RELEASE)
  echo "lz4 $version BSD-2-Clause pkg:github/lz4/lz4@v$version lz4-sys $lz4"
  version=$(defined "$zstd/lib/zstd.h" ZSTD_VERSION_MAJOR ZSTD_VERSION_MINOR ZSTD_VERSION_RELEASE)
  echo "zstd $version BSD-3-Clause pkg:github/facebook/zstd@v$version zstd-sys $zstd"
}

# check_parts SBOM NOTICES: whether the two name every C and C++ library, with a text of its licence.
check_parts() {
  local name version licence url crate folder found=0
  while read -r name version licence url crate folder; do
    jq -e --arg url "$url" 'any(.components[]; .purl == $url)' "$1" >/dev/null \
      || { echo "deb.sh: the SBOM does not name $name $version" >&2; return 1; }
    awk -v head="$name $version: $licence" '$0 == head { inside = 1; next } /^=====/ { inside = 0 } inside && /[Cc]opyright/ { found = 1 } END { exit !found }' "$2" \
      || { echo "deb.sh: the licences have no text of $name $version" >&2; return 1; }
    found=$((found + 1))
  done < <(native)
  [ "$found" = 3 ] || { echo "deb.sh: $found C and C++ libraries were found, not 3" >&2; return 1; }
}

# sbom VERSION: a CycloneDX 1.5 document of the program and its crates, with licences and the sums of Cargo.lock.
sbom() {
  local sums parts
  parts=$(native | jq -Rn '[inputs | split(" ") | {name: .[0], version: .[1], licence: .[2], purl: .[3], crate: .[4]}]')
  sums=$(awk -F'"' '/^name = /{name=$2} /^version = /{version=$2} /^checksum = /{print name, version, $2}' Cargo.lock)
  cargo metadata --format-version 1 --locked | jq --arg version "$1" --arg time "$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" \
    --arg linked "$(crates)" --arg sums "$sums" --arg uplot "$(uplot_version)" \
    --argjson native "$parts" --arg uplot_sum "$(sha256sum api/dashboard/vendor/uplot.js | cut -d' ' -f1)" '
    def reference: "pkg:cargo/\(.name)@\(.version)";
    def licences: if .license == null then {} else {licenses: [{expression: (.license | gsub("/"; " OR "))}]} end;
    ($linked | split("\n") | map({key: ., value: true}) | from_entries) as $linked
    | ($sums | split("\n") | map(split(" ") | {key: "\(.[0]) \(.[1])", value: .[2]}) | from_entries) as $sums
    | (.packages | map({key: .id, value: reference}) | from_entries) as $references
    | (.packages | map(select($linked["\(.name) \(.version)"]))) as $parts
    | ($parts | map({key: .id, value: true}) | from_entries) as $inside
    | {
        bomFormat: "CycloneDX", specVersion: "1.5", version: 1,
        metadata: {
          timestamp: $time,
          component: ({type: "application", "bom-ref": "pkg:cargo/onefold@\($version)", name: "onefold", version: $version,
            licenses: [{expression: "MIT OR Apache-2.0"}]})
        },
        components: [{
          type: "library", "bom-ref": "pkg:npm/uplot@\($uplot)", name: "uplot", version: $uplot, purl: "pkg:npm/uplot@\($uplot)",
          licenses: [{expression: "MIT"}], hashes: [{alg: "SHA-256", content: $uplot_sum}]
        }, ($native[] | {
          type: "library", "bom-ref": .purl, name, version, purl, licenses: [{expression: .licence}]
        }), ($parts[] | select(.name != "onefold") | {
          type: "library", "bom-ref": reference, name, version, purl: reference
        } + licences + (if $sums["\(.name) \(.version)"] then {hashes: [{alg: "SHA-256", content: $sums["\(.name) \(.version)"]}]} else {} end))],
        dependencies: [.resolve.nodes[] | select($inside[.id]) | $references[.id] as $reference | {
          ref: $reference,
          dependsOn: ([.deps[] | select(any(.dep_kinds[]; .kind == null)) | .pkg | select($inside[.]) | $references[.]]
            + [$native[] | select(.crate as $crate | $reference | startswith("pkg:cargo/\($crate)@")) | .purl])
        }]
      }'
}

# notices: the licence texts of all crates, of the C and C++ libraries in them and of uPlot, each under its name.
notices() {
  local linked name version licence url crate folder manifest file
  linked=$(crates)
  cargo metadata --format-version 1 --locked \
    | jq -r '.packages[] | select(.source != null) | [.name, .version, .license // "see below", .manifest_path] | @tsv' \
    | sort | while IFS=$'\t' read -r name version licence manifest; do
      grep -qx "$name $version" <<<"$linked" || continue
      printf '\n%s\n%s %s: %s\n\n' "$(printf '=%.0s' {1..80})" "$name" "$version" "$licence"
      for file in "${manifest%/*}"/{LICEN[CS]E,COPYING,COPYRIGHT,NOTICE,UNLICENSE}*; do
        [ ! -f "$file" ] || { cat "$file"; echo; }
      done
    done
  native | while read -r name version licence url crate folder; do
    printf '\n%s\n%s %s: %s\n\n' "$(printf '=%.0s' {1..80})" "$name" "$version" "$licence"
    for file in "$folder"/{LICEN[CS]E*,COPYING*}; do
      # RocksDB and zstd may be had under the GPL too, which is not the choice here.
      [ ! -f "$file" ] || grep -q 'GNU GENERAL PUBLIC LICENSE' "$file" || { cat "$file"; echo; }
    done
  done
  printf '\n%s\n%s %s: %s\n\n' "$(printf '=%.0s' {1..80})" uplot "$(uplot_version)" MIT
  cat api/dashboard/vendor/uplot.LICENSE
}
