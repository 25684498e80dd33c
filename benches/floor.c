/*
 * The floor: the bare kernel calls that a sandbox cannot do without, and nothing else.
 *
 *   floor exec                     fork, execve of `true`, wait
 *   floor spaces                   clone3 with user, mount, pid, ipc, uts, cgroup and net namespaces, execve inside, wait
 *   floor spaces-hostnet           the same without a network namespace
 *   floor view DIR                 and a view: a tmpfs root, /usr read-only, an overlay of DIR/lower and DIR/upper, /proc, /dev, pivot_root
 *   floor view-volatile DIR        the overlay does not sync its whole filesystem when it goes
 *   floor directories DIR          one look at each directory below DIR, which are listed before: has anything come or gone?
 *
 * Each run does the thing once and prints the microseconds until the command had ended, and until the namespaces were
 * gone (the parent had reaped process number 1). benches/run.py repeats it and takes the median.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *step = "start";

static void die(void) {
    fprintf(stderr, "floor: %s: %s\n", step, strerror(errno));
    _exit(1);
}

static void must(long result) {
    if (result < 0) die();
}

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * 1000000ll + at.tv_nsec / 1000;
}

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    must(fd);
    must(write(fd, text, strlen(text)));
    close(fd);
}

/* A map of the single id that the caller has, written by the child itself. */
static void map_own_id(uid_t uid, gid_t gid) {
    char line[64];
    step = "id map";
    write_file("/proc/self/setgroups", "deny");
    snprintf(line, sizeof line, "%u %u 1", uid, uid);
    write_file("/proc/self/uid_map", line);
    snprintf(line, sizeof line, "%u %u 1", gid, gid);
    write_file("/proc/self/gid_map", line);
}

static int filesystem(const char *kind, const char *const *options, unsigned attributes) {
    int context = syscall(SYS_fsopen, kind, FSOPEN_CLOEXEC);
    must(context);
    for (; options && options[0]; options += 2) {
        if (options[1])
            must(syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, options[0], options[1], 0));
        else
            must(syscall(SYS_fsconfig, context, FSCONFIG_SET_FLAG, options[0], NULL, 0));
    }
    must(syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0));
    int mounted = syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, attributes);
    must(mounted);
    close(context);
    return mounted;
}

static void put(int mounted, const char *path) {
    must(syscall(SYS_move_mount, mounted, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH));
    close(mounted);
}

static void bind(const char *from, const char *to) {
    int tree = syscall(SYS_open_tree, AT_FDCWD, from, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    must(tree);
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
    must(syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &attributes, sizeof attributes));
    put(tree, to);
}

static void build_view(const char *directory, int volatile_overlay) {
    char lower[4096], upper[4096], work[4096];
    snprintf(lower, sizeof lower, "%s/lower", directory);
    snprintf(upper, sizeof upper, "%s/upper", directory);
    snprintf(work, sizeof work, "%s/work", directory);
    step = "private mounts";
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    step = "overlay";
    const char *options[] = {"lowerdir", lower, "upperdir", upper, "workdir", work, "userxattr", NULL,
                             volatile_overlay ? "volatile" : NULL, NULL, NULL};
    int overlay = filesystem("overlay", options, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    step = "root";
    put(filesystem("tmpfs", NULL, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV), "/tmp");
    must(chdir("/tmp"));
    const char *made[] = {"usr", "proc", "dev", "tmp", "project", "old"};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) must(mkdir(made[i], 0755));
    must(symlink("usr/bin", "bin"));
    must(symlink("usr/lib", "lib"));
    must(symlink("usr/lib64", "lib64"));
    step = "system directories";
    bind("/usr", "usr");
    step = "proc";
    put(filesystem("proc", NULL, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC), "proc");
    step = "dev";
    put(filesystem("tmpfs", NULL, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC), "dev");
    step = "workspace";
    put(overlay, "project");
    step = "pivot_root";
    must(syscall(SYS_pivot_root, ".", "old"));
    must(umount2("/old", MNT_DETACH));
    must(chdir("/project"));
}

static char **directories;
static size_t found;

static int note(const char *path, const struct stat *stat, int kind, struct FTW *at) {
    (void)stat, (void)at;
    if (kind != FTW_D) return 0;
    if ((found & (found + 1)) == 0) directories = realloc(directories, 2 * (found + 1) * sizeof *directories);
    if (!directories) return -1;
    return (directories[found++] = strdup(path)) ? 0 : -1;
}

static int look(const char *root) {
    struct stat seen;
    step = "list";
    must(chdir(root));
    must(nftw(".", note, 64, FTW_PHYS));
    step = "look";
    int64_t began = now();
    for (size_t i = 0; i < found; i++) must(fstatat(AT_FDCWD, directories[i], &seen, AT_SYMLINK_NOFOLLOW));
    long long taken = now() - began;
    printf("%lld %lld\n", taken, taken);
    return 0;
}

int main(int count, char **words) {
    if (count < 2) {
        fprintf(stderr, "floor: what? one of: exec spaces spaces-hostnet view view-volatile directories\n");
        return 2;
    }
    const char *what = words[1];
    if (!strcmp(what, "directories") && count == 3) return look(words[2]);
    int plain = !strcmp(what, "exec"), view = !strncmp(what, "view", 4);
    if (view && count < 3) return 2;
    uint64_t spaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
    if (strcmp(what, "spaces-hostnet")) spaces |= CLONE_NEWNET;
    uid_t uid = geteuid();
    gid_t gid = getegid();
    int ended[2];
    must(pipe2(ended, O_CLOEXEC));
    int64_t began = now();
    struct clone_args arguments = {.flags = plain ? 0 : spaces, .exit_signal = SIGCHLD};
    long child = syscall(SYS_clone3, &arguments, sizeof arguments);
    must(child);
    if (child == 0) {
        close(ended[0]);
        if (!plain) map_own_id(uid, gid);
        if (view) build_view(words[2], !strcmp(what, "view-volatile"));
        step = "fork";
        pid_t command = plain ? 0 : fork(); /* process number 1 must outlive the command */
        must(command);
        if (command == 0) {
            char *argv[] = {"true", NULL}, *environment[] = {NULL};
            step = "execve";
            execve("/usr/bin/true", argv, environment);
            die();
        }
        int status;
        step = "wait";
        must(waitpid(command, &status, 0));
        must(write(ended[1], "", 1));
        _exit(WEXITSTATUS(status));
    }
    close(ended[1]);
    char byte;
    (void)!read(ended[0], &byte, 1);
    int64_t over = now();
    int status;
    step = "wait";
    must(waitpid(child, &status, 0));
    printf("%lld %lld\n", (long long)(over - began), (long long)(now() - began));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
