#!/bin/sh
# Installs cgpu on a node of a cluster and removes it. The pod of the DaemonSet cgpu-node runs this,
# with the host's root at HOST and in the host's PID namespace.
#
#   node.sh stay       installs or upgrades, configures the engine, and waits to be ended
#   node.sh leave      removes all of it, unless the node is still to have it (the pod is replaced)
#   node.sh ready      exits with 0 once `stay` has installed
#
# install.sh and uninstall.sh change the host's files, below HOST. nsenter reaches the host's
# services.
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
sum() { { cksum < "$HOST$file"; } 2>/dev/null || :; }

install() {
    before=$(sum)
    DESTDIR=$HOST OVER_LIMIT=${OVER_LIMIT:-end} METRICS=${METRICS:-} \
        METRICS_ALLOW=${METRICS_ALLOW:-} NEXT_STEPS=no sh "$here/install.sh" --no-start
    default=
    [ "${DEFAULT_RUNTIME:-true}" != true ] || default=--default
    # shellcheck disable=SC2086
    "$HOST/usr/bin/cgpu" setup "$ENGINE" $default --below "$HOST"
    # Containers go on while their engine restarts.
    if [ "$(sum)" != "$before" ]; then
        host systemctl restart "$service"
        say "$service was restarted"
    fi
    if ! host test -d /run/systemd/system; then
        say "the node has no systemd: start /usr/bin/cgpu-monitor with its service manager"
        return
    fi
    host systemctl daemon-reload
    if host systemctl -q is-active cgpu-monitor; then
        host /usr/bin/cgpu upgrade ||
            say "the old monitor still runs; start the new one: systemctl restart cgpu-monitor"
    else
        host systemctl enable --now cgpu-monitor
        say "the monitor runs"
    fi
}

# Prints the body of the API server's answer to a GET, then the status on a line of its own.
request() {
    curl --silent --show-error --max-time 10 --cacert "$ACCOUNT/ca.crt" \
        --header "Authorization: Bearer $(cat "$ACCOUNT/token")" --write-out '\n%{http_code}' \
        "https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT$1"
}

# Returns whether the node is still to have cgpu: the DaemonSet exists, and the node has its labels.
# Without an answer, yes: limits are not removed by accident. If the account lost its rights, no:
# `helm uninstall` removes them, too.
wanted() {
    answer=$(request "/apis/apps/v1/namespaces/$NAMESPACE/daemonsets/$DAEMONSET") || return 0
    case ${answer##*
} in
    200) ;;
    401 | 403 | 404) return 1 ;;
    *) return 0 ;;
    esac
    case $answer in *'"deletionTimestamp"'*) return 1 ;; esac
    answer=$(request "/api/v1/nodes/$NODE_NAME") || return 0
    case ${answer##*
} in
    200) ;;
    *) return 0 ;;
    esac
    for label in $NODE_LABELS; do
        printf '%s' "$answer" | tr -d ' \n' |
            grep -qF "\"${label%%=*}\":\"${label#*=}\"" || return 1
    done
}

# containerd kills what it executes when it restarts, so this ends with the restart, too. The
# kubelet takes the hook for failed, and runs it again: each step may be repeated.
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
    # Pods that run are ended by the next runtime.
    DESTDIR=$HOST NEXT=$next sh "$here/uninstall.sh" --force
    rm -f "$HOST"/etc/cdi/cgpu-slice-*.json
}

case ${1:-} in
stay)
    install
    sleeper=
    # A signal may come before there is a sleeper.
    trap 'kill "$sleeper" 2>/dev/null || :; exit 0' TERM INT
    : > "$READY"
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
