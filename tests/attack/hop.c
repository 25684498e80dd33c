/* hop disk|memory MEGABYTES DECOYS SECONDS
 * Holds deleted files (of 10 MB each) or memory in a process that has another number every moment: at every
 * megabyte it takes, and ever after, it starts a copy of itself that shares memory and descriptors, and ends.
 * Sleeping processes beside it make a look at all of them slow. Says "kept" if nobody has ended it. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MEGABYTE = 1 << 20, STACK = 64 << 10 };

static char *stacks[2], *memory;
static int left, file = -1;

/* One megabyte more. */
static void take(void)
{
	static char block[MEGABYTE];
	left--;
	if (memory) {
		memset(memory + (size_t)left * MEGABYTE, 1, MEGABYTE);
		return;
	}
	if (left % 10 == 0 || file < 0) {
		file = open("gone", O_RDWR | O_CREAT | O_TRUNC, 0600);
		unlink("gone");
	}
	if (write(file, block, sizeof block) < 0)
		_exit(1);
}

static int hop(void *turn)
{
	long next = ((long)turn + 1) % 2;
	if (left > 0)
		take();
	else
		usleep(200);
	clone(hop, stacks[next] + STACK, CLONE_VM | CLONE_FILES | SIGCHLD, (void *)next);
	_exit(0);
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
	left = atoi(words[2]);
	if (!strcmp(words[1], "memory"))
		memory = mmap(0, (size_t)left * MEGABYTE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* It takes a little at a time, and is never seen with much. */
	if (!fork())
		hop(0);
	sleep(atoi(words[4]));
	puts("kept");
	return 0;
}
