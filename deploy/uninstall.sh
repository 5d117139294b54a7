#!/bin/sh
# Removes what install.sh made on this host, or below DESTDIR, and nothing else. A changed
# configuration stays; --purge removes it and the settings in /var/lib/cgpu. Running programs keep
# their limits until they end.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/files.sh"
purge=no
[ "${1:-}" != --purge ] || { purge=yes; shift; }
[ $# = 0 ] || die "usage: uninstall.sh [--purge]"
root=${DESTDIR:-}
[ -f "$root$LIST" ] || die "nothing is installed: there is no $root$LIST"
[ -n "$root" ] || [ "$(id -u)" = 0 ] || die "only root can uninstall from /"
if has_systemd; then
    systemctl disable --now cgpu-monitor || say "the service could not be stopped"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$root$LIST" "$work/list"
# Engines first: an engine whose configuration names a missing program starts no container.
for engine in \
    "docker /etc/docker/daemon.json" \
    "containerd /etc/containerd/config.toml" \
    "podman /etc/containers/containers.conf.d/cgpu.conf" \
    "crio /etc/crio/crio.conf.d/99-cgpu.conf"; do
    name=${engine%% *}
    file=$root${engine#* }
    grep -qs cgpu-runtime "$file" || continue
    "$root/usr/bin/cgpu" setup "$name" --undo --file "$file" >&2 ||
        die "$file still names cgpu-runtime: remove that, then uninstall again"
done
while read -r what place print; do
    case $what in
    file) rm -f "$root$place" ;;
    configuration)
        if [ $purge = yes ] || [ ! -e "$root$place" ] ||
            [ "$(cksum < "$root$place" | tr ' ' -)" = "$print" ]; then
            rm -f "$root$place"
        else
            say "$place was changed and stays"
        fi
        ;;
    esac
done < "$work/list"
[ $purge = no ] || rm -rf "$root/var/lib/cgpu"
rm -f "$root$LIST"
# Folders, innermost first. A folder that has other files stays.
sed -n 's/^folder //p' "$work/list" | awk '{ print length($0) " " $0 }' | sort -rn |
    cut -d' ' -f2- | while read -r folder; do
    rmdir "$root$folder" 2>/dev/null || :
done
# The monitor's own folders. One that holds a container, or is a mount, is not empty and stays.
rmdir "$root/run/cgpu/containers" "$root/run/cgpu" "$root/run/cgpu_km" 2>/dev/null || :
has_systemd && systemctl daemon-reload
say "uninstalled"
