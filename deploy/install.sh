#!/bin/sh
# Installs or upgrades cgpu on this host, or below DESTDIR. What it did is written down, and uninstall.sh undoes that and nothing else.
#
#   install.sh [--no-start] [FOLDER OF BUILT FILES]    default: target/dist beside deploy/, else the folder above deploy/
#
# A file is put beside its place and renamed into it: programs that run go on with what they have, and a failure on the way leaves what was
# there. A running monitor is then told to start its successor, which takes over with all that it knows.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/files.sh"

start=yes
[ "${1:-}" != --no-start ] || { start=no; shift; }
sources=$(dirname "$here")
case $#${1:-} in
0) built=$sources/target/dist; [ -d "$built" ] || built=$sources ;;
1-*) die "usage: install.sh [--no-start] [FOLDER OF BUILT FILES]" ;;
1*) built=$1; [ -d "$built" ] || die "$built is no folder; usage: install.sh [--no-start] [FOLDER OF BUILT FILES]" ;;
*) die "usage: install.sh [--no-start] [FOLDER OF BUILT FILES]" ;;
esac
for needed in cgpu cgpu-monitor libcgpu.so; do
    [ -f "$built/$needed" ] || die "no $needed in $built: build it (cargo xtask build) or say where it lies"
done
root=${DESTDIR:-}
[ -n "$root" ] || [ "$(id -u)" = 0 ] || die "only root installs into /; DESTDIR=FOLDER installs below a folder"

# What an earlier installation made stays written down, or nobody would take it away.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
list=$work/list
if [ -f "$root$LIST" ]; then cp "$root$LIST" "$list"; was_there=yes; else : > "$list"; was_there=no; fi
note() { grep -qxF "$1" "$list" || printf '%s\n' "$1" >> "$list"; }
# Folders that we make, outermost first.
folder() {
    [ -d "$root$1" ] && return
    folder "$(dirname "$1")"
    mkdir "$root$1"
    note "folder $1"
}

folder "$(dirname "$LIST")"
files > "$work/files"
while read -r file place mode; do
    case $file in
    deploy/* | docs/*) from=$sources/$file ;;
    *) from=$built/$file ;;
    esac
    [ -f "$from" ] || continue
    folder "$(dirname "$place")"
    if [ -e "$root$place" ] && ! grep -qxF "file $place" "$list"; then
        die "$place is there and not ours: remove it first"
    fi
    note "file $place"
    cp "$from" "$root$place.new"
    chmod "$mode" "$root$place.new"
    mv -f "$root$place.new" "$root$place"
    # After each, so that whatever ends us on the way leaves nothing that uninstall.sh does not know.
    cp "$list" "$root$LIST"
done < "$work/files"
if [ ! -e "$root/usr/bin/cgpu-smi" ]; then
    ln -s cgpu "$root/usr/bin/cgpu-smi"
    note "file /usr/bin/cgpu-smi"
fi
cp "$here/files.sh" "$root/usr/lib/cgpu/files.sh"
note "file /usr/lib/cgpu/files.sh"
# The configuration is the host's: made once, then left alone.
folder "$(dirname "$SETTINGS")"
if [ ! -e "$root$SETTINGS" ]; then
    cp "$here/monitor.toml" "$root$SETTINGS"
    chmod 0644 "$root$SETTINGS"
    note "configuration $SETTINGS $(cksum < "$here/monitor.toml" | tr ' ' -)"
fi
cp "$list" "$root$LIST"

if has_systemd; then
    systemctl daemon-reload
    if [ $start = yes ]; then
        if systemctl -q is-active cgpu-monitor; then
            cgpu upgrade || die "the running monitor goes on; the new one starts with the next systemctl restart cgpu-monitor"
        else
            systemctl enable --now cgpu-monitor
        fi
    fi
fi
[ $was_there = yes ] && say "upgraded" || say "installed"
