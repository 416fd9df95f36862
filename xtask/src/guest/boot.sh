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

# An RDMA device in software, rxe0, on an interface without a cable (10.77.1.1).
set_up_rxe() {
    modprobe -a dummy rdma_rxe || fail "cannot load the modules for rxe"
    ip link add rdma0 mtu 4500 type dummy || fail "cannot make an interface for rxe0"
    ip addr add 10.77.1.1/24 dev rdma0
    ip link set rdma0 up
    rdma link add rxe0 type rxe netdev rdma0 || fail "cannot make rxe0"
    await_rdma rxe0
}

# Two of them, rxa and rxb, on the ends va and vb of a link (10.88.0.1 and 10.88.0.2), and two more,
# rxc and rxd, on the ends of another. What goes from one to the other really crosses the link, where
# it can be seen, lost and delayed: by routes of their own, since the kernel takes the short way
# between addresses that are both its own.
set_up_rxe_pair() {
    modprobe -a veth sch_netem rdma_rxe || fail "cannot load the modules for rxe"
    echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
    echo 1 >/proc/sys/net/ipv4/conf/all/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
    ip rule add pref 100 lookup local
    ip rule del pref 0
    link_rxe a b 10.88.0 10
    link_rxe c d 10.88.1 20
}

# The devices rx$1 and rx$2 on the ends v$1 and v$2 of a link of the network $3, by the routing tables
# $4 and the next.
link_rxe() {
    ip link add v$1 mtu 4500 type veth peer name v$2 mtu 4500 || fail "cannot make a link"
    from=$3.1 to=$3.2 table=$4
    for end in $1 $2; do
        echo 1 >/proc/sys/net/ipv4/conf/v$end/accept_local
        echo 0 >/proc/sys/net/ipv4/conf/v$end/rp_filter
        ip addr add $from/24 dev v$end
        # From the start: an exchange under traffic confuses some devices.
        tc qdisc add dev v$end root netem limit 10000
        ip link set v$end up
        ip rule add pref $table iif v$end lookup local
        ip rule add pref $((table + 2)) from $from to $to lookup $table
        from=$3.2 to=$3.1 table=$((table + 1))
    done
    # Once both are up.
    ip route add $3.2 dev v$1 src $3.1 table $4
    ip route add $3.1 dev v$2 src $3.2 table $(($4 + 1))
    for end in $1 $2; do
        rdma link add rx$end type rxe netdev v$end || fail "cannot make rx$end"
        await_rdma rx$end
    done
}

# Waits until the port of an RDMA device is active.
await_rdma() {
    patience=50
    until grep -q ACTIVE "/sys/class/infiniband/$1/ports/1/state"; do
        [ $patience -gt 0 ] || fail "the port of $1 does not become active"
        sleep 0.1
        patience=$((patience - 1))
    done
    chmod 666 /dev/infiniband/*
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
