#!/usr/bin/env bash
# Install TensorFlow's CUDA wheels on a machine of their own, open every library, print which; then remove the machine.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$(mktemp -d /var/tmp/labctl-cuda-wheels.XXXXXX)
labctl() {
    LABCTL_HOME=$root .venv/bin/labctl "$@"
}
clean_up() {
    labctl down --lab cuda-wheels --force >&2 || true
    rm -rf "$root"
}
trap clean_up EXIT
labctl up --lab cuda-wheels --nodes 1 >&2
.venv/bin/ansible-playbook --inventory "$root/inventory/cuda-wheels" \
    --extra-vars "cuda_wheels_report=$root/report.txt" tests/cuda_wheels.yml >&2
cat "$root/report.txt"
