/* The variadic members of the exec family, which Rust cannot define. The calls that they end in are
 * Weir's. */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

extern char **environ;

enum how { PLAIN, SEARCH, WITH_ENVIRONMENT };

/* Lists may be long: the array is on the stack, as libc's own is. */
static int run(enum how how, const char *path, const char *first, va_list rest) {
    va_list count;
    size_t n = 1;
    va_copy(count, rest);
    if (first)
        while (va_arg(count, char *)) n++;
    va_end(count);
    char *argv[n + 1];
    argv[0] = (char *)first;
    for (size_t i = 1; i <= n; i++) argv[i] = first ? va_arg(rest, char *) : NULL;
    char **environment = how == WITH_ENVIRONMENT ? va_arg(rest, char **) : environ;
    if (how == SEARCH) return execvpe(path, argv, environment);
    return execve(path, argv, environment);
}

#define VARIADIC(name, how)                                  \
    int name(const char *path, const char *first, ...) {     \
        va_list rest;                                        \
        va_start(rest, first);                               \
        int result = run(how, path, first, rest);            \
        va_end(rest);                                        \
        return result;                                       \
    }

VARIADIC(weir_execl, PLAIN)
VARIADIC(weir_execlp, SEARCH)
VARIADIC(weir_execle, WITH_ENVIRONMENT)
