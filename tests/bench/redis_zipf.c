/* GETs of keys by Zipf's law: `redis_zipf SOCKET KEYS CONNECTIONS SECONDS EXPONENT`. With SECONDS 0 one GET
 * of each of KEYS keys in random order, which lie STRIDE apart: no two of their values on a page. Each
 * connection has one request under way; prints requests a second and percentiles of the time from request to
 * answer, in microseconds, as JSON. */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { VALUE_MAX = 4096, CONNECTIONS_MAX = 256, STRIDE = 8 };

struct connection {
    int socket;
    size_t have;
    double asked;
    char answer[VALUE_MAX];
};

static struct connection connections[CONNECTIONS_MAX];
static uint64_t keys, random_state = 0x9E3779B97F4A7C15u;
static double *sums;
static uint32_t *places;

static void fail(const char *what)
{
    fprintf(stderr, "redis_zipf: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t draw(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Ranks are spread over the keys at random, so that wanted keys lie among unwanted ones. */
static void prepare(double exponent)
{
    sums = malloc(keys * sizeof *sums);
    places = malloc(keys * sizeof *places);
    if (sums == NULL || places == NULL)
        fail("memory");
    double sum = 0;
    for (uint64_t rank = 0; rank < keys; rank++) {
        sums[rank] = sum += pow(rank + 1, -exponent);
        places[rank] = rank;
    }
    for (uint64_t rank = keys - 1; rank > 0; rank--) {
        uint64_t other = draw() % (rank + 1);
        uint32_t kept = places[rank];
        places[rank] = places[other];
        places[other] = kept;
    }
}

static uint64_t by_zipf(void)
{
    double wanted = (draw() >> 11) * 0x1p-53 * sums[keys - 1];
    uint64_t low = 0, high = keys - 1;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (sums[middle] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return places[low];
}

static void ask(struct connection *connection, uint64_t key)
{
    char name[32], command[96];
    int length = snprintf(name, sizeof name, "key:%llu", (unsigned long long)key);
    length = snprintf(command, sizeof command, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", length, name);
    connection->have = 0;
    connection->asked = now();
    if (write(connection->socket, command, length) != length)
        fail("write");
}

/* Whether the answer has arrived whole. A missing key is an error: all were loaded. */
static int answered(struct connection *connection)
{
    char *room = connection->answer + connection->have;
    ssize_t got = read(connection->socket, room, VALUE_MAX - connection->have);
    if (got <= 0)
        fail("read");
    connection->have += got;
    char *end = memchr(connection->answer, '\n', connection->have);
    if (end == NULL)
        return 0;
    if (connection->answer[0] != '$' || connection->answer[1] == '-') {
        fprintf(stderr, "redis_zipf: the server answers %.40s", connection->answer);
        exit(1);
    }
    size_t head = end + 1 - connection->answer;
    return connection->have == head + strtoul(connection->answer + 1, NULL, 10) + 2;
}

static int compare(const void *left, const void *right)
{
    float a = *(const float *)left, b = *(const float *)right;
    return (a > b) - (a < b);
}

static void report(float *times, size_t count, double seconds)
{
    qsort(times, count, sizeof *times, compare);
    printf("{\"requests\": %zu, \"per_s\": %.0f", count, count / seconds);
    static const double wanted[] = {0.5, 0.99, 0.999};
    static const char *const names[] = {"p50_us", "p99_us", "p999_us"};
    for (int at = 0; at < 3; at++)
        printf(", \"%s\": %.1f", names[at], times[(size_t)(wanted[at] * (count - 1))]);
    printf(", \"max_us\": %.1f}\n", times[count - 1]);
}

int main(int argc, char **argv)
{
    if (argc < 6)
        return 2;
    keys = strtoull(argv[2], NULL, 10);
    int count = atoi(argv[3]), epoll = epoll_create1(0);
    double seconds = atof(argv[4]);
    size_t room = 1 << 20, done = 0, asked = 0;
    float *times = malloc(room * sizeof *times);
    if (count < 1 || count > CONNECTIONS_MAX || keys == 0 || times == NULL)
        return 2;
    prepare(atof(argv[5]));
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", argv[1]);
    for (int at = 0; at < count; at++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[at]};
        connections[at].socket = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(connections[at].socket, (struct sockaddr *)&address, sizeof address) != 0)
            fail("connect");
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, connections[at].socket, &event) != 0)
            fail("epoll");
    }
    double began = now();
    for (int at = 0; at < count; at++)
        ask(&connections[at], seconds > 0 ? by_zipf() : STRIDE * places[asked++]);
    while (seconds > 0 ? now() - began < seconds : done < keys) {
        struct epoll_event events[CONNECTIONS_MAX];
        int ready = epoll_wait(epoll, events, CONNECTIONS_MAX, 60000);
        if (ready <= 0)
            fail("no answer for a minute");
        for (int at = 0; at < ready; at++) {
            struct connection *connection = events[at].data.ptr;
            if (!answered(connection))
                continue;
            if (done == room && (times = realloc(times, (room *= 2) * sizeof *times)) == NULL)
                fail("memory");
            times[done++] = (now() - connection->asked) * 1e6;
            if (seconds > 0 || asked < keys)
                ask(connection, seconds > 0 ? by_zipf() : STRIDE * places[asked++]);
        }
    }
    report(times, done, now() - began);
    return 0;
}
