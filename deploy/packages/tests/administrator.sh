# What an administrator does with a package, in a root file system of its own. Prints the results,
# line by line; the package manager's own messages go to /said/log.
exec 3>&1 >/said/log 2>&1
tell() { echo "$*" >&3; }
until_is() { # what, and a command that ends well when it is so
    tries=1200 what=$1; shift
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { tell "never: $what"; exit 1; }
        sleep 0.05
    done
}
process() { for one in /proc/[0-9]*; do
    case $(readlink $one/exe) in /usr/bin/cgpu-monitor*) echo ${one#/proc/} ;; esac
done; }
another_than() { [ "$(process)" != "$1" ] && cgpu get version; }
held() { cgpu smi --json | tr -d ' \n' | grep -q '"id":"a".*"used":1[0-9]\{9\}'; }
left() { for place in /usr/bin/cgpu* /usr/bin/kubectl-inspect* /usr/lib/cgpu /usr/share/doc/cgpu \
    /lib/systemd/system/cgpu* /etc/cgpu /etc/systemd/system/*/cgpu* /var/lib/cgpu; do
    [ ! -e $place ] || printf ' %s' $place
done; }
# Runs a command that is refused; prints its message.
refused() { what=$1; shift; if "$@" >/said/refusal 2>&1; then tell "not refused: $what"; else
    tell "$what: $(sed -n 's/^cgpu: //p' /said/refusal | tail -n 1)"; fi; cat /said/refusal; }
export LD_LIBRARY_PATH=/usr/lib/cgpu/sim CGPU_SIM_GPUS=T4:15109 CGPU_SIM_STATE=/said/gpu

install_package /packages/former
tell "installed: $(version), $(cgpu --version), $(cgpu-monitor --version)"
verify || tell "a file differs"
tell "page: $(sed -n 's/^\.TH *\([^ ]*\).*/\1/p' /usr/share/man/man1/cgpu.1)"

printf 'metrics = "off"\ntree = "none"\n' >/said/monitor.toml
cgpu-monitor --config /said/monitor.toml >/said/monitor 2>&1 &
until_is "a monitor" cgpu get version
mkdir -p /run/cgpu/containers/a
mkfifo /said/input
LD_PRELOAD=/usr/lib/cgpu/libcgpu.so CGPU_DIR=/run/cgpu/containers/a \
    ALIYUN_COM_GPU_MEM_CONTAINER=4 ALIYUN_COM_GPU_MEM_DEV=15 /programs/hold 1G <>/said/input &
tenant=$!
until_is "a tenant" held
before=$(process)
echo '# changed' >>/etc/cgpu/monitor.toml
install_package /packages/new
until_is "the successor" another_than "$before"
until_is "the tenant again" held
kill -0 $tenant && tell "upgraded: $(version), the container runs on"
tell "configuration: $(tail -n 1 /etc/cgpu/monitor.toml)"

sums() { sha256sum /usr/bin/cgpu* /usr/lib/cgpu/libcgpu.so; }
sums >/said/before
refused "another layout" install_package /packages/other-layout
sums | cmp -s - /said/before && tell "still: $(version)"

task=/run/containerd/io.containerd.runtime.v2.task/k8s.io/c1
mkdir -p $task
echo '{"binary_name":"/usr/bin/cgpu-runtime"}' >$task/options.json
refused "a container of the runtime" remove_package
tell "still: $(version)"
printf '#!/bin/sh\necho runc "$@"\n' >/usr/sbin/runc
chmod 0755 /usr/sbin/runc
CGPU_FORCE=yes remove_package
tell "forced: $(/usr/bin/cgpu-runtime --root /r kill c1), left:$(left)"
rm -r $task
kill $tenant $(process)
install_package /packages/new
tell "installed again: $(version)"
mkdir -p /var/lib/cgpu
echo 'sim = "T4"' >/etc/cgpu/runtime.toml
remove_package
tell "removed:$(left)"
if purge_package; then tell "purged:$(left)"; fi
mkdir -p /usr/lib/cgpu
: >/usr/lib/cgpu/installed
refused "beside install.sh" install_package /packages/new
