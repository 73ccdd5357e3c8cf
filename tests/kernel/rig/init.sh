#!/bin/busybox sh
# First process of the guest, from the initramfs. Makes the host's files the root (read-only, changes go to memory)
# and starts itself again in there to run the job that the host left in the share, and to power off.
# Every step that fails says so on the console, which the host keeps.

say() { echo "accelctl-rig: $* ($($bb cut -d' ' -f1 /proc/uptime) s)" >/dev/console; }

stop() { # message, folder of the share
	say "$1"
	$bb dmesg >"$2/dmesg" 2>/dev/null
	# -n: a sync would wait for a file system whose server never answers, and one test makes just that
	$bb poweroff -n -f
}

must() { "$@" || stop "failed: $*" /share; }

parameter() {
	for word in $($bb cat /proc/cmdline); do
		case $word in "$1"=*) echo "${word#*=}" ;; esac
	done
}

nine() { # tag folder options
	must $bb mount -t 9p -o "trans=virtio,version=9p2000.L,msize=131072,$3" "$1" "$2"
}

if [ "$1" = job ]; then
	bb=/run/accelctl/busybox
	share=/run/accelctl/share
	say "root ready"
	/bin/sh $share/job.sh >$share/output 2>&1 </dev/null
	code=$?
	echo "$code" >$share/exit-code
	stop "job ended with $code" $share
fi

bb=/bin/busybox
$bb mkdir -p /proc /sys /dev /host /share /over /new /run
must $bb mount -t proc proc /proc
must $bb mount -t sysfs sysfs /sys
must $bb mount -t devtmpfs devtmpfs /dev
say "init runs"

# the host ends this machine too; this is for a host that was killed
( $bb sleep "$(parameter accelctl.limit)"; stop "time limit reached" /share ) &

load() { # names on standard input
	while read -r module; do
		$bb insmod "/modules/$module" || say "cannot load $module"
	done
}

must $bb mount -t tmpfs -o mode=755 tmpfs /run
$bb mkdir -p /run/accelctl/share /run/accelctl/tmp /run/lock
$bb chmod 1777 /run/accelctl/tmp
must $bb cp /bin/busybox /init /run/accelctl

if [ -d /modules ]; then
	load </modules/order-root
	# amdgpu alone takes longer than pytest takes to start: the tests wait for the file, not for the load
	( load </modules/order-devices; say "modules loaded"; echo >/run/accelctl/ready ) &
else
	echo >/run/accelctl/ready
fi

nine share /share cache=none
nine hostroot /host cache=loose,ro
must $bb mount -t tmpfs -o mode=755 tmpfs /over
$bb mkdir /over/upper /over/work
must $bb mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work overlay /new

# the host's /run tells of the host's devices and daemons: hide it
$bb mkdir -p /new/run /new/proc /new/sys /new/dev
must $bb mount --bind /run /new/run
must $bb mount --bind /share /new/run/accelctl/share

$bb mkdir -p /dev/pts /dev/shm
# what udevd or the C library's users expect of any /dev (Linux Allocated Devices, "Compulsory links")
$bb ln -s /proc/self/fd /dev/fd
for pair in 0:stdin 1:stdout 2:stderr; do
	$bb ln -s "/proc/self/fd/${pair%:*}" "/dev/${pair#*:}"
done
must $bb mount -t devpts devpts /dev/pts
must $bb mount -t tmpfs -o mode=1777 tmpfs /dev/shm
must $bb mount -t debugfs debugfs /sys/kernel/debug
must $bb mount -t fusectl fusectl /sys/fs/fuse/connections
must $bb mount -t cgroup2 cgroup2 /sys/fs/cgroup
# tests that look for leaks scan themselves; the scan of its own accord takes many seconds under emulation
[ ! -e /sys/kernel/debug/kmemleak ] || echo scan=off >/sys/kernel/debug/kmemleak
$bb ifconfig lo 127.0.0.1 up || say "no loopback network"
for tree in proc sys dev; do
	must $bb mount --rbind /$tree /new/$tree
done

# moved over / rather than only chrooted into, and with this first process: a chroot may not make user namespaces
# (tests of containers do), and udevadm does nothing when its root is not that of process 1
cd /new || stop "failed: cd /new" /share
must $bb mount --move . /
exec $bb chroot . /run/accelctl/busybox sh /run/accelctl/init job
