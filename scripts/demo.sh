#!/usr/bin/env bash
# The main job, from nothing: two machines, provisioned, checked, the question's experiment run and explained.
set -euo pipefail
cd "$(dirname "$0")/.."
labctl=$PWD/.venv/bin/labctl

sudo=()
if [ "$(id -u)" -ne 0 ]; then
    if sudo -n true 2>/dev/null; then
        sudo=(sudo "--preserve-env=LABCTL_HOME,LABCTL_STATE_DIR")
    else
        echo "demo: no root here, so no machines: two processes on 127.0.0.1 instead" >&2
        "$labctl" run --lab loopback
        "$labctl" why last --lab loopback
        exec "$labctl" report last --lab loopback
    fi
fi
scripts/host_packages.sh
"${sudo[@]}" "$labctl" up --lab rehearsal
if [ "$(id -u)" -ne 0 ]; then
    sudo chown -R "$(id -u):$(id -g)" .lab inventory
fi
"$labctl" use rehearsal
"$labctl" provision --lab rehearsal
"$labctl" check --lab rehearsal
"$labctl" run --lab rehearsal
"$labctl" why last --lab rehearsal
"$labctl" report last --lab rehearsal
