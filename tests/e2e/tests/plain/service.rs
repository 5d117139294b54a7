//! The service under a real systemd: the host's own files below a temporary overlay, booted in
//! systemd-nspawn.

use std::path::Path;

use cgpu_e2e::{Dist, boot, skip, systemd_obstacle};

const ADMINISTRATOR: &str = r#"
exec >/cgpu/said 2>/cgpu/errors
until_is() { # seconds, what, a command that ends well when it is so
    tries=$(($1 * 20)) what=$2; shift 2
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { echo "never: $what"; systemctl status cgpu-monitor --no-pager >&2 || true; exit 1; }
        sleep 0.05
    done
}
main() { systemctl show --property=MainPID --value cgpu-monitor; }
another_than() { [ "$(main)" != "$1" ] && [ "$(main)" != 0 ] && systemctl --quiet is-active cgpu-monitor; }
of_smi() { cgpu smi --json | grep -q "$1"; }
policy() { cat /run/cgpu_km/0/policy; }

# The tests' shim is built for this system.
export NEW_GLIBC=allow
sh /cgpu/deploy/install.sh /cgpu/dist
echo "without a driver: $(systemctl is-active cgpu-monitor), $(ls /run/cgpu_km | tr '\n' ' ')"

cp /cgpu/dist/sim/libnvidia-ml.so.1 /usr/lib/
ldconfig
until_is 60 "a GPU" test -e /run/cgpu_km/0/policy
echo 2 >/run/cgpu_km/0/policy
echo "with one: policy $(policy)"

mkdir -p /run/cgpu/containers/a
mkfifo /input
LD_LIBRARY_PATH=/cgpu/dist/sim LD_PRELOAD=/usr/lib/cgpu/libcgpu.so CGPU_DIR=/run/cgpu/containers/a ALIYUN_COM_GPU_MEM_CONTAINER=4 \
    /cgpu/dist/programs/take <>/input >/dev/null &
until_is 60 "a tenant" test -e /run/cgpu_km/0/a/weight
echo 4 >/run/cgpu_km/0/a/weight
echo "a tenant: weight $(cat /run/cgpu_km/0/a/weight)"

before=$(main)
echo 'base_slice_ms = 9' >>/etc/cgpu/monitor.toml
systemctl reload cgpu-monitor
until_is 60 "the new configuration" of_smi '"slice_us": *9000'
[ "$(main)" = "$before" ] && echo "reloaded: the same process"

kill -9 "$before"
until_is 60 "the monitor's return" another_than "$before"
until_is 60 "its tree" test -e /run/cgpu_km/0/a/weight
echo "killed: policy $(policy), weight $(cat /run/cgpu_km/0/a/weight), restarts $(systemctl show --property=NRestarts --value cgpu-monitor)"

before=$(main)
mkdir -p /run/systemd/system/cgpu-monitor.service.d
# Longer than a busy host delays the monitor.
printf '[Service]\nWatchdogSec=5\n' >/run/systemd/system/cgpu-monitor.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart cgpu-monitor
until_is 60 "its tree" test -e /run/cgpu_km/0/a/weight
before=$(main)
kill -STOP "$before"
until_is 60 "the monitor's return" another_than "$before"
until_is 60 "its tree" test -e /run/cgpu_km/0/a/weight
echo "stopped: policy $(policy), weight $(cat /run/cgpu_km/0/a/weight), restarts $(systemctl show --property=NRestarts --value cgpu-monitor)"
rm -r /run/systemd/system/cgpu-monitor.service.d
systemctl daemon-reload

before=$(main)
sh /cgpu/deploy/install.sh /cgpu/dist
until_is 60 "the successor" another_than "$before"
echo "upgraded: policy $(policy), weight $(cat /run/cgpu_km/0/a/weight), restarts $(systemctl show --property=NRestarts --value cgpu-monitor)"

main=/proc/$(main)
[ "$(readlink "$main/ns/mnt")" = "$(readlink /proc/1/ns/mnt)" ] && echo "in the host's mount namespace"
grep -E '^(NoNewPrivs|Seccomp|CapBnd):' "$main/status" | tr -d '\t' | tr '\n' ' '
echo
# Of the successor, which its predecessor has started.
echo "nice: $(cut -d' ' -f19 "$main/stat")"
of_log() { journalctl --no-pager --unit=cgpu-monitor | grep -q "$1"; }
until_is 60 "the log" of_log "monitor started"
of_log "cannot request short slices" || echo "short slices"

# A successor is its predecessor's child, not systemd's. With control groups of version 1 in a
# container, systemd kills such a process at once, and its tree stays until the next monitor starts.
systemctl restart cgpu-monitor
until_is 60 "its tree" test -e /run/cgpu_km/0/a/weight
echo "restarted: policy $(policy), weight $(cat /run/cgpu_km/0/a/weight)"
systemctl stop cgpu-monitor
grep -q cgpu_km /proc/mounts || echo "stopped: no tree"
sh /cgpu/deploy/uninstall.sh --purge
ls -d /usr/bin/cgpu* /usr/lib/cgpu /lib/systemd/system/cgpu* /etc/cgpu /var/lib/cgpu 2>/dev/null || echo "uninstalled: nothing"
"#;

#[test]
fn the_service_runs_under_a_real_systemd() {
    if let Some(reason) = systemd_obstacle() {
        skip("service", "systemd", reason);
        return;
    }
    let sources =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the sources");
    let (deploy, docs) = (sources.join("deploy"), sources.join("docs"));
    let (said, errors) = boot(
        ADMINISTRATOR,
        &[(&deploy, "deploy"), (&docs, "docs"), (Dist::find().folder(), "dist")],
    );
    assert_eq!(
        said.iter()
            .map(String::as_str)
            .filter(|line| !line.starts_with("monitor "))
            .collect::<Vec<_>>(),
        [
            "without a driver: active, default_memsize version",
            "with one: policy 2",
            "a tenant: weight 4",
            "reloaded: the same process",
            "killed: policy 2, weight 4, restarts 1",
            "stopped: policy 2, weight 4, restarts 1",
            "upgraded: policy 2, weight 4, restarts 1",
            "in the host's mount namespace",
            // DAC_OVERRIDE, DAC_READ_SEARCH, KILL, SYS_PTRACE, SYS_ADMIN.
            "CapBnd:0000000000280026 NoNewPrivs:1 Seccomp:2",
            "nice: -10",
            "short slices",
            "restarted: policy 2, weight 4",
            "stopped: no tree",
            "uninstalled: nothing",
        ],
        "{errors}"
    );
}
