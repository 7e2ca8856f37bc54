//! A vector of numbers in a pool.

use super::errors::AllocError;
use super::pool::Pool;
use super::region::Region;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use weir_os::mem::PAGE_BYTES;

/// Types that a [`WeirVec`] may hold: plain values without a pointer, a lifetime or something to drop, for
/// which bytes that are all zero are a value. Integers, floats and arrays of them are.
///
/// # Safety
/// - a value of the type whose bytes are all zero is valid.
/// - the type has no padding, and no byte of a value is ever uninitialized: [`WeirVec::region`] shows them
///   all.
/// - the type has at least one byte, and is aligned to a page at most.
#[expect(unsafe_code, reason = "the contract of types that may be born as zeros")]
pub unsafe trait Pod: Copy + Send + Sync + 'static {}

macro_rules! pod {
    ($($type:ty),*) => {$(
        #[expect(unsafe_code, reason = "numbers are plain values")]
        // SAFETY: every pattern of bits is a value, zeros included.
        unsafe impl Pod for $type {}
    )*};
}

pod!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64);

#[expect(unsafe_code, reason = "arrays of plain values are plain values")]
// SAFETY: an array of zeros is zeros. One without elements is refused when a vector of it is made.
unsafe impl<T: Pod, const N: usize> Pod for [T; N] {}

/// A growing array in a pool, which may be larger than the pool's budget. It grows without copying: its pages
/// move.
pub struct WeirVec<T: Pod> {
    /// None as long as there is no room for an element.
    region: Option<Region>,
    pool: Pool,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Pod> WeirVec<T> {
    const SIZE: usize = {
        assert!(size_of::<T>() > 0 && align_of::<T>() <= PAGE_BYTES);
        size_of::<T>()
    };

    /// One without elements, and without memory yet.
    pub fn new(pool: &Pool) -> WeirVec<T> {
        let _ = Self::SIZE;
        WeirVec { region: None, pool: pool.clone(), len: 0, of: PhantomData }
    }

    /// One of `len` zeros.
    ///
    /// # Errors
    /// As [`Pool::alloc`]; a length that overflows. No elements are not an error.
    pub fn zeroed(pool: &Pool, len: usize) -> Result<WeirVec<T>, AllocError> {
        let mut vec = WeirVec::new(pool);
        vec.reserve_to(len)?;
        vec.len = len;
        Ok(vec)
    }

    /// Elements that there is room for.
    pub fn capacity(&self) -> usize {
        self.region.as_ref().map_or(0, |region| region.len() / Self::SIZE)
    }

    /// Makes room for `capacity` elements in all, if there is less.
    ///
    /// # Errors
    /// As [`Pool::alloc`]; a number of elements that overflows; some of the vector's memory is pinned. The
    /// vector is as before then.
    pub fn reserve_to(&mut self, capacity: usize) -> Result<(), AllocError> {
        if capacity <= self.capacity() {
            return Ok(());
        }
        let bytes = capacity.checked_mul(Self::SIZE).ok_or(AllocError::Overflow)?;
        match &mut self.region {
            Some(region) => region.resize(bytes),
            None => {
                self.region = Some(self.pool.alloc(bytes)?);
                Ok(())
            }
        }
    }

    fn reserve_more(&mut self, more: usize) -> Result<(), AllocError> {
        let wanted = self.len.checked_add(more).ok_or(AllocError::Overflow)?;
        if wanted <= self.capacity() {
            return Ok(());
        }
        // Room for twice as many costs tables of 64 bytes for each 256 KiB until it is used. Where there is
        // none, what is wanted will do.
        let plenty = wanted.max(self.len.saturating_mul(2)).max(PAGE_BYTES.div_ceil(Self::SIZE));
        match self.reserve_to(plenty) {
            Err(AllocError::Pinned) => Err(AllocError::Pinned),
            Err(_) if plenty > wanted => self.reserve_to(wanted),
            done => done,
        }
    }

    /// Adds an element.
    ///
    /// # Errors
    /// As [`WeirVec::reserve_to`], where there is no room for it yet. The vector is as before then.
    pub fn push(&mut self, value: T) -> Result<(), AllocError> {
        self.reserve_more(1)?;
        self.len += 1;
        let last = self.len - 1;
        self[last] = value;
        Ok(())
    }

    /// Adds elements.
    ///
    /// # Errors
    /// As [`WeirVec::reserve_to`], where there is no room for them yet. The vector is as before then.
    pub fn extend_from_slice(&mut self, values: &[T]) -> Result<(), AllocError> {
        self.reserve_more(values.len())?;
        let before = self.len;
        self.len += values.len();
        self[before..].copy_from_slice(values);
        Ok(())
    }

    /// Forgets the elements from `len` on. Their room stays.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The memory under it, for advice and pins; none as long as there is no room for an element.
    pub fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }
}

#[expect(unsafe_code, reason = "the bytes of a region as elements")]
impl<T: Pod> Deref for WeirVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let Some(region) = &self.region else { return &[] };
        // SAFETY: `len` elements fit the region, which begins at a page, to which `T` is aligned at most
        // (`SIZE` asserts it). Its bytes are zeros or were written as elements, and both are values of `T`.
        unsafe { core::slice::from_raw_parts(region.as_ptr().cast(), self.len) }
    }
}

#[expect(unsafe_code, reason = "the bytes of a region as elements")]
impl<T: Pod> DerefMut for WeirVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let Some(region) = &mut self.region else { return &mut [] };
        // SAFETY: as above; the borrow is exclusive.
        unsafe { core::slice::from_raw_parts_mut(region.as_mut_ptr().cast(), self.len) }
    }
}

impl<T: Pod> fmt::Debug for WeirVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not its elements: there may be more of them than RAM.
        f.debug_struct("WeirVec").field("len", &self.len).field("capacity", &self.capacity()).finish()
    }
}
