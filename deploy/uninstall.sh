#!/bin/sh
# Removes what install.sh made on this host, or below DESTDIR, and nothing else. A changed
# configuration stays; --purge removes it, runtime.toml, and the settings in /var/lib/cgpu. Running
# programs keep their limits until they end.
#
# An engine stops, deletes and enters a container by the runtime that started it. While containers
# of cgpu-runtime run, this refuses. With --force a script takes the place of cgpu-runtime, which
# runs the next runtime: NEXT, or the one of runtime.toml, else runc or crun.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/files.sh"
usage="usage: uninstall.sh [--purge] [--force]"
help "$@"
purge=no
force=no
# A package's script calls this before the package manager removes the files.
packaged=no
for argument; do
    case $argument in
    --purge) purge=yes ;;
    --force) force=yes ;;
    --packaged) packaged=yes ;;
    *) die "$usage" ;;
    esac
done
root=${DESTDIR:-}
[ -f "$root$LIST" ] || [ $packaged = yes ] ||
    die "install.sh installed nothing: there is no $root$LIST; a package is removed by its manager"
[ -n "$root" ] || [ "$(id -u)" = 0 ] || die "only root can uninstall from /"

# Prints the containers that cgpu-runtime started and that run, one on a line: those of containerd
# and Docker by the options of their shim, those of podman and CRI-O by the command line of conmon.
running() {
    for options in "$root"/run/containerd/io.containerd.runtime.v2.task/*/*/options.json \
        "$root"/run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/*/options.json; do
        binary=$(sed -n 's/.*"binary_name": *"\([^"]*\)".*/\1/p' "$options" 2>/dev/null) || :
        # Docker names a script of its own if a runtime has arguments.
        case $binary in
        '') continue ;;
        *cgpu-runtime) ;;
        *) grep -qs cgpu-runtime "$root$binary" || continue ;;
        esac
        place=${options%/options.json}
        above=${place%/*}
        printf '%s %s\n' "${above##*/}" "${place##*/}"
    done
    for process in "$root"/proc/[0-9]*; do
        tr '\0' '\n' 2>/dev/null < "$process/cmdline" | awk '
            NR == 1 { if ($0 !~ /(^|\/)conmon$/) exit }
            last == "-c" || last == "--cid" { id = $0 }
            (last == "-r" || last == "--runtime") && /cgpu-runtime$/ { ours = 1 }
            { last = $0 }
            END { if (ours) print "conmon " id }' || :
    done 2>/dev/null
}

# Prints the program by which the engines end these containers.
next_runtime() {
    configured=$(sed -n 's/^ *runtime *= *"\(\/[^"]*\)".*/\1/p' "$root$RUNTIME_SETTINGS" \
        2>/dev/null) || :
    for program in "${NEXT:-}" "$configured"; do
        [ -z "$program" ] || { printf '%s\n' "$program"; return; }
    done
    for name in runc crun; do
        for folder in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin; do
            [ ! -x "$root$folder/$name" ] || { printf '%s\n' "$folder/$name"; return; }
        done
    done
}

containers=$(running)
next=
if [ -n "$containers" ]; then
    say "these containers run, and their engine needs $RUNTIME to stop and to enter them:"
    printf '%s\n' "$containers" | sed 's/^/    /' >&2
    how=--force
    [ $packaged = no ] || how="the variable CGPU_FORCE=yes"
    [ $force = yes ] ||
        die "stop them, or use $how: a script then runs the next runtime for them"
    next=$(next_runtime)
    [ -n "$next" ] || die "no runc or crun is found for them: name the program, NEXT=PROGRAM"
fi

# Lets an engine read its changed configuration. Running containers go on.
reload() {
    case $1 in
    podman) return ;;
    docker) what="reload docker" ;;
    *) what="restart $1" ;;
    esac
    if ! has_systemd; then
        say "next: restart $1 with its service manager; until then it calls $RUNTIME"
    elif systemctl -q is-active "$1"; then
        # shellcheck disable=SC2086
        systemctl $what || say "next: systemctl $what, which failed"
    fi
}

if has_systemd; then
    systemctl disable --now cgpu-monitor || say "the service could not be stopped"
fi
changed=
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Engines first: an engine whose configuration names a missing program starts no container.
for engine in \
    "docker /etc/docker/daemon.json" \
    "containerd /etc/containerd/config.toml" \
    "podman /etc/containers/containers.conf.d/cgpu.conf" \
    "crio /etc/crio/crio.conf.d/99-cgpu.conf"; do
    name=${engine%% *}
    file=$root${engine#* }
    grep -qs cgpu-runtime "$file" || continue
    undone=$("$root/usr/bin/cgpu" setup "$name" --undo --file "$file") ||
        die "$file still names cgpu-runtime: remove that, then uninstall again"
    # What comes next is said below.
    printf '%s\n' "$undone" | sed '/^next: /d; /^podman /d' >&2
    reload "$name"
done
# A reload of Docker forgets no runtime, and no default runtime.
remembers=no
if [ -z "$root" ] || [ -n "${DOCKER:-}" ]; then
    ! "${DOCKER:-docker}" info --format '{{json .Runtimes}}' 2>/dev/null | grep -q cgpu-runtime ||
        remembers=yes
fi
if [ -z "$next" ] && [ $remembers = yes ]; then
    next=$(next_runtime)
fi
# Writes a script that runs the next runtime, without the options of cgpu-runtime.
pass_through() {
    cat << END
#!/bin/sh
$PASS_THROUGH
# for containers that run; remove it when they have ended.
next='$next'
END
    cat << 'END'
bundle=.
creates=no
log=
last=
for argument; do
    shift
    case $argument in
    --cgpu-next=*) next=${argument#*=} ;;
    --cgpu-config=*) ;;
    *) set -- "$@" "$argument" ;;
    esac
    case $argument in
    create | run) creates=yes ;;
    --bundle=*) bundle=${argument#*=} ;;
    --log=*) log=${argument#*=} ;;
    esac
    case $last in
    --bundle | -b) bundle=$argument ;;
    --log) log=$argument ;;
    esac
    last=$argument
done
# It would start without a limit.
if [ $creates = yes ] &&
    grep -qs '"ALIYUN_COM_GPU_MEM_CONTAINER=[^"0]' "$bundle/config.json"; then
    why="cgpu was uninstalled, and the container requests a limit: install cgpu, or create the"
    why="$why container without ALIYUN_COM_GPU_MEM_CONTAINER"
    echo "$why" >&2
    # Engines show this file, in JSON, and not the runtime's stderr.
    [ -z "$log" ] ||
        printf '{"level":"error","msg":"%s","time":"%s"}\n' "$why" "$(date -u +%FT%TZ)" >> "$log"
    exit 1
fi
exec "$next" "$@"
END
}
# Removes what install.sh made.
remove_files() {
    cp "$root$LIST" "$work/list"
    while read -r what place print; do
        case $what in
        file)
            if [ "$place" = $RUNTIME ] && [ -n "$next" ]; then
                # In one step: an engine finds one of the two.
                pass_through > "$root$place.new"
                chmod 0755 "$root$place.new"
                mv -f "$root$place.new" "$root$place"
            else
                rm -f "$root$place"
            fi
            ;;
        configuration)
            if [ $purge = yes ] || [ ! -e "$root$place" ] ||
                [ "$(cksum < "$root$place" | tr ' ' -)" = "$print" ]; then
                rm -f "$root$place"
            else
                changed=$place
            fi
            ;;
        esac
    done < "$work/list"
    [ $purge = no ] || rm -rf "$root/var/lib/cgpu" "$root$RUNTIME_SETTINGS"
    rm -f "$root$LIST"
    # Folders, innermost first. A folder that has other files stays.
    sed -n 's/^folder //p' "$work/list" | awk '{ print length($0) " " $0 }' | sort -rn |
        cut -d' ' -f2- | while read -r folder; do
        rmdir "$root$folder" 2>/dev/null || :
    done
    # It was there before the installation if an earlier one left it.
    [ $purge = no ] || rmdir "$root${SETTINGS%/*}" 2>/dev/null || :
}
if [ $packaged = yes ]; then
    # The package's last script puts it in the place of cgpu-runtime.
    if [ -n "$next" ]; then
        pass_through > "$root/usr/lib/cgpu/runtime-left"
        chmod 0755 "$root/usr/lib/cgpu/runtime-left"
    fi
else
    remove_files
fi
# The monitor's own folders. One that holds a container, or is a mount, is not empty and stays.
for empty in cgpu/containers cgpu/slices cgpu cgpu_km; do
    rmdir "$root/run/$empty" 2>/dev/null || :
done
if has_systemd; then systemctl daemon-reload; fi
say "uninstalled"
[ -z "$changed" ] || say "left: $changed, which was changed"
[ ! -e "$root$RUNTIME_SETTINGS" ] || say "left: $RUNTIME_SETTINGS, which was made by hand"
[ ! -e "$root/var/lib/cgpu" ] || say "left: /var/lib/cgpu, the settings of containers"
[ ! -e "$root/run/cgpu/containers" ] || say "left: /run/cgpu/containers, until the host restarts"
when=
[ -z "$containers" ] || when="the containers above have ended"
[ $remembers = no ] ||
    when="${when:+$when and }Docker was restarted: a reload keeps the runtimes that were removed"
[ -z "$next" ] || say "left: $RUNTIME, a script that runs $next: remove it when $when"
# systemd has ended its own.
for process in "$root"/proc/[0-9]*; do
    case $(readlink "$process/exe" 2>/dev/null) in
    /usr/bin/cgpu-monitor | "/usr/bin/cgpu-monitor (deleted)")
        say "the monitor runs on, end it: kill ${process##*/}" ;;
    esac
done
