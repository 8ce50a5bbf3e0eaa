# For stories that look at what nvme-cli decodes; every story finds it in its folder:  . /lab/fields.sh

# are FIELD=VALUE... < <(nvme ...): what nvme-cli shows ('field : value' a line) is exactly that. Numbers may be written in
# any base. A field that is not shown is an error, too. Not behind a pipe: a story does not end with a part of one.
are() {
  local shown pair field value got
  shown=$(cat)
  for pair; do
    field=${pair%%=*} value=${pair#*=}
    got=$(printf '%s\n' "$shown" | sed -n "s/^$field[[:space:]]*: *//p" | sed 's/ *$//' | head -n 1)
    [ "$got" = "$value" ] && continue
    case $got-$value in
      *[!0-9a-fA-Fx-]*|-*|*-) ;;
      *) [ $((got)) = $((value)) ] && continue ;;
    esac
    printf '%s\n' "$shown"
    die "$field is '$got' instead of '$value'"
  done
}
