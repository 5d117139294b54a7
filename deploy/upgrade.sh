#!/bin/sh
# Upgrades an installed cgpu. Hot: containers go on, with their limits and turns; what could stand in the way is looked at first.
#   upgrade.sh [--cold] [FOLDER OF BUILT FILES]
# --cold refuses while any container is there, as cgpu's model does.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/files.sh"
cold=no
[ "${1:-}" != --cold ] || { cold=yes; shift; }
case $#${1:-} in 0 | 1[!-]*) ;; *) die "usage: upgrade.sh [--cold] [FOLDER OF BUILT FILES]; cgpu upgrade --check only looks" ;; esac
[ $# = 0 ] || [ -d "$1" ] || die "$1 is no folder; usage: upgrade.sh [--cold] [FOLDER OF BUILT FILES]"
[ -f "${DESTDIR:-}$LIST" ] || die "nothing is installed: use install.sh"
if [ $cold = yes ]; then
    for container in "${DESTDIR:-}"/run/cgpu/containers/*/; do
        [ ! -d "$container" ] || die "container $(basename "$container") is there: end it first, or upgrade without --cold"
    done
elif [ -z "${DESTDIR:-}" ] && [ -S /run/cgpu/monitor.sock ]; then
    # By the new release's own judgement.
    built=${1:-$(dirname "$here")/target/dist}
    [ -x "$built/cgpu" ] || built=$(dirname "$here")
    "$built/cgpu" upgrade --check || die "a hot upgrade is not possible now"
fi
exec "$here/install.sh" "$@"
