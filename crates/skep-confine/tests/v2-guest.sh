#!/bin/sh
# Runs the cgroup, fence and probe tests on a host with cgroup v2 alone, in a virtual machine.
#
#   tests/v2-guest.sh VMLINUZ [OVERLAY.KO]
#
# VMLINUZ is any distribution's kernel (Debian: unpack linux-image-cloud-amd64), OVERLAY.KO its
# overlay module if it is not built in. Needs qemu-system-x86_64 and a static busybox, no root and no
# KVM; takes about ten seconds. Exits with 0 if every test said so.
set -eu
kernel=$1
overlay=${2:-}
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
root=$here/root
mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/usr/bin"
cp "$(command -v busybox)" "$root/bin/busybox"
ln -s busybox "$root/bin/sh"
[ -z "$overlay" ] || cp "$overlay" "$root/overlay.ko"

cargo test -q -p skep-confine --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' |
    while read -r program; do
        name=$(basename "$program" | sed 's/-[0-9a-f]*$//')
        cp "$program" "$root/bin/$name"
        for library in $(ldd "$program" | grep -o '/[^ ]*'); do
            mkdir -p "$root$(dirname "$library")"
            cp -L "$library" "$root$library"
        done
    done

cat > "$root/init" <<'INIT'
#!/bin/sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
$b mount -t tmpfs -o mode=1777 tmp /tmp
$b mount -t cgroup2 cgroup /sys/fs/cgroup
[ ! -e /overlay.ko ] || $b insmod /overlay.ko
for test in cgroup_limits fences probes seccomp_calls; do
    if /bin/$test; then echo "guest: $test passed"; else echo "guest: $test failed"; fi
done
left=$($b find /sys/fs/cgroup -type d -name 'skep*')
[ -z "$left" ] || echo "guest: left behind: $left (failed)"
$b poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) > "$here/initrd.gz"
timeout 300 qemu-system-x86_64 -machine q35 -cpu max -m 1024 -nographic -no-reboot \
    -kernel "$kernel" -initrd "$here/initrd.gz" -append "console=ttyS0 quiet panic=-1" \
    < /dev/null > "$here/console" 2>&1 || true
cat "$here/console"
! grep -q 'guest: .*failed' "$here/console" && [ "$(grep -c 'guest: .* passed' "$here/console")" = 4 ]
