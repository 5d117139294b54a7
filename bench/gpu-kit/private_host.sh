#!/bin/sh
# private_host.sh FOLDER: gives this mount namespace its own /usr, /etc and /run, with the host's
# files, then waits. What is written there lies in memory at FOLDER, and ends with the namespace.
#
# /run has neither the host's containerd, which Docker would use, nor its service manager: that
# sees another /usr.
set -eu
own=$1
mount -t tmpfs -o mode=755 cgpu-kit "$own"
# It may be a link or a mount, which the new /etc lacks.
names=$(cat /etc/resolv.conf 2>/dev/null) || :
for place in usr etc; do
    mkdir -p "$own/new/$place" "$own/workdir/$place"
    mount -t overlay -o "lowerdir=/$place,upperdir=$own/new/$place,workdir=$own/workdir/$place" \
        cgpu-kit "/$place"
done
rm -f /etc/resolv.conf
printf '%s\n' "$names" > /etc/resolv.conf

# shadow FOLDER NAME ...: replaces a folder by one with the same entries, except these.
shadow() {
    folder=$1
    shift
    new=$own/shadow$(printf %s "$folder" | tr / -)
    mkdir -p "$new"
    for entry in "$folder"/*; do
        name=${entry##*/}
        case " $* " in *" $name "*) continue ;; esac
        if [ -L "$entry" ]; then
            cp -P "$entry" "$new/$name"
        elif [ -d "$entry" ]; then
            mkdir "$new/$name"
            mount --rbind "$entry" "$new/$name"
        elif [ -e "$entry" ]; then
            : > "$new/$name"
            mount --bind "$entry" "$new/$name"
        fi
    done
    mount --rbind "$new" "$folder"
}
[ ! -d /run/systemd ] || shadow /run/systemd system
shadow /run containerd docker docker.sock docker.pid cgpu cgpu_km
echo '{"ready": true}'
exec sleep infinity
