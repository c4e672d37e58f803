#!/bin/sh
# Install the Debian or Ubuntu packages that rehearsal machines need on this host.
#
#   scripts/host_packages.sh            what `labctl up` needs
#   scripts/host_packages.sh --tests    that, and what the tests use (a browser, gcc, gnupg, iperf3, iptables, an sshd
#                                       that is not enabled)
#   scripts/host_packages.sh --missing  print what is missing and install nothing; with --tests, of both
#
# Ends 0 when nothing is missing, 1 when something is and it may not or cannot be installed.
set -eu

packages="ca-certificates debian-archive-keyring iproute2 mmdebstrap mount nftables openssh-client python3-venv"
packages="$packages systemd-container util-linux"
list_only=false
for option in "$@"; do
    case $option in
    --tests) packages="$packages chromium chromium-driver gcc gnupg iperf3 iptables libc6-dev openssh-server" ;;
    --missing) list_only=true ;;
    *)
        echo "host_packages.sh: unknown option $option" >&2
        exit 2
        ;;
    esac
done

command -v dpkg-query >/dev/null || {
    echo "host_packages.sh: no dpkg here; install by hand what provides: $packages" >&2
    exit 1
}

missing=""
for package in $packages; do
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$status" = installed ] || missing="$missing $package"
done
missing=${missing# }
[ -n "$missing" ] || exit 0

if $list_only; then
    echo "$missing"
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
        echo "host_packages.sh: missing: $missing" >&2
        echo "  do        sudo apt-get install $missing" >&2
        exit 1
    fi
    exec sudo -n "$0" "$@"
fi

export DEBIAN_FRONTEND=noninteractive
echo "installing $missing" >&2
ssh_was_absent=false
case " $missing " in *" openssh-server "*)
    ssh_was_absent=true
    # The tests start an sshd of their own; this machine's must not begin to listen because of them.
    [ ! -d /run/systemd/system ] || systemctl mask --quiet ssh.service ssh.socket
    ;;
esac
restore_ssh() {
    if $ssh_was_absent && [ -d /run/systemd/system ]; then
        systemctl unmask --quiet ssh.service ssh.socket
        systemctl disable --quiet ssh.service ssh.socket 2>/dev/null || true
    fi
}
trap restore_ssh EXIT
apt-get update --quiet=2 -o DPkg::Lock::Timeout=300 >&2 ||
    echo "host_packages.sh: apt-get update failed; going on with the lists at hand" >&2
# shellcheck disable=SC2086 # one word for each package
apt-get install --yes --quiet=2 --no-install-recommends -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 $missing >&2
