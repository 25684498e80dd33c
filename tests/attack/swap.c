/* swap A B: exchanges two names, as fast as it can, until it is killed; says "swapping" once it has begun. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
#endif

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	for (unsigned long count = 0;; count++) {
		if (syscall(SYS_renameat2, AT_FDCWD, argv[1], AT_FDCWD, argv[2], RENAME_EXCHANGE) == -1 && count == 0) {
			perror("renameat2");
			return 1;
		}
		if (count == 100 && write(1, "swapping\n", 9) != 9)
			return 1;
	}
}
