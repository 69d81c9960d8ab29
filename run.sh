#!/usr/bin/env bash
# Sets up .venv on first use, then passes its arguments to the console script `distsgd`.
#   bash run.sh downpour            train      bash run.sh --help      what else there is
#   bash run.sh pip install NAME    install a package of your own into .venv
# Where an NVIDIA driver is, .venv has the CUDA libraries that TensorFlow needs, too: DISTSGD_GPU=0 or 1 decides otherwise.
set -euo pipefail
{ : >&2; } 2>/dev/null || exec 2>/dev/null  # a closed standard error
unset CDPATH

folder_of() {  # the folder of a file, which may be a symbolic link
    local file=$1 target
    while [[ -L $file ]]; do
        target=$(readlink "$file")
        [[ $target == /* ]] || target=$(dirname "$file")/$target
        file=$target
    done
    cd "$(dirname "$file")" && pwd -P
}

fail() {
    echo "error: $1" >&2
    exit 2
}

find_python() {  # that of .venv if it works, so that packages stay; else the first one that TensorFlow supports
    local python made=''
    command -v uv >/dev/null || made='import ensurepip, venv; '
    if .venv/bin/python -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)' 2>/dev/null; then
        made=
        set -- .venv/bin/python
    fi
    for python in "$@" python3 python3.13 python3.12 python3.11; do
        if "$python" -c "${made}import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))" 2>/dev/null; then
            command -v "$python"
            return
        fi
    done
    fail "TensorFlow needs Python 3.11, 3.12 or 3.13, with its venv module; none was found on the PATH."
}

has_driver() {  # an NVIDIA driver for which TensorFlow has a build; $1: another root folder
    local file
    [[ $(uname -sm) == "Linux x86_64" ]] || return
    for file in proc/driver/nvidia/version dev/nvidiactl dev/nvidia0 usr/lib/wsl/lib/libcuda.so.1; do
        [[ ! -e ${1-}/$file ]] || return 0
    done
    return 1
}

wants_gpu() {
    case ${DISTSGD_GPU-} in
        0) return 1 ;;
        1) return 0 ;;
        '') has_driver ;;
        *) fail "DISTSGD_GPU must be 0 or 1. Received: $DISTSGD_GPU" ;;
    esac
}

# The stamp of an environment: the versions in it, its folder (it cannot be moved), and whether it has CUDA libraries. One
# that has them serves all machines, so that machines with and without a driver do not change it in turns.
stamp() { cat constraints.txt pyproject.toml && echo "$here" && echo "$1"; }

is_set_up_for() { [[ -e .venv/pins ]] && stamp "$1" | cmp -s - .venv/pins; }

is_set_up() { is_set_up_for gpu || { ! wants_gpu && is_set_up_for cpu; }; }

# Installs the pinned versions. The stamp is written last, so an interrupted set-up is done again.
install() {
    local python=$1 kind=cpu extra='' size='3 GB' before=''
    [[ ! -e .venv/pins ]] || before=$(tail -n 1 .venv/pins)
    if wants_gpu || [[ $before == gpu ]]; then
        kind=gpu extra='[gpu]' size='3 GB, and CUDA libraries several more,'
    fi
    echo "Setting up .venv (once; TensorFlow is large: $size in all) ..." >&2
    show_growth 9>&- &
    growth=$!
    disown
    trap finish EXIT
    if [[ $python != .venv/* ]]; then
        [[ -z $before ]] || echo "warning: .venv needs another Python, so packages of your own are to be installed again" >&2
        if command -v uv >/dev/null; then
            uv venv --quiet --allow-existing --python "$python" .venv
        else
            "$python" -m venv .venv
        fi
    fi
    PIP_QUIET=1 .venv/bin/python -P common/packages.py install --quiet --editable ".$extra" --group dev
    if [[ $before ]] && ! .venv/bin/python -P common/packages.py check >.venv/conflicts 2>&1; then
        echo "warning: packages of your own do not fit the new versions:" >&2
        cat .venv/conflicts >&2
    fi
    stamp $kind >.venv/pins
}

finish() {
    local code=$?
    kill $growth 2>/dev/null || true
    [[ ! -t 2 ]] || printf '\r\033[K' >&2
    if ((code != 0)) && [[ -e .venv/pins ]] && is_set_up_for cpu; then
        echo "error: no CUDA libraries were installed. Install them where there is a network, DISTSGD_GPU=1 bash run.sh" \
            "list, or run without a GPU: DISTSGD_GPU=0" >&2
    fi
}

show_growth() {  # how long it takes and how much is there: a line that changes on a terminal, else one now and then
    local seconds=0
    while sleep 3 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        seconds=$((seconds + 3))
        if [[ -t 2 ]]; then
            printf '\r  %d s, %d MB ' "$seconds" "$(du -sm .venv | cut -f1)" >&2
        elif ((seconds % 30 == 0)); then
            printf '  %d s, %d MB\n' "$seconds" "$(du -sm .venv | cut -f1)" >&2
        fi
    done
}

# The tasks of a Slurm job may all come here at once: one sets up, the others wait. Python has the lock on all systems. It
# belongs to the open file, which this shell keeps.
lock() {
    "$1" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)' 2>/dev/null ||
        echo "warning: the file system of .venv has no locks: start one program alone until it is set up" >&2
}

set_up() {
    local python
    if ! mkdir -p .venv 2>/dev/null || [[ ! -w .venv ]]; then
        ! is_set_up_for cpu || fail "$here/.venv has no CUDA libraries, and cannot be changed: its owner can install them by \
DISTSGD_GPU=1 bash run.sh list; without a GPU, run with DISTSGD_GPU=0"
        fail "$here/.venv is not set up, and cannot be written: its owner can do that by bash run.sh list"
    fi
    python=$(find_python)
    exec 9>.venv/lock
    lock "$python"
    is_set_up || install "$python" >&2
}

main() {
    here=$(folder_of "${BASH_SOURCE[0]}")
    (cd "$here" && { is_set_up || set_up; })
    exec "$here/.venv/bin/distsgd" "$@"  # where the user is: files that are named, and runs/, are relative to that
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
