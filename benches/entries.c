/*
 * Which functions a command enters, by any of its processes.
 *
 *   entries FUNCTIONS OUT COMMAND…
 *
 * FUNCTIONS has an address in hexadecimal on each line: where the functions of the (static, fixed) program begin. A trap is
 * put on each of them; whoever runs into one is noted, the trap is taken out again in that process, and it goes on. OUT gets
 * a line for each process and function, in order: the number of the process (0 is the command itself, 1 the first that it
 * forked, and so on) and the address. A process that executes another program is let go. ci/order-functions reads it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TRAP = 0xCC, PAGE = 4096, PROCESSES = 64 };

static unsigned long low, high;
static unsigned char *is_function, *original;
static pid_t processes[PROCESSES];
static int known;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void read_functions(const char *path) {
    FILE *list = fopen(path, "r");
    if (!list) die(path);
    unsigned long address;
    low = ~0UL;
    while (fscanf(list, "%lx", &address) == 1) {
        if (address < low) low = address;
        if (address > high) high = address;
    }
    low &= ~(PAGE - 1UL);
    high = (high + PAGE) & ~(PAGE - 1UL);
    is_function = calloc(high - low, 1);
    original = malloc(high - low);
    if (!is_function || !original) die("memory");
    rewind(list);
    while (fscanf(list, "%lx", &address) == 1) is_function[address - low] = 1;
    fclose(list);
}

static int memory_of(pid_t process) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", process);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) die(path);
    return file;
}

static void set_traps(pid_t process) {
    int memory = memory_of(process);
    if (pread(memory, original, high - low, low) != (ssize_t)(high - low)) die("read the program");
    unsigned char page[PAGE];
    for (unsigned long at = 0; at < high - low; at += PAGE) {
        int any = 0;
        for (int byte = 0; byte < PAGE; byte++) {
            page[byte] = is_function[at + byte] ? TRAP : original[at + byte];
            any |= is_function[at + byte];
        }
        if (any && pwrite(memory, page, PAGE, low + at) != PAGE) die("set a trap");
    }
    close(memory);
}

static int number_of(pid_t process) {
    for (int number = 0; number < known; number++)
        if (processes[number] == process) return number;
    if (known == PROCESSES) return PROCESSES;
    processes[known] = process;
    return known++;
}

/* Whether it was one of ours. */
static int trapped(pid_t process, FILE *out) {
    size_t pointer = offsetof(struct user_regs_struct, rip);
    unsigned long at = ptrace(PTRACE_PEEKUSER, process, pointer, 0) - 1;
    if (at < low || at >= high || !is_function[at - low]) return 0;
    int memory = memory_of(process);
    if (pwrite(memory, &original[at - low], 1, at) != 1) die("take out a trap");
    close(memory);
    ptrace(PTRACE_POKEUSER, process, pointer, at);
    fprintf(out, "%d %lx\n", number_of(process), at);
    return 1;
}

int main(int count, char **words) {
    if (count < 4) {
        fprintf(stderr, "usage: entries FUNCTIONS OUT COMMAND...\n");
        return 2;
    }
    read_functions(words[1]);
    FILE *out = fopen(words[2], "w");
    if (!out) die(words[2]);
    pid_t command = fork();
    if (command == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        execv(words[3], words + 3);
        die(words[3]);
    }
    int status, code = 1;
    waitpid(command, &status, 0);
    if (!WIFSTOPPED(status)) return 1;
    number_of(command);
    set_traps(command);
    long options = PTRACE_O_TRACEFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC;
    ptrace(PTRACE_SETOPTIONS, command, 0, options);
    ptrace(PTRACE_CONT, command, 0, 0);
    for (;;) {
        pid_t process = waitpid(-1, &status, __WALL);
        if (process < 0) {
            if (errno == EINTR) continue;
            break;
        }
        if (WIFEXITED(status) && process == command) code = WEXITSTATUS(status);
        if (!WIFSTOPPED(status)) continue;
        int signal = WSTOPSIG(status), event = status >> 16;
        if (event == PTRACE_EVENT_EXEC) {
            ptrace(PTRACE_DETACH, process, 0, 0);
        } else if (event || signal == SIGSTOP || (signal == SIGTRAP && trapped(process, out))) {
            ptrace(PTRACE_CONT, process, 0, 0);
        } else {
            ptrace(PTRACE_CONT, process, 0, signal);
        }
    }
    fclose(out);
    return code;
}
