#!/bin/busybox sh
# First process of the guest, in its initial file system: loads what it takes to see the host's
# files, makes them the root with a layer in memory for writes, and goes on with boot.sh there.
B=/bin/busybox

# Says why on the console, which the host prints, and ends the machine.
fail() {
    echo "guest: $*"
    $B poweroff -f
}

# Word NAME=VALUE of the kernel's command line.
word() {
    for word in $($B cat /proc/cmdline); do
        case $word in "$1="*) echo "${word#*=}" ;; esac
    done
}

$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
for module in /modules/*; do
    $B insmod "$module" || fail "cannot load $module"
done

over=trans=virtio,version=9p2000.L,msize=$(word guest.msize_bytes)
# The host's files do not change under a guest that runs for minutes: any cache is right.
$B mount -t 9p -o "ro,cache=loose,$over" host /lower || fail "cannot mount the host's root"
$B mount -t tmpfs -o size=75% memory /upper
$B mkdir /upper/files /upper/work
layers=lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work
$B mount -t overlay -o "$layers" overlay /root || fail "cannot lay memory over the host's root"

$B mkdir -p /root/proc /root/sys /root/dev /root/run
for place in proc sys dev; do
    $B mount --move /$place /root/$place
done
$B mkdir -p /root/dev/pts /root/dev/shm
$B mount -t devpts devpts /root/dev/pts
$B mount -t tmpfs -o mode=1777 shm /root/dev/shm
$B ln -s /proc/self/fd /root/dev/fd
for pair in 0:stdin 1:stdout 2:stderr; do
    $B ln -s "fd/${pair%:*}" "/root/dev/${pair#*:}"
done
# /tmp stays the host's, with writes in memory: what is to run may lie there.
$B mount -t tmpfs run /root/run
$B mkdir /root/run/job
# Not cached: the host reads the status as soon as it is written.
$B mount -t 9p -o "rw,cache=none,$over" job /root/run/job || fail "cannot mount the job"
$B cp /bin/busybox /boot.sh /root/run/
# The host's own shell: busybox's would run busybox's programs in place of the host's.
exec $B switch_root /root /bin/sh /run/boot.sh
