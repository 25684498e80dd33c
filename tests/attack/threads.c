/* threads own
 *   Starts a thread with a table of descriptors of its own; says "refused" (EPERM), or "started" once it runs. A
 *   thread that shares the table is started afterwards, as everybody's are.
 *   Then a thread that shares the table asks for one of its own (close_range): the same words.
 * threads daemon
 *   Leaves a process behind whose first thread has ended and whose second writes into `beat`, and sleeps. Their
 *   name is no text. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { STACK = 64 << 10, PLAIN = CLONE_VM | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM };

static char stacks[2][STACK] __attribute__((aligned(16)));
static volatile int started;

static int start(void *unused)
{
	(void)unused;
	started++;
	syscall(SYS_exit, 0);
	return 0;
}

static void *unshare_table(void *unused)
{
	(void)unused;
	/* CLOSE_RANGE_UNSHARE, and nothing to close. */
	if (syscall(SYS_close_range, ~0U, ~0U, 2) < 0)
		puts(errno == EPERM ? "refused" : strerror(errno));
	else
		puts("started");
	return NULL;
}

static void own(void)
{
	const int flags[2] = { PLAIN, PLAIN | CLONE_FILES | CLONE_FS };
	for (int i = 0; i < 2; i++) {
		int before = started;
		if (clone(start, stacks[i] + STACK, flags[i], NULL) < 0) {
			puts(errno == EPERM ? "refused" : strerror(errno));
			continue;
		}
		while (started == before)
			usleep(1000);
		puts("started");
	}
	pthread_t thread;
	pthread_create(&thread, NULL, unshare_table, NULL);
	pthread_join(thread, NULL);
}

static void *beat(void *unused)
{
	(void)unused;
	int file = open("beat", O_WRONLY | O_CREAT | O_TRUNC, 0600);
	for (int i = 0; i < 6000 && write(file, "x", 1) == 1; i++)
		usleep(10000);
	_exit(0);
}

static void daemonize(void)
{
	if (fork() == 0) {
		setsid();
		if (fork() != 0)
			_exit(0);
		for (int i = 0; i < 3; i++)
			close(i);
		pthread_t thread;
		prctl(PR_SET_NAME, "\xff\xfe");
		pthread_create(&thread, NULL, beat, NULL);
		syscall(SYS_exit, 0);
	}
	sleep(60);
}

int main(int count, char **words)
{
	if (count == 2 && strcmp(words[1], "own") == 0)
		own();
	else if (count == 2 && strcmp(words[1], "daemon") == 0)
		daemonize();
	else
		return 2;
	return 0;
}
