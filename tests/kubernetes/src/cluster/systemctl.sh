#!/bin/sh
# Stands for systemd on a node of the tests: its services are programs in the background, known by
# their names. A service is a script in /etc/cgpu-tests, or an installed unit.
set -eu
[ "${1:-}" != -q ] || shift
verb=$1
shift
[ "${1:-}" != --now ] || shift
name=${1:-}
numbers() { pgrep -x "$name"; }
stop() {
    numbers | while read -r number; do kill "$number" 2>/dev/null || :; done
    while numbers > /dev/null; do sleep 0.1; done
}
start() {
    ! numbers > /dev/null || return 0
    command=/etc/cgpu-tests/$name
    [ -x "$command" ] ||
        command=$(sed -n 's/^ExecStart=//p' "/usr/lib/systemd/system/$name.service")
    changes=/etc/systemd/system/$name.service.d
    settings=$(sed -n 's/^Environment=//p' "$changes"/*.conf 2>/dev/null) || :
    for folder in $(sed -n 's/^RuntimeDirectory=//p' "$changes"/*.conf 2>/dev/null || :); do
        mkdir -p "/run/$folder"
    done
    # In the node's control group: that of a pod is ended with the pod.
    # shellcheck disable=SC2016,SC2086
    setsid sh -c 'for list in /sys/fs/cgroup/*/"$1"/cgroup.procs /sys/fs/cgroup/"$1"/cgroup.procs
do echo $$ > "$list" || :; done 2>/dev/null
shift
exec env "$@"' sh "$(cat /etc/cgpu-tests/group)" $settings $command \
        >> "$(cat /etc/cgpu-tests/logs)/$name.log" 2>&1 < /dev/null &
    until numbers > /dev/null; do sleep 0.1; done
}
case $verb in
daemon-reload) ;;
is-active) numbers > /dev/null || exit 3 ;;
restart) stop; start ;;
start | enable) start ;;
stop | disable) stop ;;
*) echo "systemctl $verb is not emulated" >&2; exit 1 ;;
esac
