#!/usr/bin/env bash
# Sets up .venv on first use, then passes its arguments to the console script `distsgd`.
#   bash run.sh downpour        train        bash run.sh --help      what else there is
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

find_python() {  # the first installed Python that TensorFlow supports
    local python
    for python in python3 python3.13 python3.12 python3.11; do
        if "$python" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            command -v "$python"
            return
        fi
    done
    echo "error: TensorFlow needs Python 3.11, 3.12 or 3.13, with its venv module; none was found on the PATH." >&2
    exit 2
}

# Install pinned versions. The stamp is written last, so an interrupted set-up is done again. Compiled here, as by pip:
# importing TensorFlow takes twice as long otherwise, each time where PYTHONDONTWRITEBYTECODE is set.
install() {
    echo "Setting up .venv (once; TensorFlow is large, 3 GB in all) ..." >&2
    show_growth &
    disown
    trap "kill $! 2>/dev/null || true; [[ ! -t 2 ]] || printf '\\r\\033[K' >&2" EXIT
    if command -v uv >/dev/null; then
        uv venv --quiet --allow-existing --python "$1" .venv
        uv pip install --quiet --compile-bytecode --python .venv/bin/python \
            --constraint constraints.txt --editable . --group dev
    else
        "$1" -m venv .venv
        .venv/bin/python -m pip install -qq --disable-pip-version-check --upgrade "pip>=25.1"
        .venv/bin/python -m pip install -qq --disable-pip-version-check \
            --constraint constraints.txt --editable . --group dev
    fi
    pins >.venv/pins
}

show_growth() {  # how long it takes and how much is there: a line that changes on a terminal, else one now and then
    local seconds=0
    while sleep 3 && kill -0 $$ 2>/dev/null; do
        seconds=$((seconds + 3))
        if [[ -t 2 ]]; then
            printf '\r  %d s, %d MB ' "$seconds" "$(du -sm .venv | cut -f1)" >&2
        elif ((seconds % 30 == 0)); then
            printf '  %d s, %d MB\n' "$seconds" "$(du -sm .venv | cut -f1)" >&2
        fi
    done
}

pins() { cat constraints.txt pyproject.toml; }

is_set_up() { (cd "$here" && [[ -e .venv/pins ]] && pins | cmp --silent - .venv/pins); }

if ! is_set_up; then
    python=$(find_python)
    mkdir -p "$here/.venv"
    exec 9>"$here/.venv/lock"
    flock 9  # the tasks of a Slurm job may all come here at once: one sets up, the others wait
    is_set_up || (cd "$here" && install "$python" >&2)
    exec 9>&-
fi
exec "$here/.venv/bin/distsgd" "$@"  # where the user is: files that are named, and runs/, are relative to that
