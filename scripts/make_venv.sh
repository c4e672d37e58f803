#!/usr/bin/env bash
# Make the project's virtual environment from the pinned, hashed requirements.
set -euo pipefail
python=$1 venv=$2

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "setup: $python is not Python 3.11 or newer" >&2
    echo "  do        install python3.11, or make PYTHON=/path/to/python3.11 ..." >&2
    exit 3
fi
# A half-made environment (an interrupted set-up, a moved checkout) is made anew.
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$venv"
    if ! "$python" -m venv "$venv" 2>/dev/null; then
        rm -rf "$venv"
        apt=(apt-get)
        [ "$(id -u)" -eq 0 ] || apt=(sudo -n apt-get)
        echo "setup: $python has no ensurepip; installing python3-venv" >&2
        DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y -q python3-venv >/dev/null ||
            { DEBIAN_FRONTEND=noninteractive "${apt[@]}" update -q >/dev/null &&
                DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y -q python3-venv >/dev/null; }
        "$python" -m venv "$venv"
    fi
fi
echo "setup: installing into $venv" >&2
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
    -r requirements/bootstrap.txt
"$venv/bin/uv" pip sync --quiet --python "$venv/bin/python" --require-hashes \
    requirements/bootstrap.txt requirements/dev.txt
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --no-build-isolation --editable .
echo "setup: done. Activate it with: source $venv/bin/activate" >&2
