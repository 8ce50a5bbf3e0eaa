#!/usr/bin/env bash
# Breaks the program on purpose, one place at a time, and counts how many breaks the tests notice.
# tests/breaks/run.sh [--check] [--in-place] [--mutants] [WORD...]
#   WORD        only breaks whose name, file or list (tests/breaks/WORD.txt) has one of these words
#   --check     only looks whether every break still applies to the source (seconds)
#   --in-place  breaks this tree itself, which must be committed, instead of a copy: saves compiling it once more
#   --mutants   afterwards cargo-mutants (`cargo install cargo-mutants`) breaks the pure crates nvme and roce (hours)
# A break is a replacement in one file, and the tests that have to notice it: see tests/breaks/*.txt. The file is named by
# the end of its path; of several, it is the one with the text, so that a file can move. It fails when less than 95 %
# are noticed, when a break no longer applies (the code moved on: write the break anew), and when one does not compile
# (then it breaks nothing).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
list=$root/tests/breaks
percent_min=95
# A test that hangs has noticed, too.
seconds_max=${ONEFOLD_BREAK_SECONDS:-900}
check='' in_place='' mutants=''
words=()
for argument; do
  case $argument in
    --check) check=yes ;;
    --in-place) in_place=yes ;;
    --mutants) mutants=yes ;;
    -*) sed -n 2,7p "${BASH_SOURCE[0]}" >&2; exit 1 ;;
    *) words+=("$argument") ;;
  esac
done

# The breaks, by number.
names=() files=() tests=() olds=() news=() lists=()
read_list() { # FILE
  local line part='' old='' new=''
  while IFS= read -r line || [ -n "$line" ]; do
    case $part in
      old) if [ "$line" = "new:" ]; then part=new; else old+=$line$'\n'; fi; continue ;;
      new)
        if [ "$line" != "end" ]; then new+=$line$'\n'; continue; fi
        olds+=("${old%$'\n'}"); news+=("${new%$'\n'}"); part='' old='' new='' ;;
      *)
        case $line in
          'break: '*) names+=("${line#break: }") lists+=("${1##*/}") ;;
          'file: '*) files+=("${line#file: }") ;;
          'test: '*) tests+=("${line#test: }") ;;
          'old:') part=old ;;
          ''|'#'*) ;;
          *) echo "breaks: $1 has a line that says nothing: $line" >&2; exit 1 ;;
        esac ;;
    esac
  done <"$1"
  local count=${#names[@]}
  [ -z "$part" ] && [ ${#files[@]} = "$count" ] && [ ${#tests[@]} = "$count" ] && [ ${#olds[@]} = "$count" ] || {
    echo "breaks: $1: a break has no file, no test, or no end; the last one is '${names[-1]}'" >&2; exit 1
  }
}
for file in "$list"/*.txt; do read_list "$file"; done

is_wanted() { # NUMBER
  local word
  [ ${#words[@]} = 0 ] && return 0
  for word in "${words[@]}"; do case "${names[$1]} ${files[$1]} ${lists[$1]}" in *"$word"*) return 0 ;; esac; done
  return 1
}
wanted=()
for number in "${!names[@]}"; do is_wanted "$number" && wanted+=("$number"); done
[ ${#wanted[@]} -gt 0 ] || { echo "breaks: none has one of: ${words[*]}" >&2; exit 1; }

# broken NUMBER FOLDER: the file of a break (in $file) and its text with the break in it (in $text), if it applies in one
# place.
broken() {
  local old=${olds[$1]} candidate content rest places=0
  while IFS= read -r candidate; do
    [ -f "$2/$candidate" ] && content=$(cat "$2/$candidate" && echo .) || continue
    content=${content%.}
    rest=${content/"$old"/}
    [ "$rest" != "$content" ] || continue
    places=$((places + 1))
    [ "${rest/"$old"/}" = "$rest" ] || places=$((places + 1))
    file=$candidate text=${content/"$old"/"${news[$1]}"}
  done < <(git -C "$root" grep -lF -e "${old%%$'\n'*}" -- ":(glob)**/${files[$1]}")
  case $places in
    1) ;;
    0) echo "its text is not there"; return 1 ;;
    *) echo "its text is there more than once"; return 1 ;;
  esac
}

stale=0
for number in "${wanted[@]}"; do
  broken "$number" "$root" >/tmp/onefold-break.$$ && continue
  echo "DOES NOT APPLY  ${names[$number]} (${files[$number]}): $(cat /tmp/onefold-break.$$)"
  stale=$((stale + 1))
done
rm -f /tmp/onefold-break.$$
echo "${#wanted[@]} breaks, of which $stale no longer apply"
[ -n "$check" ] && exit $((stale > 0))

. "$root/scripts/build.sh"
prepare_build
tree=$root
if [ -n "$in_place" ]; then
  [ -z "$(git -C "$root" status --porcelain --untracked-files=no)" ] || { echo "breaks: commit first, or leave out --in-place" >&2; exit 1; }
else
  tree=$CARGO_TARGET_DIR/breaks
  mkdir -p "$tree"
  # Only what changed since the last time, so that cargo compiles no more than that.
  (cd "$root" && git ls-files -z | while IFS= read -r -d '' file; do
    [ -f "$file" ] || continue
    cmp -s "$file" "$tree/$file" || { mkdir -p "$tree/$(dirname "$file")"; cp -p "$file" "$tree/$file"; }
  done)
fi
cd "$tree"
said=$CARGO_TARGET_DIR/breaks.log
mending=''
# What the break replaced; its time is now, so that cargo sees it.
mend() { [ -z "$mending" ] || { printf %s "$original" >"$mending"; mending=''; }; }
trap mend EXIT
trap 'exit 130' INT TERM

# Without a break the tests pass: otherwise nothing is said by their failing.
declare -A passes
# The tests of the program run what was built, and do not build it.
unset ONEFOLD_PROGRAM
build_for() { # TEST
  case $1 in
    '-p tests '*) cargo build --quiet -p onefold --bins || return 1 ;;
  esac
  # shellcheck disable=SC2086
  cargo test --quiet --no-run ${1%% -- *}
}
passes_unbroken() { # TEST
  [ -n "${passes[$1]:-}" ] && return 0
  build_for "$1" >"$said" 2>&1 || return 1
  # shellcheck disable=SC2086
  timeout "$seconds_max" cargo test --quiet $1 >"$said" 2>&1 || return 1
  # A filter that names nothing passes, too.
  grep -q "test result: ok. [1-9]" "$said" || { echo "no test ran" >>"$said"; return 1; }
  passes[$1]=yes
}

noticed=0 missed=() wrong=$stale
for number in "${wanted[@]}"; do
  name=${names[$number]} test=${tests[$number]}
  broken "$number" "$tree" >/dev/null || continue
  passes_unbroken "$test" || { tail -n 30 "$said"; echo "breaks: without a break this fails: cargo test $test" >&2; exit 1; }
  original=$(cat "$file" && echo .) original=${original%.}
  mending=$file begun=$SECONDS
  printf %s "$text" >"$file"
  if ! build_for "$test" >"$said" 2>&1; then
    grep -m 3 -A 5 "^error" "$said" || true
    echo "DOES NOT COMPILE  $name ($file)"
    wrong=$((wrong + 1))
  # shellcheck disable=SC2086
  elif timeout "$seconds_max" cargo test --quiet $test >"$said" 2>&1; then
    missed+=("$name ($file): cargo test $test")
    echo "NOT NOTICED  $name ($file), $((SECONDS - begun)) s"
  else
    noticed=$((noticed + 1))
    echo "noticed  $name, $((SECONDS - begun)) s"
  fi
  mend
done

tried=$((noticed + ${#missed[@]}))
echo "$noticed of $tried breaks were noticed"
for one in "${missed[@]}"; do echo "  not noticed: $one"; done
if [ -n "$mutants" ]; then
  command -v cargo-mutants >/dev/null || { echo "breaks: cargo install cargo-mutants" >&2; exit 1; }
  cargo mutants --package nvme --package roce --output "$CARGO_TARGET_DIR" || [ $? = 2 ]
fi
[ "$wrong" = 0 ] || { echo "breaks: $wrong no longer apply or do not compile: write them anew" >&2; exit 1; }
[ $((noticed * 100)) -ge $((tried * percent_min)) ] || { echo "breaks: less than $percent_min % are noticed" >&2; exit 1; }
