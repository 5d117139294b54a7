#!/bin/sh
# Upgrades an installed cgpu while containers go on with their limits and turns. First checks
# whether anything prevents that.
#
#   upgrade.sh [--cold] [FOLDER OF BUILT FILES]
#
# --cold refuses while there is a container, as Alibaba Cloud's cGPU does.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/files.sh"
usage="usage: upgrade.sh [--cold] [FOLDER OF BUILT FILES]"
help "$@"
sources=$(dirname "$here")
cold=no
[ "${1:-}" != --cold ] || { cold=yes; shift; }
case $#${1:-} in 0 | 1[!-]*) ;; *) die "$usage; to check only: cgpu upgrade --check" ;; esac
find_built "$@"
[ -f "${DESTDIR:-}$LIST" ] || die "nothing is installed: use install.sh"
if [ $cold = yes ]; then
    for container in "${DESTDIR:-}"/run/cgpu/containers/*/; do
        [ ! -d "$container" ] ||
            die "container $(basename "$container") is there: end it, or upgrade without --cold"
    done
elif [ -z "${DESTDIR:-}" ] && [ -S /run/cgpu/monitor.sock ]; then
    # The new release checks whether it can take over.
    "$built/cgpu" upgrade --check || die "cannot upgrade while containers run: see above"
fi
exec "$here/install.sh" "$@"
