#!/bin/sh
# Installs or upgrades cgpu on this host, or below DESTDIR. Records what it makes in
# /usr/lib/cgpu/installed; uninstall.sh removes that and nothing else.
#
#   install.sh [--no-start] [FOLDER OF BUILT FILES]
#
# The default folder is target/dist beside deploy/, else the folder above deploy/.
#
# The shim must load into programs of old images, too: the loader ignores a library that needs a
# newer glibc than the program has, and the program would have no limit. NEW_GLIBC=allow installs
# such a shim all the same.
#
# Each file is written beside its place and renamed into it: running programs keep the file they
# have, and a failure leaves the old file. A running monitor then starts its successor, which takes
# over its state.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/files.sh"

usage="usage: install.sh [--no-start] [FOLDER OF BUILT FILES]"
help "$@"
start=yes
[ "${1:-}" != --no-start ] || { start=no; shift; }
sources=$(dirname "$here")
case $#${1:-} in 0 | 1[!-]*) ;; *) die "$usage" ;; esac
find_built "$@"
shim=libcgpu.so
[ ! -f "$built/portable/$shim" ] || shim=portable/$shim
needs=$(grep -aoE 'GLIBC_2\.[0-9]+' "$built/$shim" | sed 's/.*\.//' | sort -n | tail -n 1)
[ "${needs:-0}" -le 17 ] || [ "${NEW_GLIBC:-}" = allow ] ||
    die "$built/$shim needs glibc 2.$needs, and programs of older images would have no limit:" \
        "build it for all of them (cargo xtask build --portable), or set NEW_GLIBC=allow"
root=${DESTDIR:-}
[ -n "$root" ] || [ "$(id -u)" = 0 ] ||
    die "only root can install into /; set DESTDIR to install below a folder"

# Keeps the entries of an earlier installation, so that uninstall.sh removes its files, too.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
list=$work/list
was_there=no
: > "$list"
if [ -f "$root$LIST" ]; then
    cp "$root$LIST" "$list"
    was_there=yes
fi
note() { grep -qxF "$1" "$list" || printf '%s\n' "$1" >> "$list"; }
# Makes a folder and those above it, and records them, outermost first.
folder() {
    [ -d "$root$1" ] && return
    folder "$(dirname "$1")"
    mkdir "$root$1"
    note "folder $1"
}

[ -f "$root$LIST" ] || [ ! -f "$root/usr/lib/cgpu/files.sh" ] ||
    die "a package installed cgpu: remove it with its package manager, then install again"
remove_pass_through "$root"
folder "$(dirname "$LIST")"
files > "$work/files"
while read -r file place mode; do
    case $file in
    deploy/* | docs/* | LICENSE) from=$sources/$file ;;
    libcgpu.so) from=$built/$shim ;;
    *) from=$built/$file ;;
    esac
    [ -f "$from" ] || continue
    folder "$(dirname "$place")"
    if [ -e "$root$place" ] && ! grep -qxF "file $place" "$list"; then
        die "$place is there and not ours: remove it, then install again"
    fi
    note "file $place"
    cp "$from" "$root$place.new"
    chmod "$mode" "$root$place.new"
    mv -f "$root$place.new" "$root$place"
    # After each file: if this script is ended, uninstall.sh knows all that was made.
    cp "$list" "$root$LIST"
done < "$work/files"
links > "$work/links"
while read -r name program; do
    if [ -e "$root/usr/bin/$program" ] && [ ! -e "$root/usr/bin/$name" ]; then
        ln -s "$program" "$root/usr/bin/$name"
        note "file /usr/bin/$name"
    fi
done < "$work/links"
cp "$here/files.sh" "$root/usr/lib/cgpu/files.sh"
note "file /usr/lib/cgpu/files.sh"
# The configuration belongs to the host: it is made once and never overwritten. The list has its sum
# as it is made, by which uninstall.sh knows a changed one.
folder "$(dirname "$SETTINGS")"
# OVER_LIMIT: another default of `over_limit`, for a node of a cluster.
# METRICS: another address of the metrics.
edit=
[ -z "${OVER_LIMIT:-}" ] || edit="s/^# over_limit = \"report\"/over_limit = \"$OVER_LIMIT\"/"
[ -z "${METRICS:-}" ] || edit="$edit;s/^# metrics = \"127.0.0.1:9445\"/metrics = \"$METRICS\"/"
sed "$edit" "$here/monitor.toml" > "$work/settings"
if [ ! -e "$root$SETTINGS" ]; then
    cp "$work/settings" "$root$SETTINGS"
    chmod 0644 "$root$SETTINGS"
fi
grep -q "^configuration $SETTINGS " "$list" ||
    note "configuration $SETTINGS $(cksum < "$work/settings" | tr ' ' -)"
# METRICS_ALLOW: networks that may connect to the metrics, beside this host.
allowed=/etc/systemd/system/cgpu-monitor.service.d/cgpu-metrics.conf
if [ -n "${METRICS_ALLOW:-}" ]; then
    folder "$(dirname "$allowed")"
    printf '[Service]\nIPAddressAllow=%s\n' "$METRICS_ALLOW" > "$root$allowed"
    note "file $allowed"
fi
cp "$list" "$root$LIST"

# Runs a command of cgpu for the monitor of this root.
monitor() { command=$1; shift; "$root/usr/bin/cgpu" "$command" --root "$root/run/cgpu" "$@"; }
started="the monitor was not started, and there is no systemd that would: run cgpu-monitor"
if has_systemd; then
    systemctl daemon-reload
    if [ $start = no ]; then
        started="the monitor was not started: systemctl enable --now cgpu-monitor"
    elif systemctl -q is-active cgpu-monitor; then
        cgpu upgrade ||
            die "the old monitor still runs; start the new one: systemctl restart cgpu-monitor"
        started="the new monitor runs, with the state of the old one"
    else
        systemctl enable --now cgpu-monitor
        started="the monitor runs, now and after each start of the host"
    fi
elif [ $start = yes ] && monitor get version > /dev/null 2>&1; then
    monitor upgrade ||
        die "the old monitor still runs; start the new one: cgpu-monitor --replace"
    started="the new monitor runs, with the state of the old one"
fi
what=installed
[ $was_there = no ] || what=upgraded
# NEXT_STEPS=no: node.sh takes them.
if [ "${NEXT_STEPS:-}" = no ]; then
    say "$what"
    exit
fi
say "$what; $started"
say "no container engine was changed: cgpu setup docker|podman|containerd|crio"
