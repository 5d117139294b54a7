#!/bin/sh
# Keeps cgpu on a node of a cluster for as long as the node is to have it: the pod of the DaemonSet cgpu-node runs this, with the host's root at
# HOST and in the host's PID namespace.
#
#   node.sh stay       installs or upgrades, has the engine start containers by cgpu-runtime, and waits to be ended
#   node.sh leave      takes all of it out again, if the node is no longer to have it; if it is (the pod is being replaced), does nothing
#   node.sh ready      whether `stay` has done its part
#
# What is done to the host's files is install.sh and uninstall.sh, below HOST; what is said to the host's services is said there (nsenter).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/files.sh"
HOST=${HOST:-/host}
ENGINE=${ENGINE:-containerd}
READY=${READY:-/run/cgpu-node-ready}
# The files of the pod's service account.
ACCOUNT=${ACCOUNT:-/var/run/secrets/kubernetes.io/serviceaccount}

case $ENGINE in
containerd) file=/etc/containerd/config.toml ;;
crio) file=/etc/crio/crio.conf.d/99-cgpu.conf ;;
*) die "ENGINE is $ENGINE, expected containerd or crio" ;;
esac
service=$ENGINE

host() { ${ENTER:-nsenter --target 1 --mount --uts --ipc --net --pid --} "$@"; }
sum() { cksum < "$HOST$file" 2>/dev/null || :; }

install() {
    before=$(sum)
    DESTDIR=$HOST sh "$here/install.sh" --no-start
    default=
    [ "${DEFAULT_RUNTIME:-true}" != true ] || default=--default
    # shellcheck disable=SC2086
    "$HOST/usr/bin/cgpu" setup "$ENGINE" $default --below "$HOST"
    # Containers go on while their engine restarts.
    [ "$(sum)" = "$before" ] || host systemctl restart "$service"
    if ! host test -d /run/systemd/system; then
        say "the node has no systemd: start /usr/bin/cgpu-monitor by what it has"
        return
    fi
    host systemctl daemon-reload
    if host systemctl -q is-active cgpu-monitor; then
        host /usr/bin/cgpu upgrade || say "the running monitor goes on; the new one starts with the next restart of cgpu-monitor"
    else
        host systemctl enable --now cgpu-monitor
    fi
}

# What the API server answers to a GET: the status, then the body.
ask() {
    curl --silent --show-error --max-time 10 --cacert "$ACCOUNT/ca.crt" \
        --header "Authorization: Bearer $(cat "$ACCOUNT/token")" --write-out '\n%{http_code}' \
        "https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT$1"
}

# Whether the node is still to have cgpu: the DaemonSet is there, and the node has its labels. Who does not answer is believed to want it, for
# what holds limits is not taken away by an accident; but who has taken our rights away has taken us away, as `helm uninstall` does.
wanted() {
    answer=$(ask "/apis/apps/v1/namespaces/$NAMESPACE/daemonsets/$DAEMONSET") || return 0
    case ${answer##*
} in
    200) ;;
    401 | 403 | 404) return 1 ;;
    *) return 0 ;;
    esac
    case $answer in *'"deletionTimestamp"'*) return 1 ;; esac
    answer=$(ask "/api/v1/nodes/$NODE_NAME") || return 0
    case ${answer##*
} in
    200) ;;
    *) return 0 ;;
    esac
    for label in $NODE_LABELS; do
        printf '%s' "$answer" | tr -d ' \n' | grep -qF "\"${label%%=*}\":\"${label#*=}\"" || return 1
    done
}

# Whether a container lives whose engine will call cgpu-runtime to end it.
called() {
    case $ENGINE in
    containerd) grep -qs cgpu-runtime "$HOST"/run/containerd/io.containerd.runtime.v2.task/*/*/options.json ;;
    crio) grep -qsa cgpu-runtime "$HOST"/proc/[0-9]*/cmdline ;;
    esac
}

uninstall() {
    if host test -d /run/systemd/system; then
        host systemctl disable --now cgpu-monitor || say "the monitor could not be stopped"
    fi
    before=$(sum)
    next=$(host sh -c 'command -v runc || command -v crun' || :)
    if [ -f "$HOST/usr/bin/cgpu" ]; then
        "$HOST/usr/bin/cgpu" setup "$ENGINE" --undo --below "$HOST"
        [ "$(sum)" = "$before" ] || host systemctl restart "$service"
    fi
    DESTDIR=$HOST sh "$here/uninstall.sh"
    rm -f "$HOST"/etc/cdi/cgpu-slice-*.json
    # Containers that were started by it are ended by it: the runtime that it handed them to does that as well.
    if [ -n "$next" ] && called; then
        ln -s "$next" "$HOST/usr/bin/cgpu-runtime"
        say "/usr/bin/cgpu-runtime is a link to $next: containers that live are ended by that name. Remove it when they have gone"
    fi
}

case ${1:-} in
stay)
    # An earlier `leave` may have left it.
    [ ! -L "$HOST/usr/bin/cgpu-runtime" ] || rm -f "$HOST/usr/bin/cgpu-runtime"
    install
    : > "$READY"
    trap 'kill "$sleeper" 2>/dev/null; exit 0' TERM INT
    while :; do
        sleep 3600 &
        sleeper=$!
        wait "$sleeper"
    done
    ;;
leave)
    if wanted; then say "the node keeps cgpu"; else uninstall; fi
    ;;
ready) [ -f "$READY" ] ;;
*) die "expected stay, leave or ready" ;;
esac
