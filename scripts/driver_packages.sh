#!/usr/bin/env bash
# Resolve Debian's own driver packages on a machine of their own, install those that a container can have, print which;
# then remove the machine.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$(mktemp -d /var/tmp/labctl-driver-packages.XXXXXX)
labctl() {
    LABCTL_HOME=$root .venv/bin/labctl "$@"
}
clean_up() {
    labctl down --lab driver-packages --force >&2 || true
    rm -rf "$root"
}
trap clean_up EXIT
labctl up --lab driver-packages --nodes 1 >&2
.venv/bin/ansible-playbook --inventory "$root/inventory/driver-packages" \
    --extra-vars "driver_packages_report=$root/report.txt" tests/driver_packages.yml >&2
cat "$root/report.txt"
