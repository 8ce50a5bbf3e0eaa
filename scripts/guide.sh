#!/usr/bin/env bash
# Makes the guide as its readers get it: docs/src with the parts that the program itself writes (its commands, its
# keys), and as HTML too where mdbook is installed.
#   scripts/guide.sh PROGRAM FOLDER
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# = 2 ] || { echo "usage: scripts/guide.sh PROGRAM FOLDER" >&2; exit 1; }
program=$(realpath "$1") out=$2
mkdir -p "$out/src"
cp "$root/docs/book.toml" "$out/"
cp "$root"/docs/src/*.md "$root/docs/FEATURES.md" "$out/src/"

# help_of WORDS...: the help of a command, and of all commands below it.
help_of() {
  local text name
  text=$(cd / && env -u ONEFOLD_POOL -u ONEFOLD_LOG "$program" "$@" --help)
  printf '\n## onefold %s\n\n```text\n%s\n```\n' "$*" "$text"
  for name in $(sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' <<<"$text"); do
    [ "$name" = help ] || help_of "$@" "$name"
  done
}

# keys: a table of the configuration's keys, from the commented example.
keys() {
  echo '| key | default | meaning | option |'
  echo '|---|---|---|---|'
  "$program" config example | awk '
    function flush() { text = ""; option = "" }
    /^\[/ { section = substr($0, 2, length($0) - 2); flush(); next }
    /^$/ { flush(); next }
    /^# As an option: / { option = substr($0, 17); sub(/;|$/, "`&", option); next }
    /^# / { line = substr($0, 3); text = text (text == "" ? "" : text ~ /[.:;,]$/ || line !~ /^[A-Z]/ ? " " : ". ") line; next }
    /^#?[a-z_]+ = / {
      is_unset = sub(/^#/, "")
      key = $1; value = substr($0, length(key) + 4)
      gsub(/\|/, "\\|", text); gsub(/\|/, "\\|", value)
      printf "| `%s.%s` | %s | %s | `%s |\n", section, key, is_unset ? "by the machine; such as `" value "`" : "`" value "`", text, option
      flush()
    }'
}

# put MARK FILE: what comes on standard input, in the place of the mark.
put() {
  local text
  text=$(mktemp)
  cat >"$text"
  sed -i -e "/<!-- $1 -->/{r $text" -e 'd}' "$2"
  rm -f "$text"
}
grep -q '<!-- keys -->' "$out/src/configuration.md" && grep -q '<!-- commands -->' "$out/src/commands.md"
keys | put keys "$out/src/configuration.md"
for command in $("$program" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p'); do
  [ "$command" = help ] || help_of "$command"
done | put commands "$out/src/commands.md"
if command -v mdbook >/dev/null; then mdbook build "$out"; fi
