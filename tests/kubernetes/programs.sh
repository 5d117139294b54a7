#!/bin/sh
# Downloads the programs of a Kubernetes cluster into a folder, and checks their sums. Programs that
# are there are kept.
#
#   programs.sh FOLDER
set -eu
case $(uname -m) in
x86_64) machine=amd64 ;;
aarch64) machine=arm64 ;;
*) echo "programs.sh: no programs for $(uname -m)" >&2; exit 1 ;;
esac
: "${KUBERNETES:=https://dl.k8s.io/v1.36.2/bin/linux/$machine}"
: "${ETCD:=https://github.com/etcd-io/etcd/releases/download/v3.6.10}"
: "${CONTAINERD:=https://github.com/containerd/containerd/releases/download/v2.3.4}"
folder=${1:?usage: programs.sh FOLDER}
mkdir -p "$folder"
cd "$folder"
work=$(mktemp -d -p .)
trap 'rm -rf "$work"' EXIT

# Downloads $1 as $2, whose line with the name $4 in the file of sums $3 must be right. A file of
# sums may have one sum and no name.
get() {
    echo "programs.sh: $1" >&2
    curl -fsSL --retry 3 -o "$work/$2" "$1"
    expected=$(curl -fsSL --retry 3 "$3" | awk -v name="$4" 'NF == 1 || $2 == name { print $1 }')
    [ "$(sha256sum < "$work/$2" | cut -d' ' -f1)" = "$expected" ] || {
        echo "programs.sh: $1 is not what $3 says" >&2
        exit 1
    }
}

for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do
    [ ! -x "$name" ] || continue
    get "$KUBERNETES/$name" "$name" "$KUBERNETES/$name.sha256" "$name"
    chmod 755 "$work/$name"
    mv "$work/$name" "$name"
done
if [ ! -x etcd ]; then
    archive=${ETCD##*/}
    archive=etcd-$archive-linux-$machine.tar.gz
    get "$ETCD/$archive" etcd.tar.gz "$ETCD/SHA256SUMS" "$archive"
    tar -xzf "$work/etcd.tar.gz" -C "$work" --strip-components=1
    mv "$work/etcd" etcd
fi
if [ ! -x containerd ]; then
    archive=${CONTAINERD##*/v}
    archive=containerd-$archive-linux-$machine.tar.gz
    get "$CONTAINERD/$archive" containerd.tar.gz "$CONTAINERD/$archive.sha256sum" "$archive"
    tar -xzf "$work/containerd.tar.gz" -C "$work"
    mv "$work/bin/ctr" "$work/bin/containerd-shim-runc-v2" .
    mv "$work/bin/containerd" containerd
fi
echo "programs.sh: all programs are in $(pwd)" >&2
