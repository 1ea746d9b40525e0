#!/bin/busybox sh
# The initramfs of package debianvm: mounts the disks and becomes the job's own init. Disks: root, modules, the job's tar.
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sys /sys
$bb mount -t devtmpfs dev /dev
for m in /modules/*; do [ -e "$m" ] && $bb insmod "$m"; done
$bb mount -t ext4 -o ro /dev/vda /root || echo "debianvm: no root file system"
$bb mount -t ext4 -o ro /dev/vdb /root/usr/lib/modules || echo "debianvm: no modules"
$bb mount -t tmpfs -o mode=755 run /root/run
$bb mount -t tmpfs tmp /root/tmp
$bb mount -t tmpfs -o mode=755 srv /root/srv
$bb mkdir /root/srv/job
$bb tar -xf /dev/vdc -C /root/srv/job || echo "debianvm: no job"
$bb mkdir /root/srv/bin
$bb cp $bb /root/srv/bin/busybox
for d in proc sys dev; do $bb mount --move /$d /root/$d; done
exec $bb switch_root /root /srv/job/.init
