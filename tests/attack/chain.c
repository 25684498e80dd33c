// Forks and exits, again and again, so that its number is never the one that is looked up; then takes
// memory, says so in a file, and stays.   chain MILLISECONDS MEGABYTES FILE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int main(int count, char **words) {
    if (count != 4) return 2;
    long end = now() + atol(words[1]);
    size_t size = (size_t)atol(words[2]) << 20;
    if (fork()) return 0;
    setsid();
    while (now() < end)
        if (fork() > 0) _exit(0);
    if (size) {
        char *memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return 3;
        memset(memory, 1, size);
    }
    close(open(words[3], O_CREAT | O_WRONLY, 0600));
    sleep(300);
    return 0;
}
