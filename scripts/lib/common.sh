# Sourced by the commands in scripts/. Finds the repository root and a Python 3.11; needs neither pip nor venv.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)

is_python_3_11() {
  "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1
}

# Prints the first working Python 3.11: $PYTHON, the usual names on PATH, then pyenv's installed versions.
find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.11 python3 python /usr/bin/python3.11 /usr/local/bin/python3.11 \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.11.*/bin/python3.11; do
    if [[ -n $candidate ]] && is_python_3_11 "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  cat >&2 <<'HELP'
error: no Python 3.11 was found, which requirements.lock is for. What to do:
  Debian 12:                 apt-get install python3.11 python3.11-venv python3.11-dev build-essential
  Ubuntu without a 3.11:     install 3.11 with pyenv
  installed somewhere else:  PYTHON=/path/to/python3.11 scripts/setup
HELP
  return 1
}

# Whether the arguments ask for help; what follows `--` belongs to someone else.
wants_help() {
  local argument
  for argument in "$@"; do
    case $argument in
      --) return 1 ;;
      -h | --help) return 0 ;;
    esac
  done
  return 1
}

# Runs a module of scripts/lib with the found Python, from the repository root.
run_module() {
  local python
  python=$(find_python) || return 1
  (cd "$root" && exec "$python" -m "scripts.lib.$1" "${@:2}")
}
