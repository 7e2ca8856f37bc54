//! Authenticated encryption of swapped records: AES-128-GCM, under a key that lives in RAM only.
//!
//! The key schedule lies in a page of its own that is locked in RAM, left out of core dumps and
//! zeroed when it goes. Forked children inherit it; nonces must be unique across all of them.

use crate::mem::{Mapping, PAGE_BYTES, advise};
use crate::sys::{self, Errno, syscall};
use core::sync::atomic::{AtomicBool, Ordering};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// Bytes of an authentication tag.
pub const TAG_BYTES: usize = 16;
/// An authentication tag or a checksum.
pub type Tag = [u8; TAG_BYTES];

const KEY_BYTES: usize = 16;
const NONCE_BYTES: usize = 12;
const _: () = assert!(size_of::<LessSafeKey>() <= PAGE_BYTES && align_of::<LessSafeKey>() <= PAGE_BYTES);

/// A key and the cipher that uses it.
#[derive(Debug)]
pub struct Cipher {
    page: Mapping,
    locked: AtomicBool,
}

impl Cipher {
    /// A new random key. Fails where there is no memory, or no randomness yet (early at boot).
    pub fn new() -> Result<Cipher, Errno> {
        let mut key = [0u8; KEY_BYTES];
        sys::random(&mut key)?;
        let cipher = Self::with_key(&key);
        wipe(key.as_mut_ptr() as usize, KEY_BYTES);
        cipher
    }

    fn with_key(key: &[u8; KEY_BYTES]) -> Result<Cipher, Errno> {
        let page = Mapping::anon(PAGE_BYTES)?;
        page.name(c"weir-key");
        // SAFETY: keeps the contents. EINVAL (a kernel without it) leaves the key in core dumps.
        let _ = unsafe { advise(page.base(), page.len(), libc::MADV_DONTDUMP) };
        let unbound = UnboundKey::new(&AES_128_GCM, key).map_err(|_| Errno::EINVAL)?;
        // SAFETY: the fresh page is large and aligned enough (asserted above).
        unsafe { (page.base() as *mut LessSafeKey).write(LessSafeKey::new(unbound)) };
        let cipher = Cipher { page, locked: AtomicBool::new(false) };
        cipher.lock();
        Ok(cipher)
    }

    /// Locks the key's page in RAM, again in a forked child: locks are not inherited.
    pub fn lock(&self) {
        // SAFETY: locks our own page; no pointer is kept.
        let locked = unsafe { syscall(libc::SYS_mlock, [self.page.base(), self.page.len(), 0, 0, 0, 0]) };
        self.locked.store(locked.is_ok(), Ordering::Relaxed);
    }

    /// Whether the key's page is locked in RAM; RLIMIT_MEMLOCK may forbid it, and the kernel's own swap
    /// may then take it.
    pub fn locked(&self) -> bool {
        self.locked.load(Ordering::Relaxed)
    }

    fn key(&self) -> &LessSafeKey {
        // SAFETY: written in `with_key`, never changed, and there as long as `self`.
        unsafe { &*(self.page.base() as *const LessSafeKey) }
    }

    /// Encrypts `text` in place and returns the tag over it and `ad`. A `nonce` must never come twice under
    /// one key.
    pub fn seal(&self, nonce: u64, ad: &[u8], text: &mut [u8]) -> Tag {
        let sealed = self.key().seal_in_place_separate_tag(nonce_of(nonce), Aad::from(ad), text);
        let mut tag = [0; TAG_BYTES];
        match sealed {
            Ok(sealed) => tag.copy_from_slice(sealed.as_ref()),
            Err(_) => unreachable!("a record is far below the cipher's longest text"),
        }
        tag
    }

    /// Decrypts in place what `seal` made, with the tag behind it. `false`: tag, `ad` or text is not what was
    /// sealed, and the bytes are of no use.
    #[must_use]
    pub fn open(&self, nonce: u64, ad: &[u8], text_and_tag: &mut [u8]) -> bool {
        self.key().open_in_place(nonce_of(nonce), Aad::from(ad), text_and_tag).is_ok()
    }
}

impl Drop for Cipher {
    fn drop(&mut self) {
        wipe(self.page.base(), self.page.len());
    }
}

fn nonce_of(nonce: u64) -> Nonce {
    let mut bytes = [0; NONCE_BYTES];
    bytes[..8].copy_from_slice(&nonce.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Zeroes bytes in a way that the compiler must not leave out.
fn wipe(base: usize, len: usize) {
    for at in base..base + len {
        // SAFETY: callers pass memory of their own that nobody reads any more.
        unsafe { (at as *mut u8).write_volatile(0) };
    }
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// A checksum (XXH3, 128 bits) under a seed: finds damage, not attackers.
pub fn checksum(bytes: &[u8], seed: u64) -> Tag {
    xxhash_rust::xxh3::xxh3_128_with_seed(bytes, seed).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_bytes_open_with_the_same_nonce_and_data_only() {
        let cipher = Cipher::new().unwrap();
        let mut sealed = *b"sixteen bytes!!!................";
        let tag = cipher.seal(7, b"page 9", &mut sealed[..16]);
        sealed[16..].copy_from_slice(&tag);
        assert_ne!(&sealed[..16], b"sixteen bytes!!!");
        for (nonce, ad, flip, good) in [
            (7, b"page 9", None, true),
            (8, b"page 9", None, false),
            (7, b"page 8", None, false),
            (7, b"page 9", Some(3), false),
            (7, b"page 9", Some(20), false),
        ] {
            let mut bytes = sealed;
            if let Some(at) = flip {
                bytes[at] ^= 1u8;
            }
            assert_eq!(cipher.open(nonce, ad, &mut bytes), good, "{nonce} {flip:?}");
            assert_eq!(&bytes[..16] == b"sixteen bytes!!!", good);
        }
    }

    #[test]
    fn the_published_answer_comes_out() {
        // McGrew and Viega, test case 2: zero key, zero nonce, one zero block.
        let cipher = Cipher::with_key(&[0; 16]).unwrap();
        let mut text = [0u8; 16];
        let tag = cipher.seal(0, b"", &mut text);
        assert_eq!(u128::from_be_bytes(text), 0x0388_dace_60b6_a392_f328_c2b9_71b2_fe78);
        assert_eq!(u128::from_be_bytes(tag), 0xab6e_47d4_2cec_13bd_f53a_67b2_1257_bddf);
    }

    #[test]
    fn two_keys_are_not_the_same() {
        let (a, b) = (Cipher::new().unwrap(), Cipher::new().unwrap());
        let (mut x, mut y) = ([0; 32], [0; 32]);
        assert_ne!(a.seal(1, b"", &mut x), b.seal(1, b"", &mut y));
        assert_ne!(x, y);
    }

    #[test]
    fn the_checksum_depends_on_bytes_and_seed() {
        assert_eq!(checksum(b"abc", 1), checksum(b"abc", 1));
        assert_ne!(checksum(b"abc", 1), checksum(b"abd", 1));
        assert_ne!(checksum(b"abc", 1), checksum(b"abc", 2));
    }
}
