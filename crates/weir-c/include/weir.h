/*
 * Weir: memory larger than RAM. A pool is a budget of RAM; memory from it may be larger than the budget.
 * What is not in use is compressed within the budget, and then goes to a swap file. docs/c.md is the guide.
 *
 * Every function that returns an int returns 0, or a negative errno value; weir_strerror says what it means
 * here. Every function may be called by several threads at once, also for one pool, unless its comment says
 * more. None may be called from a signal handler; memory may be accessed from one. No function keeps a
 * pointer that it was given, but for the pool and its memory. After a fork the pool stays with the parent:
 * in the child its memory is not mapped, and functions that need it say -ECHILD.
 */
#ifndef WEIR_H
#define WEIR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A pool. Made by weir_pool_new, owned by the caller, ended by weir_pool_free. */
typedef struct weir_pool weir_pool;

/* What a pool holds; bytes where nothing else is said. Later versions may add fields at the end. */
typedef struct weir_pool_stats {
    uint64_t memory;     /* the budget */
    uint64_t ram;        /* RAM that the pool holds, at most the budget */
    uint64_t data;       /* pages with contents, wherever they are */
    uint64_t compressed; /* of ram: what compressed pages take */
    uint64_t swapped;    /* what pages take in the swap file */
    uint64_t swap_free;  /* what is left there */
    uint64_t pinned;     /* pages that are pinned */
    uint64_t faults;     /* number of accesses that found no page so far */
    uint64_t waited_ns;  /* time in which faults were served so far, once something had left RAM */
    uint64_t pieces;     /* number of pieces of memory that have not been given back */
} weir_pool_stats;

/* How a range is going to be used, for weir_advise. */
enum {
    WEIR_NORMAL = 0,     /* as usual: the pool finds out */
    WEIR_SEQUENTIAL = 1, /* from one end to the other: more is fetched ahead */
    WEIR_RANDOM = 2,     /* at places that have nothing to do with each other: nothing is fetched ahead */
    WEIR_WILLNEED = 3,   /* soon: it is fetched now, as far as there is room */
    WEIR_COLD = 4,       /* not soon: it leaves first */
    WEIR_DISCARD = 5     /* its bytes become zeros, and take no room any more */
};

/*
 * Makes a pool and puts it into *pool. memory: RAM in all, such as "2GiB" or "50%"; at least 8 MiB; NULL:
 * half of the machine's. swap: a folder on a disk, "FOLDER:SIZE", a size, "none", or NULL: a file in
 * /var/tmp as large as fits. The texts are the caller's. -EINVAL: NULL, no text in UTF-8, or a text that is
 * no such value. -EPERM: userfaultfd is not permitted. -ENOSPC: the swap file cannot be had. -ENOMEM: no
 * address space or memory. -EAGAIN: no thread, or the process has 64 pools. -ENOSYS: the kernel is too old.
 * -EMFILE: no descriptor.
 */
int weir_pool_new(weir_pool **pool, const char *memory, const char *swap);

/*
 * The same with all settings: names and values in turn, and NULL at the end, such as {"memory", "2GiB",
 * "faults", "inline", NULL}. docs/rust.md lists them. Errors as weir_pool_new; -EINVAL: a setting that there
 * is not, or a name without a value.
 */
int weir_pool_new_with(weir_pool **pool, const char *const *settings);

/*
 * Ends a pool: its threads, its RAM and its swap file go. NULL is no pool, and fine. No other thread may
 * use the pool any more. -EBUSY: some of its memory has not been given back; the pool stays as it is.
 */
int weir_pool_free(weir_pool *pool);

/*
 * From now on the pool may have so many bytes of RAM, at most what it was made with. -EINVAL: less than 8
 * MiB, or more. -EBUSY: more than half of it would be pinned. -ENOSPC: what the pool holds would not fit.
 */
int weir_pool_set_memory(weir_pool *pool, uint64_t bytes);

/*
 * Puts len bytes of zeros into *memory, aligned to 256 KiB. They are the caller's until weir_free; len may
 * be larger than the budget. Each piece begins at a block of 256 KiB of addresses: small things are better
 * put together in one. -EINVAL: NULL, no bytes. -EOVERFLOW: more than addresses can tell apart. -ENOSPC:
 * the pool is full. -ENOMEM: no addresses of this length.
 */
int weir_alloc(weir_pool *pool, size_t len, void **memory);

/*
 * Gives memory from weir_alloc back, pins included. NULL is no memory, and fine. Nobody may use it any
 * more. -EINVAL: nothing of this pool begins there, for example because it was given back already; a debug
 * build of the library ends the program in that case.
 */
int weir_free(weir_pool *pool, void *memory);

/*
 * Memory from weir_alloc gets another length; its bytes stay, new ones are zeros, pages are not copied.
 * *memory may change. No other thread may use the memory meanwhile. Errors as weir_alloc, and -EBUSY: some
 * of it is pinned. All is as before then.
 */
int weir_resize(weir_pool *pool, void **memory, size_t len);

/*
 * Says how a range of the pool's memory is going to be used, by whole pages (WEIR_DISCARD: to the byte; no
 * other thread may use the range meanwhile). -EINVAL: no such advice, or a range that is not within one
 * piece. -EBUSY: pinned bytes are not discarded.
 */
int weir_advise(weir_pool *pool, void *memory, size_t len, int advice);

/*
 * Brings a range in and keeps it in RAM, by whole pages, until weir_unpin with the same range or weir_free.
 * Pins may overlap. *free, if not NULL, is how many bytes could be pinned, where the answer is -ENOBUFS:
 * half of the budget's pages can be. -EINVAL: a range that is not within one piece. -ENOSPC: the pool is
 * full. -EIO: a page of it is damaged. -EAGAIN: the kernel locks no more (RLIMIT_MEMLOCK).
 */
int weir_pin(weir_pool *pool, const void *memory, size_t len, uint64_t *free);

/* Ends one pin of this very range. -EINVAL: there is none. */
int weir_unpin(weir_pool *pool, const void *memory, size_t len);

/*
 * Writes what the pool holds to *stats, of which the caller's size is given: sizeof(weir_pool_stats).
 * Fields that this library does not know are 0. -EINVAL: NULL.
 */
int weir_stats(const weir_pool *pool, weir_pool_stats *stats, size_t size);

/*
 * For numpy (1.22 and newer): puts a PyDataMem_Handler into *handler. Arrays of more than `threshold` bytes
 * that numpy makes by it lie in the pool, and count among its pieces; smaller ones are malloc's. In a child
 * of a fork new arrays are malloc's, and the parent's are not there. The pool may be ended before the
 * handler: then larger arrays are refused. The caller's until weir_numpy_handler_free. -EINVAL: NULL.
 */
int weir_numpy_handler(weir_pool *pool, size_t threshold, void **handler);

/* Ends a handler that no array has any more. NULL is none, and fine. */
void weir_numpy_handler_free(void *handler);

/*
 * The same as a destructor for PyCapsule_New(handler, "mem_handler", weir_numpy_capsule_free). It also calls
 * Py_DecRef for the capsule's context. For Python alone.
 */
void weir_numpy_capsule_free(void *capsule);

/* What the answer of a function means, positive or negative; a text that is there for ever. */
const char *weir_strerror(int error);

/* The library's version, such as "0.1.0"; a text that is there for ever. */
const char *weir_version(void);

#ifdef __cplusplus
}
#endif

#endif
