#!/bin/sh
# First process of `scripts/fresh` in namespaces of its own: makes the root ready, enters it for good, runs a command.
# What it mounts goes away with the namespace, however this ends.
#   fresh_enter.sh ROOT USER DIRECTORY SHM_BYTES [SOURCE TARGET]... -- COMMAND [ARGUMENT]...
set -eu
root=$1 user=$2 directory=$3 shm=$4
shift 4
mount --bind "$root" "$root"
cd "$root"
while [ "$1" != -- ]; do
  if [ -d "$1" ]; then mkdir -p "./$2"; else mkdir -p "$(dirname "./$2")" && touch "./$2"; fi
  mount --bind "$1" "./$2"
  mount -o remount,bind,ro "./$2"
  shift 2
done
shift
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero full random urandom tty; do
  touch "dev/$node"
  mount --bind "/dev/$node" "dev/$node"
done
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
mkdir dev/pts dev/shm .machine
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o "size=$shm,mode=1777,nosuid,nodev" tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
# not chroot: in one, an ordinary user may not make namespaces
pivot_root . .machine
umount -l /.machine
rmdir /.machine
cd "$directory"
# as a child: this process takes in those whose parents have ended, as the first of a machine does
setpriv --reuid="$user" --regid="$user" --init-groups -- "$@"
