#!/bin/sh
# Runs as root in new namespaces: lays a machine over a tree, turns to it, and becomes its first process.
#
#   enter.sh TREE WORK all|own FOLDER... -- COMMAND...
#
# WORK takes what the machine writes. FOLDERs are the same inside and outside. Control groups: all that there are, or, for
# a systemd of its own, those below the one this begins in.
set -eu
tree=$1 work=$2 cgroups=$3
shift 3
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$work/upper,workdir=$work/inner" "$work/root"
cd "$work/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
case $cgroups in
  all) mount --rbind /sys/fs/cgroup sys/fs/cgroup ;;
  own) mount -t cgroup2 cgroup2 sys/fs/cgroup ;;
esac
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
while [ "$1" != -- ]; do
  mkdir -p "./$1"
  mount --bind "$1" "./$1"
  shift
done
shift
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
  touch "dev/$device"
  mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm .outside
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 tmpfs dev/shm
pivot_root . .outside
umount -l /.outside
rmdir /.outside
mount --make-rshared /
ip link set lo up
# Who looks in before this sees the outside.
: >/run/entered
exec "$@"
