# Sourced by deb.sh: what the program is made of.

# crates: the crates that are linked into the program, one line each: NAME VERSION
crates() { cargo tree --locked --package onefold --edges normal --prefix none --format '{p}' | awk '{ print $1, substr($2, 2) }' | sort -u; }

# uplot_version: that of the charts of the dashboard, as the file says.
uplot_version() { sed -n '1s/.*uPlot (v\([0-9.]*\)).*/\1/p' api/dashboard/vendor/uplot.js; }

# sbom VERSION: a CycloneDX 1.5 document of the program and its crates, with licences and the sums of Cargo.lock.
sbom() {
  local sums
  sums=$(awk -F'"' '/^name = /{name=$2} /^version = /{version=$2} /^checksum = /{print name, version, $2}' Cargo.lock)
  cargo metadata --format-version 1 --locked | jq --arg version "$1" --arg time "$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" \
    --arg linked "$(crates)" --arg sums "$sums" --arg uplot "$(uplot_version)" \
    --arg uplot_sum "$(sha256sum api/dashboard/vendor/uplot.js | cut -d' ' -f1)" '
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
        }, $parts[] | select(.name != "onefold") | {
          type: "library", "bom-ref": reference, name, version, purl: reference
        } + licences + (if $sums["\(.name) \(.version)"] then {hashes: [{alg: "SHA-256", content: $sums["\(.name) \(.version)"]}]} else {} end)],
        dependencies: [.resolve.nodes[] | select($inside[.id]) | {
          ref: $references[.id],
          dependsOn: [.deps[] | select(any(.dep_kinds[]; .kind == null)) | .pkg | select($inside[.]) | $references[.]]
        }]
      }'
}

# notices: the licence texts of all crates and of uPlot, each under its name.
notices() {
  local linked name version manifest file
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
  printf '\n%s\n%s %s: %s\n\n' "$(printf '=%.0s' {1..80})" uplot "$(uplot_version)" MIT
  cat api/dashboard/vendor/uplot.LICENSE
}
