# Second half of the guest's start, on the host's files: modules, shared directories, networks, then
# the command. /run/job/plan.sh, written by the host, sets $kernel and $modules and the functions
# share_directories, set_up and command.
B=/run/busybox
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

fail() {
    echo "guest: $*" >/dev/console
    $B poweroff -f
}

# Directory $2 of the host, writable, under the tag $1. Only cache=mmap lets programs map its files.
share() {
    $B mount -t 9p -o "rw,cache=mmap,trans=virtio,version=9p2000.L,msize=262144" "$1" "$2" ||
        fail "cannot share $2"
}

# What network namespaces, links between them and `tc netem` need.
set_up_veth() {
    modprobe -a veth bridge dummy sch_netem || fail "cannot load the modules for veth"
}

# The device of the serial port that the host calls $1.
port() {
    for name in /sys/class/virtio-ports/*/name; do
        if [ "$($B cat "$name")" = "$1" ]; then
            $B basename "$($B dirname "$name")"
        fi
    done
}

. /run/job/plan.sh
$B hostname guest
$B mkdir -p "/lib/modules/$kernel"
$B mount --bind "$modules" "/lib/modules/$kernel" || fail "cannot find the modules in $modules"
ip link set lo up || fail "cannot set the loopback interface up"
ulimit -l unlimited
share_directories
set_up
out=/dev/$(port out)
err=/dev/$(port err)
[ -c "$out" ] && [ -c "$err" ] || fail "no serial ports for the output"

# A port cannot be opened twice, as a command does that opens /dev/stderr; a pipe can.
mkfifo /run/out /run/err
cat /run/out >"$out" &
to_out=$!
cat /run/err >"$err" &
to_err=$!
(command) </dev/null >/run/out 2>/run/err
echo $? >/run/job/status.new
# What the pipes still hold is forwarded; a process left behind may hold them open for a second.
patience=20
while kill -0 $to_out || kill -0 $to_err; do
    [ $patience -gt 0 ] || break
    sleep 0.05
    patience=$((patience - 1))
done 2>/dev/null
mv /run/job/status.new /run/job/status
$B poweroff -f
