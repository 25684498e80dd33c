/* Tries one thing after the other that nobody inside a sandbox may do, and prints a line for each:
 *   open NAME           the attack worked
 *   shut NAME ERRNO     it was refused
 *
 * escape PID       everything, against this process. Most of it works for the root of a host, and would
 *                  ruin it: so it refuses to run as user 0 of the first user namespace.
 * escape sockets   only what connects to something: harmless, for control runs on the host itself
 *
 * Knobs are opened and not turned, and calls that act on the machine get arguments that cannot. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static void said(const char *name, long result)
{
	if (result >= 0)
		printf("open %s\n", name);
	else
		printf("shut %s %s\n", name, strerrorname_np(errno) ? strerrorname_np(errno) : "?");
	fflush(stdout);
}

/* Runs an attempt in a child, because some of them change or end the process that makes them. */
#define TRY(name, expression)                          \
	do {                                           \
		fflush(stdout);                        \
		pid_t child = fork();                  \
		if (child == 0) {                      \
			errno = 0;                     \
			said(name, (long)(expression)); \
			_exit(0);                      \
		}                                      \
		int status = 0;                        \
		waitpid(child, &status, 0);            \
		if (WIFSIGNALED(status))               \
			printf("shut %s SIG%d\n", name, WTERMSIG(status)); \
		fflush(stdout);                        \
	} while (0)

static long open_and_read(const char *path, int flags)
{
	char byte;
	int fd = open(path, flags);
	if (fd < 0)
		return -1;
	return read(fd, &byte, 1) < 1 ? (errno = errno ? errno : ENODATA, -1) : 0;
}

/* Where a descriptor leads. How many there are may be seen: that says nothing. */
static long read_descriptors(const char *path)
{
	char target[64];
	DIR *descriptors = opendir(path);
	if (!descriptors)
		return -1;
	for (struct dirent *entry; (entry = readdir(descriptors));)
		if (entry->d_name[0] != '.' && readlinkat(dirfd(descriptors), entry->d_name, target, sizeof target) > 0)
			return 0;
	return errno = errno ? errno : EACCES, -1;
}

/* Opened only: a control run must not turn the host's knobs. */
static long writable(const char *path)
{
	return open(path, O_WRONLY);
}

static long steal_descriptor(int pid)
{
	int handle = syscall(SYS_pidfd_open, pid, 0);
	if (handle < 0)
		return -1;
	return syscall(438 /* pidfd_getfd */, handle, 0, 0);
}

static long read_memory(int pid)
{
	char byte;
	struct iovec mine = {&byte, 1}, theirs = {(void *)0x400000, 1};
	return process_vm_readv(pid, &mine, 1, &theirs, 1, 0);
}

static long join(const char *path, int kind)
{
	int fd = open(path, O_RDONLY);
	if (fd < 0)
		return -1;
	return setns(fd, kind);
}

static int nothing(void *unused)
{
	(void)unused;
	return 0;
}

static long clone_namespace(int flags)
{
	static char stack[65536];
	return clone(nothing, stack + sizeof stack, flags | SIGCHLD, NULL);
}

struct clone3_arguments {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
};

static long clone3_namespace(void)
{
	struct clone3_arguments arguments = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
	long result = syscall(SYS_clone3, &arguments, sizeof arguments);
	if (result == 0)
		_exit(0);
	return result;
}

/* The kernel compares the request as 32 bits; a filter that looks at 64 is walked around. */
static long inject(unsigned long request)
{
	int master = posix_openpt(O_RDWR | O_NOCTTY);
	if (master < 0 || unlockpt(master))
		return -1;
	int slave = open(ptsname(master), O_RDWR);
	setsid();
	ioctl(slave, TIOCSCTTY, 0);
	char letter = 'x';
	return syscall(SYS_ioctl, slave, request, &letter);
}

#ifdef __x86_64__
/* The 32-bit table of calls, through the old gate: 21 is mount, 120 clone, 26 ptrace there. */
static long old_gate(long number, long one, long two, long three)
{
	long result;
	__asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(one), "c"(two), "d"(three) : "memory", "r8", "r9", "r10", "r11");
	if (result < 0) {
		errno = -result;
		return -1;
	}
	return result;
}
#endif

static long connect_to(const char *path, int abstract)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	size_t length = strlen(path);
	memcpy(address.sun_path + (abstract ? 1 : 0), path, length);
	return connect(fd, (void *)&address, offsetof(struct sockaddr_un, sun_path) + length + 1);
}

static long reach(const char *host, int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
	inet_pton(AF_INET, host, &address.sin_addr);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0)
		return -1;
	return connect(fd, (void *)&address, sizeof address);
}

static long real_time(void)
{
	struct sched_param parameters = {.sched_priority = 1};
	return sched_setscheduler(0, SCHED_FIFO, &parameters);
}

static long forge(const char *name)
{
	int fd = open("forged", O_CREAT | O_RDWR, 0600);
	if (fd < 0)
		return -1;
	return fsetxattr(fd, name, "y", 1, 0);
}

static long handle(const char *path)
{
	struct {
		struct file_handle head;
		unsigned char bytes[128];
	} space = {.head.handle_bytes = 128};
	int mount;
	if (name_to_handle_at(AT_FDCWD, path, &space.head, &mount, 0))
		return -1;
	int at = open(path, O_RDONLY);
	return open_by_handle_at(at, &space.head, O_RDONLY);
}

static long shield(void)
{
	int fd = open("/proc/self/oom_score_adj", O_WRONLY);
	return fd < 0 ? -1 : write(fd, "-1000", 5);
}

static void descriptors(void)
{
	for (int fd = 3; fd < 4096; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			printf("open descriptor-%d\n", fd);
}

static void sockets(void)
{
	if (getenv("ABSTRACT"))
		TRY("abstract-socket", connect_to(getenv("ABSTRACT"), 1));
	if (getenv("SOCKET"))
		TRY("path-socket", connect_to(getenv("SOCKET"), 0));
	if (getenv("PORT"))
		TRY("host-port", reach("127.0.0.1", atoi(getenv("PORT"))));
	if (getenv("SHMEM"))
		TRY("host-shared-memory", shmget(atoi(getenv("SHMEM")), 1, 0));
}

/* Whether this is the real root of the machine: user 0, and every user mapped to itself. */
static int is_root_of_the_host(void)
{
	unsigned inside = 1, outside = 1, length = 0;
	FILE *map = fopen("/proc/self/uid_map", "re");
	if (!map)
		return 1;
	int read = fscanf(map, "%u %u %u", &inside, &outside, &length);
	fclose(map);
	return geteuid() == 0 && (read != 3 || (inside == 0 && outside == 0 && length == 4294967295u));
}

/* Makes a file and takes it away again: where this works it must not stay. */
static int touch(const char *path)
{
	int fd = open(path, O_CREAT | O_WRONLY, 0600);
	if (fd >= 0)
		unlink(path);
	return fd;
}

int main(int count, char **words)
{
	/* First of all, before anything of ours is open. */
	descriptors();
	setvbuf(stdout, NULL, _IOLBF, 4096);
	if (count > 1 && !strcmp(words[1], "sockets")) {
		sockets();
		printf("end\n");
		return 0;
	}
	/* Where a sandbox has no user namespace, or a kernel that shows none, the test says that this is one. */
	if (!getenv("IN_A_SANDBOX") && is_root_of_the_host()) {
		fprintf(stderr, "escape: not as root of a host\n");
		return 9;
	}
	int target = count > 1 ? atoi(words[1]) : 1;
	char path[64];
#define OF(entry) (snprintf(path, sizeof path, "/proc/%d/" entry, target), path)

	/* proc-2, proc-3: the first process and what it knows */
	TRY("init-memory", open_and_read(OF("mem"), O_RDWR));
	TRY("init-maps", open_and_read(OF("maps"), O_RDONLY));
	TRY("init-environment", open_and_read(OF("environ"), O_RDONLY));
	TRY("init-root", open(OF("root/"), O_RDONLY));
	TRY("init-directory", open(OF("cwd/"), O_RDONLY));
	TRY("init-descriptors", read_descriptors(OF("fd")));
	TRY("init-ptrace", ptrace(PTRACE_SEIZE, target, 0, 0));
	TRY("init-vm-readv", read_memory(target));
	TRY("init-getfd", steal_descriptor(target));
	TRY("init-namespace-mnt", join(OF("ns/mnt"), CLONE_NEWNS));
	TRY("init-namespace-user", join(OF("ns/user"), CLONE_NEWUSER));
	TRY("init-namespace-pid", join(OF("ns/pid"), CLONE_NEWPID));

	/* proc-6, fs-11: namespaces, mounts, other roots */
	TRY("unshare-user", unshare(CLONE_NEWUSER));
	TRY("unshare-mount", unshare(CLONE_NEWNS));
	TRY("unshare-net", unshare(CLONE_NEWNET));
	TRY("clone-user", clone_namespace(CLONE_NEWUSER));
	TRY("clone3-user", clone3_namespace());
	TRY("mount-tmpfs", mount("none", "/tmp", "tmpfs", 0, ""));
	TRY("mount-bind", mount("/", "/tmp", NULL, MS_BIND | MS_REC, NULL));
	TRY("mount-remount", mount(NULL, "/usr", NULL, MS_REMOUNT | MS_BIND, NULL));
	TRY("mount-proc", mount("proc", "/tmp", "proc", 0, ""));
	TRY("umount", umount2("/proc/sys", MNT_DETACH));
	TRY("umount-workspace", umount2(".", MNT_DETACH));
	TRY("fsopen", syscall(430, "tmpfs", 0));
	TRY("open_tree", syscall(428, AT_FDCWD, "/", 1));
	TRY("move_mount", syscall(429, AT_FDCWD, "/tmp", AT_FDCWD, "/run", 0));
	TRY("mount_setattr", syscall(442, AT_FDCWD, "/usr", 0, "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 32));
	TRY("pivot_root", syscall(SYS_pivot_root, ".", "."));
	TRY("chroot", chroot("/tmp"));
	TRY("open_by_handle_at", handle("."));

	/* proc-4: the kernel's knobs */
	TRY("core_pattern", writable("/proc/sys/kernel/core_pattern"));
	TRY("hostname", writable("/proc/sys/kernel/hostname"));
	TRY("sysrq", writable("/proc/sysrq-trigger"));
	TRY("modprobe", writable("/proc/sys/kernel/modprobe"));
	TRY("kcore", open_and_read("/proc/kcore", O_RDONLY));
	TRY("kmsg", open_and_read("/proc/kmsg", O_RDONLY | O_NONBLOCK));
	TRY("keys", open_and_read("/proc/keys", O_RDONLY));
	TRY("timer-list", open_and_read("/proc/timer_list", O_RDONLY));
	TRY("uevent-helper", writable("/sys/kernel/uevent_helper"));
	TRY("firmware", open("/sys/firmware", O_RDONLY));
	TRY("irq", writable("/proc/irq/default_smp_affinity"));

	/* proc-7, proc-8: calls that nobody needs */
	TRY("bpf", syscall(SYS_bpf, 0, NULL, 0));
	TRY("perf", syscall(SYS_perf_event_open, calloc(1, 256), 0, -1, -1, 0));
	TRY("userfaultfd", syscall(SYS_userfaultfd, 1));
	TRY("io_uring", syscall(425, 1, calloc(1, 256)));
	TRY("keyctl", syscall(SYS_keyctl, 0, -3, 0));
	TRY("add_key", syscall(SYS_add_key, "user", "x", "y", 1, -3));
	TRY("kexec", syscall(SYS_kexec_load, 0, 0, NULL, 0));
	TRY("init_module", syscall(SYS_init_module, "x", 1, ""));
	TRY("quotactl", syscall(SYS_quotactl, 0, NULL, 0, NULL));
	TRY("swapon", syscall(SYS_swapon, "", 0));
	TRY("clock_settime", syscall(SYS_clock_settime, CLOCK_REALTIME, NULL));
	TRY("reboot", syscall(SYS_reboot, 0, 0, 0, 0));
	TRY("syslog", syscall(SYS_syslog, 3, path, 8));
	TRY("fanotify", syscall(SYS_fanotify_init, 0, 0));
	TRY("unknown-600", syscall(600));
	TRY("unknown-1023", syscall(1023));
#ifdef __x86_64__
	TRY("iopl", syscall(SYS_iopl, 3));
	TRY("i386-mount", old_gate(21, 0, 0, 0));
	TRY("i386-ptrace", old_gate(26, PTRACE_TRACEME, 0, 0));
	TRY("i386-unshare", old_gate(310, CLONE_NEWUSER, 0, 0));
	TRY("x32-unshare", syscall(0x40000000 | SYS_unshare, CLONE_NEWUSER));
	TRY("x32-mount", syscall(0x40000000 | SYS_mount, 0, 0, 0, 0, 0));
#endif

	/* proc-9: terminals */
	TRY("tiocsti", inject(TIOCSTI));
	TRY("tiocsti-high", inject(0x100000000ul | TIOCSTI));
	TRY("tioclinux", inject(TIOCLINUX));
	TRY("tiocsetd", inject(TIOCSETD));
	TRY("host-terminal", open("/dev/tty", O_RDWR));

	/* proc-10, proc-11: sockets */
	TRY("af_packet", socket(AF_PACKET, SOCK_RAW, 0));
	TRY("af_alg", socket(AF_ALG, SOCK_SEQPACKET, 0));
	TRY("af_vsock", socket(AF_VSOCK, SOCK_STREAM, 0));
	TRY("netlink-audit", socket(AF_NETLINK, SOCK_RAW, NETLINK_AUDIT));
	TRY("netlink-netfilter", socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER));
	TRY("raw-socket", socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
	sockets();
	TRY("docker-socket", connect_to("/var/run/docker.sock", 0));
	TRY("network", reach("192.0.2.1", 80));

	/* proc-5, proc-6: privileges */
	TRY("setuid-other", setresuid(12345, 12345, 12345));
	TRY("real-time", real_time());
	TRY("nice", setpriority(PRIO_PROCESS, 0, -5));
	TRY("new-privileges", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 ? (errno = EPERM, -1) : 0);
	TRY("ambient", prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 21, 0, 0));
	TRY("raise-files", setrlimit(RLIMIT_NOFILE, &(struct rlimit){1u << 30, 1u << 30}));
	TRY("raise-core", setrlimit(RLIMIT_CORE, &(struct rlimit){1 << 20, 1 << 20}));
	TRY("oom-shield", shield());
	TRY("personality", syscall(SYS_personality, 0x0400000 /* READ_IMPLIES_EXEC */));

	/* fs-9, fs-10: marks of the overlay, devices */
	TRY("mknod-whiteout", mknod("whiteout", S_IFCHR | 0600, 0));
	TRY("mknod-disk", mknod("disk", S_IFBLK | 0600, 0xfe00));
	TRY("mknod-memory", mknod("/tmp/memory", S_IFCHR | 0600, 0x101));
	TRY("trusted-opaque", forge("trusted.overlay.opaque"));
	TRY("security-capability", forge("security.capability"));

	/* proc-12: cgroups */
	TRY("cgroup-list", open("/sys/fs/cgroup", O_RDONLY));
	TRY("write-system", touch("/usr/bin/.skep-attack"));
	TRY("write-etc", touch("/etc/.skep-attack"));
	TRY("write-root", touch("/.skep-attack"));
	TRY("write-messages", touch("/run/skep/.skep-attack"));
	TRY("write-dev", touch("/dev/.skep-attack"));
	TRY("shadow", open_and_read("/etc/shadow", O_RDONLY));
	TRY("kill-init", target == 1 ? (kill(1, SIGKILL), usleep(20000), kill(1, 0) ? 0 : (errno = EPERM, -1)) : 0);
	printf("end\n");
	return 0;
}
