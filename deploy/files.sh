# The list of installed files, "FILE PLACE MODE", of install.sh and of the packages. FILE is below
# the folder of built files or, if it is LICENSE or begins with deploy/ or docs/, below the sources.
# install.sh skips missing files.
files() {
    cat <<'END'
cgpu /usr/bin/cgpu 0755
cgpu-monitor /usr/bin/cgpu-monitor 0755
cgpu-runtime /usr/bin/cgpu-runtime 0755
cgpu-device-plugin /usr/bin/cgpu-device-plugin 0755
cgpu-scheduler-extender /usr/bin/cgpu-scheduler-extender 0755
kubectl-inspect-gpushare /usr/bin/kubectl-inspect-gpushare 0755
libcgpu.so /usr/lib/cgpu/libcgpu.so 0755
sim/libcuda.so.1 /usr/lib/cgpu/sim/libcuda.so.1 0755
sim/libnvidia-ml.so.1 /usr/lib/cgpu/sim/libnvidia-ml.so.1 0755
share/bash-completion/completions/cgpu.bash /usr/share/bash-completion/completions/cgpu 0644
share/zsh/site-functions/_cgpu /usr/share/zsh/site-functions/_cgpu 0644
share/fish/vendor_completions.d/cgpu.fish /usr/share/fish/vendor_completions.d/cgpu.fish 0644
share/man/man1/cgpu.1 /usr/share/man/man1/cgpu.1 0644
share/man/man1/cgpu-run.1 /usr/share/man/man1/cgpu-run.1 0644
share/man/man1/cgpu-smi.1 /usr/share/man/man1/cgpu-smi.1 0644
share/man/man1/cgpu-top.1 /usr/share/man/man1/cgpu-top.1 0644
share/man/man1/cgpu-get.1 /usr/share/man/man1/cgpu-get.1 0644
share/man/man1/cgpu-set.1 /usr/share/man/man1/cgpu-set.1 0644
share/man/man1/cgpu-ls.1 /usr/share/man/man1/cgpu-ls.1 0644
share/man/man1/cgpu-doctor.1 /usr/share/man/man1/cgpu-doctor.1 0644
share/man/man1/cgpu-doctor-kubernetes.1 /usr/share/man/man1/cgpu-doctor-kubernetes.1 0644
share/man/man1/cgpu-upgrade.1 /usr/share/man/man1/cgpu-upgrade.1 0644
share/man/man1/cgpu-check-config.1 /usr/share/man/man1/cgpu-check-config.1 0644
share/man/man1/cgpu-version.1 /usr/share/man/man1/cgpu-version.1 0644
share/man/man1/cgpu-setup.1 /usr/share/man/man1/cgpu-setup.1 0644
share/man/man1/cgpu-completions.1 /usr/share/man/man1/cgpu-completions.1 0644
share/man/man1/cgpu-cdi.1 /usr/share/man/man1/cgpu-cdi.1 0644
share/man/man1/cgpu-cdi-generate.1 /usr/share/man/man1/cgpu-cdi-generate.1 0644
LICENSE /usr/share/doc/cgpu/copyright 0644
deploy/cgpu-monitor.service /usr/lib/systemd/system/cgpu-monitor.service 0644
deploy/uninstall.sh /usr/lib/cgpu/uninstall.sh 0755
deploy/example.py /usr/lib/cgpu/example.py 0644
docs/getting-started.md /usr/share/doc/cgpu/getting-started.md 0644
docs/docker.md /usr/share/doc/cgpu/docker.md 0644
docs/kubernetes.md /usr/share/doc/cgpu/kubernetes.md 0644
docs/operation.md /usr/share/doc/cgpu/operation.md 0644
docs/settings.md /usr/share/doc/cgpu/settings.md 0644
docs/policies.md /usr/share/doc/cgpu/policies.md 0644
docs/memory.md /usr/share/doc/cgpu/memory.md 0644
docs/monitoring.md /usr/share/doc/cgpu/monitoring.md 0644
docs/troubleshooting.md /usr/share/doc/cgpu/troubleshooting.md 0644
docs/limits.md /usr/share/doc/cgpu/limits.md 0644
docs/control.md /usr/share/doc/cgpu/control.md 0644
docs/support.md /usr/share/doc/cgpu/support.md 0644
docs/migrating-from-alibaba-cgpu.md /usr/share/doc/cgpu/migrating-from-alibaba-cgpu.md 0644
docs/migrating-from-hami.md /usr/share/doc/cgpu/migrating-from-hami.md 0644
docs/which-sharing.md /usr/share/doc/cgpu/which-sharing.md 0644
docs/glossary.md /usr/share/doc/cgpu/glossary.md 0644
docs/pictures/top.svg /usr/share/doc/cgpu/pictures/top.svg 0644
docs/pictures/smi.svg /usr/share/doc/cgpu/pictures/smi.svg 0644
docs/pictures/page.png /usr/share/doc/cgpu/pictures/page.png 0644
docs/pictures/turns.svg /usr/share/doc/cgpu/pictures/turns.svg 0644
docs/pictures/buckets.svg /usr/share/doc/cgpu/pictures/buckets.svg 0644
docs/pictures/native.svg /usr/share/doc/cgpu/pictures/native.svg 0644
docs/pictures/allocation.svg /usr/share/doc/cgpu/pictures/allocation.svg 0644
docs/pictures/turn.svg /usr/share/doc/cgpu/pictures/turn.svg 0644
docs/pictures/pod.svg /usr/share/doc/cgpu/pictures/pod.svg 0644
END
}
# Second names of installed programs, "NAME PROGRAM": the program checks under which it was started.
links() {
    cat <<'END'
cgpu-smi cgpu
kubectl-inspect-cgpu kubectl-inspect-gpushare
END
}
LIST=/usr/lib/cgpu/installed
SETTINGS=/etc/cgpu/monitor.toml
RUNTIME_SETTINGS=/etc/cgpu/runtime.toml

say() { printf 'cgpu: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# Prints the script's usage and ends, if its first argument asks for it.
help() { case ${1:-} in -h | --help) echo "$usage"; exit 0 ;; esac; }

# Sets `built` to the folder of built files: the argument, or what was built from these sources.
find_built() {
    built=$sources/target/dist
    if [ $# = 1 ]; then built=$1; elif [ ! -d "$built" ]; then built=$sources; fi
    [ -d "$built" ] || die "$built is not a folder; $usage"
    for needed in cgpu cgpu-monitor libcgpu.so; do
        [ -f "$built/$needed" ] ||
            die "no $needed in $built: build it (cargo xtask build --portable), or name its folder"
    done
}

# Returns whether there is a service manager to use: when installing into another root, only one
# that SYSTEMCTL names.
has_systemd() {
    [ -n "${SYSTEMCTL:-}" ] || { [ -z "${DESTDIR:-}" ] && [ -d /run/systemd/system ]; }
}
systemctl() { command "${SYSTEMCTL:-systemctl}" "$@"; }

RUNTIME=/usr/bin/cgpu-runtime
# The second line of the script that stands for a removed cgpu-runtime while containers run.
PASS_THROUGH="# Left by cgpu's uninstall.sh"
# Removes it before an installation, or a link to a runtime, which earlier builds left.
remove_pass_through() {
    if [ -L "$1$RUNTIME" ] || head -c 99 "$1$RUNTIME" 2>/dev/null | grep -qaF "$PASS_THROUGH"; then
        rm -f "$1$RUNTIME"
    fi
}
