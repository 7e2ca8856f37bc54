/* Libraries that are loaded while much memory is held: what the dynamic linker notes about them is a block of
 * malloc and gets evicted, and it is read when a thread starts, in a forked child, on the way out. */
#include "handlers.h"

#include <dlfcn.h>

enum { LIBRARIES = 20 };

static const char source[] =
    "#include <stdio.h>\n"
    "static __thread long own[600] = {5, 6, 7};\n"
    "static int loads;\n"
    "__attribute__((constructor)) static void load(void) { loads++; }\n"
    "long library_value(int i) { return own[i]; }\n"
    "void library_set(int i, long value) { own[i] = value; }\n"
    "int library_loads(void) { return loads; }\n";

static char file[LIBRARIES][64];
static void *handle[LIBRARIES];

static void compile_libraries(void) {
    int out = open("library.c", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(out >= 0, "library.c");
    write_all(out, source, sizeof source - 1);
    CHECK(close(out) == 0 && system("${CC:-cc} -shared -fPIC -O1 -o library.so library.c") == 0, "cc");
    for (int i = 0; i < LIBRARIES; i++) {
        char command[128];
        snprintf(file[i], sizeof file[i], "./library-%d.so", i);
        snprintf(command, sizeof command, "cp library.so ./library-%d.so", i);
        CHECK(system(command) == 0, "cp");
    }
}

static void *call_of(void *library, const char *name) {
    void *found = dlsym(library, name);
    CHECK(found, "dlsym(%s): %s", name, dlerror());
    return found;
}

static void use_library(int i, long seed) {
    long (*value)(int);
    void (*set)(int, long);
    *(void **)&value = call_of(handle[i], "library_value");
    *(void **)&set = call_of(handle[i], "library_set");
    CHECK(value(1) == 6 && value(599) == 0, "library %d: first values %ld %ld", i, value(1), value(599));
    set(1, seed);
    CHECK(value(1) == seed, "library %d: thread-local variable", i);
    set(1, 6);
}

static void use_all(long seed) {
    for (int i = 0; i < LIBRARIES; i++) use_library(i, seed + i);
}

static void libraries_are_loaded(void) {
    for (int i = 0; i < LIBRARIES; i++) {
        handle[i] = dlopen(file[i], RTLD_NOW | RTLD_LOCAL);
        CHECK(handle[i], "dlopen: %s", dlerror());
        if (i % 5 == 0) walk();
    }
    use_all(100);
    churn();
    use_all(200);
}

static void *use_in_a_thread(void *argument) {
    use_all((long)(intptr_t)argument);
    walk();
    use_all((long)(intptr_t)argument);
    return argument;
}

static void threads_get_their_variables(void) {
    for (int round = 0; round < 5; round++) {
        pthread_t threads[4];
        churn();
        for (intptr_t i = 0; i < 4; i++)
            CHECK(pthread_create(&threads[i], NULL, use_in_a_thread, (void *)(i * 1000)) == 0,
                "pthread_create");
        for (intptr_t i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0, "pthread_join");
    }
}

static void in_a_child(void) {
    pthread_t thread;
    walk();
    use_all(300);
    CHECK(pthread_create(&thread, NULL, use_in_a_thread, (void *)4000) == 0
        && pthread_join(thread, NULL) == 0, "thread");
    void *more = dlopen(file[0], RTLD_NOW);
    CHECK(more == handle[0] && dlclose(more) == 0, "dlopen in a child");
    check_filled(memory, BYTES, SEED, "in a child");
}

static void forked_children_work_after_everything_went_out(void) {
    for (int round = 0; round < 5; round++) {
        churn();
        CHECK(status_of_child(in_a_child) == 0, "child %d", round);
    }
    check_filled(memory, BYTES, SEED, "in the parent");
}

static void *fork_in_a_thread(void *argument) {
    churn();
    CHECK(status_of_child(in_a_child) == 0, "child");
    return argument;
}

static void children_of_threads_work_too(void) {
    pthread_t thread;
    for (int round = 0; round < 3; round++)
        CHECK(pthread_create(&thread, NULL, fork_in_a_thread, NULL) == 0 && pthread_join(thread, NULL) == 0,
            "thread");
}

static void libraries_are_unloaded(void) {
    for (int round = 0; round < 3; round++) {
        churn();
        for (int i = 0; i < LIBRARIES; i++) CHECK(dlclose(handle[i]) == 0, "dlclose: %s", dlerror());
        walk();
        for (int i = 0; i < LIBRARIES; i++)
            CHECK((handle[i] = dlopen(file[i], RTLD_LAZY)) != NULL, "dlopen: %s", dlerror());
        use_all(500);
    }
}

int main(void) {
    compile_libraries();
    make_memory();
    RUN(libraries_are_loaded);
    RUN(threads_get_their_variables);
    RUN(forked_children_work_after_everything_went_out);
    RUN(children_of_threads_work_too);
    RUN(libraries_are_unloaded);
    churn();
    return 0;
}
