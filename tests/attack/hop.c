/* hop disk|memory MEGABYTES DECOYS SECONDS
 * Holds deleted files (of 10 MB each) or memory in a process that has another number every moment: it starts a
 * copy of itself that shares memory and descriptors, and ends. Sleeping processes beside it make a look at all of
 * them slow. Says "kept" if nobody has ended it. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MEGABYTE = 1 << 20, STACK = 64 << 10 };

static char *stacks[2];

static int hop(void *turn)
{
	long next = ((long)turn + 1) % 2;
	usleep(300);
	clone(hop, stacks[next] + STACK, CLONE_VM | CLONE_FILES | SIGCHLD, (void *)next);
	_exit(0);
}

static void take(const char *what, int megabytes)
{
	static char block[MEGABYTE];
	memset(block, 1, sizeof block);
	if (!strcmp(what, "memory")) {
		char *memory = mmap(0, (size_t)megabytes * MEGABYTE, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		memset(memory, 1, (size_t)megabytes * MEGABYTE);
		return;
	}
	for (int i = 0, file = -1; i < megabytes; i++) {
		if (i % 10 == 0) {
			file = open("gone", O_RDWR | O_CREAT | O_TRUNC, 0600);
			unlink("gone");
		}
		if (write(file, block, sizeof block) < 0)
			return;
	}
}

int main(int count, char **words)
{
	if (count < 5)
		return 2;
	for (int i = 0; i < atoi(words[3]); i++)
		if (!fork())
			for (;;)
				pause();
	for (int i = 0; i < 2; i++)
		stacks[i] = malloc(STACK);
	if (!fork()) {
		/* It hops before it takes anything, so that nobody has seen it with it. */
		if (fork())
			_exit(0);
		take(words[1], atoi(words[2]));
		hop(0);
	}
	sleep(atoi(words[4]));
	puts("kept");
	return 0;
}
