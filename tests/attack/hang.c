// A filesystem of one file that can be found and opened, and whose content never comes: whoever reads it
// waits in the kernel and no signal ends that.   hang DIRECTORY
// Prints "mounted" when it stands. It ends when it is killed, and then so do the readers.
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static int device;

static void answer(struct fuse_in_header *in, int error, const void *data, size_t size) {
    char out[4096];
    struct fuse_out_header head = {sizeof head + size, error, in->unique};
    memcpy(out, &head, sizeof head);
    if (size) memcpy(out + sizeof head, data, size);
    if (write(device, out, sizeof head + size) < 0) _exit(4);
}

static struct fuse_attr attributes(unsigned long node) {
    struct fuse_attr a = {0};
    a.ino = node;
    a.mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0644;
    a.nlink = 1;
    a.size = node == 1 ? 0 : 1 << 20;
    a.blksize = 4096;
    return a;
}

int main(int count, char **words) {
    if (count != 2) return 2;
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0) return 3;
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device);
    if (mount("hang", words[1], "fuse", MS_NOSUID | MS_NODEV, options)) return 5;
    puts("mounted");
    fflush(stdout);
    static char request[1 << 20];
    while (read(device, request, sizeof request) > 0) {
        struct fuse_in_header *in = (void *)request;
        if (in->opcode == FUSE_INIT) {
            struct fuse_init_in *theirs = (void *)(in + 1);
            struct fuse_init_out ours = {0};
            ours.major = FUSE_KERNEL_VERSION;
            ours.minor = theirs->minor < 31 ? theirs->minor : 31;
            ours.max_write = 4096;
            answer(in, 0, &ours, sizeof ours);
        } else if (in->opcode == FUSE_GETATTR) {
            struct fuse_attr_out out = {60, 0, 0, attributes(in->nodeid)};
            answer(in, 0, &out, sizeof out);
        } else if (in->opcode == FUSE_LOOKUP) {
            if (strcmp((char *)(in + 1), "file")) {
                answer(in, -ENOENT, 0, 0);
                continue;
            }
            struct fuse_entry_out out = {0};
            out.nodeid = 2;
            out.entry_valid = out.attr_valid = 60;
            out.attr = attributes(2);
            answer(in, 0, &out, sizeof out);
        } else if (in->opcode == FUSE_OPEN || in->opcode == FUSE_OPENDIR) {
            struct fuse_open_out out = {1, in->opcode == FUSE_OPEN ? FOPEN_DIRECT_IO : 0, 0};
            answer(in, 0, &out, sizeof out);
        } else if (in->opcode == FUSE_READDIR) {
            answer(in, 0, 0, 0);
        } else if (in->opcode == FUSE_STATFS) {
            struct fuse_statfs_out out = {{0}};
            answer(in, 0, &out, sizeof out);
        } else if (in->opcode == FUSE_READ || in->opcode == FUSE_INTERRUPT ||
                   in->opcode == FUSE_FORGET || in->opcode == FUSE_BATCH_FORGET) {
            // Nobody waits for an answer, or for ever.
        } else {
            answer(in, -ENOSYS, 0, 0);
        }
    }
    return 0;
}
