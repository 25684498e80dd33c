/* Counts into a file. With an argument it wakes itself from every stop: timers of its own send SIGCONT. There
 * are many, each for one time only, and all are set anew in every round: a stop takes a signal back that is on
 * its way, and with it the timer that sent it. */
#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { TIMERS = 40, APART = 500000 };

static void woken(int signal) { (void)signal; }

int main(int count, char **words) {
    (void)words;
    int file = open("count", O_RDWR | O_CREAT, 0644), timers = count > 1 ? TIMERS : 0;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGCONT};
    timer_t timer[TIMERS];
    unsigned long number = 0;
    signal(SIGCONT, woken);
    for (int i = 0; i < timers; i++)
        if (timer_create(CLOCK_MONOTONIC, &event, &timer[i])) return 1;
    for (;;) {
        for (int i = 0; i < timers; i++) {
            struct itimerspec once = {{0, 0}, {0, (long)(i + 1) * APART}};
            if (timer_settime(timer[i], 0, &once, 0)) return 1;
        }
        number++;
        if (pwrite(file, &number, sizeof number, 0) < 0) return 1;
        usleep(1000);
    }
}
