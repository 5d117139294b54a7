#!/bin/sh
# CNI plugin: a veth pair to the bridge of the machine and an address for each pod. As `loopback` it
# sets up the loopback device.
set -eu
version='"cniVersion":"1.0.0"'
# A file for each address in use, with the id of the container.
addresses=/run/addresses
case $CNI_COMMAND-${0##*/} in
ADD-*) ;;
VERSION-*) echo "{$version,\"supportedVersions\":[\"0.4.0\",\"1.0.0\"]}"; exit ;;
DEL-loopback) exit ;;
DEL-*) ;;
*) exit ;;
esac
subnet=$(cat /run/subnet)
link() { echo "$1${subnet##*.}-$2"; }
if [ "$CNI_COMMAND" = DEL ]; then
    for file in $(grep -lxF "$CNI_CONTAINERID" "$addresses"/* 2>/dev/null); do
        ip link delete "$(link p "${file##*/}")" 2>/dev/null || :
        rm -f "$file"
    done
    exit
fi
inside() { nsenter --net="$CNI_NETNS" "$@"; }
if [ "${0##*/}" = loopback ]; then
    inside ip link set lo up
    echo "{$version,\"ips\":[{\"address\":\"127.0.0.1/8\"}]}"
    exit
fi
mkdir -p "$addresses"
next='n=2; while [ -e "$0/$n" ]; do n=$((n + 1)); done
[ $n -lt 255 ] || exit 1
echo "$1" > "$0/$n"; echo $n'
number=$(flock "$addresses" sh -c "$next" "$addresses" "$CNI_CONTAINERID")
address=$subnet.$number
outer=$(link p "$number")
inner=$(link t "$number")
ip link add "$outer" type veth peer name "$inner"
ip link set "$inner" netns "$CNI_NETNS"
ip link set "$outer" master br0 up
inside ip link set "$inner" name "$CNI_IFNAME"
inside ip address add "$address/16" dev "$CNI_IFNAME"
inside ip link set "$CNI_IFNAME" up
inside ip route add default via 192.168.1.200
interfaces="[{\"name\":\"$CNI_IFNAME\",\"sandbox\":\"$CNI_NETNS\"}]"
ips="[{\"address\":\"$address/16\",\"gateway\":\"192.168.1.200\",\"interface\":0}]"
echo "{$version,\"interfaces\":$interfaces,\"ips\":$ips}"
