#!/usr/bin/env bash
# Sends a daemon what its OpenAPI document allows and what it does not, for so many seconds (60):
#   tests/lab/api_fuzz.sh [SECONDS]
# It fails when the daemon answers with a server's error, with a status or a body that the document does not know, or lets
# in who has no token. Schemathesis is installed from PyPI into a folder of its own in the build folder, once.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
. scripts/packages.sh
seconds=${1:-60}
build=${CARGO_TARGET_DIR:-$root/build}
program=${ONEFOLD_PROGRAM:-$build/debug/onefold}
[ -x "$program" ] || { echo "api_fuzz.sh: $program is missing: run 'cargo build -p onefold'" >&2; exit 1; }
tools=$build/schemathesis version=4.32.5
if [ ! -x "$tools/bin/schemathesis" ]; then
  install_packages python3-venv
  python3 -m venv "$tools"
  "$tools/bin/pip" install -q "schemathesis==$version"
fi

work=$(mktemp -d)
daemon=
trap '[ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT
# An address of its own: what runs on this machine is left alone.
address=127.77.$((RANDOM % 254 + 1)).$((RANDOM % 254 + 1))
"$program" serve --pool "$work/pool" --create 256M --listen "tcp://$address:4420" --http "$address:8420" --reactors 1 \
  >"$work/out" 2>"$work/log" &
daemon=$!
for _ in $(seq 300); do
  grep -q '^ready' "$work/out" && break
  kill -0 "$daemon" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
  sleep 0.1
done
(umask 077; "$program" token create api-fuzz --role admin --pool "$work/pool" >"$work/token" 2>/dev/null)

# Left out: what makes files where the request says, and the stream that never ends. Not checked: that whatever fits a
# schema is accepted, because a schema knows no volumes.
cd "$work"
# A body that is longer than any may be is refused with 413, which the tool does not take for a refusal by itself.
cat >schemathesis.toml <<'END'
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]
END
code=0
"$tools/bin/schemathesis" run "http://$address:8420/v1/openapi.json" --url "http://$address:8420" \
  -H "Authorization: Bearer $(cat token)" --no-color --request-timeout 10 --suppress-health-check all --warnings off \
  --exclude-operation-id postDrives --exclude-operation-id postBackup --exclude-operation-id getEventsStream \
  --exclude-checks positive_data_acceptance --continue-on-failure --max-time "$seconds" >result 2>&1 || code=$?
tail -n 25 result
kill -0 "$daemon" 2>/dev/null || { echo "api_fuzz.sh: the daemon ended" >&2; tail -n 20 log >&2; exit 1; }
if grep -q panicked log; then grep -A5 panicked log >&2; exit 1; fi
[ "$code" = 0 ] || { grep -B2 -A20 '^- ' result | head -n 200; exit "$code"; }
