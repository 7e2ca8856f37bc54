//! Size classes: for each number of objects that a 32 KiB span can hold, the largest size (a
//! multiple of 16 bytes) of which that many fit. So no span has a tail worth another object, and
//! rounding wastes about 2.5 % of a typical record.

use crate::limits::RECORD_BYTES_MAX;

/// Bytes in a span: 8 pages.
pub const SPAN_BYTES: usize = 32 * 1024;
/// Most objects in a span; the bitmap in a span's row has room for as many.
const OBJECTS_MAX: usize = 512;
/// Fewest objects: the largest class must take a record and its header.
const OBJECTS_MIN: usize = 10;

const fn size_for(objects: usize) -> usize {
    SPAN_BYTES / objects / 16 * 16
}

const fn count_classes() -> usize {
    let (mut n, mut count, mut last) = (OBJECTS_MIN, 0, 0);
    while n <= OBJECTS_MAX {
        if size_for(n) != last {
            last = size_for(n);
            count += 1;
        }
        n += 1;
    }
    count
}

/// Number of classes.
pub const CLASSES: usize = count_classes();

/// Sizes in descending order.
const SIZES: [usize; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let (mut n, mut count, mut last) = (OBJECTS_MIN, 0, 0);
    while n <= OBJECTS_MAX {
        if size_for(n) != last {
            last = size_for(n);
            sizes[count] = last;
            count += 1;
        }
        n += 1;
    }
    sizes
};

/// For each length in 16-byte units, the smallest class that takes it.
const BY_LEN: [u8; SIZES[0] / 16 + 1] = {
    let mut table = [0u8; SIZES[0] / 16 + 1];
    let mut units = 0;
    while units < table.len() {
        let mut class = CLASSES - 1;
        while SIZES[class] < units * 16 {
            class -= 1;
        }
        table[units] = class as u8;
        units += 1;
    }
    table
};

const _: () = {
    assert!(SIZES[0] >= RECORD_BYTES_MAX + 8);
    assert!(CLASSES <= 256);
};

/// The class for `len` bytes.
pub fn class_of(len: usize) -> usize {
    BY_LEN[len.div_ceil(16)] as usize
}

/// Bytes of an object of the class.
pub fn size_of_class(class: usize) -> usize {
    SIZES[class]
}

/// Objects in a span of the class.
pub fn objects(class: usize) -> usize {
    (SPAN_BYTES / SIZES[class]).min(OBJECTS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_gets_the_smallest_class_that_takes_it() {
        for len in 1..=RECORD_BYTES_MAX + 8 {
            let c = class_of(len);
            assert!(size_of_class(c) >= len);
            assert!(c + 1 == CLASSES || size_of_class(c + 1) < len.next_multiple_of(16));
        }
    }

    #[test]
    fn rounding_wastes_little() {
        let waste: f64 = (1024..RECORD_BYTES_MAX)
            .map(|len| (size_of_class(class_of(len + 8)) - len - 8) as f64 / len as f64)
            .sum::<f64>()
            / (RECORD_BYTES_MAX - 1024) as f64;
        assert!(waste < 0.04, "{waste}");
    }
}
