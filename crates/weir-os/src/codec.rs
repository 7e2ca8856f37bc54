//! Page codecs: LZ4 through the C library with our own state (no malloc), byte shuffle for
//! typed data, the same-filled test, and the content hash.

pub mod zstd;

use crate::mem::PAGE_BYTES;
use core::ffi::{c_char, c_int, c_void};
use core::mem::MaybeUninit;

/// A page's bytes.
pub type PageBytes = [u8; PAGE_BYTES];

// Declared here because the binding crate leaves them out; the symbols are in its C library.
#[allow(clippy::duplicated_attributes)]
unsafe extern "C" {
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_cap: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_decompress_safe(src: *const c_char, dst: *mut c_char, src_len: c_int, dst_cap: c_int) -> c_int;
    fn LZ4_decompress_safe_partial(
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        wanted: c_int,
        dst_cap: c_int,
    ) -> c_int;
    fn LZ4_sizeofState() -> c_int;
}

// Keeps the C library linked: nothing else names the crate.
use lz4_sys as _;

/// Bytes of LZ4's working state (`LZ4_STREAM_MINSIZE` is 16416 for 64-bit builds; checked).
const LZ4_STATE_BYTES: usize = 16 * 1024 + 64;

/// Most bytes of a run of pages that is compressed as one.
pub const RUN_BYTES_MAX: usize = 16 * PAGE_BYTES;

/// Scratch memory of one compressing thread. Large (28 KiB): keep it in a mapping, not on a stack.
#[repr(C, align(64))]
pub struct Scratch {
    lz4: [u64; LZ4_STATE_BYTES / 8],
    shuffled: PageBytes,
}

impl Scratch {
    /// A scratch of zeros.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Scratch { lz4: [0; LZ4_STATE_BYTES / 8], shuffled: [0; PAGE_BYTES] }
    }
}

/// Whether the C library's state fits the scratch; asked once at engine start.
pub fn scratch_fits() -> bool {
    // SAFETY: no arguments.
    unsafe { LZ4_sizeofState() as usize <= LZ4_STATE_BYTES }
}

/// LZ4-compresses `src` into `dst`. `None` when it does not fit.
pub fn lz4_compress(scratch: &mut Scratch, src: &PageBytes, dst: &mut [u8]) -> Option<usize> {
    lz4_raw(&mut scratch.lz4, src, dst)
}

/// The same for a run of pages, [`RUN_BYTES_MAX`] at most: more is `None`.
pub fn lz4_compress_run(scratch: &mut Scratch, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    if src.len() > RUN_BYTES_MAX {
        return None;
    }
    lz4_raw(&mut scratch.lz4, src, dst)
}

fn lz4_raw(state: &mut [u64; LZ4_STATE_BYTES / 8], src: &[u8], dst: &mut [u8]) -> Option<usize> {
    // SAFETY: the state is large enough (`scratch_fits`), 8-byte aligned and exclusively ours;
    // source and destination are live slices whose lengths, a page's or a few pages', are passed along.
    let n = unsafe {
        LZ4_compress_fast_extState_fastReset(
            state.as_mut_ptr().cast(),
            src.as_ptr().cast(),
            dst.as_mut_ptr().cast(),
            src.len() as c_int,
            dst.len() as c_int,
            1,
        )
    };
    (n > 0).then_some(n as usize)
}

/// Shuffles `src` by bytes of 8-byte words, then LZ4-compresses it into `dst`.
pub fn shuffle_lz4_compress(scratch: &mut Scratch, src: &PageBytes, dst: &mut [u8]) -> Option<usize> {
    shuffle8(src, &mut scratch.shuffled);
    lz4_raw(&mut scratch.lz4, &scratch.shuffled, dst)
}

/// Room behind a page into which LZ4 may write. Near the end of its room it copies a match in steps of eight
/// bytes, each of which waits for the one before where the match repeats a few bytes: a page that ends in a
/// long run takes seven times as long then.
const SLACK_BYTES: usize = 128;

/// A page with that room.
type Roomy = MaybeUninit<[u8; PAGE_BYTES + SLACK_BYTES]>;

/// Expands an LZ4 block into exactly one page. `false` when the block is damaged.
#[must_use]
pub fn lz4_expand(src: &[u8], dst: &mut PageBytes) -> bool {
    lz4_lend(src, |page| dst.copy_from_slice(page)).is_some()
}

/// Expands an LZ4 block and lends the page. `None` when the block is damaged.
pub fn lz4_lend<R>(src: &[u8], f: impl FnOnce(&PageBytes) -> R) -> Option<R> {
    let mut roomy = Roomy::uninit();
    // SAFETY: the room is writable and as long as is said.
    let n = unsafe { lz4_expand_into(src, roomy.as_mut_ptr().cast(), PAGE_BYTES + SLACK_BYTES) };
    // SAFETY: a page's bytes have been written from the beginning on.
    (n == PAGE_BYTES as c_int).then(|| f(unsafe { &*roomy.as_ptr().cast::<PageBytes>() }))
}

/// Expands the beginning of an LZ4 block of a page, `len` bytes or more, and lends it. `None` when it is
/// damaged, as far as it was read, or shorter.
pub fn lz4_lend_start<R>(src: &[u8], len: usize, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
    let mut roomy = Roomy::uninit();
    let len = len.min(PAGE_BYTES);
    // Towards the end of what is wanted LZ4 copies byte by byte.
    let wanted = (len + SLACK_BYTES).min(PAGE_BYTES);
    // SAFETY: a live slice with its length, and room as long as is said, which is more than is wanted. As the
    // safe variant.
    let n = unsafe {
        LZ4_decompress_safe_partial(
            src.as_ptr().cast(),
            roomy.as_mut_ptr().cast(),
            src.len() as c_int,
            wanted as c_int,
            (PAGE_BYTES + SLACK_BYTES) as c_int,
        )
    };
    // SAFETY: so many bytes have been written from the beginning on.
    (n >= len as c_int).then(|| f(unsafe { core::slice::from_raw_parts(roomy.as_ptr().cast(), len) }))
}

/// Expands an LZ4 block into exactly as many bytes as there is room for. `false` when it is damaged, or not
/// so long.
#[must_use]
pub fn lz4_expand_run(src: &[u8], dst: &mut [u8]) -> bool {
    // SAFETY: a live slice with its length.
    dst.len() <= RUN_BYTES_MAX
        && unsafe { lz4_expand_into(src, dst.as_mut_ptr().cast(), dst.len()) } == dst.len() as c_int
}

/// Bytes that were written from `dst` on, less than 0 when the block is damaged or longer than `room`.
///
/// # Safety
/// - `room` bytes from `dst` on can be written, at most [`RUN_BYTES_MAX`].
unsafe fn lz4_expand_into(src: &[u8], dst: *mut c_char, room: usize) -> c_int {
    // SAFETY: a live slice, and the caller's room, with their lengths. The safe variant never reads what it
    // has not written, and neither reads nor writes outside.
    unsafe { LZ4_decompress_safe(src.as_ptr().cast(), dst, src.len() as c_int, room as c_int) }
}

/// Expands what [`shuffle_lz4_compress`] made.
#[must_use]
pub fn shuffle_lz4_expand(src: &[u8], dst: &mut PageBytes) -> bool {
    lz4_lend(src, |shuffled| unshuffle8(shuffled, dst)).is_some()
}

const LANES: usize = PAGE_BYTES / 8;

/// Byte-plane transpose: byte k of every 8-byte word goes to plane k. In steps of eight words,
/// as an 8x8 byte matrix transpose in registers.
fn shuffle8(src: &PageBytes, dst: &mut PageBytes) {
    for g in 0..LANES / 8 {
        let mut m = [0u64; 8];
        for (k, w) in m.iter_mut().enumerate() {
            *w = u64::from_le_bytes(src[(g * 8 + k) * 8..][..8].try_into().unwrap_or([0; 8]));
        }
        transpose8(&mut m);
        for (plane, w) in m.iter().enumerate() {
            dst[plane * LANES + g * 8..][..8].copy_from_slice(&w.to_le_bytes());
        }
    }
}

fn unshuffle8(src: &PageBytes, dst: &mut PageBytes) {
    for g in 0..LANES / 8 {
        let mut m = [0u64; 8];
        for (plane, w) in m.iter_mut().enumerate() {
            *w = u64::from_le_bytes(src[plane * LANES + g * 8..][..8].try_into().unwrap_or([0; 8]));
        }
        transpose8(&mut m);
        for (k, w) in m.iter().enumerate() {
            dst[(g * 8 + k) * 8..][..8].copy_from_slice(&w.to_le_bytes());
        }
    }
}

/// Transposes an 8x8 matrix of bytes held in eight words (rows, little endian): the recursive
/// block swap of Hacker's Delight 7-3, on bytes across words.
#[inline]
fn transpose8(m: &mut [u64; 8]) {
    const HALVES: [(usize, u32, u64); 3] =
        [(4, 32, 0x0000_0000_ffff_ffff), (2, 16, 0x0000_ffff_0000_ffff), (1, 8, 0x00ff_00ff_00ff_00ff)];
    for (dist, shift, low) in HALVES {
        for i in 0..8 {
            if i & dist == 0 {
                let (a, b) = (m[i], m[i + dist]);
                m[i] = (a & low) | ((b & low) << shift);
                m[i + dist] = ((a >> shift) & low) | (b & !low);
            }
        }
    }
}

/// The repeated 8-byte word if the whole page consists of it.
#[inline]
pub fn same_filled(page: &PageBytes) -> Option<u64> {
    let first = word(page, 0);
    // The last word first: most pages that differ, differ there or early.
    if word(page, LANES - 1) != first {
        return None;
    }
    page.chunks_exact(64)
        .all(|c| c.chunks_exact(8).fold(0, |acc, w| acc | (read(w) ^ first)) == 0)
        .then_some(first)
}

/// Fills a page with a repeated 8-byte word.
#[inline]
pub fn fill_same(page: &mut PageBytes, value: u64) {
    if value == 0 {
        page.fill(0);
        return;
    }
    for c in page.chunks_exact_mut(8) {
        c.copy_from_slice(&value.to_le_bytes());
    }
}

/// Whether the page looks like an array of 8-byte numbers: in a sample of words, a high byte
/// plane (bytes 5..8) is nearly constant while low bytes vary. Then shuffling pays; on text it loses.
#[inline]
pub fn looks_typed(page: &PageBytes) -> bool {
    const SAMPLES: usize = 32;
    let first = word(page, 0);
    let (mut high_same, mut low_differs) = (0, 0);
    for k in 0..SAMPLES {
        // Spread over the page, with odd spacing so that records of a few words do not alias.
        let w = word(page, (k * 15 + 1) % LANES);
        high_same += usize::from((w ^ first) >> 40 == 0);
        low_differs += usize::from((w ^ first) & 0xffff != 0);
    }
    high_same >= SAMPLES * 7 / 8 && low_differs >= SAMPLES / 2
}

#[inline]
fn word(page: &PageBytes, i: usize) -> u64 {
    read(&page[i * 8..i * 8 + 8])
}

#[inline]
fn read(b: &[u8]) -> u64 {
    u64::from_le_bytes(b.try_into().unwrap_or([0; 8]))
}

/// Content hash (XXH3, 64 bits) under a per-process seed, so that nobody can prepare collisions.
#[inline]
pub fn hash_page(page: &PageBytes, seed: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(page, seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(f: impl Fn(usize) -> u8) -> Box<PageBytes> {
        let mut p = Box::new([0; PAGE_BYTES]);
        for (i, b) in p.iter_mut().enumerate() {
            *b = f(i);
        }
        p
    }

    fn random_byte(i: usize) -> u8 {
        ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
            >> 33) as u8
    }

    #[test]
    fn shuffling_puts_byte_k_of_every_word_in_plane_k_and_back() {
        let src = page(|i| (i % 8 * 16 + i / 8 % 16) as u8);
        let (mut mid, mut back) = (Box::new([0; PAGE_BYTES]), Box::new([0; PAGE_BYTES]));
        shuffle8(&src, &mut mid);
        for k in 0..8 {
            for w in 0..LANES {
                assert_eq!(mid[k * LANES + w], src[w * 8 + k]);
            }
        }
        unshuffle8(&mid, &mut back);
        assert_eq!(back, src);
    }

    #[test]
    fn the_beginning_of_a_page_is_that_of_the_whole_wherever_it_ends() {
        let mut s = Box::new(Scratch::new());
        for src in [
            page(|i| if i < 1600 { random_byte(i) } else { 7 }),
            page(|i| if i % 64 < 20 { random_byte(i) } else { (i / 512) as u8 }),
            page(|i| (i % 3) as u8),
        ] {
            let mut buf = [0_u8; 2 * PAGE_BYTES];
            let n = lz4_compress(&mut s, &src, &mut buf).unwrap();
            for len in (1..PAGE_BYTES).step_by(37).chain([PAGE_BYTES - 1, PAGE_BYTES]) {
                assert!(lz4_lend_start(&buf[..n], len, |start| *start == src[..len]).unwrap(), "{len} bytes");
            }
            assert_eq!(lz4_lend_start(&buf[..n / 2], PAGE_BYTES, |_| ()), None, "half of a record");
            buf[..n].fill(0xff);
            assert_eq!(lz4_lend_start(&buf[..n], PAGE_BYTES, |_| ()), None, "no record");
        }
    }

    #[test]
    fn both_codecs_give_every_page_back() {
        assert!(scratch_fits());
        let mut s = Box::new(Scratch::new());
        let long_run_at_the_end = page(|i| if i < 1600 { random_byte(i) } else { 7 });
        for src in [
            page(|i| (i / 64) as u8),
            page(|i| if i % 8 < 3 { random_byte(i) } else { 0 }),
            long_run_at_the_end,
        ] {
            let (mut buf, mut back) = ([0u8; PAGE_BYTES], Box::new([0; PAGE_BYTES]));
            let n = lz4_compress(&mut s, &src, &mut buf).unwrap();
            assert!(lz4_expand(&buf[..n], &mut back));
            assert_eq!(back, src);
            let n = shuffle_lz4_compress(&mut s, &src, &mut buf).unwrap();
            assert!(shuffle_lz4_expand(&buf[..n], &mut back));
            assert_eq!(back, src);
        }
    }

    #[test]
    fn a_block_longer_than_a_page_is_refused_by_little_or_much() {
        let mut s = Box::new(Scratch::new());
        for more in [1, SLACK_BYTES, SLACK_BYTES + 1, PAGE_BYTES] {
            let (long, mut buf) = (vec![5u8; PAGE_BYTES + more], vec![0u8; PAGE_BYTES]);
            let n = lz4_compress_run(&mut s, &long, &mut buf).unwrap();
            assert!(!lz4_expand(&buf[..n], &mut Box::new([0; PAGE_BYTES])), "{more} bytes more");
            let short = lz4_compress_run(&mut s, &long[..PAGE_BYTES - more.min(99)], &mut buf).unwrap();
            assert!(!lz4_expand(&buf[..short], &mut Box::new([0; PAGE_BYTES])), "{more} bytes less");
        }
    }

    #[test]
    fn a_run_of_pages_is_compressed_as_one_and_only_comes_back_whole() {
        let mut s = Box::new(Scratch::new());
        let one = page(random_byte);
        let run = one.repeat(16);
        let mut buf = vec![0u8; RUN_BYTES_MAX];
        let n = lz4_compress_run(&mut s, &run, &mut buf).unwrap();
        assert!(n < 2 * PAGE_BYTES, "sixteen times the same page, which does not compress alone: {n}");
        let mut back = vec![0u8; run.len()];
        assert!(lz4_expand_run(&buf[..n], &mut back) && back == run);
        assert!(!lz4_expand_run(&buf[..n], &mut back[1..]));
        assert_eq!(lz4_compress_run(&mut s, &vec![0; RUN_BYTES_MAX + 1], &mut buf), None);
    }

    #[test]
    fn incompressible_pages_and_damaged_blocks_are_refused() {
        let mut s = Box::new(Scratch::new());
        let src = page(random_byte);
        assert_eq!(lz4_compress(&mut s, &src, &mut [0u8; 3072]), None);
        assert!(!lz4_expand(&[0xff; 40], &mut Box::new([0; PAGE_BYTES])));
    }

    #[test]
    fn same_filled_pages_are_found_and_others_are_not() {
        let mut p = page(|_| 0);
        assert_eq!(same_filled(&p), Some(0));
        fill_same(&mut p, 0x0102_0304_0506_0708);
        assert_eq!(same_filled(&p), Some(0x0102_0304_0506_0708));
        p[2048] ^= 1;
        assert_eq!(same_filled(&p), None);
    }

    #[test]
    fn the_probe_takes_integers_for_typed_and_text_not() {
        let ints = page(|i| if i % 8 < 3 { random_byte(i) } else { 0 });
        assert!(looks_typed(&ints));
        let text = page(|i| b"the quick brown fox jumps over the lazy dog "[(i * 7 + i / 44) % 44]);
        assert!(!looks_typed(&text));
        assert!(!looks_typed(&page(random_byte)));
    }

    #[test]
    fn the_hash_depends_on_contents_and_seed() {
        let (a, mut b) = (page(|i| i as u8), page(|i| i as u8));
        assert_eq!(hash_page(&a, 1), hash_page(&b, 1));
        assert_ne!(hash_page(&a, 1), hash_page(&a, 2));
        b[4095] ^= 0x80;
        assert_ne!(hash_page(&a, 1), hash_page(&b, 1));
    }
}
