#!/bin/sh
# CNI plugin: a veth pair to the bridge of the machine and an address for each pod. As `loopback` it
# sets up the loopback device.
set -eu
version='"cniVersion":"1.0.0"'
case $CNI_COMMAND in
ADD) ;;
VERSION) echo "{$version,\"supportedVersions\":[\"0.4.0\",\"1.0.0\"]}"; exit ;;
*) exit ;;
esac
inside() { nsenter --net="$CNI_NETNS" "$@"; }
if [ "${0##*/}" = loopback ]; then
    inside ip link set lo up
    echo "{$version,\"ips\":[{\"address\":\"127.0.0.1/8\"}]}"
    exit
fi
next='number=$(($(cat /run/addresses) + 1)); echo $number | tee /run/addresses'
number=$(flock /run/addresses sh -c "$next")
address=192.168.1.$number
ip link add "p$number" type veth peer name "t$number"
ip link set "t$number" netns "$CNI_NETNS"
ip link set "p$number" master br0 up
inside ip link set "t$number" name "$CNI_IFNAME"
inside ip address add "$address/24" dev "$CNI_IFNAME"
inside ip link set "$CNI_IFNAME" up
inside ip route add default via 192.168.1.200
interfaces="[{\"name\":\"$CNI_IFNAME\",\"sandbox\":\"$CNI_NETNS\"}]"
ips="[{\"address\":\"$address/24\",\"gateway\":\"192.168.1.200\",\"interface\":0}]"
echo "{$version,\"interfaces\":$interfaces,\"ips\":$ips}"
