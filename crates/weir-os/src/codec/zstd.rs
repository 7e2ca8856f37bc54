//! zstd through the C library, in memory of our own: nothing is allocated, and nothing touched before it is
//! used.
//!
//! A context is some 100 KiB, too much for every thread that may fault. There are a few for the process, and
//! a thread that finds them all in use waits for one, for microseconds.

use super::PageBytes;
use crate::mem::PAGE_BYTES;
use crate::thread;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Pages are compressed at this level: higher ones save next to nothing on 4 KiB.
const LEVEL: c_int = 1;
/// Contexts for each direction.
const CONTEXTS: usize = 4;
/// Bytes of a compressing context, and of an expanding one, for pages; checked.
const COMPRESS_BYTES: usize = 80 << 10;
const EXPAND_BYTES: usize = 96 << 10;
/// Looks at all of them before waiting for one, and how long until all are looked at again, ns.
const SPINS: u32 = 50;
const WAIT_NS: u64 = 50_000;
/// RAM that the contexts take once all have been used, in bytes.
pub const CONTEXTS_BYTES: u64 = (CONTEXTS * (COMPRESS_BYTES + EXPAND_BYTES)) as u64;

#[repr(C)]
#[derive(Clone, Copy)]
struct CompressionParameters([c_uint; 7]);

// Declared here because these are not among the functions that the binding crate has; the symbols are in its
// C library.
unsafe extern "C" {
    fn ZSTD_initStaticCCtx(workspace: *mut c_void, bytes: usize) -> *mut c_void;
    fn ZSTD_initStaticDCtx(workspace: *mut c_void, bytes: usize) -> *mut c_void;
    fn ZSTD_getCParams(level: c_int, src_len: u64, dict_len: usize) -> CompressionParameters;
    fn ZSTD_estimateCCtxSize_usingCParams(params: CompressionParameters) -> usize;
    fn ZSTD_estimateDCtxSize() -> usize;
    fn ZSTD_compressCCtx(
        context: *mut c_void,
        dst: *mut c_void,
        dst_cap: usize,
        src: *const c_void,
        src_len: usize,
        level: c_int,
    ) -> usize;
    fn ZSTD_decompressDCtx(
        context: *mut c_void,
        dst: *mut c_void,
        dst_cap: usize,
        src: *const c_void,
        src_len: usize,
    ) -> usize;
    fn ZSTD_isError(code: usize) -> c_uint;
}

// Keeps the C library linked: nothing else names the crate.
use zstd_sys as _;

// The C library calls these where somebody defines them, a program's own tracing for example. No code of
// others may run in a fault.
macro_rules! no_trace {
    ($($return_nothing:literal),*; $($name:literal),*) => {
        core::arch::global_asm!(
            ".pushsection .text.weir_no_trace,\"ax\",@progbits",
            $(concat!(".hidden ", $name), concat!(".globl ", $name), concat!(".type ", $name, ",@function"), concat!($name, ":"),)*
            $($return_nothing,)*
            ".popsection",
        );
    };
}
#[cfg(target_arch = "x86_64")]
no_trace!("xor eax, eax", "ret";
    "ZSTD_trace_compress_begin", "ZSTD_trace_compress_end", "ZSTD_trace_decompress_begin", "ZSTD_trace_decompress_end");
#[cfg(target_arch = "aarch64")]
no_trace!("mov x0, #0", "ret";
    "ZSTD_trace_compress_begin", "ZSTD_trace_compress_end", "ZSTD_trace_decompress_begin", "ZSTD_trace_decompress_end");

#[repr(C, align(64))]
struct Workspace<const N: usize>(UnsafeCell<[u8; N]>);

/// A context and its lock: 0 free, 1 held, 2 held and somebody waits.
struct Context<const N: usize> {
    lock: AtomicU32,
    /// Where in the workspace the context is, once it has been made. Under the lock.
    made: AtomicPtr<c_void>,
    workspace: Workspace<N>,
}

// SAFETY: the workspace is touched under the lock only.
unsafe impl<const N: usize> Sync for Context<N> {}

impl<const N: usize> Context<N> {
    const fn new() -> Context<N> {
        Context {
            lock: AtomicU32::new(0),
            made: AtomicPtr::new(null_mut()),
            workspace: Workspace(UnsafeCell::new([0; N])),
        }
    }

    fn try_lock(&self) -> bool {
        self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// One of the contexts, whichever is free first: its holder may have lost his processor, while the
    /// others' are at work.
    fn take(all: &[Context<N>; CONTEXTS]) -> &Context<N> {
        loop {
            for _ in 0..SPINS {
                if let Some(free) = all.iter().find(|context| context.try_lock()) {
                    return free;
                }
                core::hint::spin_loop();
            }
            let one = &all[(thread::id() >> 12) % CONTEXTS];
            if one.lock.swap(2, Ordering::Acquire) == 0 {
                return one;
            }
            let _ = thread::futex_wait(&one.lock, 2, Some(WAIT_NS));
        }
    }

    fn unlock(&self) {
        if self.lock.swap(0, Ordering::Release) == 2 {
            thread::futex_wake(&self.lock, 1);
        }
    }

    /// Runs `f` with one of the contexts, made by `make` at its first use. `None`: it cannot be made.
    fn with<R>(
        all: &[Context<N>; CONTEXTS],
        make: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
        f: impl FnOnce(*mut c_void) -> R,
    ) -> Option<R> {
        let context = Context::take(all);
        let mut made = context.made.load(Ordering::Relaxed);
        if made.is_null() {
            // SAFETY: under the lock the workspace is ours; it is aligned, and as long as is said.
            made = unsafe { make(context.workspace.0.get().cast(), N) };
            context.made.store(made, Ordering::Relaxed);
        }
        let result = (!made.is_null()).then(|| f(made));
        context.unlock();
        result
    }
}

static COMPRESSING: [Context<COMPRESS_BYTES>; CONTEXTS] = [const { Context::new() }; CONTEXTS];
static EXPANDING: [Context<EXPAND_BYTES>; CONTEXTS] = [const { Context::new() }; CONTEXTS];

/// Whether the C library's contexts fit in the memory that is set aside for them.
pub fn contexts_fit() -> bool {
    // SAFETY: plain arguments.
    unsafe {
        let params = ZSTD_getCParams(LEVEL, PAGE_BYTES as u64, 0);
        ZSTD_estimateCCtxSize_usingCParams(params) <= COMPRESS_BYTES
            && ZSTD_estimateDCtxSize() <= EXPAND_BYTES
    }
}

/// zstd-compresses `src` into `dst`. `None` when it does not fit.
pub fn compress(src: &PageBytes, dst: &mut [u8]) -> Option<usize> {
    let n = Context::with(&COMPRESSING, ZSTD_initStaticCCtx, |context| {
        // SAFETY: a context that is ours; live slices with their lengths.
        let n = unsafe {
            ZSTD_compressCCtx(
                context,
                dst.as_mut_ptr().cast(),
                dst.len(),
                src.as_ptr().cast(),
                PAGE_BYTES,
                LEVEL,
            )
        };
        // SAFETY: a plain argument.
        (unsafe { ZSTD_isError(n) } == 0).then_some(n)
    });
    n.flatten()
}

/// Expands what [`compress`] made into exactly one page. `false` when it is damaged.
#[must_use]
pub fn expand(src: &[u8], dst: &mut PageBytes) -> bool {
    let n = Context::with(&EXPANDING, ZSTD_initStaticDCtx, |context| {
        // SAFETY: a context that is ours; live slices with their lengths. Damaged input is an error, and
        // nothing is written outside.
        unsafe {
            ZSTD_decompressDCtx(context, dst.as_mut_ptr().cast(), PAGE_BYTES, src.as_ptr().cast(), src.len())
        }
    });
    n == Some(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages() -> [PageBytes; 3] {
        let random = |i: usize| ((i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8;
        [
            core::array::from_fn(|i| (i / 16 % 200) as u8),
            core::array::from_fn(|i| if i % 64 < 20 { random(i) } else { (i / 512) as u8 }),
            core::array::from_fn(|i| if i % 8 < 2 { random(i) } else { 0 }),
        ]
    }

    #[test]
    fn pages_come_back_whichever_threads_made_them_and_however_many_wait() {
        assert!(contexts_fit());
        std::thread::scope(|scope| {
            for _ in 0..4 * CONTEXTS {
                scope.spawn(|| {
                    for page in pages().iter().cycle().take(60) {
                        let (mut out, mut back) = ([0; 3072], [0; PAGE_BYTES]);
                        let n = compress(page, &mut out).unwrap();
                        assert!(expand(&out[..n], &mut back) && back == *page);
                    }
                });
            }
        });
    }

    #[test]
    fn what_does_not_fit_is_not_compressed_and_what_is_damaged_or_no_page_is_refused() {
        let mut seed = 1_u64;
        let random: PageBytes = core::array::from_fn(|_| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (seed >> 56) as u8
        });
        assert_eq!(compress(&random, &mut [0; 3072]), None);
        let (mut out, mut back) = ([0; 3072], [0; PAGE_BYTES]);
        let n = compress(&pages()[1], &mut out).unwrap();
        assert!(
            !expand(&out[..n / 2], &mut back) && !expand(&[], &mut back) && !expand(&[0xff; 40], &mut back)
        );
        let mut ended = 0;
        for i in 0..n {
            let mut damaged = out;
            damaged[i] ^= 0x55;
            ended += u32::from(!expand(&damaged[..n], &mut back));
        }
        assert!(ended > 0, "and none of them wrote outside or went on for ever");
        // Nor is a frame of another length, made by the library's own compressor.
        for len in [PAGE_BYTES - 1, PAGE_BYTES + 1, 4 * PAGE_BYTES] {
            let (short, mut out) = (vec![7_u8; len], [0; 3072]);
            let n = Context::with(&COMPRESSING, ZSTD_initStaticCCtx, |c| {
                // SAFETY: as in `compress`.
                unsafe {
                    ZSTD_compressCCtx(
                        c,
                        out.as_mut_ptr().cast(),
                        out.len(),
                        short.as_ptr().cast(),
                        len,
                        LEVEL,
                    )
                }
            });
            let n = n.filter(|n| *n < out.len());
            assert!(n.is_none_or(|n| !expand(&out[..n], &mut back)), "{len} bytes");
        }
    }
}
