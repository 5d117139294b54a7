say() { printf 'cgpu: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# Between two scripts: this is no upgrade. dpkg names a former version also after a removal.
FIRST=/run/cgpu-is-new

# Refuses before any file is replaced.
before_installation() { # `upgrade`, or empty
    [ ! -f /usr/lib/cgpu/installed ] ||
        die "install.sh installed cgpu on this host: run /usr/lib/cgpu/uninstall.sh, then install" \
            "the package; changed settings stay"
    for use in /run/cgpu/containers/*/use; do
        [ -f "$use" ] || continue
        container=${use%/use}
        # The file's first field, as in include/cgpu.h.
        layout=$(od -An -tu4 -N4 "$use" | tr -d ' ')
        case ${layout:-0} in
        0 | "$LAYOUT") ;;
        *) die "container ${container##*/} has files of layout $layout, this release uses" \
            "$LAYOUT: end it first" ;;
        esac
    done
    [ "$1" = upgrade ] || : > $FIRST
}

# Starts the monitor of a new installation. After an upgrade the new one takes over from one that
# runs.
after_installation() {
    . /usr/lib/cgpu/files.sh
    first=no
    [ ! -f $FIRST ] || first=yes
    rm -f $FIRST
    restart="cgpu-monitor --replace"
    if has_systemd; then
        systemctl daemon-reload
        restart="systemctl restart cgpu-monitor"
    fi
    if cgpu get version > /dev/null 2>&1; then
        cgpu upgrade || die "the old monitor still runs; start the new one: $restart"
    elif [ $first = no ]; then
        say "no monitor runs, and compute is not shared: start cgpu-monitor"
    elif has_systemd; then
        systemctl enable --now cgpu-monitor
    else
        # In an image that is built, for its first start.
        [ ! -x /bin/systemctl ] || systemctl enable cgpu-monitor || :
        say "no systemd runs here: start cgpu-monitor"
    fi
    [ $first = no ] ||
        say "no container engine was changed: cgpu setup docker|podman|containerd|crio"
}

before_removal() {
    if [ "${CGPU_FORCE:-}" = yes ]; then force=--force; else force=; fi
    # shellcheck disable=SC2086
    /usr/lib/cgpu/uninstall.sh --packaged $force
}

after_removal() {
    # uninstall.sh left a script for containers that run.
    [ ! -f /usr/lib/cgpu/runtime-left ] ||
        mv -f /usr/lib/cgpu/runtime-left /usr/bin/cgpu-runtime
    rmdir /usr/lib/cgpu/sim /usr/lib/cgpu 2>/dev/null || :
    [ ! -d /run/systemd/system ] || systemctl daemon-reload || :
}

after_purge() {
    rm -rf /var/lib/cgpu /etc/cgpu/runtime.toml
    rmdir /etc/cgpu 2>/dev/null || :
}
